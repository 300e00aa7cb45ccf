"""Data of an experiment as a whole on several shards: most is on the control shard, what each must check on all."""

from collections.abc import Iterable, Sequence
from functools import partial

from ray_messaging.transports.experiment_store import Claim, Fields, RuleState, StateWrite
from ray_messaging.transports.redis.experiment_store import RedisExperimentStore
from ray_messaging.transports.sharded.calls import PendingCalls, at_all
from ray_messaging.transports.sharded.step_bodies import StepBodies

_BEAT_S = 1.0  # for the answers of the other shards to a heartbeat


class ShardedExperimentStore:
    """Experiment-wide data on several servers.

    The claim, the interceptor's epoch and the number of delegated verdicts are on each of them, the same everywhere;
    the rest is on the control shard. What must count everywhere returns when each shard has confirmed it.
    """

    def __init__(self, shards: Sequence[RedisExperimentStore], bodies: StepBodies) -> None:
        self._shards = shards
        self._bodies = bodies
        self._control, self._others = shards[0], shards[1:]
        self._beats: PendingCalls[StateWrite] = PendingCalls("heartbeat")

    @property
    def where(self) -> str:
        """Addresses of the servers, for messages."""
        return ", ".join(shard.where for shard in self._shards)

    # -- runs -----------------------------------------------------------------------------------------------------

    async def holder(self) -> bytes | None:
        """Return the run that has the experiment; None if no run has."""
        return await self._control.holder()

    async def is_headless(self) -> bool:
        """Return whether mailboxes exist although a server has lost the experiment's own data."""
        return any(await at_all(shard.is_headless() for shard in self._shards))

    async def claim(self, holder: bytes | None, *, reset: bool) -> Claim:
        """Claim the experiment for our run, if `holder` still has it. `reset`: the data of that run will be erased."""
        taken = await self._control.claim(holder, reset=reset)
        if taken is not Claim.LOST:
            others = await at_all(_follow(shard, reset=reset) for shard in self._others)
            if Claim.ERASE in others:
                return Claim.ERASE
        return taken

    async def erase_earlier(self) -> None:
        """Delete the data of earlier runs; may be repeated after an interruption."""
        await at_all(shard.erase_earlier() for shard in self._shards)

    async def erase(self) -> None:
        """Delete all data of the experiment, unless another run has it by now."""
        await at_all(shard.erase() for shard in self._shards)

    # -- the interceptor ------------------------------------------------------------------------------------------

    async def take_interceptor_epoch(self) -> int:
        """Take a new epoch: an earlier interceptor passes and writes nothing any more. Raises Fenced."""
        epoch = await self._control.take_interceptor_epoch()
        await at_all(shard.take_interceptor_epoch(epoch) for shard in self._others)
        return epoch

    async def heartbeat(self) -> bytes | None:
        """Return the counter of the interceptor's heartbeats; None if it was closed."""
        return await self._control.heartbeat()

    async def beat(self, epoch: int) -> StateWrite:
        """Raise that counter, and check that the servers have all confirmed writes. Raises Fenced for another run.

        The bodies of steps that were dropped since are deleted.
        A shard that is away keeps the counter on the control shard from nothing, and is checked once it answers.
        """
        found = [await self._control.beat(epoch)]
        dropped = await self._bodies.dropped()
        calls = {shard: partial(self._beat_at, shard, epoch, dropped) for shard in range(1, len(self._shards))}
        ended = await self._beats.answers(calls, _BEAT_S)
        errors = [task.exception() for _, task in ended]
        found += [task.result() for _, task in ended if task.exception() is None]
        for result in (StateWrite.FENCED, StateWrite.BEHIND):
            if result in found:
                return result
        for error in errors:
            if error is not None:
                raise error
        return StateWrite.DONE

    async def _beat_at(self, shard: int, epoch: int, dropped: int) -> StateWrite:
        found = await self._shards[shard].beat(epoch)
        if dropped >= 0:
            await self._bodies.drop(shard, dropped)
        return found

    async def end_heartbeat(self, epoch: int) -> None:
        """Mark the interceptor as closed."""
        await self._beats.close()
        await self._control.end_heartbeat(epoch)

    async def delegate(self, epoch: int, number: int) -> StateWrite:
        """Make delegated verdicts count under a number, unless a higher one does, on each shard."""
        found = await at_all(shard.delegate(epoch, number) for shard in self._shards)
        return StateWrite.FENCED if StateWrite.FENCED in found else StateWrite.DONE

    async def read_tables(self, names: Iterable[str]) -> tuple[dict[str, Fields], dict[str, bytes]]:
        """Return tables by name, and the answers that depend on them."""
        return await self._control.read_tables(names)

    async def write(self, epoch: int, state: RuleState, *, again: bool) -> StateWrite:
        """Write changes in one step. `again`: the last write is repeated."""
        return await self._control.write(epoch, state, again=again)

    async def rules_name(self) -> bytes | None:
        """Return the first of the rules' names: the key under which Ray keeps the rules in force."""
        return await self._control.rules_name()

    # -- the event log, and senders -------------------------------------------------------------------------------

    async def log_mark(self, name: str) -> bytes | None:
        """Return a value that the event log has left."""
        return await self._control.log_mark(name)

    async def set_log_mark(self, name: str, value: str | int) -> None:
        """Leave a value for the event log's next process."""
        await self._control.set_log_mark(name, value)

    async def time_ms(self) -> int:
        """Return the control shard's time in ms."""
        return await self._control.time_ms()

    async def forget_sender(self, name: str) -> None:
        """Delete the epoch and sequence numbers of a sender."""
        await at_all(shard.forget_sender(name) for shard in self._shards)


async def _follow(shard: RedisExperimentStore, *, reset: bool) -> Claim:
    """Claim the experiment on another shard for the run that has it on the control shard."""
    while True:
        taken = await shard.claim(await shard.holder(), reset=reset)
        if taken is not Claim.LOST:
            return taken
