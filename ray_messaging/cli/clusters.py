"""Connection to the Ray cluster of an experiment: the one in RAY_ADDRESS, else one on this machine."""

import logging
import os
from collections.abc import Sequence
from pathlib import Path

import ray
from ray.exceptions import RayError

from ray_messaging.cli.session import check_ray_address
from ray_messaging.cluster.handles.actor_calls import named_actors
from ray_messaging.cluster.messaging import Messaging
from ray_messaging.errors import ConfigError, UnknownName

PROCESSES = Path("/proc")
_OPTION = b"--gcs-address="
_REMEDY = (
    "use the versions of Ray and Python that run there; if it requires a token, set RAY_AUTH_MODE=token and copy "
    "the token from the machine where it was started to ~/.ray/auth_token"
)


def join_ray(exp_id: str | None = None) -> bool:
    """Connect to a running Ray cluster, on this machine to the one with this experiment; False: there is none.

    Raises ConfigError if RAY_ADDRESS is wrong, or its cluster refuses the connection.
    """
    if ray.is_initialized():
        return True
    check_ray_address()
    clusters, named = local_clusters(), _named()
    if named:
        if why := _join(named, here=_runs_here(named, clusters)):
            raise ConfigError(f"the Ray cluster at RAY_ADDRESS={named!r} does not let us in ({why}): {_REMEDY}")
        return True
    for cluster in clusters[:-1]:
        if not _join(cluster, here=True):
            if exp_id is None or named_actors(f"{exp_id}/"):
                return True
            ray.shutdown()
    if not clusters:
        return not _join("auto", here=False)
    if why := _join(clusters[-1], here=True):
        raise ConfigError(f"the Ray cluster at {clusters[-1]} does not let us in ({why}): {_REMEDY}")
    return True


def join_experiment(exp_id: str, otherwise: str, *, missing: str = "") -> Messaging:
    """Return a running experiment; raise ConfigError with `otherwise` as the remedy beside RAY_ADDRESS."""
    if not join_ray(exp_id):
        raise ConfigError(
            f"{missing}no Ray cluster runs here that could have experiment {exp_id!r}: set RAY_ADDRESS, or {otherwise}"
        )
    try:
        return Messaging.connect(exp_id)
    except UnknownName as error:
        raise ConfigError(
            f"{missing}no experiment {exp_id!r} runs in the Ray cluster {searched_clusters()}: set RAY_ADDRESS for "
            f"another cluster, or {otherwise}"
        ) from error


def searched_clusters() -> str:
    """Return in words the Ray clusters in which `join_ray` has searched."""
    asked = ray.get_runtime_context().gcs_address
    others = [] if _named() else [cluster for cluster in local_clusters() if cluster != asked]
    return f"at {asked}" + (f", nor in those at {', '.join(others)}" if others else "")


def local_clusters() -> list[str]:
    """Return the addresses of this user's Ray clusters on this machine; [] without /proc."""
    found = set()
    for process in PROCESSES.glob("[0-9]*"):
        try:
            if process.stat().st_uid != os.getuid():
                continue  # another user's cluster would refuse us, slowly
            program, *arguments = (process / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue  # it has ended
        if program.endswith(b"/raylet"):
            found |= {given[len(_OPTION) :].decode() for given in arguments if given.startswith(_OPTION)}
    return sorted(found)


def _named() -> str:
    """Return the cluster in RAY_ADDRESS; "": Ray chooses."""
    address = os.environ.get("RAY_ADDRESS", "")
    return "" if address in {"auto", "local"} else address


def _runs_here(address: str, clusters: Sequence[str]) -> bool:
    host, _, port = address.rpartition(":")
    return address in clusters or (
        host in {"localhost", "127.0.0.1"} and port in {cluster.rpartition(":")[2] for cluster in clusters}
    )


def _join(address: str, *, here: bool) -> str:
    """Connect to a cluster, or return the reason for a failure. A local one gets this user's token."""
    try:
        if here:
            _use_token()
        ray.init(address=address, logging_level=logging.ERROR, log_to_driver=False)
    except (ConnectionError, RuntimeError, RayError) as error:
        return " ".join(str(error).split())[:300] or type(error).__name__
    return ""


def _use_token() -> None:
    try:
        from ray._private.authentication.authentication_token_setup import (  # noqa: PLC0415 - as above
            maybe_enable_token_auth_if_token_available,
        )
    except ImportError:
        return  # an older Ray has no tokens
    logging.getLogger("ray._private.authentication").setLevel(logging.ERROR)  # its notices are of no interest here
    maybe_enable_token_auth_if_token_available(warn_if_disabled=False)
