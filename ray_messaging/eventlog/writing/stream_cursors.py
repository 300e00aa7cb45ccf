"""How far the log has read the server's streams, what it reads next, and the tasks that wait for rows in the log."""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import NamedTuple

from ray_messaging.errors import MessagingError
from ray_messaging.transports.cursors import START
from ray_messaging.transports.log_store import LogItem, LogMark, LogStreams

# The approximate size of one read in bytes, over all streams. It is large, because large batches of rows cost least per
# row. It is limited, so that memory does not grow with the number of streams, and queries do not wait long while a read
# is parsed.
READ_BYTES = 6 * 2**20
_WIDENING = 4.0
# This many dropped streams are remembered, because a task may still wait for the end of a stream that was just dropped.
_DROPPED = 1_024
_GUESS = 2**16  # the assumed size of an entry before the first entry was read


class Read(NamedTuple):
    """Arguments of a read: the entry of each stream after which to read, and whether to `wait` for an entry."""

    cursors: dict[str, str]
    limit: int  # how many entries to read of each stream at most
    wait: bool


class WrittenEntry(NamedTuple):
    """An entry that is in the log, either whole (`rows` is None) or only with its first `rows` rows.

    `item` is the entry as it was read, and `messages` its number of messages.
    """

    item: LogItem
    messages: int
    rows: int | None = None


class StreamCursors:
    """Positions in an experiment's streams. `cursors` maps each stream to the last entry that is wholly in the log."""

    def __init__(self) -> None:
        self.cursors: dict[str, str] = {}
        # For each stream whose entry after the cursor is only partly in the log: this entry, and how many of its rows
        # the log has.
        self.begun: dict[str, tuple[str, int]] = {}
        # For each stream, how many of its messages and bytes earlier writers have put into the log.
        self.taken_before: dict[str, tuple[int, int]] = {}
        self._seen: dict[str, str] = {}  # for each stream, the last entry that was read
        self._ended: dict[str, str] = {}  # for each stream that has ended, its last entry
        self._dropped: deque[str] = deque(maxlen=_DROPPED)
        self._marks: dict[str, LogMark] = {}
        self._changed: set[str] = set()
        self._entry_bytes = float(_GUESS)
        self._turn = 0
        self._widening = 1.0  # the number of streams in a read is multiplied by this; each empty read increases it

    def update(self, streams: LogStreams, ends: Mapping[str, str]) -> None:
        """Set the list of streams, and the last entry of each stream that ended."""
        self.cursors = {name: self.cursors.get(name, START.entry) for name in [*streams.live, *streams.ended]}
        self._ended = {name: ends[name] for name in streams.ended}
        self._seen = {name: entry for name, entry in self._seen.items() if name in self.cursors}
        self.taken_before = {name: taken for name, taken in self.taken_before.items() if name in self.cursors}
        self._marks = {name: mark for name, mark in self._marks.items() if name in self.cursors}
        self._changed.intersection_update(self.cursors)

    def next_read(self) -> Read:
        """Return the arguments of the next read.

        The read covers all streams except finished ones. If so many streams could return too much, each read covers
        only some of them, in turn.
        """
        entries = max(1, int(READ_BYTES // self._entry_bytes))
        names = [name for name in self.cursors if not self._done(name)]
        if len(names) <= entries * self._widening:
            return Read(self._after(names), max(1, entries // max(1, len(names))), wait=True)
        some = int(entries * self._widening)
        start = self._turn % len(names)
        self._turn = start + some
        return Read(self._after((names + names)[start : start + some]), 1, wait=False)

    def _after(self, names: list[str]) -> dict[str, str]:
        return {name: self._seen.get(name, self.cursors[name]) for name in names}

    def received(self, items: list[LogItem]) -> None:
        """Record which entries a read has returned. They are added to the log before the entries of the next read."""
        self._seen.update((item.stream, item.entry) for item in items)
        if items:
            self._widening = 1.0
            mean = sum(map(size, items)) / len(items)
            self._entry_bytes = max(256.0, (self._entry_bytes + mean) / 2)
        else:
            self._widening *= _WIDENING

    def move(self, done: Iterable[WrittenEntry]) -> bool:
        """Record that the rows of these entries are in the log.

        Returns: False: the server does not wait until these rows are in a file.
        """
        for item, messages, rows in done:
            if rows is None:
                self._advance(item, messages)
            elif item.stream in self.cursors:
                self.begun[item.stream] = item.entry, rows
        return False

    def _advance(self, item: LogItem, messages: int) -> None:
        """Record that all rows of a stream's entry are in the log.

        Args: `messages` is the number of messages in the entry. It is added to what the log has taken from the stream.
        """
        if item.stream not in self.cursors:
            return  # the stream was dropped during the read
        self.cursors[item.stream] = item.entry
        self.begun.pop(item.stream, None)
        before = self._marks.get(item.stream, LogMark("", 0, 0))
        self._marks[item.stream] = LogMark(item.entry, before.messages + messages, before.nbytes + size(item))
        self._changed.add(item.stream)

    def take_marks(self) -> dict[str, LogMark]:
        """Return the marks of the streams whose marks have changed since the last call.

        A stream's mark has the stream's last entry in the log, and the messages and bytes that this writer has taken.
        """
        changed, self._changed = self._changed, set()
        return {name: self._marks[name] for name in changed}

    def taken(self) -> dict[str, tuple[int, int]]:
        """Return, for each stream, how many messages and bytes this and earlier writers have put into the log."""
        return {name: self._taken(name) for name in self.cursors}

    def _taken(self, name: str) -> tuple[int, int]:
        messages, nbytes = self.taken_before.get(name, (0, 0))
        mark = self._marks.get(name)
        return (messages, nbytes) if mark is None else (messages + mark.messages, nbytes + mark.nbytes)

    def finished(self) -> tuple[str, ...]:
        """Return the streams that have ended and are in the log up to their end."""
        return tuple(name for name in self._ended if self._done(name))

    def drop(self, names: tuple[str, ...]) -> None:
        """Forget streams that have ended, and the positions in them."""
        for name in names:
            self.cursors.pop(name, None)
            self._seen.pop(name, None)
            self._ended.pop(name, None)
            self._marks.pop(name, None)
            self.taken_before.pop(name, None)
            self.begun.pop(name, None)
            self._changed.discard(name)
        self._dropped.extend(names)

    def reached(self, name: str, entry: str) -> bool:
        """Return whether the log has all entries of a stream up to `entry`. It has all entries of a dropped stream."""
        return key(self.cursors.get(name, START.entry)) >= key(entry) or name in self._dropped

    def _done(self, name: str) -> bool:
        return name in self._ended and self.reached(name, self._ended[name])


def size(item: LogItem) -> int:
    """Return the size of an entry in bytes, as the limits of mailboxes count it."""
    return len(item.frame) + len(item.note or b"")


def key(entry: str) -> tuple[int, int]:
    """Return the sort key of the id of a stream's entry."""
    milliseconds, _, number = entry.partition("-")
    return int(milliseconds), int(number or 0)


Goal = Callable[[], bool]  # returns whether the log has the rows that a task waits for


class Waiters:
    """Tasks that wait until the log has certain rows, or any new rows."""

    def __init__(self) -> None:
        self._open: dict[asyncio.Future[None], list[Goal]] = {}
        self._event = asyncio.Event()
        self._asked = asyncio.Event()

    async def reach(self, goals: Iterable[Goal]) -> None:
        """Wait until the log has certain rows.

        Each goal is a function that returns whether the log has the rows that the goal stands for.
        """
        missing = [goal for goal in goals if not goal()]
        if not missing:
            return
        future = asyncio.get_running_loop().create_future()
        self._open[future] = missing
        self._asked.set()
        try:
            await future
        finally:
            del self._open[future]

    async def pause(self, timeout_s: float) -> None:
        """Wait for timeout_s seconds, or until some task waits in `reach` for rows of the log."""
        if self._open:
            return
        self._asked.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):  # `asyncio.wait_for` could lose a cancellation
                await self._asked.wait()

    async def wait_change(self) -> None:
        """Wait until entries were read, or the writer has failed."""
        await self._event.wait()

    def notify(self) -> None:
        """Wake the tasks whose goals are reached, and the tasks that wait for any change."""
        for future, missing in self._open.items():
            missing[:] = [goal for goal in missing if not goal()]
            if not missing and not future.done():
                future.set_result(None)
        self._event.set()
        self._event = asyncio.Event()

    def fail(self, error: MessagingError) -> None:
        """Raise an error in the tasks that wait for goals, and wake the tasks that wait for any change."""
        for future in self._open:
            if not future.done():
                future.set_exception(error.with_traceback(None))
        self._event.set()
        self._event = asyncio.Event()
