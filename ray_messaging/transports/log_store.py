"""The event log's side of the server: every stream up to its end, and no entry trimmed before it was read."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from ray_messaging.addressing.channels import Keys
from ray_messaging.errors import Fenced
from ray_messaging.transports.connection.blocking_reads import BlockingReads
from ray_messaging.transports.connection.link import RedisLink
from ray_messaging.transports.cursors import following
from ray_messaging.transports.experiment_store import other_run
from ray_messaging.transports.values import LOG, LOG_STREAM, Limits, successor_of


class LogStreams(NamedTuple):
    """The streams that the event log must read, each by its key: `mailbox:born`.

    `born` tells apart the mailboxes that had one name after the other. `ended` are streams of mailboxes that were
    removed: nothing comes any more, and `note_written` drops them when they were read to their end.
    """

    live: list[str]
    ended: list[str]


class LogMark(NamedTuple):
    """Position of the log in a stream: an entry, and the totals that it took under its epoch.

    `messages` are rows of frames and `nbytes` bytes of frames; in the log stream, of notes, too.
    """

    entry: str
    messages: int
    nbytes: int


class LogItem(NamedTuple):
    """One entry of a stream that the event log reads: a frame, and in the log stream a note on it.

    `takers` counts, for a frame of published messages, the subscribers of each row. An entry of the log
    stream without a frame says that mailboxes came or went: read the list of streams again. `step` is the one that
    messages from outside were given, in an experiment with steps.
    """

    stream: str
    entry: str
    frame: bytes
    note: bytes | None = None
    takers: list[int] | None = None
    step: int | None = None


def mailbox_of(stream: str) -> str:
    """Return the mailbox of a stream, LOG for the log stream."""
    return stream.rpartition(":")[0]


def log_fenced(epoch: int) -> Fenced:
    """Build the error for a writer of the event log that has a successor, or after the log was removed."""
    return Fenced(
        f"a newer writer has the event log, or it was closed, or the server lost its data (our epoch is {epoch}): "
        "stop this writer, and open the log anew if none is to be there",
        name=LOG,
        epoch=epoch,
    )


# One reply holds at most this many entries, and fewer where those of the last one were so large that they would pass so
# many bytes: XREAD counts entries only, and the reader's memory is to stay flat.
_ENTRIES, _BYTES = 64, 16 * 2**20
_GUESS = 256 * 2**10  # of a frame's size, before the first one is seen


class RedisLog:
    """Streams of one experiment as the event log reads them, over a connection of its own."""

    def __init__(self, link: RedisLink, keys: Keys, run: str = "") -> None:
        self.link = link
        self.run = run  # the start of the experiment that must have it; "": any
        self.keys = keys
        self._reading = BlockingReads(link)
        self._largest = _GUESS  # frame in the last reply
        # Where a reply has no room for all streams: with which the next read begins, and which gave something last.
        self._turn, self._busy = 0, list[str]()

    def close(self) -> None:
        """Close the connection."""
        self._reading.close()

    async def register(self, limits: Limits) -> int:
        """Register the event log: from now on nothing is trimmed before it has it. Returns the writer's epoch.

        Earlier writers are fenced, and totals begin anew. Args: limits are those of the log stream, which
        takes any note while it holds none; messages that the log lacks count against their mailbox's own limits.
        """
        keys = [self.keys.meta, self.keys.changes, self.keys.state(LOG)]
        args = [limits.messages, limits.nbytes, self.keys.prefix]
        _, taken = await self.take_epoch("open_log", "log_epoch", keys, args)
        return taken

    async def take_epoch(self, script: str, field: str, keys: Sequence[str], args: Sequence[Any]) -> tuple[bytes, int]:
        """Have a script take a new epoch; return the one before (b"": none), and ours.

        Raises: Fenced where another start has the experiment.
        """
        while True:
            before = await self.link.command("HGET", self.keys.meta, field)
            epoch = successor_of(before)
            taken = await self.link.script(script, keys, [*args, self.run, before or b"", epoch])
            if taken == 1:
                return before or b"", epoch
            if taken == -1:
                raise other_run(self.keys.exp_id, epoch)

    async def streams(self) -> LogStreams:
        """Return the streams to read: the log stream first, then the mailboxes', and those that ended."""
        keys = [self.keys.changes, self.keys.ended]
        live, ended = await self.link.script("list_streams", keys, [self.keys.prefix])
        return LogStreams([LOG_STREAM, *(name.decode() for name in live)], [name.decode() for name in ended])

    async def ends(self, streams: Sequence[str]) -> dict[str, str]:
        """Return the last entry that each stream has; "0-0" where it has none. What was trimmed the log had."""
        keys = [key for stream in streams for key in (self.keys.stream(stream), self.keys.ended_stream(stream))]
        ends = await self.link.script("read_stream_ends", keys, []) if streams else []
        return {stream: end.decode() for stream, end in zip(streams, ends, strict=True)}

    async def read(self, cursors: Mapping[str, str], count: int, block_s: float) -> list[LogItem]:
        """Return up to `count` entries of each stream after its cursor; wait for the first up to `block_s`."""
        if not cursors:
            return []
        room = self._room
        if len(cursors) > room and (items := await self._read_in_turn(cursors, room, count)):
            return items
        count = max(1, min(count, room // len(cursors)))
        return self._items(await self._reading.read(self._by_key(cursors), count, block_s))

    @property
    def _room(self) -> int:
        return max(1, min(_ENTRIES, _BYTES // max(1, self._largest)))

    async def _read_in_turn(self, cursors: Mapping[str, str], room: int, count: int) -> list[LogItem]:
        """Return entries of the next `room` streams, or of the first ones after them that have any.

        Of very many streams few are busy: these would fall behind by an entry a turn. So those that gave something last
        have a turn each time, and give more.
        """
        streams = list(cursors)
        for _ in range(0, len(streams) + room, max(1, room // 2)):
            last = {stream: cursors[stream] for stream in self._busy if stream in cursors}
            begin = self._turn if self._turn < len(streams) else 0
            self._turn = begin + room - len(last)
            window = last | {stream: cursors[stream] for stream in streams[begin : self._turn]}
            items = self._items(await self._reading.read(self._by_key(window), 1, None))
            found = {item.stream: item.entry for item in items}
            self._busy = list(found)[: room // 2]
            if items:
                return items + await self._more(found, min(count, min(room, self._room) // len(found)) - 1)
        return []

    async def _more(self, cursors: Mapping[str, str], count: int) -> list[LogItem]:
        """Return the entries of streams behind the entry that was just read."""
        if count < 1:
            return []
        largest = self._largest
        items = self._items(await self._reading.read(self._by_key(cursors), count, None))
        self._largest = max(largest, self._largest)
        return items

    def _by_key(self, cursors: Mapping[str, str]) -> dict[str, str]:
        """Return the cursors by key: a stream may end, and change its key, while it is read."""
        keys = {self.keys.stream(stream): entry for stream, entry in cursors.items()}
        return keys | {self.keys.ended_stream(stream): cursors[stream] for stream in cursors if stream != LOG_STREAM}

    def _items(self, reply: Any) -> list[LogItem]:  # noqa: ANN401 - a reply
        stem = len(self.keys.prefix)
        items = [
            _item(key.decode()[stem:].partition(":")[2], entry.decode(), fields)
            for key, found in reply
            for entry, fields in found
        ]
        self._largest = max((len(item.frame) for item in items), default=self._largest)
        return items

    async def note_written(self, epoch: int, written: Mapping[str, LogMark], dropped: Sequence[str]) -> None:
        """Record the log's position in each stream, and trim entries that are not needed; raises Fenced.

        Args: dropped are streams that ended and were read to their end.
        """
        args: list[Any] = [epoch, self.keys.prefix, len(written)]
        for stream, mark in written.items():
            args += [stream, following(mark.entry), mark.messages, mark.nbytes]
        await self._under_epoch(
            "note_written", [self.keys.meta, self.keys.state(LOG), self.keys.ended], [*args, *dropped]
        )

    async def note_resumed(self, epoch: int, taken: Mapping[str, tuple[int, int]]) -> None:
        """Record the messages and bytes of each stream that the log has from earlier writers; raises Fenced.

        One that died may have kept more than it told by `note_written`. Called once, before that, with all streams.
        """
        args: list[Any] = [epoch, self.keys.prefix]
        for stream, (messages, nbytes) in taken.items():
            args += [stream, messages, nbytes]
        await self._under_epoch("note_resumed", [self.keys.meta, self.keys.state(LOG)], args)

    async def writer_epoch(self) -> int:
        """Return the epoch of the last writer; 0 if there was none, or the server lost its data."""
        return int(await self.link.command("HGET", self.keys.state(LOG), "epoch") or 0)

    async def unregister(self, epoch: int) -> None:
        """Take the event log out; mailboxes are trimmed by their readers alone from then on. Raises Fenced.

        Unread entries of ended streams, and of the log stream, are dropped.
        """
        keys = [self.keys.meta, self.keys.changes, self.keys.state(LOG), self.keys.ended, self.keys.stream(LOG_STREAM)]
        await self._under_epoch("close_log", keys, [epoch, self.keys.prefix])

    async def _under_epoch(self, script: str, keys: Sequence[str], args: Sequence[Any]) -> None:
        if await self.link.script(script, keys, args) == 0:
            raise log_fenced(args[0])


def _item(stream: str, entry: str, fields: list[bytes]) -> LogItem:
    if len(fields) == 2 and fields[0] == b"f":
        return LogItem(stream, entry, fields[1])
    found = dict(zip(fields[::2], fields[1::2], strict=True))
    takers = found.get(b"t")
    return LogItem(
        stream,
        entry,
        found.get(b"f", b""),
        found.get(b"n"),
        None if takers is None else [int(taken) for taken in msgspec.json.decode(takers)],  # cjson's [] is {}
        int(found[b"s"]) if b"s" in found else None,
    )
