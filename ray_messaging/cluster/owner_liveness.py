"""Owners of mailboxes, as Ray knows them: `<run>/<id of an actor, or of a worker>`."""

import asyncio
import logging

from ray.exceptions import RayError

logger = logging.getLogger(__name__)

_ACTOR_ID, _WORKER_ID = 32, 56  # hexadecimal digits
_ASK_S = 5.0  # without an answer an owner is taken for alive


async def is_dead(owner: str) -> bool:
    """Tell whether Ray knows that an owner is dead for good; one that it does not know may live in another cluster."""
    try:
        async with asyncio.timeout(_ASK_S):
            return await asyncio.to_thread(known_dead, owner)
    except TimeoutError:
        logger.warning("Ray does not say whether %s is dead, so its lease must end", owner)
        return False


def known_dead(owner: str) -> bool:
    """Tell the same, blocking; there is no public way to it without the dashboard."""
    key = owner.rpartition("/")[2]
    try:
        from ray._private.state import actors, state  # noqa: PLC0415 - a Ray that has it elsewhere must not stop the rest
        from ray._raylet import WorkerID  # noqa: PLC0415 - as above
        from ray.core.generated import gcs_pb2  # noqa: PLC0415 - as above

        if len(key) == _ACTOR_ID:
            return bool(actors(key).get("State") == "DEAD")
        if len(key) != _WORKER_ID:
            return False
        told = state._connect_and_get_accessor().get_worker_info(WorkerID.from_hex(key))
        return told is not None and not gcs_pb2.WorkerTableData.FromString(told).is_alive  # type: ignore[attr-defined]
    except (ImportError, AttributeError, TypeError, ValueError, RuntimeError, RayError) as error:
        logger.warning("Ray does not say whether %s is dead (%s), so its lease must end", owner, error)
        return False
