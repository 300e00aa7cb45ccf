"""The streams that the log reads: up to where it has each, and what to read next."""

from collections import deque
from collections.abc import Mapping
from typing import NamedTuple

from ray_messaging.transports.base import START
from ray_messaging.transports.log_store import LogItem, LogMark, LogStreams

# One read brings about so many bytes: enough for one batch of rows, as large ones cost least, little enough that memory
# stays flat however many streams there are, and that whoever asks meanwhile does not wait for it to be parsed.
READ_BYTES = 6 * 2**20
_WIDER = 4.0
_DROPPED = 1_024  # streams that are remembered for those who asked for their ends just before they went
_GUESS = 2**16  # bytes of an entry, as long as none was seen


class Read(NamedTuple):
    """What to ask the transport for; `wait`: until something comes."""

    cursors: dict[str, str]
    limit: int  # entries of each
    wait: bool


class Streams:
    """Follow the streams of an experiment; `cursors` say up to which entry each was read."""

    def __init__(self) -> None:
        self.cursors: dict[str, str] = {}
        self.begun: dict[str, tuple[str, int]] = {}  # stream -> the entry after its cursor, and the rows taken of it
        self.held: dict[str, tuple[int, int]] = {}  # stream -> messages and bytes that earlier writers took of it
        self._seen: dict[str, str] = {}  # stream -> the last entry that was read, taken or not
        self._ended: dict[str, str] = {}  # stream -> its last entry
        self._dropped: deque[str] = deque(maxlen=_DROPPED)
        self._marks: dict[str, LogMark] = {}
        self._changed: set[str] = set()
        self._entry_bytes = float(_GUESS)
        self._turn = 0
        self._reach = 1.0  # by how much more than `room` a read may ask for, as the ones before brought nothing

    def update(self, streams: LogStreams, ends: Mapping[str, str]) -> None:
        """Take over which streams there are; `ends` are the last entries of those that ended."""
        self.cursors = {name: self.cursors.get(name, START.entry) for name in [*streams.live, *streams.ended]}
        self._ended = {name: ends[name] for name in streams.ended}
        self._seen = {name: entry for name, entry in self._seen.items() if name in self.cursors}
        self.held = {name: held for name, held in self.held.items() if name in self.cursors}
        self._marks = {name: mark for name, mark in self._marks.items() if name in self.cursors}
        self._changed.intersection_update(self.cursors)

    def next(self) -> Read:
        """Say what to read next: all streams, or, where those could bring too much at once, some in turn."""
        room = max(1, int(READ_BYTES // self._entry_bytes))
        names = [name for name in self.cursors if not self._done(name)]
        if len(names) <= room * self._reach:
            return Read(self._after(names), max(1, room // max(1, len(names))), wait=True)
        some = int(room * self._reach)
        start = self._turn % len(names)
        self._turn = start + some
        return Read(self._after((names + names)[start : start + some]), 1, wait=False)

    def _after(self, names: list[str]) -> dict[str, str]:
        return {name: self._seen.get(name, self.cursors[name]) for name in names}

    def came(self, items: list[LogItem]) -> None:
        """Note what a read brought, which is to be taken before the next read's."""
        self._seen.update((item.stream, item.entry) for item in items)
        if items:
            self._reach = 1.0
            mean = sum(map(size, items)) / len(items)
            self._entry_bytes = max(256.0, (self._entry_bytes + mean) / 2)
        else:
            self._reach *= _WIDER

    def passed(self, item: LogItem, messages: int) -> None:
        """Note that an entry was taken."""
        if item.stream not in self.cursors:
            return  # it went while its last entries were on the way
        self.cursors[item.stream] = item.entry
        self.begun.pop(item.stream, None)
        before = self._marks.get(item.stream, LogMark("", 0, 0))
        self._marks[item.stream] = LogMark(item.entry, before.messages + messages, before.nbytes + size(item))
        self._changed.add(item.stream)

    def began(self, item: LogItem, rows: int) -> None:
        """Note that the first rows of an entry were taken."""
        if item.stream in self.cursors:
            self.begun[item.stream] = item.entry, rows

    def take_marks(self) -> dict[str, LogMark]:
        """Return the marks that changed since they were last taken."""
        changed, self._changed = self._changed, set()
        return {name: self._marks[name] for name in changed}

    def taken(self) -> dict[str, tuple[int, int]]:
        """Return the messages and bytes that were taken of each stream, by this writer and by earlier ones."""
        return {name: self._taken(name) for name in self.cursors}

    def _taken(self, name: str) -> tuple[int, int]:
        messages, nbytes = self.held.get(name, (0, 0))
        mark = self._marks.get(name)
        return (messages, nbytes) if mark is None else (messages + mark.messages, nbytes + mark.nbytes)

    def finished(self) -> tuple[str, ...]:
        """Return the streams that ended and were read to their end."""
        return tuple(name for name in self._ended if self._done(name))

    def forget(self, names: tuple[str, ...]) -> None:
        """Let go of streams that are dropped."""
        for name in names:
            self.cursors.pop(name, None)
            self._seen.pop(name, None)
            self._ended.pop(name, None)
            self._marks.pop(name, None)
            self.held.pop(name, None)
            self.begun.pop(name, None)
            self._changed.discard(name)
        self._dropped.extend(names)

    def reached(self, name: str, entry: str) -> bool:
        """Tell whether a stream was read up to an entry."""
        return key(self.cursors.get(name, START.entry)) >= key(entry) or name in self._dropped

    def _done(self, name: str) -> bool:
        return name in self._ended and self.reached(name, self._ended[name])


def size(item: LogItem) -> int:
    """Return an entry's bytes, as the limits count them."""
    return len(item.frame) + len(item.note or b"")


def key(entry: str) -> tuple[int, int]:
    """Return what entries are ordered by."""
    milliseconds, _, number = entry.partition("-")
    return int(milliseconds), int(number or 0)
