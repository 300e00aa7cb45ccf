"""The event log's access to the server.

The log reads every stream to its end. No entry of a stream is deleted before the log has it.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from ray_messaging.addressing.directory import decode_agents
from ray_messaging.addressing.server_keys import START, Keys
from ray_messaging.errors import Fenced
from ray_messaging.model.agent_sets import AgentSet
from ray_messaging.transports.connection.blocking_reads import BlockingReads
from ray_messaging.transports.connection.link import RedisLink
from ray_messaging.transports.cursors import following
from ray_messaging.transports.experiment_store import other_run
from ray_messaging.transports.transport_values import LOG, LOG_STREAM, Limits, successor_of


class LogStreams(NamedTuple):
    """The streams that the event log must read, each by its key `mailbox:born`.

    `born` is a number that distinguishes mailboxes that have had the same name one after the other. `ended` are streams
    of removed mailboxes, which get no more entries. `note_written` deletes them when they were read to their end.
    """

    live: list[str]
    ended: list[str]


class LogMark(NamedTuple):
    """The position of the log in a stream: the last entry in the log, and totals of what the log has read so far.

    `messages` is the total of frames' rows. `nbytes` is the total size of frames and, in the log stream, also of notes.
    """

    entry: str
    messages: int
    nbytes: int


class LogItem(NamedTuple):
    """One entry of a stream that the event log reads: a frame, and in the log stream also a note about the frame.

    If the frame has published messages, `takers` counts the subscribers that received each row. An entry of the log
    stream without a frame says that mailboxes were added or removed, so that the list of streams must be read again. In
    an experiment with steps, a frame from outside of the steps has two more values. `step` is the step that the server
    assigned to the frame. `first` is how many rows from senders outside of the steps were in the step's box before this
    frame (None: the frame is in no box).
    """

    stream: str
    entry: str
    frame: bytes
    note: bytes | None = None
    takers: list[int] | None = None
    step: int | None = None
    first: int | None = None


def mailbox_of(stream: str) -> str:
    """Return the mailbox that a stream belongs to, or LOG for the log stream."""
    return stream.rpartition(":")[0]


# One reply has at most `_ENTRIES` entries. It has fewer if `_ENTRIES` entries, each as large as the largest one in the
# last reply, would exceed `_BYTES`. XREAD limits only the number of entries, but the reader's memory must stay small.
_ENTRIES, _BYTES = 64, 16 * 2**20
_GUESS = 256 * 2**10  # the assumed size of a frame before any frame was read


class RedisLog:
    """Reader of all streams of one experiment, for the event log. It has a separate connection for blocking reads."""

    def __init__(self, link: RedisLink, keys: Keys, run: str = "") -> None:
        self.link = link
        self.run = run  # the id of the start that must own the experiment, or "" for any start
        self.keys = keys
        self._reading = BlockingReads(link)
        self._largest = _GUESS  # the size of the largest frame in the last reply
        # These are used if one reply has no room for all streams: the index of the stream with which the next read
        # begins, and the streams that had entries in the last reply.
        self._turn, self._busy = 0, list[str]()

    def close(self) -> None:
        """Close the connection for blocking reads."""
        self._reading.close()

    async def register(self, limits: Limits) -> int:
        """Register the event log, and return the writer's epoch. From now on no entry is deleted before the log has it.

        The server then refuses calls of earlier writers. The totals of what the new writer has read begin at 0.

        Args: `limits` are for the log stream, which accepts a note of any size while it is empty. Messages that the log
        does not have yet count towards the limits of their own mailbox.
        """
        keys = [self.keys.meta, self.keys.changes, self.keys.state(LOG)]
        args = [limits.messages, limits.nbytes, self.keys.prefix]
        _, taken = await self.take_epoch("open_log", "start:log_epoch", keys, args)
        return taken

    async def take_epoch(self, script: str, field: str, keys: Sequence[str], args: Sequence[Any]) -> tuple[bytes, int]:
        """Claim a new epoch for the event log or the interceptor, by `script`. Return the old epoch and the new one.

        An epoch is the number of an owner. Each owner has a higher epoch than the owner before. If there was no owner
        before, the old epoch is b"". The new epoch is also above the number of the last rule snapshot (see
        `verdict_status` in sending.lua).

        Raises: Fenced if another call of `Messaging.start` owns the experiment.
        """
        while True:
            before, standing = await self.link.command("HMGET", self.keys.meta, field, "start:standing")
            epoch = max(successor_of(before), successor_of(standing))
            taken = await self.link.script(script, keys, [*args, self.run, before or b"", epoch, standing or b""])
            if taken == 1:
                return before or b"", epoch
            if taken == -1:
                raise other_run(self.keys.exp_id, epoch)

    async def streams(self) -> LogStreams:
        """Return the streams to read: the log stream, those of mailboxes, and those of removed mailboxes."""
        keys = [self.keys.changes, self.keys.ended]
        live, ended = await self.link.script("list_streams", keys, [self.keys.prefix])
        return LogStreams([LOG_STREAM, *(name.decode() for name in live)], [name.decode() for name in ended])

    async def ends(self, streams: Sequence[str]) -> dict[str, str]:
        """Return, for each stream, the id of its last entry, or "0-0" if the stream has no entry.

        Deleted entries are left out. They are in the log already.
        """
        keys = [key for stream in streams for key in (self.keys.stream(stream), self.keys.ended_stream(stream))]
        ends = await self.link.script("read_stream_ends", keys, []) if streams else []
        return {stream: end.decode() for stream, end in zip(streams, ends, strict=True)}

    async def read(self, cursors: Mapping[str, str], count: int, block_s: float) -> list[LogItem]:
        """Return up to `count` entries of each stream after its cursor; wait up to `block_s` seconds for the first.

        If there are very many streams, return entries of only some of them.
        """
        if not cursors:
            return []
        room = self._room
        if len(cursors) > room and (items := await self._read_in_turn(cursors, room, count)):
            return items
        count = max(1, min(count, room // len(cursors)))
        return self._items(*await self._reading.read(self._by_key(cursors), count, block_s))

    @property
    def _room(self) -> int:
        return max(1, min(_ENTRIES, _BYTES // max(1, self._largest)))

    async def _read_in_turn(self, cursors: Mapping[str, str], room: int, count: int) -> list[LogItem]:
        """Return entries of at most `room` streams: those that had entries in the last read, and the next ones in turn.

        If these streams have no entries, the streams after them are read, until all were read. If there are very many
        streams, usually only few of them get entries. If each read took one entry of every stream, the log would fall
        behind on the busy streams. So the busy streams are read every time, with more entries of each.
        """
        streams = list(cursors)
        for _ in range(0, len(streams) + room, max(1, room // 2)):
            last = {stream: cursors[stream] for stream in self._busy if stream in cursors}
            begin = self._turn if self._turn < len(streams) else 0
            self._turn = begin + room - len(last)
            window = last | {stream: cursors[stream] for stream in streams[begin : self._turn]}
            items = self._items(*await self._reading.read(self._by_key(window), 1, None))
            found = {item.stream: item.entry for item in items}
            self._busy = list(found)[: room // 2]
            if items and (more := min(count, min(room, self._room) // len(found)) - 1) > 0:
                largest = self._largest
                items += self._items(*await self._reading.read(self._by_key(found), more, None))
                self._largest = max(largest, self._largest)
            if items:
                return items
        return []

    def _by_key(self, cursors: Mapping[str, str]) -> dict[str, str]:
        """Return a dict that has the cursor of each stream twice, under the two keys that the stream may have.

        The key changes when the stream's mailbox is removed.
        """
        keys = {self.keys.stream(stream): entry for stream, entry in cursors.items()}
        return keys | {self.keys.ended_stream(stream): cursors[stream] for stream in cursors if stream != LOG_STREAM}

    def _items(self, reply: Any) -> list[LogItem]:  # noqa: ANN401 - a reply
        stem = len(self.keys.prefix)
        items = [
            _item(key.decode()[stem:].removeprefix(START).partition(":")[2], entry.decode(), fields)
            for key, found in reply
            for entry, fields in found
        ]
        self._largest = max((len(item.frame) for item in items), default=self._largest)
        return items

    async def note_written(self, epoch: int, written: Mapping[str, LogMark], dropped: Sequence[str]) -> None:
        """Record the log's position in each stream, and delete entries that nobody needs any more.

        Args: `dropped` names streams of removed mailboxes that were read to their end.
        Raises: Fenced if a newer writer has taken over the log.
        """
        args: list[Any] = [epoch, self.keys.prefix, len(written)]
        for stream, mark in written.items():
            args += [stream, following(mark.entry), mark.messages, mark.nbytes]
        await self._under_epoch(
            "note_written", [self.keys.meta, self.keys.state(LOG), self.keys.ended], [*args, *dropped]
        )

    async def note_resumed(self, epoch: int, taken: Mapping[str, tuple[int, int]]) -> None:
        """Record how many messages and bytes of each stream earlier writers have put into the log.

        A writer that died may have written more than it recorded with `note_written`. This is called once, before the
        new writer's first `note_written`, for all streams.

        Raises: Fenced if a newer writer has taken over the log.
        """
        args: list[Any] = [epoch, self.keys.prefix]
        for stream, (messages, nbytes) in taken.items():
            args += [stream, messages, nbytes]
        await self._under_epoch("note_resumed", [self.keys.meta, self.keys.state(LOG)], args)

    async def agents(self, digest: bytes) -> AgentSet | None:
        """Return the set of agents with this digest, or None if the server does not have it.

        Broadcasts name their hearers by such a digest.
        """
        data = await self.link.command("HGET", self.keys.hearers, digest)
        return None if data is None else decode_agents(data)

    async def agent_digests(self) -> list[bytes]:
        """Return the digests of all sets of agents that the server has."""
        found: list[bytes] = await self.link.command("HKEYS", self.keys.hearers)
        return found

    async def forget_agents(self, digests: Sequence[bytes]) -> None:
        """Delete from the server sets of agents that the event log has stored in its own folder."""
        if digests:
            await self.link.command("HDEL", self.keys.hearers, *digests)

    async def writer_epoch(self) -> int:
        """Return the epoch of the last writer, or 0 if there was none or the server lost its data."""
        return int(await self.link.command("HGET", self.keys.state(LOG), "epoch") or 0)

    async def unregister(self, epoch: int) -> None:
        """Unregister the event log.

        From then on, an entry is deleted as soon as the reader of its mailbox has committed it. Unread entries of the
        log stream, and of streams of removed mailboxes, are deleted.

        Raises: Fenced if a newer writer has taken over the log.
        """
        keys = [self.keys.meta, self.keys.changes, self.keys.state(LOG), self.keys.ended, self.keys.stream(LOG_STREAM)]
        keys.append(self.keys.hearers)
        await self._under_epoch("close_log", keys, [epoch, self.keys.prefix])

    async def _under_epoch(self, script: str, keys: Sequence[str], args: Sequence[Any]) -> None:
        if await self.link.script(script, keys, args) == 0:
            raise Fenced(
                "the server does not take entries of the event log from this writer any more, because a newer writer "
                "has "
                "taken over, the log was closed, or the server lost its data: stop this writer. If no newer writer "
                "runs, open the log again",
                name=LOG,
                epoch=args[0],
            )


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
        # For an empty list the server stores {}, because Lua's cjson encodes an empty list so.
        None if takers is None else [int(taken) for taken in msgspec.json.decode(takers)],
        int(found[b"s"]) if b"s" in found else None,
        int(found[b"o"]) if b"o" in found else None,
    )
