"""Server in this process's memory: experiments and Pub/Sub."""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ray_messaging.addressing.patterns import glob_pattern
from ray_messaging.transports.base import START, Cursor, Ingress, Limits, SelectiveAcks
from ray_messaging.transports.epochs import new_epoch
from ray_messaging.transports.log_store import LogItem
from ray_messaging.transports.memory.dead_letter_box import DeadLetterBox


@dataclass
class Backlog:
    """Messages and bytes of one stream that the event log does not have, and the last entry that it has."""

    messages: int = 0
    nbytes: int = 0
    taken: tuple[int, int] = (0, 0)  # under its writer's epoch
    logged: int = 0
    base: tuple[int, int] | None = (0, 0)  # what earlier writers told that they took; None: not known

    def passes(self, limits: Limits, messages: int, nbytes: int) -> bool:
        """Tell whether so much more would pass the limits."""
        return self.messages + messages > limits.messages or self.nbytes + nbytes > limits.nbytes

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
    state: bytes | None = None  # what the last transaction left
    entries: list[tuple[int, bytes]] = field(default_factory=list)
    last: int = 0
    messages: int = 0
    nbytes: int = 0
    handled: tuple[int, int] = (0, 0)
    backlog: Backlog | None = None
    since: int = 0  # the first entry that can have come to it
    acked: SelectiveAcks = NOTHING  # behind the cursor
    rejected: set[int] = field(default_factory=set)  # entries that are dead letters before they are handled

    def trim(self) -> None:
        """Drop the entries that its reader has handled, and the log has."""
        handled = number(self.cursor.entry) - (self.cursor.row > 0)
        if self.backlog is not None:
            handled = min(handled, self.backlog.logged)
        self.entries = [(entry, frame) for entry, frame in self.entries if entry > handled]

    def unread(self) -> list[tuple[int, bytes]]:
        """Return the entries that its reader has not handled, or not to their end."""
        handled = number(self.cursor.entry) - (self.cursor.row > 0)
        return [(entry, frame) for entry, frame in self.entries if entry > handled]


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
    last: int = 0
    last_noted: int = 0
    backlog: Backlog = field(default_factory=Backlog)
    ended: dict[str, Mailbox] = field(default_factory=dict)


@dataclass
class Experiment:
    """All data of one experiment."""

    directory: int = 0
    interceptor: int = 0
    standing: int = 0  # the number under which standing verdicts count
    mailboxes: dict[str, Mailbox] = field(default_factory=dict)
    senders: dict[str, Sender] = field(default_factory=dict)
    dead: DeadLetterBox = field(default_factory=DeadLetterBox)
    entry: int = 0
    born: int = 0
    log: Log = field(default_factory=Log)
    written: asyncio.Event = field(default_factory=asyncio.Event)

    def enthrone(self) -> int:
        """Take a new interceptor epoch: verdicts and delegations of its predecessor do not count any more."""
        self.interceptor, self.standing = new_epoch(self.interceptor), 0
        return self.interceptor

    def stand(self, epoch: int, number: int) -> bool:
        """Have standing verdicts count under a number, unless a higher one does; False: our epoch is over."""
        if epoch != self.interceptor:
            return False
        self.standing = max(self.standing, number)
        return True

    def wake(self) -> None:
        """Wake waiting readers."""
        self.written.set()
        self.written = asyncio.Event()


def number(entry: str) -> int:
    """Return the number of an entry, the id of which is `number-0` here."""
    return int(entry.partition("-")[0])


class _Subscriber(NamedTuple):
    channels: set[str]
    globs: dict[str, None]
    exp_id: str | None


class MemoryServer:
    """Server in memory, within one event loop; pass it in place of a RedisConfig."""

    def __init__(self) -> None:
        self.experiments: defaultdict[str, Experiment] = defaultdict(Experiment)
        self._subscribers: dict[Callable[[Ingress], None], _Subscriber] = {}

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

    def unsubscribe(self, sink: Callable[[Ingress], None]) -> None:
        """Let a subscriber go."""
        self._subscribers.pop(sink, None)
