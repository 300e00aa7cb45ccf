"""Streams of all shards as the event log reads them: those of the first as they are, of others as `SHARD/stream`."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from functools import partial

from ray_messaging.transports.log_store import LogItem, LogMark, LogStreams
from ray_messaging.transports.redis.log import RedisLog
from ray_messaging.transports.sharded.calls import PendingCalls, at_all
from ray_messaging.transports.transport import Limits

_ANSWER_S = 1.0  # for a read that does not wait for entries
_BLOCK_S = 5.0  # of one read that does


class ShardedLog:
    """Streams of one experiment on several shards; one writer reads all of them at the same time.

    A writer has one epoch, which the control shard gives.
    """

    def __init__(self, shards: Sequence[RedisLog]) -> None:
        self._shards = shards
        self._reads: PendingCalls[list[LogItem]] = PendingCalls("log read")
        self._waiting: dict[int, dict[str, str]] = {}  # the cursors of the reads that wait for entries, by shard

    async def stop(self) -> None:
        """Give up the reads that are under way."""
        await self._reads.close()

    async def register(self, limits: Limits) -> int:
        """Register the event log on each shard. Returns the writer's epoch."""
        epoch = await self._shards[0].register(limits)
        await at_all(shard.register(limits, epoch) for shard in self._shards[1:])
        return epoch

    async def note_resumed(self, epoch: int, taken: Mapping[str, tuple[int, int]]) -> None:
        """Record the messages and bytes of each stream that the log has from earlier writers; raises Fenced."""
        parts = self._split(taken)
        await at_all(
            log.note_resumed(epoch, {stream: taken[whole] for stream, whole in part.items()})
            for log, part in zip(self._shards, parts, strict=True)
        )

    async def streams(self) -> LogStreams:
        """Return the streams to read; the log stream of the control shard is the first of the live ones."""
        found = await at_all(log.streams() for log in self._shards)
        live = [_named(shard, name) for shard, streams in enumerate(found) for name in streams.live]
        return LogStreams(live, [_named(shard, name) for shard, streams in enumerate(found) for name in streams.ended])

    async def ends(self, streams: Sequence[str]) -> dict[str, str]:
        """Return the last entry that each stream has, "0-0" where it has none."""
        parts = self._split(streams)
        found = await at_all(log.ends([*part]) for log, part in zip(self._shards, parts, strict=True))
        ends = {part[stream]: end for part, some in zip(parts, found, strict=True) for stream, end in some.items()}
        return {stream: ends[stream] for stream in streams}

    async def read(self, cursors: Mapping[str, str], count: int, block_s: float) -> list[LogItem]:
        """Return up to `count` entries of each stream after its cursor; wait for the first up to `block_s`.

        A shard's read goes on where another one has entries first: only one at a time is under way at a shard, so that
        what it brings is behind all that was returned before.
        """
        if not cursors:
            return []
        loop = asyncio.get_running_loop()
        deadline = loop.time() + block_s
        parts = [{stream: cursors[whole] for stream, whole in part.items()} for part in self._split(cursors)]
        await self._stop_outdated(parts)
        while True:
            left = max(0.0, deadline - loop.time())
            calls = {
                shard: partial(self._read, shard, part, count, min(left, _BLOCK_S))
                for shard, part in enumerate(parts)
                if part
            }
            if left:
                self._waiting |= {shard: parts[shard] for shard in calls if not self._reads.has(shard)}
            items = self._taken(await self._reads.answers(calls, left or _ANSWER_S, first=True))
            if items or loop.time() >= deadline:
                return items

    async def _stop_outdated(self, parts: Sequence[dict[str, str]]) -> None:
        """Stop the reads that wait for entries of other streams than those asked for: nothing is lost by that."""
        for shard in [shard for shard, part in self._waiting.items() if part != parts[shard] and parts[shard]]:
            del self._waiting[shard]
            await self._reads.stop(shard)

    def _taken(self, ended: Sequence[tuple[int, asyncio.Task[list[LogItem]]]]) -> list[LogItem]:
        """Return the entries of reads that have ended; raise the error of one where there are none."""
        items = [item for _, task in ended if task.exception() is None for item in task.result()]
        for shard, task in ended:
            self._waiting.pop(shard, None)
            if task.exception() is None:
                continue
            if items:
                self._reads.keep(shard, task)
            else:
                task.result()  # it raises
        return items

    async def _read(self, shard: int, cursors: Mapping[str, str], count: int, block_s: float) -> list[LogItem]:
        items = await self._shards[shard].read(cursors, count, block_s)
        return [item._replace(stream=_named(shard, item.stream)) for item in items] if shard else items

    async def note_written(self, epoch: int, written: Mapping[str, LogMark], dropped: Sequence[str]) -> None:
        """Record the log's position in each stream, and trim entries that are not needed; raises Fenced."""
        marks, ended = self._split(written), self._split(dropped)
        await at_all(
            log.note_written(epoch, {stream: written[whole] for stream, whole in part.items()}, [*gone])
            for log, part, gone in zip(self._shards, marks, ended, strict=True)
        )

    async def writer_epoch(self) -> int:
        """Return the epoch of the last writer; 0 if there was none, or the servers lost their data."""
        return max(await at_all(log.writer_epoch() for log in self._shards))

    async def unregister(self, epoch: int) -> None:
        """Take the event log out; mailboxes are trimmed by their readers alone from then on. Raises Fenced."""
        await at_all(log.unregister(epoch) for log in self._shards)

    def _split(self, streams: Iterable[str]) -> list[dict[str, str]]:
        """Return for each shard its streams: the name there, and the whole name."""
        parts: list[dict[str, str]] = [{} for _ in self._shards]
        for whole in streams:
            shard, slash, stream = whole.rpartition("/")
            parts[int(shard) if slash else 0][stream] = whole
        return parts


def _named(shard: int, stream: str) -> str:
    return f"{shard}/{stream}" if shard else stream
