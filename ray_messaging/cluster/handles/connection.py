"""The connection of a handle to a running experiment, and calls of actors that raise this package's errors."""

import math
import time
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Any

import ray
from ray.exceptions import ActorDiedError, ActorUnavailableError, ActorUnschedulableError, RayActorError, RayTaskError

from ray_messaging.addressing.channels import check_name
from ray_messaging.cluster.handles.group.waiting import Blocking, InLoop, Waiting
from ray_messaging.cluster.ray_calls import OurActor, all_names, find_named, get, wait
from ray_messaging.cluster.ray_internals import known_dead
from ray_messaging.cluster.spec import Experiment, no_log
from ray_messaging.common.awaitables import finish
from ray_messaging.common.backoff import ACTOR_CALL_RETRY
from ray_messaging.errors import Closed, ConfigError, MessagingError, OutcomeUnknown, UnknownName

NAMESPACE = "ray_messaging"

# Ray's errors of a call whose actor has raised an error or is gone.
_OF_ACTOR = (RayTaskError, RayActorError, ActorUnschedulableError)
# Ray reports a killed actor as dead within _DEATH_S seconds. `wait_dead` checks this every _GLANCE_S seconds.
_DEATH_S, _GLANCE_S = 2.0, 0.01
_LATE_S = 10.0  # if no process becomes ready for this many seconds, `start_in_turn` calls its argument `late`
_LEAST, _PER_PROCESSOR = 8, 2  # how many processes start at a time: _PER_PROCESSOR for each processor, at least _LEAST


def find_actor(name: str) -> Any:  # noqa: ANN401 - a Ray actor handle
    """Return the living actor of this library that has a name, or None if there is no such actor."""
    try:
        return OurActor(find_named(name, NAMESPACE), name.partition("/")[0])
    except ValueError:
        return None


def named_actors(prefix: str) -> dict[str, Any]:
    """Return the living actors of this library whose names begin with a prefix, by name."""
    names = [each["name"] for each in all_names() if each["namespace"] == NAMESPACE and each["name"].startswith(prefix)]
    found = {name: find_actor(name) for name in names}
    # Actors that have just ended are left out.
    return {name: actor for name, actor in found.items() if actor is not None}


def result(ref: Any, *, actor_name: str) -> Any:  # noqa: ANN401 - an ObjectRef and its value
    """Wait for a call and return its result; raise the actor's error, or Closed if the actor is dead."""
    try:
        return get(ref)
    except _OF_ACTOR as error:
        raise translated(error, actor_name=actor_name) from error


async def value_of(waiting: Waiting, ref: Any, *, actor_name: str, sends: bool = False) -> Any:  # noqa: ANN401 - an ObjectRef and its value
    """Wait for a call and return its result.

    Raises the same errors as `result`; with `sends`, OutcomeUnknown if the actor went down.
    """
    try:
        return await waiting.value(ref)
    except _OF_ACTOR as error:
        raise translated(error, actor_name=actor_name, sends=sends) from error


def wait_dead(actor: Any) -> None:  # noqa: ANN401 - a Ray actor handle
    """Wait, for two seconds at most, until this process knows that a killed actor is dead.

    After that, calls to the actor raise Closed.
    """
    deadline = time.monotonic() + _DEATH_S
    while known_dead(actor) is False and time.monotonic() < deadline:
        time.sleep(_GLANCE_S)


def gone(actor_name: str) -> Closed:
    """Build the error for a send through an actor that was dead before the call."""
    return Closed(
        f"{actor_name} is gone: it was removed or shut down, or it died and cannot start again. Nothing was sent. "
        "Create the group again, or start the experiment anew",
        unsent=True,
    )


async def insist(waiting: Waiting, actor: Any, call: Callable[[], Any], *, actor_name: str) -> Any:  # noqa: ANN401 - a handle, an ObjectRef, its value
    """Make a call, and repeat it while its actor restarts; return its result. Raises the same errors as `result`.

    The call must be idempotent, and the actor must have a method `ready`. Ray's own retries are slower: Ray takes one
    or two seconds to notice the failure, and retries up to a second later.
    """
    while True:
        try:
            return await value_of(waiting, call(), actor_name=actor_name)
        except Closed as error:
            if not isinstance(error.__cause__, ActorUnavailableError):
                raise
        await wait_restart(waiting, actor)


async def wait_restart(waiting: Waiting, actor: Any, timeout_s: float = math.inf) -> None:  # noqa: ANN401 - a Ray actor handle
    """Wait at most `timeout_s` until an actor answers or is dead.

    A call that is made during a restart takes seconds to fail, even if the actor is back by then and would answer a
    new call. Therefore several calls are made.
    """
    calls: list[Any] = []
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        calls.append(actor.ready.remote())
        done, calls = await waiting.some(calls, ACTOR_CALL_RETRY.first_s)
        for ref in done:
            try:
                await waiting.value(ref)
            except ActorUnavailableError:
                continue
            except _OF_ACTOR:  # the caller's next call raises the error
                pass
            return
        if not calls:  # all calls have failed already
            await waiting.pause(ACTOR_CALL_RETRY.first_s)


_AGAIN = "start the experiment again, with on_existing='resume' if its data are not gone as well"


def translated(
    error: RayTaskError | RayActorError | ActorUnschedulableError, *, actor_name: str, sends: bool = False
) -> Exception:
    """Return the error that the actor raised, or if the actor is gone, Closed or OutcomeUnknown.

    Args: `sends` is true if the call was a send, which may have had its effect before the actor was gone.
    """
    cause = getattr(error, "cause", None)
    if isinstance(cause, MessagingError):
        return cause
    if isinstance(error, ActorDiedError | ActorUnavailableError | ActorUnschedulableError):
        if sends:
            later = {
                ActorUnavailableError: (
                    "the group starts again: check whether the messages arrived before you send again"
                ),
                ActorUnschedulableError: f"the group is gone with the machine to which it belongs: {_AGAIN}",
            }.get(type(error), f"the group was shut down, or died: {_AGAIN}")
            return OutcomeUnknown(
                f"{actor_name} went down before or during this send, so the messages may or may not have been sent; "
                f"{later}"
            )
        if isinstance(error, ActorUnschedulableError):
            return Closed(f"{actor_name} is gone with the machine to which it belongs ({_reason(error)}): {_AGAIN}")
        return Closed(
            f"{actor_name} is gone: it was shut down, or it died and cannot start again ({_reason(error)}): {_AGAIN}"
        )
    return error


def _reason(error: Exception) -> str:
    return (str(error).strip().splitlines() or ["no reason given"])[-1]


def start_in_turn(
    starts: Iterable[Callable[[], Any]],
    check: Callable[[Any], object],
    late: Callable[[Sequence[Any]], object] | None = None,
) -> None:
    """Start processes, a limited number at a time: two for each processor of the cluster, and at least eight.

    If more processes started at the same time, they would slow each other so much that some would treat the server as
    dead. After the first error no more processes are started.

    Args: Each of `starts` begins to start a process, and returns an ObjectRef that is ready when the process is ready.
    `check` is called with such a reference, and raises the error of a start that failed. If no process becomes ready
    for ten seconds, `late` is called once, with the references of the processes that are still starting.
    """
    at_once = max(_LEAST, _PER_PROCESSOR * int(ray.cluster_resources().get("CPU", 0)))
    waiting = iter(starts)
    under_way = [start() for start in islice(waiting, at_once)]
    while under_way:
        done, under_way = wait(under_way, timeout=None if late is None else _LATE_S)
        if not done and late is not None:
            late(under_way)
            late = None
            continue
        check(done[0])
        under_way += [start() for start in islice(waiting, 1)]


class ExperimentConnection:
    """An experiment and the handle of its interceptor.

    The pickle of a connection never contains the server's password. An unpickled connection asks the interceptor for
    the password as soon as the password is needed.
    """

    def __init__(self, experiment: Experiment, interceptor: Any) -> None:  # noqa: ANN401 - a Ray actor handle
        self.experiment = experiment
        self.interceptor = interceptor

    @property
    def exp_id(self) -> str:
        """Return the experiment's name."""
        return self.experiment.exp_id

    @property
    def _actor_name(self) -> str:
        return f"the interceptor of experiment {self.exp_id!r}"

    def with_password(self) -> Experiment:
        """Return the experiment with its server's password."""
        return finish(self.with_password_async(Blocking()))

    async def with_password_async(self, waiting: Waiting | None = None) -> Experiment:
        """Return the experiment with its server's password.

        `waiting` says how the call waits (None: without blocking the event loop).
        """
        if self.experiment.withheld:
            ref, waiting = self.interceptor.ready.remote(), waiting or InLoop()
            self.experiment = await value_of(waiting, ref, actor_name=self._actor_name)
        return self.experiment

    def ask(self, ref: Any) -> Any:  # noqa: ANN401 - an ObjectRef and its value
        """Return the result of a call to the interceptor. Raises the same errors as `result`."""
        return result(ref, actor_name=self._actor_name)

    def log_actor(self) -> Any:  # noqa: ANN401 - a Ray actor handle
        """Return the event log's actor; raise ConfigError if there is no log, Closed if the experiment has ended."""
        experiment = self.experiment
        if experiment.log_dir is None:
            raise ConfigError(no_log(self.exp_id))
        actor = find_actor(experiment.log_name)
        if actor is None:
            raise Closed(
                f"experiment {self.exp_id!r} was shut down: EventLog.open({experiment.log_dir!r}) reads its log"
            )
        return actor


def connect(exp_id: str) -> ExperimentConnection:
    """Find a running experiment in this Ray cluster; raise UnknownName if none has this name."""
    interceptor = find_interceptor(exp_id)
    return ExperimentConnection(result(interceptor.ready.remote(), actor_name=f"experiment {exp_id!r}"), interceptor)


def find_interceptor(exp_id: str) -> Any:  # noqa: ANN401 - a Ray actor handle
    """Return the interceptor of a running experiment; raise UnknownName if none has this name."""
    check_name("exp_id", exp_id)
    interceptor = find_actor(f"{exp_id}/interceptor")
    if interceptor is None:
        raise unknown_experiment(exp_id, experiments_here())
    return interceptor


def experiments_here() -> set[str]:
    """Return the names of the experiments that run in this Ray cluster."""
    return {name.partition("/")[0] for name in named_actors("")}


def unknown_experiment(exp_id: str, there: set[str]) -> UnknownName:
    """Build the error for an experiment that is not among `there`, the experiments of this Ray cluster."""
    found = f"its experiments: {', '.join(sorted(there))}" if there else "it has no experiments"
    text = f"no experiment {exp_id!r} runs in the Ray cluster ({found}): start it by Messaging.start({exp_id!r})"
    return UnknownName(text, kind="experiment", value=exp_id)
