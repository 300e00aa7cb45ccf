"""Event log's side of the memory transport."""

import asyncio
from collections.abc import Mapping, Sequence

from ray_messaging.transports.epochs import new_epoch
from ray_messaging.transports.log_store import LogItem, LogMark, LogStreams, log_fenced
from ray_messaging.transports.memory.server import Backlog, Experiment, Mailbox, number
from ray_messaging.transports.transport import LOG_STREAM, Limits


class MemoryLog:
    """Streams of one experiment as the event log reads them."""

    def __init__(self, exp: Experiment) -> None:
        self._exp = exp

    async def register(self, limits: Limits) -> int:
        """Register the event log: from now on nothing is trimmed before it has it. Returns the writer's epoch."""
        exp = self._exp
        log, first = exp.log, exp.log.limits is None
        log.limits = limits
        log.epoch = new_epoch(log.epoch)
        if first:
            log.backlog.base = None
        log.backlog.begin()
        exp.directory += first
        for box in exp.mailboxes.values():
            if box.backlog is None:
                box.backlog = Backlog(box.messages, box.nbytes, base=None)
            box.backlog.begin()
        return log.epoch

    async def note_resumed(self, epoch: int, taken: Mapping[str, tuple[int, int]]) -> None:
        """Record the messages and bytes of each stream that the log has from earlier writers; raises Fenced."""
        log = self._exp.log
        if log.epoch != epoch or log.limits is None:
            raise log_fenced(epoch)
        for stream, held in taken.items():
            backlog = log.backlog if stream == LOG_STREAM else getattr(self._box(stream), "backlog", None)
            if backlog is not None:
                backlog.resume(held)

    async def streams(self) -> LogStreams:
        """Return the streams to read: the log stream first, then the mailboxes', and those that ended."""
        exp = self._exp
        return LogStreams(
            [LOG_STREAM, *(f"{name}:{box.born}" for name, box in exp.mailboxes.items())], list(exp.log.ended)
        )

    async def ends(self, streams: Sequence[str]) -> dict[str, str]:
        """Return the last entry that each stream has, "0-0" where it has none."""
        return {stream: f"{self._end(stream)}-0" for stream in streams}

    def _end(self, stream: str) -> int:
        if stream == LOG_STREAM:
            items = self._exp.log.items
            return items[-1][0] if items else 0
        box = self._box(stream)
        return box.entries[-1][0] if box is not None and box.entries else 0

    def _box(self, stream: str) -> Mailbox | None:
        name, _, born = stream.rpartition(":")
        box = self._exp.mailboxes.get(name)
        return box if box is not None and str(box.born) == born else self._exp.log.ended.get(stream)

    async def read(self, cursors: Mapping[str, str], count: int, block_s: float) -> list[LogItem]:
        """Return up to `count` entries of each stream after its cursor; wait for the first up to `block_s`."""
        deadline = asyncio.get_running_loop().time() + block_s
        while cursors:
            found = [item for stream, after in cursors.items() for item in self._after(stream, number(after), count)]
            if found or not await self._exp.arrival(deadline):
                return found
        return []

    def _after(self, stream: str, last: int, count: int) -> list[LogItem]:
        if stream == LOG_STREAM:
            return [item for entry, item in self._exp.log.items if entry > last][:count]
        box = self._box(stream)
        entries = [] if box is None else box.entries
        return [LogItem(stream, f"{entry}-0", frame) for entry, frame in entries if entry > last][:count]

    async def note_written(self, epoch: int, written: Mapping[str, LogMark], dropped: Sequence[str]) -> None:
        """Record the log's position in each stream, and trim entries that are not needed; raises Fenced."""
        log = self._exp.log
        if log.epoch != epoch or log.limits is None:
            raise log_fenced(epoch)
        for stream, mark in written.items():
            entry, taken = number(mark.entry), (mark.messages, mark.nbytes)
            box = self._box(stream)
            if stream == LOG_STREAM:
                log.backlog.take(entry, log.last_noted, taken)
                log.items = [(at, item) for at, item in log.items if at > entry]
            elif stream in log.ended:
                log.ended[stream].entries = [(at, frame) for at, frame in log.ended[stream].entries if at > entry]
            elif box is not None and box.backlog is not None:
                box.backlog.take(entry, box.last, taken)
                box.trim()
        for stream in dropped:
            log.ended.pop(stream, None)

    async def writer_epoch(self) -> int:
        """Return the epoch of the last writer."""
        return self._exp.log.epoch

    async def unregister(self, epoch: int) -> None:
        """Take the event log out; mailboxes are trimmed by their readers alone from then on. Raises Fenced."""
        exp = self._exp
        log = exp.log
        if log.epoch != epoch:
            raise log_fenced(epoch)
        if log.limits is None:
            return
        exp.directory += 1
        log.limits = None
        log.items.clear()
        log.ended.clear()
        log.backlog, log.last_noted = Backlog(), 0
        for box in exp.mailboxes.values():
            box.backlog = None
            box.trim()
