"""Our mailbox: received frames until they are handled."""

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ray_messaging.addressing.directory import Record
from ray_messaging.errors import FrameError, MessagingError
from ray_messaging.mqtt.connection.control_link import ControlLink
from ray_messaging.mqtt.connection.link import MqttLink
from ray_messaging.mqtt.connection.packets import Arrival, printable
from ray_messaging.mqtt.receiving.acks import MARK, AckSender
from ray_messaging.mqtt.receiving.arrivals import Arrivals, Frame, Taken
from ray_messaging.mqtt.receiving.cursors import CursorStore
from ray_messaging.mqtt.receiving.foreign import ForeignFrame, ForeignMessages, Unhandled
from ray_messaging.mqtt.receiving.subscriptions import Subscriptions
from ray_messaging.mqtt.wire.messages import Position, decode_data
from ray_messaging.mqtt.wire.topics import is_own
from ray_messaging.transports.cursors import Cursor
from ray_messaging.wire.frames import decode, encode

logger = logging.getLogger(__name__)

_MAX_HELD_BYTES = 64 * 2**20  # behind gaps
_MAX_UNREAD_BYTES = 64 * 2**20  # above this we stop reading the socket


@dataclass(slots=True)
class MailboxEntry:
    """Unhandled frame: a sender's (its first `row` rows are not in `frame`), or foreign clients'."""

    number: int
    frame: bytes
    sender: str = ""
    epoch: int = 0
    seq: int = 0
    row: int = 0
    done: int = 0  # rows of `frame` that are handled
    tokens: list[Unhandled] = field(default_factory=list)


class Mailbox:
    """Unhandled frames in order; with `cursors`, positions are stored before the broker may drop frames."""

    def __init__(
        self,
        exp_id: str,
        control: ControlLink,
        record: Record,
        epoch: int,
        lease_s: float,
        *,
        positions: dict[str, Position],
        cursors: CursorStore | None,
    ) -> None:
        self.name = record.mailbox
        self.epoch = epoch
        self.error: MessagingError | None = None
        self.arrivals: Arrivals[Arrival] = Arrivals(positions, _MAX_HELD_BYTES)
        self.acks = AckSender(control, self.name, lease_s, self.arrivals)
        self.subscriptions = Subscriptions(exp_id, record)
        self.inherited = False  # from another reader, whose session may have more subscriptions
        self.link: MqttLink | None = None  # paused while too much is unread
        self.full = False  # new arrivals stay in the socket
        self.ignores_users = False  # messages on topics of users stay for our successor
        self._control = control
        self._topic = control.topics.mailbox(self.name)
        self._cursors = cursors
        self._foreign = ForeignMessages(exp_id, self.name, epoch, record.frame_rows)
        self._entries: deque[MailboxEntry] = deque()
        self._next = 1
        self._read_to = 0  # the number of the last entry that was read
        self._unread_bytes = 0
        self._changed = asyncio.Event()
        self._tokens: list[Arrival | Unhandled] = []  # handled, not acknowledged yet

    def stop(self, error: MessagingError) -> None:
        """Stop for good; readers get the error."""
        self.error = self.error or error
        self._changed.set()

    def session_lost(self) -> None:
        """Expect no redeliveries: the broker has lost our session."""
        self.inherited = False
        self._foreign.unhandled.session_lost()

    # -- arrivals -------------------------------------------------------------------------------------------------

    def on_arrival(self, arrival: Arrival) -> None:
        """Take a publication; an invalid one becomes a dead letter, because it would come again and again."""
        try:
            self._take(arrival)
        except Exception as error:
            expected = isinstance(error, FrameError)
            level = logging.WARNING if expected else logging.ERROR
            logger.log(level, "mailbox %s: a dead letter: %s", self.name, printable(error), exc_info=not expected)
            reason = str(error) if expected else f"it cannot be taken: {error!r}"
            self._control.try_bury(self.name, arrival.payload, reason)
            arrival.acknowledge()

    def _take(self, arrival: Arrival) -> None:
        if arrival.topic == self._topic:
            self._take_frame(arrival)
        elif is_own(arrival.topic):
            arrival.acknowledge()  # a user's # also matches our own topics
        elif self.ignores_users:
            return
        elif self.inherited and not self.subscriptions.has(arrival.topic):
            arrival.acknowledge()
        else:
            self._add_foreign(self._foreign.take(arrival))
            self._changed.set()

    def _take_frame(self, arrival: Arrival) -> None:
        if arrival.payload.startswith(MARK):
            arrival.acknowledge()
            taken, sender = self.acks.on_marker(arrival.payload)
        else:
            data = decode_data(arrival.payload)
            taken, sender = self.arrivals.take(data, arrival), data.sender
        self._follow(taken, sender)

    def _follow(self, taken: Taken[Arrival], sender: str) -> None:
        if taken.frames:
            self._add_foreign(self._foreign.flush())
        for frame in taken.frames:
            self._add(self._resumed(frame))
        for token in taken.acknowledge:
            token.acknowledge()
        if taken.resend is not None or taken.held is not None or taken.confirm:
            self.acks.answer(taken, sender)

    def _resumed(self, frame: Frame) -> MailboxEntry:
        """Return an entry without the rows that the previous reader has handled."""
        entry = MailboxEntry(0, frame.frame, frame.sender, frame.epoch, frame.seq, frame.row)
        if frame.row:
            try:
                batch = decode(frame.frame)
            except FrameError:  # the reader reports it, and buries it
                entry.row = 0
            else:
                entry.row = min(frame.row, len(batch))
                entry.frame = encode(batch.take(np.arange(entry.row, len(batch))))
        return entry

    def _add_foreign(self, frames: list[ForeignFrame]) -> None:
        for frame, tokens in frames:
            self._add(MailboxEntry(0, frame, tokens=tokens))

    def _add(self, entry: MailboxEntry) -> None:
        entry.number, self._next = self._next, self._next + 1
        self._entries.append(entry)
        self._unread_bytes += len(entry.frame)
        self._changed.set()
        if self._unread_bytes > _MAX_UNREAD_BYTES and self.link is not None and not self.full:
            self.full = True
            self.link.pause()

    # -- reading --------------------------------------------------------------------------------------------------

    async def read(self, after: str, count: int, block_s: float) -> list[tuple[str, bytes]]:
        """Return up to `count` frames after an entry; wait for the first up to `block_s`; raise the final error."""
        last = self._number(after)
        try:
            async with asyncio.timeout(block_s):
                while True:
                    if self.error is not None:
                        raise self.error
                    self._add_foreign(self._foreign.flush())
                    if self._entries and self._entries[-1].number > last:
                        return self._from(last, count)
                    self._changed.clear()
                    await self._changed.wait()
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
        if self.full and self.link is not None and self._unread_bytes < _MAX_UNREAD_BYTES // 2:
            self.full = False
            self.link.resume()
        return [(f"{self.epoch}-{entry.number}", entry.frame) for entry in found]

    # -- committing -----------------------------------------------------------------------------------------------

    async def commit(self, cursor: Cursor) -> None:
        """Mark all frames up to a cursor as handled, and confirm them to their senders."""
        number = self._number(cursor.entry)
        senders: dict[str, None] = {}  # of whole frames
        moved: set[str] = set()
        while self._entries and self._entries[0].number <= number:
            entry = self._entries[0]
            moved.add(entry.sender)
            if entry.number == number and cursor.row:
                self._commit_rows(entry, cursor.row)
                break
            self._entries.popleft()
            if entry.sender:
                senders[entry.sender] = None
                self._tokens += self.arrivals.committed(entry.sender, entry.epoch, entry.seq, 0)
            self._tokens += entry.tokens
        if self._cursors is not None:  # before the broker drops the frames
            await self._cursors.keep(self.name, self.arrivals.positions(moved))
        if self.error is not None:
            raise self.error
        tokens, self._tokens = self._tokens, []
        for token in tokens:
            token.acknowledge()
        for sender in senders:
            self.acks.confirm(sender)

    def _commit_rows(self, entry: MailboxEntry, row: int) -> None:
        if entry.sender:
            self._tokens += self.arrivals.committed(entry.sender, entry.epoch, entry.seq, entry.row + row)
        elif len(entry.tokens) > 1:  # a token for each unhandled row
            fresh = max(0, row - entry.done)
            self._tokens += entry.tokens[:fresh]
            entry.tokens = entry.tokens[fresh:]
        entry.done = max(entry.done, row)

    def unhandled(self) -> Sequence[MailboxEntry]:
        """Return the unhandled frames."""
        self._add_foreign(self._foreign.flush())
        return list(self._entries)
