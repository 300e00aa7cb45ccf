"""Which start of an experiment has it on its server: it is taken once, and given away only by its end, or a reset."""

import asyncio

from ray_messaging.cluster.rule_store import RuleStore
from ray_messaging.cluster.spec import InterceptorSpec
from ray_messaging.errors import AlreadyExists
from ray_messaging.transports.experiment_store import Claim, ExperimentStore, other_run

BEAT_S = 0.5
# An interceptor that has not beaten for so long is dead, or hangs: it may be succeeded, as its epoch fences it.
_SILENT_S = 6 * BEAT_S
_ENDING_S = 20.0  # so long may Ray's processes outlive a driver that was killed


class Ownership:
    """Take an experiment for one start of it (`spec.run`), and erase what an earlier one has left."""

    def __init__(self, server: ExperimentStore, store: RuleStore, spec: InterceptorSpec) -> None:
        self._server = server
        self._store = store
        self._spec = spec

    async def take(self) -> tuple[int, bool]:
        """Take the experiment; return a new epoch, and whether this start had it, as after a restart of its actor.

        Raises: AlreadyExists where the server holds an experiment of this name already, unless told otherwise; Fenced
        where another start has taken it from this one.
        """
        mine = self._spec.run.encode()
        while True:
            holder = await self._server.holder()
            if holder != mine:
                if await self._store.began():  # what was put in and banned since would be forgotten
                    raise other_run(self._spec.exp_id, 0)
                if holder is not None or await self._server.is_headless():
                    await self._check(holder or b"")
            taken = await self._server.claim(holder, reset=self._spec.on_existing == "reset")
            if taken is not Claim.LOST:
                break
        epoch = await self._server.take_interceptor_epoch()  # from here on nothing of an earlier start passes
        if taken is Claim.ERASE:
            await self._server.erase_earlier()
        return epoch, holder == mine and taken is Claim.HELD

    async def _check(self, holder: bytes) -> None:
        """Raise AlreadyExists where the start that has the experiment keeps it."""
        spec = self._spec
        if spec.on_existing == "reset":
            return
        deadline = asyncio.get_running_loop().time() + (_ENDING_S if spec.on_existing == "resume" else 0.0)
        while (lives := await self._lives()) and asyncio.get_running_loop().time() < deadline:
            pass  # its driver may have been killed: Ray ends what it had started some seconds later
        if lives:
            text = (
                f"experiment {spec.exp_id!r} runs already: another Ray cluster uses it on the server at "
                f"{self._server.where}. Shut it down there, choose another exp_id, or start it afresh by "
                "on_existing='reset', which ends it"
            )
        elif spec.on_existing == "error":
            text = (
                f"experiment {spec.exp_id!r} has data on the server at {self._server.where} already: go on with them "
                "by on_existing='resume', delete them by on_existing='reset', or choose another exp_id"
            )
        else:
            return
        raise AlreadyExists(text, kind="experiment", value=spec.exp_id, owner=holder.decode() or None)

    async def _lives(self) -> bool:
        """Tell whether the interceptor of the start that has the experiment lives: no clock is asked, it is watched."""
        first = beat = await self._server.heartbeat()
        deadline = asyncio.get_running_loop().time() + _SILENT_S
        while first is not None and beat == first and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(BEAT_S / 4)
            beat = await self._server.heartbeat()
        return beat is not None and beat != first
