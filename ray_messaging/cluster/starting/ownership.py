"""Claim of one start of an experiment on the server's data; it ends with the start's end, or by a reset."""

import asyncio
from typing import TYPE_CHECKING

from ray_messaging.cluster.rule_store import RuleStore
from ray_messaging.cluster.spec import InterceptorSpec
from ray_messaging.errors import AlreadyExists
from ray_messaging.transports.experiment_store import Claim, other_run

if TYPE_CHECKING:
    from ray_messaging.transports.experiment_store import RedisExperimentStore

BEAT_S = 0.5
# An interceptor without a heartbeat for this long is dead or hangs; a new epoch fences it.
_SILENT_S = 6 * BEAT_S
_ENDING_S = 20.0  # Ray's processes may outlive a killed driver by this


class Ownership:
    """Claim of an experiment by one start of it (`spec.run`)."""

    def __init__(self, server: "RedisExperimentStore", store: RuleStore, spec: InterceptorSpec) -> None:
        self._server = server
        self._store = store
        self._spec = spec

    async def take(self) -> tuple[int, bool]:
        """Claim the experiment; return a new epoch, and whether this start held it before its actor's restart.

        Raises: AlreadyExists where the server has an experiment of this name and `on_existing` is "error"; Fenced where
        another start has claimed it meanwhile.
        """
        mine = self._spec.run.encode()
        while True:
            holder = await self._server.holder()
            if holder != mine:
                if await self._store.began():  # rules and bans that changed since the start would be lost
                    raise other_run(self._spec.exp_id, 0)
                if holder is not None or await self._server.is_headless():
                    await self._check(holder or b"")
            taken = await self._server.claim(holder, reset=self._spec.on_existing == "reset")
            if taken is not Claim.LOST:
                break
        epoch = await self._server.take_interceptor_epoch()  # from here on verdicts of an earlier start are refused
        if taken is Claim.ERASE:
            await self._server.erase_earlier()
        return epoch, holder == mine and taken is Claim.HELD

    async def _check(self, holder: bytes) -> None:
        """Raise AlreadyExists where another start keeps its claim."""
        spec = self._spec
        if spec.on_existing == "reset":
            return
        deadline = asyncio.get_running_loop().time() + (_ENDING_S if spec.on_existing == "resume" else 0.0)
        while (lives := await self._lives()) and asyncio.get_running_loop().time() < deadline:
            pass  # after the kill of a driver, Ray takes some seconds to end its actors
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
        """Return whether the claiming start's interceptor lives: its heartbeat changes (clocks may differ)."""
        first = beat = await self._server.heartbeat()
        deadline = asyncio.get_running_loop().time() + _SILENT_S
        while first is not None and beat == first and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(BEAT_S / 4)
            beat = await self._server.heartbeat()
        return beat is not None and beat != first
