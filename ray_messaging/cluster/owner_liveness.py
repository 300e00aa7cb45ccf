"""Liveness of mailbox owners in Ray; an owner is `<run>/<id of an actor or a worker>`."""

import asyncio
import logging

from ray.exceptions import RayError

from ray_messaging.receiving.mailbox_lease import IsDead

logger = logging.getLogger(__name__)

_ACTOR_ID, _WORKER_ID = 32, 56  # hexadecimal digits
_ASK_S = 5.0  # without an answer an owner counts as alive


def gone_for(run: str) -> IsDead:
    """Return the check whether a mailbox's owner is gone, as this start of the experiment sees it.

    Owners of earlier starts are: this start has claimed the experiment, so these are fenced where they live on.
    """

    async def is_gone(owner: str) -> bool:
        start, _, _ = owner.rpartition("/")
        return (bool(start) and start != run) or await is_dead(owner)

    return is_gone


async def is_dead(owner: str) -> bool:
    """Return whether Ray knows that an owner is dead for good; an unknown owner may live in another cluster."""
    try:
        async with asyncio.timeout(_ASK_S):
            return await asyncio.to_thread(known_dead, owner)
    except TimeoutError:
        logger.warning("no answer from Ray whether %s is dead: its lease must expire first", owner)
        return False


def known_dead(owner: str) -> bool:
    """Return the same, blocking; without the dashboard Ray has no public call for it."""
    key = owner.rpartition("/")[2]
    try:
        from ray._private.state import actors, state  # noqa: PLC0415 - a Ray that has it elsewhere must not stop the rest
        from ray._raylet import WorkerID  # noqa: PLC0415 - as above
        from ray.core.generated import gcs_pb2  # noqa: PLC0415 - as above

        if len(key) == _ACTOR_ID:
            return bool(actors(key).get("State") == "DEAD")
        if len(key) != _WORKER_ID:
            return False
        info = state._connect_and_get_accessor().get_worker_info(WorkerID.from_hex(key))
        return info is not None and not gcs_pb2.WorkerTableData.FromString(info).is_alive  # type: ignore[attr-defined]
    except (ImportError, AttributeError, TypeError, ValueError, RuntimeError, RayError) as error:
        logger.warning("Ray cannot say whether %s is dead (%s): its lease must expire first", owner, error)
        return False
