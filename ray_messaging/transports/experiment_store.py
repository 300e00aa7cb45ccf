"""Data of an experiment as a whole: its owner, its interceptor's epoch, and the state of its rules.

The owner is one call of `Messaging.start`.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from ray_messaging.addressing.server_keys import Keys
from ray_messaging.common.backoff import RULE_STATE_RETRY, Backoff
from ray_messaging.default_limits_and_leases import SCAN_COUNT
from ray_messaging.errors import ConfigError, Fenced

if TYPE_CHECKING:
    from ray_messaging.transports.connection.link import RedisLink
    from ray_messaging.transports.transport import RedisTransport


Fields = dict[bytes, bytes]


class ExperimentClaim(IntEnum):
    """Whether a call of `Messaging.start`, called a start here, has become the owner of an experiment."""

    LOST = 0  # another start owns the experiment
    HELD = 1
    ERASE = 2  # this start owns the experiment, and must delete the data of the earlier start


class StateWrite(IntEnum):
    """Result of a write by the interceptor, which the server accepts only from the newest interceptor."""

    FENCED = 0  # another interceptor has taken over
    DONE = 1
    BEHIND = 2  # the server has lost an earlier write, so everything must be written again


class TableChanges(msgspec.Struct, frozen=True):
    """Changes of a rule's table of state: fields that were set (`put`), and fields that were removed (`gone`).

    With `cleared`, all fields from before these changes are removed first.
    """

    put: Fields
    gone: Sequence[bytes]
    cleared: bool = False


class StateChanges(NamedTuple):
    """Changes of the rules' state, which are written as a whole or not at all.

    `tables` has the changes of the rules' tables, `answers` the answers to senders that belong to these changes, and
    `forget` the keys of answers to delete. With `whole`, the changes replace all state of the rules on the server.
    """

    tables: Mapping[str, TableChanges]
    answers: Mapping[str, bytes]
    forget: Sequence[str]
    whole: bool = False


def other_run(exp_id: str, epoch: int) -> Fenced:
    """Build the error for a call of `Messaging.start` whose experiment a later call has taken over."""
    return Fenced(
        f"experiment {exp_id!r} was started anew, or its server was flushed, so this earlier start can no longer send "
        "or receive: shut this start down. To go on, start the experiment again, or use another exp_id",
        name=exp_id,
        epoch=epoch,
    )


FORMAT = 5


def check_format(exp_id: str, found: int) -> None:
    """Raise ConfigError if an experiment's data have another format than ours; `found` is 0 if there are no data."""
    if found not in {0, FORMAT}:
        raise ConfigError(
            f"experiment {exp_id!r} has data of format {found} on its server, but this ray_messaging reads only "
            f"format {FORMAT}: use another exp_id, go on with the version of ray_messaging that wrote the data, or "
            "delete "
            "the data by Messaging.start(..., on_existing='reset')"
        )


def check_shards(exp_id: str, found: int, told: int) -> None:
    """Raise ConfigError if an experiment has another number of shards (servers) than this process was told to use.

    Args: `found` is the experiment's number (0: it has no data), `told` the number in the config of this process.
    """
    if found and found != told:
        has = f"{found} shards" if found > 1 else "one shard"
        raise ConfigError(
            f"experiment {exp_id!r} has {has}, but the config of this process has shards={told}, and the number cannot "
            f"change: write shards={found}, or use another exp_id. For embedded servers, pass messaging.redis, which "
            "names all of them"
        )


_FIELDS_AT_ONCE = 10_000
# The fields that a reset keeps. Most are counters, which would assign the same number twice if they began again.
_KEPT_FIELDS = {b"directory", b"born", b"format"} | {
    b"start:" + name for name in (b"run", b"erasing", b"interceptor", b"log_epoch", b"shards")
}


class RedisExperimentStore:
    """The data of an experiment as a whole, on the server that is called the experiment's primary.

    In this class a run is one call of `Messaging.start`, known by an id. "Our run" is the call to which this process
    belongs.
    """

    def __init__(self, transport: "RedisTransport") -> None:
        self._transport = transport
        self._run = transport.run
        self._link, self._keys = transport.link, transport.keys
        self._meta = self._keys.meta
        # The epoch of the interceptor before this one: b"" if there was none. None: this process has no epoch.
        self._before: bytes | None = None
        # The numbers of our last write of the rules' state, and of the last write that the server has confirmed.
        self._number = self._confirmed = 0

    @property
    def where(self) -> str:
        """Return the server's address for error texts."""
        return self._link.where

    # -- runs -----------------------------------------------------------------------------------------------------

    async def holder(self) -> bytes | None:
        """Return the id of the run that owns the experiment, or None if no run owns it.

        Raises: ConfigError if the data have another format than ours.
        """
        run, found = await self._link.command("HMGET", self._meta, "start:run", "format")
        if not self._transport.any_format:
            check_format(self._keys.exp_id, int(found or 0))
        holder: bytes | None = run
        return holder

    async def _field(self, name: str) -> bytes | None:
        found: bytes | None = await self._link.command("HGET", self._meta, name)
        return found

    async def is_headless(self) -> bool:
        """Return whether the experiment has mailboxes, although the server has lost the experiment's own data."""
        versioned = await self._link.command("HEXISTS", self._meta, "directory")
        return not versioned and bool(await self._link.command("EXISTS", self._keys.changes))

    async def claim(self, holder: bytes | None, *, reset: bool) -> ExperimentClaim:
        """Claim the experiment for our run, if run `holder` still owns it (None: no run owns it).

        With `reset`, a successful claim means that the earlier data must be deleted.
        """
        args = [holder or b"", self._run, int(reset), FORMAT, self._transport.shards]
        return ExperimentClaim(await self._link.script("claim_experiment", [self._meta], args))

    async def erase_earlier(self) -> None:
        """Delete the data of earlier runs. This may be repeated after an interruption."""
        await self._erase(but=self._meta.encode())
        if self._transport.bodies is not None:
            await self._transport.bodies.erase()
        fields = await self._link.command("HKEYS", self._meta)
        if gone := [field for field in fields if field not in _KEPT_FIELDS]:
            await self._link.command("HDEL", self._meta, *gone)
        await self._link.command("HINCRBY", self._meta, "directory", 1)
        await self._link.command("HDEL", self._meta, "start:erasing")

    async def erase(self) -> None:
        """Delete all data of the experiment, unless another run owns it by now."""
        if await self.holder() == self._run.encode():
            if self._transport.bodies is not None:
                await self._transport.bodies.erase()
            await self._erase()

    async def _erase(self, but: bytes = b"") -> None:
        scanned, cursor = b"", b"0"
        # An exp_id cannot have glob characters, and braces have no meaning in Redis. So the prefix matches only itself.
        pattern = self._keys.prefix + "*"
        while True:
            server, following, keys = await self._link.script("scan_keys", [self._meta], [cursor, pattern, SCAN_COUNT])
            if found := [key for key in keys if key != but]:
                await self._link.command("UNLINK", *found)
            # After a failover another server answers, and the cursor means nothing to it. So the scan begins again.
            if server != scanned and cursor != b"0":
                following = b"0"
            elif int(following) == 0:
                return
            scanned, cursor = server, following

    # -- seats ----------------------------------------------------------------------------------------------------

    async def seats(self) -> Mapping[bytes, bytes]:
        """Return the records of all seats, by the agents' ids. At a seat a person acts as an agent."""
        found: Sequence[bytes] = await self._link.command("HGETALL", self._keys.seats)
        return dict(zip(found[::2], found[1::2], strict=True))

    async def keep_seat(self, agent: bytes, record: bytes) -> None:
        """Store the record of an agent's seat."""
        await self._link.command("HSET", self._keys.seats, agent, record)

    # -- the interceptor ------------------------------------------------------------------------------------------

    async def take_interceptor_epoch(self) -> int:
        """Claim a new epoch for the interceptor. From then on the server refuses calls under an earlier epoch.

        Raises: Fenced if another run owns the experiment.
        """
        self._before, epoch = await self._transport.log.take_epoch(
            "advance_interceptor_epoch", "start:interceptor", [self._meta], []
        )
        return epoch

    async def _retake_epoch(self, epoch: int) -> bool:
        """If the server has lost our epoch, because it was restored from older data, make our epoch valid again.

        Return True if this was done. Return False if another interceptor has taken over, or this process has no epoch.
        """
        if self._before is None:
            return False
        for before in {self._before, b""}:
            if await self._link.script("advance_interceptor_epoch", [self._meta], [self._run, before, epoch]) == 1:
                self._number += 1
                # The server has no write of this number. So writes return BEHIND until one of them contains all state.
                self._confirmed = self._number
                return True
        return False

    async def heartbeat(self) -> bytes | None:
        """Return the counter of the interceptor's heartbeats, or None if the interceptor was closed."""
        return await self._field("start:beat")

    async def beat(self, epoch: int) -> StateWrite:
        """Increment the counter of the interceptor's heartbeats, and check that the server has all confirmed writes.

        Also delete large frames of old steps, which are stored apart from their steps.

        Raises: Fenced if another run owns the experiment.
        """
        confirmed = self._confirmed
        run, holder, kept = await self._link.script("heartbeat", [self._meta], [self._run, epoch, 1])
        if run != self._run.encode():
            raise other_run(self._keys.exp_id, epoch)
        if holder == b"%d" % epoch:
            if self._transport.bodies is not None:
                await self._transport.bodies.sweep()
            return StateWrite.DONE if int(kept or 0) >= confirmed else StateWrite.BEHIND
        return StateWrite.BEHIND if await self._retake_epoch(epoch) else StateWrite.FENCED

    async def end_heartbeat(self, epoch: int) -> None:
        """Delete the counter of this interceptor's heartbeats, so that others know that the interceptor was closed."""
        await self._link.script("heartbeat", [self._meta], [self._run, epoch, 0])

    async def delegate(self, epoch: int, number: int) -> StateWrite:
        """Make the server accept verdicts that senders reach by themselves, with the copy `number` of the rules.

        If the server already accepts a copy with a higher number, change nothing. Return FENCED if another
        interceptor has taken over, otherwise DONE.
        """
        backoff = Backoff(RULE_STATE_RETRY)
        while await self._link.script("advance_delegation", [self._meta], [epoch, number]) == 0:
            if not await self._retake_epoch(epoch):
                return StateWrite.FENCED
            await backoff.sleep()
        return StateWrite.DONE

    async def read_tables(self, names: Iterable[str]) -> tuple[dict[str, Fields], dict[str, bytes]]:
        """Return the rules' tables by name, and the saved records of answers to senders by the answers' keys."""
        tables = {name: await self._hash(self._keys.table(name)) for name in names}
        return tables, {key.decode(): answer for key, answer in (await self._hash(self._keys.answers)).items()}

    async def _hash(self, key: str) -> Fields:
        found = await self._link.command("HGETALL", key)
        return dict(zip(found[::2], found[1::2], strict=True))

    async def write(self, epoch: int, state: StateChanges, names: Sequence[str] | None, *, again: bool) -> StateWrite:
        """Write changes of the rules' state, as a whole or not at all.

        Args: `names` begins with the name under which Ray's cluster state has the rules in force. The names of these
        rules follow. None leaves the names on the server unchanged. `again` is true if the last write is repeated.
        """
        keys = [self._meta, self._keys.answers, self._keys.rules]
        if not again:
            self._number += 1
        args: list[Any] = [epoch, self._number, 0 if state.whole else self._confirmed, int(state.whole)]
        args += [len(state.answers), *(part for pair in state.answers.items() for part in pair)]
        args += [len(state.forget), *state.forget]
        args += [-1] if names is None else [len(names), *names]
        for name, changes in state.tables.items():
            key = self._keys.table(name)
            staged = self._keys.staged(f"{epoch}:{name}")
            keys += [key, staged]
            put: Mapping[bytes, bytes] = changes.put
            if changes.cleared:  # a large table is written in several calls under another name, and then renamed
                await self._stage(staged, put)
                put = {}
            args += [int(changes.cleared), len(put), *(part for pair in put.items() for part in pair)]
            args += [len(changes.gone), *changes.gone]
        written = await self._link.script("write_rule_state", keys, args)
        if written == 0 and not await self._retake_epoch(epoch):
            return StateWrite.FENCED
        if written != 1:
            return StateWrite.BEHIND
        self._confirmed = self._number
        return StateWrite.DONE

    async def _stage(self, key: str, fields: Mapping[bytes, bytes]) -> None:
        await self._link.command("DEL", key)
        pairs = list(fields.items())
        for low in range(0, len(pairs), _FIELDS_AT_ONCE):
            part = pairs[low : low + _FIELDS_AT_ONCE]
            await self._link.command("HSET", key, *(text for pair in part for text in pair))

    async def rules_name(self) -> bytes | None:
        """Return the name under which Ray's cluster state has the rules in force, or None if no rules are in force."""
        found: bytes | None = await self._link.command("LINDEX", self._keys.rules, 0)
        return found

    # -- the event log, and senders -------------------------------------------------------------------------------

    async def log_mark(self, name: str) -> bytes | None:
        """Return a value that the event log has stored under a name, or None if there is none."""
        return await self._field(f"start:log_{name}")

    async def set_log_mark(self, name: str, value: str | int) -> None:
        """Store a value under a name, for the event log's next process."""
        await self._link.command("HSET", self._meta, f"start:log_{name}", value)

    async def time_ms(self) -> int:
        """Return the time of the server's clock, in ms since 1970."""
        seconds, micros = await self._link.command("TIME")
        return int(seconds) * 1000 + int(micros) // 1000

    async def forget_sender(self, name: str) -> None:
        """Delete the epoch and sequence numbers of a sender."""
        await self._link.command("UNLINK", self._keys.sender(name))


class RedisSurveys:
    """Surveys by id. Each survey has a record that never changes, and named items that are added to it."""

    def __init__(self, link: "RedisLink", keys: Keys) -> None:
        self._link = link
        self._keys = keys

    async def create(self, survey_id: str, record: bytes) -> bool:
        """Store a new survey's record. Return False if the id already has another record, otherwise True."""
        if await self._link.command("HSETNX", self._keys.surveys, survey_id, record):
            return True
        # If this call was repeated, the first attempt has stored an equal record.
        return await self.read(survey_id) == record

    async def read(self, survey_id: str) -> bytes | None:
        """Return a survey's record, or None if there is no survey with this id."""
        found: bytes | None = await self._link.command("HGET", self._keys.surveys, survey_id)
        return found

    async def add(self, survey_id: str, name: str, part: bytes) -> None:
        """Store `part` under a name among the items of a survey."""
        await self._link.command("HSET", self._keys.survey(survey_id), name, part)

    async def parts(self, survey_id: str, known: Collection[str]) -> dict[str, bytes]:
        """Return, by name, the items of a survey whose names are not in `known`."""
        names = await self._link.command("HKEYS", self._keys.survey(survey_id))
        new = [name for name in names if name.decode() not in known]
        found = await self._link.command("HMGET", self._keys.survey(survey_id), *new) if new else []
        return {name.decode(): part for name, part in zip(new, found, strict=True) if part is not None}

    async def ids(self) -> list[str]:
        """Return the ids of all surveys."""
        return sorted(name.decode() for name in await self._link.command("HKEYS", self._keys.surveys))

    async def remove(self, survey_id: str) -> None:
        """Delete a survey's record and its items."""
        await self._link.command("UNLINK", self._keys.survey(survey_id))
        await self._link.command("HDEL", self._keys.surveys, survey_id)
