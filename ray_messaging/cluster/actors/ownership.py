"""The claim of one start of an experiment on the experiment's data on the server, and the start's heartbeat.

The claim ends when the start ends, or when another start resets the experiment. The heartbeat shows that the start
lives.
"""

import asyncio
import logging
from contextlib import suppress

from ray_messaging.cluster.rule_store import RuleStore
from ray_messaging.cluster.spec import InterceptorSpec
from ray_messaging.common.task_health import end
from ray_messaging.errors import AlreadyExists, Fenced, MessagingError
from ray_messaging.interception.interceptor.interceptor import Interceptor
from ray_messaging.transports.experiment_store import ExperimentClaim, RedisExperimentStore, other_run

logger = logging.getLogger(__name__)

BEAT_S = 0.5
# If the heartbeat of an interceptor has not changed for this long, the interceptor is dead or hangs. A new start may
# then take its place by a higher epoch.
_SILENT_S = 6 * BEAT_S
_ENDING_S = 20.0  # Ray's processes may live this many seconds longer than a killed driver

_END_TIMEOUT_S = 1.0


async def take_claim(server: RedisExperimentStore, store: RuleStore, spec: InterceptorSpec) -> tuple[int, bool]:
    """Claim the experiment's name on the server for this start of the experiment.

    Return two values: the interceptor's new epoch, which is a number, and whether this start had the claim already,
    because the interceptor's actor has restarted. Verdicts of an interceptor with a lower epoch are refused.

    Raises: AlreadyExists if the server has an experiment of this name and `on_existing` is "error", or is "resume" and
    that experiment still runs; Fenced if another start has claimed the name since this start began.
    """
    mine = spec.run.encode()
    while True:
        holder = await server.holder()
        if holder != mine:
            # If this start has begun before, it has lost its claim since then. If it went on, it would undo later
            # changes of rules and bans.
            if await store.began():
                raise other_run(spec.exp_id, 0)
            if holder is not None or await server.is_headless():
                await _check(server, spec, holder)
        taken = await server.claim(holder, reset=spec.on_existing == "reset")
        if taken is not ExperimentClaim.LOST:
            break
    epoch = await server.take_interceptor_epoch()  # from now on verdicts of an earlier start are refused
    if taken is ExperimentClaim.ERASE:
        await server.erase_earlier()
    return epoch, holder == mine and taken is ExperimentClaim.HELD


async def _check(server: RedisExperimentStore, spec: InterceptorSpec, holder: bytes | None) -> None:
    """Raise AlreadyExists if another start has the experiment, and `on_existing` forbids to replace that start.

    Args: `holder` names the start that has the claim now (None: no start has the claim).
    """
    if spec.on_existing == "reset":
        return
    deadline = asyncio.get_running_loop().time() + (_ENDING_S if spec.on_existing == "resume" else 0.0)
    while (lives := await _lives(server)) and asyncio.get_running_loop().time() < deadline:
        pass  # if the driver of the other start was killed, Ray takes some seconds to end its actors
    if lives:
        text = (
            f"experiment {spec.exp_id!r} runs already, in another Ray cluster that uses the server at {server.where}. "
            "Shut the experiment down there, choose another exp_id, or begin anew by on_existing='reset', which ends "
            "the other run"
        )
    elif spec.on_existing == "resume":
        return
    elif spec.fork is not None:
        text = (
            f"experiment {spec.exp_id!r} has data on the server at {server.where} already, but a fork begins with its "
            "parent's data: choose another exp_id"
        )
    else:
        text = (
            f"experiment {spec.exp_id!r} has data on the server at {server.where} already: go on with these data by "
            "on_existing='resume', delete them by on_existing='reset', or choose another exp_id"
            f"{'' if spec.log_dir is None else ' and log_dir'}"
        )
    raise AlreadyExists(text, kind="experiment", value=spec.exp_id, owner=holder.decode() if holder else None)


async def _lives(server: RedisExperimentStore) -> bool:
    """Return whether the start that has the claim lives: whether the heartbeat of its interceptor changes.

    The time in the heartbeat is not compared with the clock of this process, because clocks may differ.
    """
    first = beat = await server.heartbeat()
    deadline = asyncio.get_running_loop().time() + _SILENT_S
    while first is not None and beat == first and asyncio.get_running_loop().time() < deadline:
        await asyncio.sleep(BEAT_S / 4)
        beat = await server.heartbeat()
    return beat is not None and beat != first


class Heartbeat:
    """Task that writes an interceptor's heartbeat to the server.

    It also writes the interceptor's state again if the server has lost it. It stops if a newer interceptor has taken
    over.
    """

    def __init__(self, store: RuleStore, interceptor: Interceptor) -> None:
        self._store = store
        self._interceptor = interceptor
        self._task = asyncio.create_task(self._run(), name="ray_messaging heartbeat")

    async def _run(self) -> None:
        while self._interceptor.fenced is None:
            await self._beat()
            await asyncio.sleep(BEAT_S)

    async def _beat(self) -> None:
        try:
            if not await self._store.beat(self._interceptor.epoch):
                await self._interceptor.renew()
        except Fenced as error:
            logger.error("the interceptor of %s gives no more verdicts: %s", self._interceptor.exp_id, error)  # noqa: TRY400
            self._interceptor.fence(error)
        except MessagingError as error:
            logger.info("the interceptor's heartbeat did not reach the server: %s", error)
        except Exception:  # the heartbeat must go on after any error
            logger.exception("the interceptor's heartbeat failed")

    async def close(self) -> None:
        """Stop the heartbeat, and record the interceptor's end on the server, if the server answers at once."""
        await end(self._task)
        with suppress(MessagingError, TimeoutError):
            async with asyncio.timeout(_END_TIMEOUT_S):
                await self._store.leave(self._interceptor.epoch)
