"""Server in this process's memory: experiments and Pub/Sub."""

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ray_messaging.addressing.host_dates import NO_DATES, HostDates
from ray_messaging.addressing.patterns import glob_pattern
from ray_messaging.audiences.records import StoredVersion
from ray_messaging.config import Steps
from ray_messaging.transports.cursors import START, Cursor, SelectiveAcks
from ray_messaging.transports.dead_letter_store import LETTER_BYTES, DeadFacts, DeadFrame
from ray_messaging.transports.log_store import LogItem
from ray_messaging.transports.memory.step_data import StepData
from ray_messaging.transports.steps.values import StepSettings
from ray_messaging.transports.transport import LOG_STREAM, FrameFate, Ingress, Limits, SendStatus


@dataclass
class Backlog:
    """Messages and bytes of one stream that the event log does not have, and the last entry that it has."""

    messages: int = 0
    nbytes: int = 0
    taken: tuple[int, int] = (0, 0)  # under its writer's epoch
    logged: int = 0
    base: tuple[int, int] | None = (0, 0)  # what earlier writers told that they took; None: not known

    def add(self, messages: int, nbytes: int) -> None:
        """Count a write."""
        self.messages += messages
        self.nbytes += nbytes

    def begin(self) -> None:
        """Begin with a new writer."""
        if self.base is not None:
            self.base = self.base[0] + self.taken[0], self.base[1] + self.taken[1]
        self.taken = (0, 0)

    def resume(self, taken: tuple[int, int]) -> None:
        """Record the totals of earlier writers: one that died may have kept more than it reported."""
        told = taken if self.base is None else self.base
        self.messages = max(0, self.messages - max(0, taken[0] - told[0]))
        self.nbytes = max(0, self.nbytes - max(0, taken[1] - told[1]))
        self.base = taken

    def take(self, entry: int, last: int, taken: tuple[int, int]) -> None:
        """Note up to where the log has the stream, the last entry of which is `last`."""
        behind = entry < last  # a log that has all lacks nothing, whatever was counted
        self.messages = max(0, self.messages + self.taken[0] - taken[0]) if behind else 0
        self.nbytes = max(0, self.nbytes + self.taken[1] - taken[1]) if behind else 0
        self.taken, self.logged = taken, entry


NOTHING = SelectiveAcks(b"", 0)


@dataclass
class Mailbox:
    """A mailbox and its stream; `backlog` is set while an event log is registered."""

    limits: Limits
    owner: str
    alive_until: float
    born: int
    record: bytes = b""
    changed: int = 0
    epoch: int = 0
    cursor: Cursor = START
    handled_to: tuple[int, int] = (0, 0)  # the last entry that is wholly before the cursor, and the rows of the next
    state: bytes | None = None  # what the last transaction left
    entries: list[tuple[int, bytes]] = field(default_factory=list)
    last: int = 0
    messages: int = 0
    nbytes: int = 0
    handled: tuple[int, int] = (0, 0)  # messages and bytes before the cursor, under the reader's epoch
    backlog: Backlog | None = None
    since: int = 0  # the first entry that can have come to it
    acked: SelectiveAcks = NOTHING  # behind the cursor
    rejected: set[int] = field(default_factory=set)  # entries that are dead letters before they are handled
    held: bool = False  # it is full to all, as agents are leaving it
    failures: int = 0  # messages whose handlers failed
    service: tuple[int, bytes] = (0, b"")  # the note on its service, and the epoch of the reader that wrote it
    released: tuple[int, int] = (0, 0)  # epoch and number of the last departure that was done or given up
    departed: tuple[int, int] = (0, 0)  # and of the last one that was done

    def fate(self, size: int, rows: int, nbytes: int) -> FrameFate:
        """Return WRITTEN if frames of so many rows and bytes fit, the largest of `size` bytes; else why not."""
        if self.limits.leased and self.alive_until < time.monotonic():
            return FrameFate.GONE
        if self.held:
            return FrameFate.FULL
        unlogged = (0, 0) if self.backlog is None else (self.backlog.messages + rows, self.backlog.nbytes + nbytes)
        return self.limits.fate(size, self.messages + rows, self.nbytes + nbytes, unlogged)

    def append(self, entry: int, rows: int, frame: bytes) -> None:
        """Write a frame."""
        self.entries.append((entry, frame))
        self.last = entry
        self.messages += rows
        self.nbytes += len(frame)
        if self.backlog is not None:
            self.backlog.add(rows, len(frame))

    def commit(self, cursor: Cursor, messages: int, nbytes: int, acks: SelectiveAcks | None) -> None:
        """Move the cursor and trim the entries before it."""
        handled_to = number(cursor.entry) - (cursor.row > 0), cursor.row
        if handled_to < self.handled_to:
            return  # it comes late
        if acks is not None:
            if messages + acks.messages < self.handled[0] + self.acked.messages:
                return  # so does this: all that is acknowledged only ever grows
            self.acked = acks
        self.messages += self.handled[0] - messages
        self.nbytes += self.handled[1] - nbytes
        if handled_to >= (self.last, 0):
            self.messages = self.nbytes = 0  # at the end nothing is left, even if the counts differ
        self.cursor, self.handled_to, self.handled = cursor, handled_to, (messages, nbytes)
        self.trim()

    def trim(self) -> None:
        """Drop the entries that its reader has handled, and the log has."""
        handled = self.handled_to[0] if self.backlog is None else min(self.handled_to[0], self.backlog.logged)
        self.entries = [(entry, frame) for entry, frame in self.entries if entry > handled]

    def unread(self) -> list[tuple[int, bytes]]:
        """Return the entries that its reader has not handled, or not to their end."""
        return [(entry, frame) for entry, frame in self.entries if entry > self.handled_to[0]]


@dataclass
class Sender:
    """State of a sender for its next epoch."""

    epoch: int = 0
    last: dict[str, int] = field(default_factory=dict)
    takers: list[int] = field(default_factory=list)
    transactions: int = 0


@dataclass
class Log:
    """The event log's stream and the state of its writer; with `limits` None no log is registered."""

    epoch: int = 0
    limits: Limits | None = None
    items: list[tuple[int, LogItem]] = field(default_factory=list)
    last_noted: int = 0
    backlog: Backlog = field(default_factory=Backlog)
    ended: dict[str, Mailbox] = field(default_factory=dict)


class DeadLetterBox:
    """Dead letters in the order of their ids, `number-0`; bounded, the oldest are dropped and counted."""

    def __init__(self) -> None:
        self.letters: dict[str, DeadFrame] = {}
        self._last = 0
        self._nbytes = self._dropped = self._dropped_bytes = 0

    def __iter__(self) -> Iterator[DeadFrame]:
        return iter(self.letters.values())

    def lay(self, letter: DeadFrame, limit: float) -> None:
        """Add a letter under a new id, and drop the oldest ones that are too many; a huge one leaves the others."""
        if _weight(letter) > limit:
            nbytes = len(letter.frame)
            lost = f"{letter.reason} (its frame of {nbytes} bytes is above the limit of dead letters, and lost)"
            letter = letter._replace(frame=b"", reason=lost)
            self._dropped += 1
            self._dropped_bytes += nbytes
        self._last += 1
        self.letters[f"{self._last}-0"] = letter._replace(id=f"{self._last}-0")
        self._nbytes += _weight(letter)
        while self._nbytes > limit:
            oldest = self.release(next(iter(self.letters)))
            self._dropped += 1
            self._dropped_bytes += _weight(oldest)

    def release(self, letter: str) -> DeadFrame:
        """Take a letter out."""
        found = self.letters.pop(letter)
        self._nbytes -= _weight(found)
        return found

    def facts(self) -> DeadFacts:
        """Count the letters, and those that were dropped."""
        return DeadFacts(len(self.letters), self._nbytes, self._dropped, self._dropped_bytes)

    def count_anew(self) -> None:
        """Forget how many letters were dropped so far."""
        self._dropped = self._dropped_bytes = 0


def _weight(letter: DeadFrame) -> int:
    return len(letter.frame) + LETTER_BYTES


@dataclass
class Experiment:
    """All data of one experiment."""

    directory: int = 0
    dates: HostDates = NO_DATES
    schemas: dict[str, bytes] = field(default_factory=dict)
    audiences: dict[str, tuple[StoredVersion, ...]] = field(default_factory=dict)
    interceptor: int = 0
    standing: int = 0  # the number under which standing verdicts count
    mailboxes: dict[str, Mailbox] = field(default_factory=dict)
    senders: dict[str, Sender] = field(default_factory=dict)
    dead: DeadLetterBox = field(default_factory=DeadLetterBox)
    entry: int = 0
    born: int = 0
    log: Log = field(default_factory=Log)
    steps: StepData = field(default_factory=StepData)
    surveys: dict[str, tuple[bytes, dict[str, bytes]]] = field(default_factory=dict)  # by id: record, parts
    written: asyncio.Event = field(default_factory=asyncio.Event)

    def verdict_status(self, epoch: int) -> SendStatus:
        """Return whether verdicts count that were given under an epoch, or a number of delegated ones."""
        if epoch == -2:
            return SendStatus.UNJUDGED if self.interceptor else SendStatus.OK
        return SendStatus.OK if epoch in {-1, self.interceptor, self.standing} else SendStatus.STALE_VERDICTS

    def date_change(self) -> int:
        """Date the change of hosts that the directory's version has made; return the step from which it counts."""
        steps = self.steps
        since = steps.latest + 1
        self.dates = self.dates.with_change(self.directory, since, steps.sealed - steps.given.horizon)
        return since

    def wake(self) -> None:
        """Wake waiting readers."""
        self.written.set()
        self.written = asyncio.Event()

    async def arrival(self, deadline: float) -> bool:
        """Wait until something is written; return whether it was, before the deadline."""
        try:
            async with asyncio.timeout_at(deadline):
                return await self.written.wait()
        except TimeoutError:
            return False

    def append_to_log(
        self, frame: bytes = b"", note: bytes | None = None, takers: list[int] | None = None, step: int | None = None
    ) -> int:
        """Write an entry of the log stream; an empty one says that mailboxes came or went."""
        self.entry += 1
        self.log.items.append((self.entry, LogItem(LOG_STREAM, f"{self.entry}-0", frame, note, takers, step)))
        self.wake()
        return self.entry


def number(entry: str) -> int:
    """Return the number of an entry, the id of which is `number-0` here."""
    return int(entry.partition("-")[0])


class _Subscriber(NamedTuple):
    channels: set[str]
    globs: dict[str, None]
    exp_id: str | None


class MemoryServer:
    """Server in memory, within one event loop; pass it in place of a RedisConfig.

    Args: with `steps`, its experiments have steps.
    """

    def __init__(self, steps: Steps | None = None) -> None:
        self._steps = None if steps is None else StepSettings.of(steps)
        self.experiments: defaultdict[str, Experiment] = defaultdict(self._new_experiment)
        self._subscribers: dict[Callable[[Ingress], None], _Subscriber] = {}

    def _new_experiment(self) -> "Experiment":
        return Experiment(steps=StepData(settings=self._steps))

    def publish(self, channel: str, data: bytes, *, by: str | None = None) -> int:
        """Publish as a foreign client would; return the number of subscribers, without those of experiment `by`."""
        taken = 0
        for sink, (channels, globs, exp_id) in list(self._subscribers.items()):
            glob = next((glob for glob in globs if glob_pattern(glob).fullmatch(channel.encode())), None)
            if (channel in channels or glob is not None) and (by is None or exp_id != by):
                sink(Ingress(channel, data, None if channel in channels else glob))
                taken += 1
        return taken

    def subscribe(
        self,
        channels: Collection[str],
        globs: Sequence[str],
        sink: Callable[[Ingress], None],
        *,
        exp_id: str | None = None,
    ) -> None:
        """Subscribe as a foreign client would; a second call with the same sink adds to the first."""
        subscriber = self._subscribers.setdefault(sink, _Subscriber(set(), {}, exp_id))
        subscriber.channels.update(channels)
        subscriber.globs.update(dict.fromkeys(globs))

    def unsubscribe_from(self, sink: Callable[[Ingress], None], channels: Collection[str]) -> None:
        """Let a subscriber go from some channels."""
        if sink in self._subscribers:
            self._subscribers[sink].channels.difference_update(channels)

    def unsubscribe(self, sink: Callable[[Ingress], None]) -> None:
        """Let a subscriber go."""
        self._subscribers.pop(sink, None)
