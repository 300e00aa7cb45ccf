"""Workers that carry out the runs of a study. They are tasks of Ray, on all machines of a cluster."""

from contextlib import suppress
from functools import cache
from typing import Any, Self

import ray

from ray_messaging.cluster import ray_calls
from ray_messaging.cluster.ray_clusters import hold_ray, release_ray
from ray_messaging.embedded.local_server import LocalServer
from ray_messaging.errors import MessagingError
from ray_messaging.studies.run_tasks import EndedRun, Task
from ray_messaging.studies.run_workers import WorkerAnswer, run_packed


class RayWorkers:
    """Workers that are tasks of Ray, each with one core, on all machines of the cluster."""

    def __init__(self, template: bytes, count: int | None) -> None:
        self._packed = template
        self._wanted = count
        self._busy: dict[Any, Task] = {}  # maps the ObjectRef of a Ray task to what the Ray task carries out

    def __enter__(self) -> Self:
        self._session = hold_ray()
        self._template = ray_calls.put(self._packed)
        # Ray must not repeat a task. The study repeats it, and counts how many workers have died during the same run.
        self._task = ray.remote(num_cpus=1, max_retries=0)(_run_in_task)
        return self

    def __exit__(self, *_error: object) -> None:
        for ref in self._busy:
            with suppress(Exception):  # the cluster may have ended
                ray_calls.cancel(ref)
        release_ray(self._session)

    @property
    def free(self) -> bool:
        """Return whether a run can be started.

        The cores are counted each time, because machines join and leave the cluster.
        """
        count = self._wanted or max(1, int(ray.cluster_resources().get("CPU", 1)))
        return len(self._busy) < count

    def start(self, planned: Task) -> None:
        """Start a Ray task that carries out a run."""
        self._busy[self._task.remote(self._template, planned)] = planned

    def wait(self, timeout: float) -> list[WorkerAnswer]:
        """Wait until some runs have ended, or until the timeout; return the answers of their workers.

        Raises: MessagingError if a task cannot begin.
        """
        done, _ = ray_calls.wait([*self._busy], timeout=timeout)
        return [WorkerAnswer(self._busy.pop(ref), _answer(ref)) for ref in done]


class WholeCluster:
    """The only worker of a study whose runs use groups, which are Ray actors on all machines of the cluster.

    Each run is carried out in this process, which drives the groups, one run after the other.
    """

    def __init__(self, template: bytes) -> None:
        self._packed = template
        self._next: Task | None = None

    def __enter__(self) -> Self:
        self._session = hold_ray()  # without this, each run would start and stop Ray
        return self

    def __exit__(self, *_error: object) -> None:
        release_ray(self._session)

    @property
    def free(self) -> bool:
        """Return whether a run can be started."""
        return self._next is None

    def start(self, planned: Task) -> None:
        """Accept a run. The next call of `wait` carries it out."""
        self._next = planned

    def wait(self, timeout: float) -> list[WorkerAnswer]:  # noqa: ARG002 - a run is not interrupted
        """Carry out the run that was started, and return its result in a list; return [] if no run was started."""
        planned, self._next = self._next, None
        return [] if planned is None else [WorkerAnswer(planned, run_packed(self._packed, planned))]


@cache
def _server_of_process() -> LocalServer:
    """Return the server of this process, which the runs of the process use in turn. It ends with the process."""
    return LocalServer()


def _run_in_task(template: bytes, planned: Task) -> EndedRun:
    return run_packed(template, planned, _server_of_process())


def _answer(ref: Any) -> EndedRun | None:  # noqa: ANN401 - an ObjectRef
    try:
        ended: EndedRun = ray_calls.get(ref)
    except ray.exceptions.RayTaskError as error:
        raise MessagingError(
            f"a Ray task of the study cannot begin: {error.cause}. Check that all machines of the cluster have the "
            "packages of this machine"
        ) from error
    except ray.exceptions.RayError:  # the worker or its machine has died, or had no memory left
        return None
    return ended
