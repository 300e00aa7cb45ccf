"""Bodies of large frames in the boxes of steps. A box has the messages that one mailbox reads in one step.

The primary has the boxes. In place of a large frame, a box has a small stand-in, and another server has the frame
itself, which is called the stand-in's body (the claim check pattern). The primary alone decides which frames count.
A body is written before its stand-in, never changed, and deleted after the primary has deleted the box. So each
stand-in has a body.
"""

import asyncio
import logging
from collections.abc import Awaitable, Iterable, Sequence
from typing import NamedTuple, TypeVar
from zlib import crc32

from msgspec.structs import replace

from ray_messaging.addressing.server_keys import Keys
from ray_messaging.common.task_health import end
from ray_messaging.default_limits_and_leases import BODY_ARREARS
from ray_messaging.errors import BodyLost, MessagingError
from ray_messaging.transports.connection.link import RedisLink
from ray_messaging.transports.step_values import ASKER, OUTSIDE, PLACES, BoxFrame, StepTag, box_in_words
from ray_messaging.transports.transport_values import FrameWrite, SendRequest
from ray_messaging.wire.frames import checksum_of

logger = logging.getLogger(__name__)

T = TypeVar("T")

_ALL = 2**53  # a number above the numbers of all steps
_SWEEP_S = 1.0  # how long to wait for the deletion of old bodies, which may go on after that
_MARK = b"\x01body:"  # each stand-in begins with these bytes, and no frame does; boxes.lua has the same bytes


async def at_all(calls: Iterable[Awaitable[T]]) -> list[T]:
    """Make calls concurrently, and return their results. If calls fail, raise the first error after all have ended."""
    found = await asyncio.gather(*calls, return_exceptions=True)
    for each in found:
        if isinstance(each, BaseException):
            raise each
    return found  # type: ignore[return-value]  # none of them is an exception


class _StandIn(NamedTuple):
    """What a box has in place of a large frame, which another server stores.

    `shard` is the number of this server, and `nbytes` and `name` are the size of the frame and its name there.
    """

    shard: int
    nbytes: int
    name: bytes

    def encode(self) -> bytes:
        return b"%b%d:%d:%b" % (_MARK, *self)

    @classmethod
    def decode(cls, data: bytes) -> "_StandIn":
        shard, nbytes, name = data.removeprefix(_MARK).split(b":", 2)
        return cls(int(shard), int(nbytes), name)


class StepBodies:
    """The store of bodies, which are large frames of steps. In its box, each body has only a small stand-in.

    The bodies that a process sends are on one server, or spread over all servers by a hash of their names. If a large
    frame's server is the primary, the frame stays in its box. Answers to askers outside of the steps, notes for the
    event log and publications also stay in their boxes, because the primary itself reads them.

    Args: `links` and `keys` are for all servers, the primary first. `home` is the server for the bodies that this
    process sends (None: they are spread). Frames of at least `least` bytes are large.
    """

    def __init__(self, links: Sequence[RedisLink], keys: Sequence[Keys], home: int | None, least: int) -> None:
        self.links = links
        self._keys = keys
        self._home = home
        self._least = least
        # For each server, how many bytes of bodies this process has written since it last deleted old bodies there.
        self._arrears = [0] * len(links)
        # For each server, the asyncio task that deletes old bodies there. At most one runs for each server.
        self._sweeps: dict[int, asyncio.Task[None]] = {}

    async def close(self) -> None:
        """Close the connections to the further servers; closing twice is harmless."""
        for sweep in self._sweeps.values():
            await end(sweep)
        for link in self.links[1:]:
            await link.close()

    # -- senders --------------------------------------------------------------------------------------------------

    async def put(self, request: SendRequest, tag: StepTag) -> Sequence[FrameWrite]:
        """Write a call's large frames to other servers.

        Return the call's frames for the primary, with small stand-ins in place of the large ones.
        """
        if all(len(write.frame) < self._least for write in request.writes):
            return request.writes
        writes, parts = list(request.writes), dict[int, dict[int, list[bytes]]]()
        for place, write in enumerate(writes):
            step = self._step_of(write)
            if step is None:
                continue
            name = _name(write, request.sender, tag)
            shard = crc32(name) % len(self.links) if self._home is None else self._home
            if shard:
                parts.setdefault(shard, {}).setdefault(step, []).extend((name, write.frame))
                writes[place] = replace(write, frame=_StandIn(shard, len(write.frame), name).encode())
        await at_all(self._write(shard, steps) for shard, steps in parts.items())
        return writes

    def _step_of(self, write: FrameWrite) -> int | None:
        """Return the step in which a frame will be read, if another server may store the frame.

        Return None if the frame must stay in its box: it is small, or the primary itself reads it.
        """
        mailbox, _, step = write.mailbox.rpartition("@")
        if len(write.frame) < self._least or not step.isdecimal():
            return None
        return None if mailbox.startswith((ASKER, ":")) and mailbox != PLACES else int(step)

    async def _write(self, shard: int, steps: dict[int, list[bytes]]) -> None:
        nbytes = sum(len(part) for pairs in steps.values() for part in pairs)
        self._arrears[shard] += nbytes
        if self._arrears[shard] > BODY_ARREARS:
            self._arrears[shard] = nbytes
            await self.drop(shard, await self.dropped())
        # The step is put in the list of steps with bodies before the bodies are written, and again after that. In
        # between, another process may delete old bodies of the step, and remove the step from the list. The second SADD
        # then puts the step in the list again.
        listed = ("SADD", self._keys[shard].bodies, *steps)
        written = (("HSET", self._keys[shard].bodies_of(step), *pairs) for step, pairs in steps.items())
        await self.links[shard].commands(listed, *written, listed)

    # -- readers --------------------------------------------------------------------------------------------------

    async def fetch(self, box: str, frames: list[BoxFrame]) -> list[BoxFrame]:
        """Return frames of a box, with large frames read from the other servers in place of their stand-ins.

        If the box's step is dropped already, leave out large frames that are gone.

        Raises: BodyLost if a server has lost a large frame of a step that is not dropped.
        """
        # For each server, a dict from the position of a frame to the name of its body.
        shards: dict[int, dict[int, bytes]] = {}
        for place, frame in enumerate(frames):
            if frame.frame.startswith(_MARK) and frame.tag.group != OUTSIDE:
                shard, _, name = _StandIn.decode(frame.frame)
                shards.setdefault(shard, {})[place] = name
        if not shards:
            return frames
        step = int(box.rpartition("@")[2])
        found, missing = list(frames), dict[int, int]()
        replies = await at_all(
            self.links[shard].command("HMGET", self._keys[shard].bodies_of(step), *names.values())
            for shard, names in shards.items()
        )
        for (shard, names), bodies in zip(shards.items(), replies, strict=True):
            for place, body in zip(names, bodies, strict=True):
                if body is None:
                    missing[place] = shard
                else:
                    found[place] = frames[place]._replace(frame=body)
        if missing and await self.dropped() < step:
            shard = next(iter(missing.values()))
            raise BodyLost(
                f"{box_in_words(box)} are lost, because shard {shard} at {self.links[shard].where} was flushed, "
                "restored "
                "from older data, or killed before it wrote to its disk: start the experiment anew. With the setting "
                "`appendfsync always`, a shard that is killed loses nothing",
                box=box,
                shard=shard,
            )
        return [frame for place, frame in enumerate(found) if place not in missing]

    # -- deletion of old bodies -----------------------------------------------------------------------------------

    async def dropped(self) -> int:
        """Return the last step whose boxes the primary has dropped, or -1 if there is none."""
        return int(await self.links[0].command("HGET", self._keys[0].steps(), "dropped") or -1)

    async def drop(self, shard: int, through: int) -> None:
        """Delete the bodies of the steps up to `through` on a server."""
        await self.links[shard].script("drop_bodies", [self._keys[shard].bodies], [through])

    async def sweep(self) -> None:
        """Delete, from all servers but the primary, the large frames of steps whose boxes the primary has deleted.

        This call waits at most a second. If a server takes longer, the deletion there goes on after the call.
        """
        dropped = await self.dropped()
        for shard in range(1, len(self.links)):
            if dropped >= 0 and (shard not in self._sweeps or self._sweeps[shard].done()):
                sweep = self._try_to_drop(shard, dropped)
                self._sweeps[shard] = asyncio.create_task(sweep, name=f"ray_messaging sweep of shard {shard}")
        if self._sweeps:
            await asyncio.wait(self._sweeps.values(), timeout=_SWEEP_S)

    async def _try_to_drop(self, shard: int, through: int) -> None:
        try:
            await self.drop(shard, through)
        except MessagingError as error:
            logger.warning(
                "the data of ended steps could not be deleted on shard %d; this will be tried again: %s", shard, error
            )

    async def erase(self) -> None:
        """Delete all large frames of steps that are stored outside of their boxes, on all shards but the first."""
        await at_all(self._erase(shard) for shard in range(1, len(self.links)))

    async def _erase(self, shard: int) -> None:
        await self.drop(shard, _ALL)
        await self.links[shard].command("UNLINK", self._keys[shard].mark)


def _name(write: FrameWrite, sender: str, tag: StepTag) -> bytes:
    """Build the name under which another server stores a large frame.

    Equal frames have equal names, so that a repeated call stores the frame once. A group that sends a step again may
    divide its messages into other frames. These have other checksums, and therefore other names.
    """
    sent = f"{write.mailbox}:{tag.sent}:{tag.attempt}:{write.seq}:{checksum_of(write.frame):x}"
    return f"{sent}:{len(write.frame)}:{tag.group}:{sender}".encode()
