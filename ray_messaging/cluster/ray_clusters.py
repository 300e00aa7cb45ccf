"""The Ray cluster in which this process starts or finds experiments: at RAY_ADDRESS, or on this machine."""

import logging
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, nullcontext
from pathlib import Path

import ray
from ray.exceptions import RayError

from ray_messaging.cluster.handles.connection import NAMESPACE
from ray_messaging.cluster.ray_internals import errors_to_stderr, names_in, ray_session, use_token
from ray_messaging.common import operating_system
from ray_messaging.common.operating_system import own_processes
from ray_messaging.errors import ConfigError, ServerFailed, UnknownName

_ANSWER_S = 5.0  # seconds in which the cluster at RAY_ADDRESS must answer a connection
_LOOK_S = 2.0  # seconds in which a cluster must say which experiments it has
_REASON = 300  # at most this many characters of an error of Ray are shown
_HTTP2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])  # a gRPC client's first bytes
_TOKENS = b"RAY_AUTH_MODE=token"
_OPTION = b"--gcs-address="
_REMEDY = (
    "use the same versions of Ray and Python as the cluster. If the cluster requires a token, set "
    "RAY_AUTH_MODE=token, and copy the token from the machine where the cluster was started to ~/.ray/auth_token"
)


# This lock is held while an experiment starts or stops using Ray, so that no thread shuts down Ray while another thread
# starts to use it.
RAY_LOCK = threading.RLock()


class _Held:
    """The Ray that this process has started or joined for its experiments, and how many of them need it."""

    session: object = None
    experiments = 0
    over = threading.Event()


def hold_ray() -> object:
    """Use Ray for an experiment of this process. If Ray does not run yet, start it, or join the cluster at RAY_ADDRESS.

    Return the argument for `release_ray`. If this call starts or joins Ray, Ray stays until all experiments have
    released it. Raises ConfigError if the cluster at RAY_ADDRESS cannot be joined, and ServerFailed if Ray does not
    start.
    """
    with RAY_LOCK:
        if not ray.is_initialized():
            # If the program has ended an earlier Ray by ray.shutdown(), the thread that started that Ray may end now.
            _Held.over.set()
            _in_lasting_thread(_begin_ray)
            _Held.session, _Held.experiments = ray_session(), 0
        session = ray_session()
        if session == _Held.session:
            _Held.experiments += 1
        return session


def release_ray(session: object) -> None:
    """Record that an experiment no longer needs Ray. After the last one, shut down the Ray that `hold_ray` began."""
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
    """Make a call in this thread if it is the main thread, or else in a new thread that does not end before Ray does.

    The kernel kills the processes that Ray starts as soon as the thread that started them ends.
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
    if address is not None and _runs_here(address, local_clusters(with_tokens=True)):
        use_token()  # Ray itself reads the token only when it starts a cluster
    try:
        ray.init(address=address, include_dashboard=None if address else False, logging_level=logging.ERROR)
    except ConnectionError as error:
        raise ConfigError(
            f"cannot join the Ray cluster at RAY_ADDRESS={address!r} ({error}): check that this cluster runs. If it "
            "requires a token, set RAY_AUTH_MODE=token, and put the token into ~/.ray/auth_token"
        ) from error
    except Exception as error:
        # If a process of Ray has not started after 30 s, Ray raises one of these errors, or a bare Exception.
        if address is None and (type(error) is Exception or isinstance(error, RuntimeError | TimeoutError | RayError)):
            raise ServerFailed(
                f"Ray did not start on this machine ({' '.join(str(error).split())[:_REASON]}), so the experiment did "
                "not start: try again when the machine is less busy and has free memory, or start Ray before by `ray "
                "start --head` and set RAY_ADDRESS=auto. The logs of Ray are in /tmp/ray/session_latest/logs",
                log="",
            ) from error
        raise


def join_ray(exp_id: str, *, as_driver: bool = False) -> bool:
    """Connect to the Ray cluster that has this experiment: at RAY_ADDRESS, or a cluster of this user on this machine.

    Return False if no cluster runs. If no cluster has the experiment, none is joined. If this process uses Ray already,
    or RAY_ADDRESS is for Ray Client, this does not check whether the cluster has the experiment.

    Args: `as_driver` is true in a user's program, which prints the output of actors and tasks and may use Ray Client.
    Raises: UnknownName if no cluster has the experiment; ConfigError if RAY_ADDRESS is wrong, or the cluster there
    refuses the connection.
    """
    if not as_driver:
        errors_to_stderr()
    if ray.is_initialized():
        return True
    if as_driver and os.environ.get("RAY_ADDRESS", "").startswith("ray://"):  # Ray Client gets no options
        ray.init()
        return True
    found = look_into_clusters(quiet=not as_driver)
    for cluster, seen in found.items():
        if not isinstance(seen, str) and exp_id in seen:
            if why := _join(cluster, as_driver=as_driver):
                raise ConfigError(f"the Ray cluster at {cluster} refuses the connection ({why}): {_REMEDY}")
            return True
    if not found:
        return not operating_system.PROCESSES.is_dir() and not _join("auto", as_driver=as_driver)
    if (named := _named()) and isinstance(seen := found[named], str):
        raise ConfigError(f"the experiments in the cluster at RAY_ADDRESS={named!r} cannot be read ({seen}): {_REMEDY}")
    unread = any(isinstance(seen, str) for seen in found.values())
    raise UnknownName(
        f"no experiment {exp_id!r} {'was found' if unread else 'runs'} in the Ray cluster{'s' * (len(found) > 1)} at "
        f"{', '.join(f'{cluster} ({_told(seen)})' for cluster, seen in found.items())}: "
        f"{'see by `ray status` why a cluster cannot be read, or ' if unread else ''}set RAY_ADDRESS to the "
        f"host:port of the experiment's cluster, or start the experiment by Messaging.start({exp_id!r})",
        kind="experiment",
        value=exp_id,
    )


def _told(seen: Collection[str] | str) -> str:
    """Return a text for an error: the experiments of a cluster, or the reason why they are unknown."""
    if isinstance(seen, str):
        return f"its experiments cannot be read: {seen}"
    return f"its experiments: {', '.join(sorted(seen))}" if seen else "it has no experiments"


def look_into_clusters(*, quiet: bool) -> dict[str, Collection[str] | str]:
    """Return the experiments in each cluster that `join_ray` may join, or why they are unknown. This joins no cluster.

    All clusters are asked at the same time, and have two seconds for their answers.

    Args: With `quiet`, what this process, such as Ray's core, prints on stderr meanwhile is discarded.
    Raises: ConfigError if RAY_ADDRESS is wrong.
    """
    check_ray_address()
    clusters = [named] if (named := _named()) else local_clusters()
    ask_for_tokens = local_clusters(with_tokens=True)
    if any(_runs_here(cluster, ask_for_tokens) for cluster in clusters):
        use_token()
    answers: dict[str, Collection[str] | str] = {}

    def look(cluster: str) -> None:
        try:
            if not _answers(cluster, _LOOK_S):
                return
            names = names_in(cluster, NAMESPACE, _LOOK_S)
        except Exception as error:  # noqa: BLE001 - any error becomes a part of the result
            answers[cluster] = str(error).partition(". ")[0].strip()[:_REASON] or type(error).__name__
        else:
            answers[cluster] = {name.partition("/")[0] for name in names}

    deadline = time.monotonic() + _LOOK_S
    with _silence() if quiet else nullcontext():
        threads = [threading.Thread(target=look, args=(cluster,), daemon=True) for cluster in clusters]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
    return {cluster: answers.get(cluster, f"no answer within {_LOOK_S:g} s") for cluster in clusters}


@contextmanager
def _silence() -> Iterator[None]:
    """Discard what this process prints on stderr."""
    sys.stderr.flush()
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def check_ray_address() -> None:
    """Raise ConfigError if no cluster answers at RAY_ADDRESS, because Ray itself would retry for minutes."""
    address = os.environ.get("RAY_ADDRESS", "")
    if address in {"", "auto", "local"}:
        return
    host, _, port = address.rpartition(":")
    advice = "set it to the host:port of a running cluster, or unset it"
    if not host or "/" in host or not port.isdecimal():
        raise ConfigError(f"RAY_ADDRESS={address!r} is not of the form host:port: {advice}")
    try:
        if not _answers(address, _ANSWER_S):
            raise TimeoutError(f"something accepts connections there, but does not answer within {_ANSWER_S:g} s")
    except (OSError, OverflowError) as error:
        raise ConfigError(f"RAY_ADDRESS={address!r} is not the address of a Ray cluster ({error}): {advice}") from error


def _answers(address: str, timeout_s: float) -> bool:
    """Return whether a cluster's server answers in time; raise OSError if it cannot be reached.

    Ray itself would wait for minutes for a server that is stopped.
    """
    host, _, port = address.rpartition(":")
    with socket.create_connection((host.strip("[]"), int(port)), timeout=timeout_s) as connection:
        connection.sendall(_HTTP2)
        try:
            connection.recv(1)
        except TimeoutError:
            return False
        except OSError:
            pass  # the server has refused the connection, so it runs
    return True


def local_clusters(*, with_tokens: bool = False) -> list[str]:
    """Return the addresses of this user's Ray clusters on this machine, or [] if there is no /proc.

    Args: `with_tokens` asks only for clusters that use tokens. A driver with a token must not join a cluster without
    tokens: the driver would refuse the calls of that cluster's workers, and the driver's actors would never run.
    """
    found = set()
    for process in own_processes():  # another user's cluster would refuse the connection
        program, *arguments = process.command
        if program.endswith(b"/raylet") and (not with_tokens or _has_token(process.folder)):
            found |= {given[len(_OPTION) :].decode() for given in arguments if given.startswith(_OPTION)}
    return sorted(found)


def _has_token(process: Path) -> bool:
    """Return whether a process was started with Ray's token authentication."""
    try:
        return _TOKENS in (process / "environ").read_bytes().split(b"\0")
    except OSError:
        return False  # the process has ended


def _named() -> str:
    """Return the cluster that RAY_ADDRESS names, or "" if it names no cluster, so that Ray chooses one."""
    address = os.environ.get("RAY_ADDRESS", "")
    return "" if address in {"auto", "local"} else address


def _runs_here(address: str, clusters: Sequence[str]) -> bool:
    """Return whether an address, in any spelling, is that of one of `clusters`, which run on this machine."""
    host, _, port = address.rpartition(":")
    if address in clusters:
        return True
    if host in {"localhost", "127.0.0.1"}:
        return port in {cluster.rpartition(":")[2] for cluster in clusters}
    try:
        return f"{socket.gethostbyname(host)}:{port}" in clusters
    except (OSError, UnicodeError):  # there is no host with this name
        return False


def _join(address: str, *, as_driver: bool) -> str:
    """Connect to a cluster; return "", or the reason for a failure.

    Args: with `as_driver`, this process prints the output of actors and tasks.
    """
    try:
        ray.init(address=address, logging_level=logging.ERROR, log_to_driver=as_driver)
    except (ConnectionError, RuntimeError, RayError) as error:
        return " ".join(str(error).split())[:_REASON] or type(error).__name__
    return ""
