"""Departures of agents on several shards: the pattern of a transactional outbox, as for transactions.

Where the control shard has both mailboxes, as in steps, it is one call there. Else the target's shard is asked first
whether it has room. Then the shard of the mailbox commits, in one call: all that was read is acknowledged, the agents'
messages are kept beside the mailbox, which takes none from then on, the others are written again. Three calls follow,
each of which has its effect once for an attempt, so that anybody may repeat them:

1. the target's shard writes the kept ones into the target, behind a frame that says that agents came, and from where,
2. the control shard changes both records in the directory; the target's reader sees to that, too, before it reads on,
3. the shard of the mailbox lets it take messages again, and raises its version of the directory. The target's process
   sees to that, too, as far as that shard is there.

No message for the agents is written anywhere between commit and 2: senders find them in a mailbox that takes nothing.
Those by an older directory are refused after 3. Where the process dies, its successor goes on as it opens the mailbox.
A transaction that may be committed on another server keeps agents from leaving a mailbox to which it writes, until it
has: see `promise` in send.lua.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from ray_messaging.addressing.directory import Claim, Record, agents_of, claims_of, decode_record, encode_record
from ray_messaging.addressing.moved_records import moved_records
from ray_messaging.common.task_health import end
from ray_messaging.errors import ConnectionFailed, FrameError, MessagingError
from ray_messaging.transports.departures import Parcel, Rehosted, Rehosting, Release, Released
from ray_messaging.transports.sharded.versions import version_of

if TYPE_CHECKING:
    from ray_messaging.transports.redis.transport import RedisTransport

logger = logging.getLogger(__name__)

_RECORDED = 0  # of record_departure.lua


class _Departed(msgspec.Struct, array_like=True, frozen=True):
    """Agents that have left a mailbox by an attempt, and the frames that go with them. Append-only."""

    epoch: int
    number: int
    agents: Claim
    target: str  # "": they were removed
    shard: int  # the target's
    parcels: tuple[Parcel, ...] = ()

    @property
    def attempt(self) -> tuple[int, int]:
        return self.epoch, self.number


_encode = msgspec.msgpack.Encoder().encode
_decoder = msgspec.msgpack.Decoder(_Departed)


class ShardedDepartures:
    """Departures of agents of an experiment on several servers; `homes` are the shards of mailboxes."""

    def __init__(self, shards: "Sequence[RedisTransport]", homes: Mapping[str, int]) -> None:
        self._shards = shards
        self._control = shards[0]
        self._homes = homes
        self._finishing: set[asyncio.Task[None]] = set()
        self._asked: tuple[str, int, int] | None = None  # the last attempt for which the target has room

    # -- on one server --------------------------------------------------------------------------------------------

    async def entries(self, mailbox: str, first: str, last: str) -> list[tuple[str, bytes]]:
        """Return the first entries from one to another, some at a time."""
        return await self._home_of(mailbox).departures.entries(mailbox, first, last)

    async def give_up(self, mailbox: str, epoch: int, number: int) -> bool:
        """Refuse an attempt and those before it from now on; return whether it is done. Raises Fenced."""
        return await self._home_of(mailbox).departures.give_up(mailbox, epoch, number)

    async def rehost(self, attempt: Rehosting) -> Rehosted:
        """Change the hosts of agents in steps: all mailboxes, boxes and records are on the control shard."""
        return await self._control.departures.rehost(attempt)

    async def state_before(self, group: str, step: int) -> bytes | None:
        """Return the state that a group's last step before another one left, from which agents have left the group."""
        return await self._control.departures.state_before(group, step)

    def _home_of(self, mailbox: str) -> "RedisTransport":
        return self._shards[self._homes.get(mailbox, 0)]

    # -- on several -----------------------------------------------------------------------------------------------

    async def release(self, attempt: Release) -> Released:
        """Let agents leave a mailbox: with DONE it is committed, and `conclude` brings them to their new one."""
        name, target = attempt.record.mailbox, attempt.target
        home = self._homes.get(name, 0)
        there = home if target is None else self._homes.get(target.mailbox, 0)
        attempt = replace(attempt, version=version_of(attempt.version, home))
        if not home and not there:
            return await self._control.departures.release(attempt)
        mine, parcels = (name, attempt.epoch, attempt.number), tuple(attempt.go)
        if target is not None and mine != self._asked:
            refused = await self._ask(there, target.mailbox, parcels)
            if refused is not Released.DONE:
                return refused
            self._asked = mine  # it must not be asked again: this call may be committed, and come again
        (agents,) = claims_of({"": attempt.agents})
        if target is None:  # they become dead letters here
            departed = _Departed(attempt.epoch, attempt.number, agents, "", home)
        else:
            departed = _Departed(attempt.epoch, attempt.number, agents, target.mailbox, there, parcels)
            attempt = replace(attempt, target=None, go=())
        outcome = await self._shards[home].departures.release(attempt, _encode(departed))
        if outcome is Released.UNDER_WAY:
            await self.conclude(name)
            return Released.STALE_DIRECTORY
        return outcome

    async def _ask(self, shard: int, target: str, parcels: Sequence[Parcel]) -> Released:
        """Return whether a mailbox has room."""
        keys = self._shards[shard].keys
        args: list[Any] = [keys.prefix, target]
        for rows, frame in parcels:
            args += (rows, len(frame))
        try:
            asked = [keys.state(target), keys.lease(target)]
            return Released(await self._shards[shard].link.script("ask_for_room", asked, args))
        except ConnectionFailed:
            return Released.AWAY

    async def conclude(self, mailbox: str) -> bool:
        """Bring agents that have left a mailbox to their new server; return whether some were on their way."""
        home = await self._find(mailbox)
        data = await home.link.command("HGET", home.keys.state(mailbox), "going")
        if data is None:
            return False
        departed = _decode(data, mailbox)
        if departed.target:
            await self._receive(mailbox, departed)
        await self._record(mailbox, departed)
        await self._finish(mailbox, departed)
        return True

    async def admit(self, mailbox: str, source: str) -> None:
        """Enter agents that came to a mailbox of ours from another one in the directory, unless they are there."""
        home = self._home_of(mailbox)
        data = await home.link.command("HGET", home.keys.arrived, source)
        if data is not None:
            departed = _decode(data.split(b" ", 2)[2], mailbox)
            await self._record(source, departed)
            # Should the process that let them go be no more. Not awaited: its server may be away, and it is not ours.
            finishing = asyncio.create_task(
                self._try_to_finish(source, departed), name=f"ray_messaging end of {source}"
            )
            self._finishing.add(finishing)
            finishing.add_done_callback(self._finishing.discard)

    async def close(self) -> None:
        """Begin nothing any more."""
        for finishing in [*self._finishing]:
            await end(finishing)

    async def _try_to_finish(self, source: str, departed: _Departed) -> None:
        try:
            await self._finish(source, departed)
        except MessagingError as error:  # its own process does it, or the successor of that
            logger.info("mailbox %s still takes nothing, as agents have left it: %s", source, error)

    async def _finish(self, source: str, departed: _Departed) -> None:
        """Have a mailbox take messages again that agents have left."""
        home = await self._find(source)
        await home.link.script("finish_departure", [home.keys.meta, home.keys.state(source)], departed.attempt)

    async def _find(self, mailbox: str) -> "RedisTransport":
        """Return the shard of a mailbox that the directory may not have named yet."""
        home = self._homes.get(mailbox)
        if home is None:
            home = int(await self._control.link.command("HGET", self._control.keys.homes, mailbox) or 0)
        return self._shards[home]

    async def _receive(self, source: str, departed: _Departed) -> None:
        """Have the target's shard write the frames that go with agents."""
        target, there = departed.target, self._shards[departed.shard]
        keys = there.keys
        asked = [keys.meta, keys.dead, keys.state(target), keys.lease(target), keys.arrived]
        agents = _encode(replace(departed, parcels=()))
        args: list[Any] = [keys.prefix, source, *departed.attempt, agents, target, self._control.dead_bytes]
        for parcel in departed.parcels:
            args += parcel
        await there.link.script("receive_agents", asked, args)

    async def _record(self, source: str, departed: _Departed) -> None:
        """Have the control shard change the records of both mailboxes, unless it has."""
        keys, link, names = self._control.keys, self._control.link, [source, departed.target]
        asked = [keys.meta, keys.records, keys.changes, keys.entries, keys.entered, keys.recorded]
        tables = [(table, name) for name in names for table in (keys.records, keys.entered)]
        outcome = None
        while outcome != _RECORDED:
            version, *found = await link.commands(
                ("HGET", keys.meta, "directory"), *(("HGET", *each) for each in tables)
            )
            here, there = (_record_of(found[at] or found[at + 1]) for at in (0, 2))
            moved: list[Any] = []
            if here is not None:
                for record in moved_records(here, there, agents_of(departed.agents)):
                    moved += [] if record is None else [record.mailbox, encode_record(record)]
            outcome = await link.script("record_departure", asked, [version or 0, source, *departed.attempt, *moved])


def _record_of(data: bytes | None) -> Record | None:
    return None if data is None else decode_record(data)


def _decode(data: bytes, mailbox: str) -> _Departed:
    try:
        return _decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise FrameError(f"the agents that left or reached mailbox {mailbox!r} cannot be read: {error}") from error
