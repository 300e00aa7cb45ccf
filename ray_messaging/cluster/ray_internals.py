"""The only module that uses names of Ray's that are not public.

Ray has no public calls that do the same, or has them only with its dashboard. Each function says what it does if the
present version of Ray lacks the name that the function uses.
"""

import asyncio
import logging
from functools import cache
from typing import Any

import ray
from ray.exceptions import RayError, RaySystemError
from ray.util.client import ray as client

from ray_messaging.errors import ConfigError

logger = logging.getLogger(__name__)

_ACTOR_ID, _WORKER_ID = 32, 56  # how many hexadecimal digits Ray's ids have
_MISSING = (ImportError, AttributeError, TypeError, ValueError, RuntimeError, AssertionError, RayError)


# Each function imports the names that it uses, so that the other functions work if a version of Ray lacks one of them.
# ruff: noqa: PLC0415


def on_ray_client() -> bool:
    """Return whether this process uses a cluster through Ray Client, and so is on none of the cluster's nodes."""
    return bool(client.is_connected())


def ray_session() -> object:
    """Return an object by which two connections of this process to Ray can be told apart. Ray must run.

    If this version of Ray lacks such an object, only connections to different clusters can be told apart.
    """
    if on_ray_client():
        return client.get_context().client_worker
    try:
        from ray._private.worker import global_worker

        found: object = global_worker.current_cluster_and_job
    except _MISSING:
        found = ray.get_runtime_context().get_session_name()
    return found


@cache  # once in a process
def errors_to_stderr() -> None:
    """Let this process print errors of the cluster, such as the death of a worker, to stderr.

    Ray prints such errors to stdout at any time, even if a driver does not print what its actors print. Another
    program that reads this process's stdout would not understand these errors. If this version of Ray lacks the
    function `print_to_stdstream`, the errors stay on stdout.
    """
    try:
        from ray._private import worker

        printed = worker.print_to_stdstream
    except _MISSING:
        return

    def print_to_stderr(data: dict[str, Any], *args: Any, **settings: Any) -> None:  # noqa: ANN401 - Ray's
        printed(data | {"is_err": True} if data.get("pid") == "raylet" else data, *args, **settings)

    worker.print_to_stdstream = print_to_stderr


def known_dead(actor: Any) -> bool | None:  # noqa: ANN401 - a Ray actor handle
    """Return whether this process knows that an actor is dead for good, so that a call would never begin.

    The result is None if this cannot be known, as on Ray Client and in some versions of Ray. It is False before the
    first call of the actor, and True if the Ray of this process has ended.
    """
    state = getattr(actor, "_get_local_state", None)
    if state is None:
        return None
    try:
        from ray.core.generated.gcs_pb2 import ActorTableData  # type: ignore[attr-defined]
    except ImportError:
        return None
    try:
        return bool(state() == ActorTableData.ActorState.DEAD)
    except RaySystemError:
        return True


def actor_facts(actor: Any) -> tuple[str, int, str]:  # noqa: ANN401 - a Ray actor handle
    """Return the state of an actor in Ray, the number of its restarts, and its node's id; "", 0, "" if unknown."""
    try:
        from ray._private.state import actors

        known = actors(actor._actor_id.hex())
        return known.get("State", ""), int(known.get("NumRestarts", 0)), known.get("Address", {}).get("NodeID", "")
    except (ImportError, AttributeError) as error:
        logger.debug("this version of Ray has no known call for the state of actors: %s", error)
        return "", 0, ""


def node_of_owner(key: str) -> str:
    """Return the id of the node of the actor or worker with the id `key`, or "" if Ray does not know the node."""
    try:
        from ray._private.state import actors, state
        from ray._raylet import WorkerID
        from ray.core.generated import gcs_pb2

        if len(key) == _ACTOR_ID:
            return str(actors(key).get("Address", {}).get("NodeID", ""))
        if len(key) != _WORKER_ID:
            return ""
        info = state._connect_and_get_accessor().get_worker_info(WorkerID.from_hex(key))
        if info is None:
            return ""
        node: bytes = gcs_pb2.WorkerTableData.FromString(info).worker_address.node_id  # type: ignore[attr-defined]
        return node.hex()
    except _MISSING as error:
        logger.debug("Ray cannot say on which node %s is: %s", key, error)
        return ""


def owner_known_dead(key: str) -> bool:
    """Return whether Ray knows that the actor or worker with the id `key` is dead for good.

    The result is False if Ray does not know, for example because the actor is in another cluster.
    """
    try:
        from ray._private.state import actors, state
        from ray._raylet import WorkerID
        from ray.core.generated import gcs_pb2

        if len(key) == _ACTOR_ID:
            return bool(actors(key).get("State") == "DEAD")
        if len(key) != _WORKER_ID:
            return False
        info = state._connect_and_get_accessor().get_worker_info(WorkerID.from_hex(key))
        return info is not None and not gcs_pb2.WorkerTableData.FromString(info).is_alive  # type: ignore[attr-defined]
    except _MISSING as error:
        logger.warning(
            "Ray cannot say whether %s is dead (%s), so its mailbox can be used again only after its lease has expired",
            key,
            error,
        )
        return False


def names_in(cluster: str, namespace: str, timeout_s: float) -> list[str]:
    """Return the names of the living actors of a namespace in the cluster at an address, without joining it."""
    try:
        from ray._raylet import GcsClient  # type: ignore[attr-defined]
    except ImportError as error:
        raise ConfigError(
            f"ray_messaging cannot list the experiments of the cluster at {cluster} with Ray {ray.__version__}: "
            "install the version of Ray that was the newest when this version of ray_messaging was released"
        ) from error

    async def ask() -> list[str]:
        server, found = GcsClient(address=cluster), []
        for state in ("ALIVE", "RESTARTING"):
            actors = await server.async_get_all_actor_info(actor_state_name=state, timeout=timeout_s)
            found += [actor.name for actor in actors.values() if actor.name and actor.ray_namespace == namespace]
        return found

    return asyncio.run(ask())


def _kv(name: str) -> Any:  # noqa: ANN401 - a function of Ray's
    try:
        from ray.experimental import internal_kv

        return getattr(internal_kv, name)
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"Ray {ray.__version__} cannot store rules that change at run time ({error}): install the version of "
            "Ray that was the newest when this version of ray_messaging was released, and start the cluster anew"
        ) from error


def kv_put(key: str, value: bytes, *, namespace: str) -> None:
    """Store a value in the state of the cluster."""
    _kv("_internal_kv_put")(key, value, namespace=namespace)


def kv_get(key: str | bytes, *, namespace: str) -> bytes | None:
    """Return a value from the state of the cluster, or None if there is none."""
    found: bytes | None = _kv("_internal_kv_get")(key, namespace=namespace)
    return found


def kv_delete(key: str | bytes, *, namespace: str) -> None:
    """Delete a value from the state of the cluster."""
    _kv("_internal_kv_del")(key, namespace=namespace)


def kv_names(prefix: str, *, namespace: str) -> list[bytes]:
    """Return the keys in the state of the cluster that begin with a prefix."""
    found: list[bytes] = _kv("_internal_kv_list")(prefix, namespace=namespace)
    return found


def use_token() -> None:
    """Let this process use this user's token, if there is one, for the clusters on this machine that require tokens."""
    try:
        from ray._private.authentication.authentication_token_setup import maybe_enable_token_auth_if_token_available
    except ImportError:
        return  # this version of Ray needs no such call
    # Ray's log messages about tokens do not help here.
    logging.getLogger("ray._private.authentication").setLevel(logging.ERROR)
    maybe_enable_token_auth_if_token_available(warn_if_disabled=False)
