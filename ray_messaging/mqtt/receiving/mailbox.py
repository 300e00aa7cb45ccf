"""Our own mailbox: what arrives in it, until it is handled."""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from ray_messaging.errors import Fenced, FrameError, MessagingError
from ray_messaging.mqtt.connection.packets import Arrival, as_reason
from ray_messaging.mqtt.connection.reconnecting import MqttLink
from ray_messaging.mqtt.receiving.arrivals import Arrivals, Frame, Taken
from ray_messaging.mqtt.receiving.foreign import Foreign
from ray_messaging.mqtt.receiving.subscription_topics import SubscriptionTopics
from ray_messaging.mqtt.receiving.unhandled import Kept
from ray_messaging.mqtt.wire.signals import Place, decode_data
from ray_messaging.mqtt.wire.topics import is_own
from ray_messaging.transports.base import Cursor
from ray_messaging.wire.frames import decode, encode

logger = logging.getLogger(__name__)

MARK = b"RM?"  # begins what we send through our own mailbox, to see when it comes
_HOLD_BYTES = 64 * 2**20  # behind gaps
_UNREAD_BYTES = 64 * 2**20  # above this we leave what comes in the socket


@dataclass(slots=True)
class Entry:
    """A frame that waits to be handled: a sender's (its first `row` rows are not in `frame`), or foreign clients'."""

    number: int
    frame: bytes
    sender: str = ""
    epoch: int = 0
    seq: int = 0
    row: int = 0
    done: int = 0  # rows of `frame` that are handled
    tokens: list[Kept] = field(default_factory=list)


class Mailbox:
    """Take what comes over the mailbox's own connection, in order, and keep it until it is handled.

    `answer` is called with what is to be told to senders, `marked` with marks of ours that have come, and `bury` with a
    payload that is no frame.
    """

    def __init__(
        self,
        exp_id: str,
        name: str,
        topic: str,
        *,
        epoch: int,
        frame_rows: int,
        wanted: SubscriptionTopics,
        places: dict[str, Place],
        answer: Callable[[Taken[Arrival], str], None],
        marked: Callable[[bytes], None],
        bury: Callable[[bytes, str], None],
    ) -> None:
        self.name = name
        self.epoch = epoch
        self.error: MessagingError | None = None
        self.arrivals: Arrivals[Arrival] = Arrivals(places, _HOLD_BYTES)
        self.foreign = Foreign(exp_id, name, epoch, frame_rows)
        self.wanted = wanted
        self.inherited = False  # the session was another reader's, who may have listened on more
        self.deaf = False
        self._topic = topic
        self._answer = answer
        self._marked = marked
        self._bury = bury
        self._entries: deque[Entry] = deque()
        self._next = 1
        self._read_to = 0  # the number of the last entry that was read
        self._unread_bytes = 0
        self._paused = False
        self._come = asyncio.Event()
        self._link: MqttLink | None = None
        self._tokens: list[Arrival | Kept] = []  # of what is handled, and not acknowledged yet

    def attach(self, link: MqttLink) -> None:
        """Take the connection that `arrived` is called by."""
        self._link = link

    def stop(self, error: MessagingError) -> None:
        """Stop for good; whoever reads gets the error."""
        self.error = self.error or error
        self._come.set()

    def begin_anew(self) -> None:
        """Take note that the broker has lost our session: nothing of it comes again."""
        self.inherited = False
        self.foreign.begin_anew()

    # -- what arrives ---------------------------------------------------------------------------------------------

    def arrived(self, arrival: Arrival) -> None:
        """Take a publication; one that cannot be taken becomes a dead letter."""
        try:
            self._take(arrival)
        except Exception as error:  # it would end each reader after us, too, as it came again
            foreseen = isinstance(error, FrameError)
            level = logging.WARNING if foreseen else logging.ERROR
            logger.log(level, "mailbox %s: a dead letter: %s", self.name, as_reason(error), exc_info=not foreseen)
            self._bury(arrival.payload, str(error) if foreseen else f"it cannot be taken: {error!r}")
            arrival.acknowledge()

    def _take(self, arrival: Arrival) -> None:
        if arrival.topic == self._topic:
            self._take_frame(arrival)
        elif is_own(arrival.topic):
            arrival.acknowledge()  # a user's # matches all that we say among ourselves, too
        elif not self.deaf:  # else it waits for our successor
            self._take_foreign(arrival)

    def _take_frame(self, arrival: Arrival) -> None:
        if arrival.payload.startswith(MARK):
            arrival.acknowledge()
            self._marked(arrival.payload)
            return
        data = decode_data(arrival.payload)
        self.follow(self.arrivals.take(data, arrival), data.sender)

    def follow(self, taken: Taken[Arrival], sender: str) -> None:
        """Do what an arrival of a sender's frame asks for."""
        if taken.frames:
            self._pour()
        for frame in taken.frames:
            self._enter(self._resumed(frame))
        for token in taken.acknowledge:
            token.acknowledge()
        if taken.resend is not None or taken.held is not None or taken.confirm:
            self._answer(taken, sender)

    def _resumed(self, frame: Frame) -> Entry:
        """Cut off what the reader before us has handled of a frame."""
        entry = Entry(0, frame.frame, frame.sender, frame.epoch, frame.seq, frame.row)
        if frame.row:
            try:
                batch = decode(frame.frame)
            except FrameError:  # the reader says so, and buries it
                entry.row = 0
            else:
                entry.row = min(frame.row, len(batch))
                entry.frame = encode(batch.take(np.arange(entry.row, len(batch))))
        return entry

    def _take_foreign(self, arrival: Arrival) -> None:
        told = self.foreign.told(arrival)
        mirrored = told is not None and told.mirror
        if mirrored or (self.inherited and not self.wanted.has(arrival.topic)):
            arrival.acknowledge()
        elif told is not None:
            kept = self.foreign.keep(told, arrival)
            if kept is not None:
                self._pour()
                self._enter(Entry(0, self.foreign.frame(told, arrival), tokens=[kept]))
        else:
            self.foreign.gather(arrival)
            if self.foreign.full:
                self._pour()
            self._come.set()

    def _pour(self) -> None:
        poured = self.foreign.pour()
        if poured is not None:
            self._enter(Entry(0, poured[0], tokens=poured[1]))

    def _enter(self, entry: Entry) -> None:
        entry.number, self._next = self._next, self._next + 1
        self._entries.append(entry)
        self._unread_bytes += len(entry.frame)
        self._come.set()
        if self._unread_bytes > _UNREAD_BYTES and self._link is not None and not self._paused:
            self._paused = True
            self._link.pause()

    # -- reading --------------------------------------------------------------------------------------------------

    @property
    def full(self) -> bool:
        """Tell whether what comes is left in the socket."""
        return self._paused

    async def read(self, after: str, count: int, block_s: float) -> list[tuple[str, bytes]]:
        """Return up to `count` frames after an entry; wait for the first up to `block_s`; raise why we stopped."""
        last = self._number(after)
        try:
            async with asyncio.timeout(block_s):
                while True:
                    if self.error is not None:
                        raise self.error
                    self._pour()
                    if self._entries and self._entries[-1].number > last:
                        return self._from(last, count)
                    self._come.clear()
                    await self._come.wait()
        except TimeoutError:
            return []

    def _number(self, entry: str) -> int:
        epoch, _, number = entry.partition("-")
        return int(number) if int(epoch) >= self.epoch else 0

    def _from(self, last: int, count: int) -> list[tuple[str, bytes]]:
        skipped = max(0, last + 1 - self._entries[0].number)
        found = [self._entries[at] for at in range(skipped, min(skipped + count, len(self._entries)))]
        for entry in found:
            if entry.number > self._read_to:
                self._read_to = entry.number
                self._unread_bytes -= len(entry.frame)
        if self._paused and self._link is not None and self._unread_bytes < _UNREAD_BYTES // 2:
            self._paused = False
            self._link.resume()
        return [(f"{self.epoch}-{entry.number}", entry.frame) for entry in found]

    # -- handling -------------------------------------------------------------------------------------------------

    async def commit(self, cursor: Cursor, keep: Callable[[dict[str, Place]], Awaitable[None]] | None) -> list[str]:
        """Note that all up to a cursor is handled; return the senders of whole frames among it.

        `keep` keeps where we stand with each sender, before the broker may forget what it holds.
        """
        number = self._number(cursor.entry)
        senders: dict[str, None] = {}
        moved: set[str] = set()
        while self._entries and self._entries[0].number <= number:
            entry = self._entries[0]
            moved.add(entry.sender)
            if entry.number == number and cursor.row:
                self._handle_part(entry, cursor.row)
                break
            self._entries.popleft()
            if entry.sender:
                senders[entry.sender] = None
                self._tokens += self.arrivals.committed(entry.sender, entry.epoch, entry.seq, 0)
            self._tokens += entry.tokens
        if keep is not None:
            await keep(self.arrivals.places(moved))
        if self.error is not None:
            raise self.error
        tokens, self._tokens = self._tokens, []
        for token in tokens:
            token.acknowledge()
        return list(senders)

    def _handle_part(self, entry: Entry, row: int) -> None:
        if entry.sender:
            self._tokens += self.arrivals.committed(entry.sender, entry.epoch, entry.seq, entry.row + row)
        elif len(entry.tokens) > 1:  # a token for each row that is not handled
            fresh = max(0, row - entry.done)
            self._tokens += entry.tokens[:fresh]
            entry.tokens = entry.tokens[fresh:]
        entry.done = max(entry.done, row)

    def unhandled(self) -> Sequence[Entry]:
        """Return what is not handled."""
        self._pour()
        return list(self._entries)


def fenced(name: str, epoch: int) -> Fenced:
    """Build the error for a reader or sender that has a successor."""
    return Fenced(
        f"somebody newer has taken over {name!r} (our epoch is {epoch}): close this messager, its messages go to "
        "its successor",
        name=name,
        epoch=epoch,
    )
