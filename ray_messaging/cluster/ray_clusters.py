"""The Ray cluster in which this process starts or finds experiments: that at RAY_ADDRESS, or one on this machine."""

import logging
import os
import socket
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path

import ray
from ray.exceptions import RayError

from ray_messaging.cluster.handles.connection import named_actors
from ray_messaging.cluster.ray_calls import context
from ray_messaging.cluster.ray_internals import ray_session, use_token
from ray_messaging.errors import ConfigError

logger = logging.getLogger(__name__)

PROCESSES = Path("/proc")
_ANSWER_S = 5.0  # how long a cluster may take to answer a connection
_HTTP2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])  # gRPC's greeting, without settings
_OPTION = b"--gcs-address="
_REMEDY = (
    "use the versions of Ray and Python that run there; if it requires a token, set RAY_AUTH_MODE=token and copy "
    "the token from the machine where it was started to ~/.ray/auth_token"
)


# Of all that begins or ends the use of Ray in this process, so that no thread ends the Ray of another one.
RAY_LOCK = threading.RLock()


class _Held:
    """The Ray that this process has begun to use for its experiments, and how many of them need it."""

    session: object = None
    experiments = 0
    over = threading.Event()


def hold_ray() -> object:
    """Start Ray, or join the cluster at RAY_ADDRESS, if none is used yet, for an experiment of this process.

    Return what `release_ray` takes; raise ConfigError. Ray stays until all experiments have released it.
    """
    with RAY_LOCK:
        if not ray.is_initialized():
            _in_lasting_thread(_begin_ray)
            _Held.session, _Held.experiments = ray_session(), 0
        session = ray_session()
        if session == _Held.session:
            _Held.experiments += 1
        return session


def release_ray(session: object) -> None:
    """End Ray if `hold_ray` had begun it, and no experiment needs it any more."""
    with RAY_LOCK:
        if session != _Held.session or session is None:
            return
        _Held.experiments -= 1
        if _Held.experiments == 0:
            _Held.session = None
            if ray.is_initialized() and ray_session() == session:
                ray.shutdown()
            _Held.over.set()


def _in_lasting_thread(call: Callable[[], None]) -> None:
    """Call in this thread if it is the main one, else in a thread that lasts as long as Ray does.

    The kernel kills the processes that Ray starts as soon as the thread ends that has started them.
    """
    if threading.current_thread() is threading.main_thread():
        call()
        return
    called, over = Future[None](), threading.Event()
    _Held.over = over

    def run() -> None:
        try:
            call()
        except BaseException as error:  # noqa: BLE001 - whoever waits gets it
            called.set_exception(error)
        else:
            called.set_result(None)
            over.wait()

    threading.Thread(target=run, name="ray_messaging Ray", daemon=True).start()
    called.result()


def _begin_ray() -> None:
    address = os.environ.get("RAY_ADDRESS") or None
    try:
        ray.init(address=address, include_dashboard=None if address else False, logging_level=logging.ERROR)
    except ConnectionError as error:
        raise ConfigError(
            f"cannot join the Ray cluster at RAY_ADDRESS={address!r} ({error}): does it run? Where it asks for a "
            "token, set RAY_AUTH_MODE=token and have the token in ~/.ray/auth_token"
        ) from error


def join_ray(exp_id: str | None = None, *, as_driver: bool = False) -> bool:
    """Connect to a running Ray cluster: that at RAY_ADDRESS, or the one on this machine that has this experiment.

    Return False if there is none.

    Args: `as_driver` says that this is a user's program, which prints the output of actors and tasks and may use Ray
    Client.
    Raises ConfigError if RAY_ADDRESS is wrong, or its cluster refuses the connection.
    """
    if ray.is_initialized():
        return True
    if as_driver and os.environ.get("RAY_ADDRESS", "").startswith("ray://"):  # Ray Client has options of its own
        ray.init()
        return True
    check_ray_address()
    found, named = local_clusters(), _named()
    clusters = _living(found)
    if named:
        if why := _join(named, here=_runs_here(named, clusters), as_driver=as_driver):
            raise ConfigError(f"the Ray cluster at RAY_ADDRESS={named!r} does not let us in ({why}): {_REMEDY}")
        return True
    for cluster in clusters[:-1]:
        if not _join(cluster, here=True, as_driver=as_driver):
            if exp_id is None or named_actors(f"{exp_id}/"):
                return True
            ray.shutdown()
    if not clusters:  # Ray itself would wait for minutes for a cluster that does not answer
        return not found and not _join("auto", here=False, as_driver=as_driver)
    if why := _join(clusters[-1], here=True, as_driver=as_driver):
        raise ConfigError(f"the Ray cluster at {clusters[-1]} does not let us in ({why}): {_REMEDY}")
    return True


def check_ray_address() -> None:
    """Raise ConfigError if no cluster answers at RAY_ADDRESS, because Ray itself would retry for minutes."""
    address = os.environ.get("RAY_ADDRESS", "")
    if address in {"", "auto", "local"}:
        return
    host, _, port = address.rpartition(":")
    advice = "set it to the host:port of a running cluster, or unset it"
    if not host or "/" in host or not port.isdecimal():
        raise ConfigError(f"RAY_ADDRESS={address!r} is no host:port: {advice}")
    try:
        if not _answers(address):
            raise TimeoutError(f"it accepts connections, and says nothing within {_ANSWER_S:g} s")
    except (OSError, OverflowError) as error:
        raise ConfigError(f"RAY_ADDRESS={address!r} leads to no Ray cluster ({error}): {advice}") from error


def _answers(address: str) -> bool:
    """Return whether a cluster's server answers in time, because Ray would wait for minutes for a stopped one."""
    host, _, port = address.rpartition(":")
    with socket.create_connection((host.strip("[]"), int(port)), timeout=_ANSWER_S) as connection:
        connection.sendall(_HTTP2)
        try:
            connection.recv(1)
        except TimeoutError:
            return False
        except OSError:
            pass  # it has refused us, so it runs
    return True


def _living(clusters: Sequence[str]) -> list[str]:
    """Return the clusters that answer, and log a warning about the others."""
    living = [cluster for cluster in clusters if _lives(cluster)]
    if silent := sorted({*clusters} - {*living}):
        logger.warning("no answer from the Ray cluster at %s within %g s: does it run?", ", ".join(silent), _ANSWER_S)
    return living


def _lives(cluster: str) -> bool:
    try:
        return _answers(cluster)
    except OSError:
        return False  # the cluster has just ended


def searched_clusters() -> str:
    """Return, as part of an error's text, the Ray clusters in which `join_ray` has searched."""
    asked = context().gcs_address
    others = [] if _named() else [cluster for cluster in local_clusters() if cluster != asked]
    return f"at {asked}" + (f", nor in those at {', '.join(others)}" if others else "")


def running_experiments() -> list[str]:
    """Return the experiments that run in this Ray cluster."""
    return sorted({name.partition("/")[0] for name in named_actors("")})


def local_clusters() -> list[str]:
    """Return the addresses of this user's Ray clusters on this machine, or [] if there is no /proc."""
    found = set()
    for process in PROCESSES.glob("[0-9]*"):
        try:
            if process.stat().st_uid != os.getuid():
                continue  # another user's cluster would refuse us, slowly
            program, *arguments = (process / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue  # the process has ended
        if program.endswith(b"/raylet"):
            found |= {given[len(_OPTION) :].decode() for given in arguments if given.startswith(_OPTION)}
    return sorted(found)


def _named() -> str:
    """Return the cluster in RAY_ADDRESS, or "" if it names none and Ray chooses."""
    address = os.environ.get("RAY_ADDRESS", "")
    return "" if address in {"auto", "local"} else address


def _runs_here(address: str, clusters: Sequence[str]) -> bool:
    host, _, port = address.rpartition(":")
    return address in clusters or (
        host in {"localhost", "127.0.0.1"} and port in {cluster.rpartition(":")[2] for cluster in clusters}
    )


def _join(address: str, *, here: bool, as_driver: bool) -> str:
    """Connect to a cluster; return "", or the reason for a failure. One on this machine gets this user's token."""
    try:
        if here:
            use_token()
        ray.init(address=address, logging_level=logging.ERROR, log_to_driver=as_driver)
    except (ConnectionError, RuntimeError, RayError) as error:
        return " ".join(str(error).split())[:300] or type(error).__name__
    return ""
