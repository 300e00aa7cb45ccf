"""The actors of `messaging.run`, which stay for the next run of the same groups."""

import threading
from collections.abc import Collection, Mapping
from typing import Any, Final

import ray
from ray.exceptions import RayActorError

from ray_messaging.cluster.run.run_actor import RunActor
from ray_messaging.cluster.starting.lifecycle import attempt, remote

_KIND: Final = {"num_cpus": 0, "max_restarts": -1, "max_task_retries": -1, "max_concurrency": 100}
_IDLE_S: Final = 60.0  # a process that is started anew takes a second or two, and an idle one tens of megabytes


class RunActors:
    """Actors that have run a model, by group: they have left their mailboxes, and end after a minute without a run."""

    def __init__(self) -> None:
        self._kept: dict[str, Any] = {}
        self._end: threading.Timer | None = None
        self._lock = threading.Lock()

    def take(self, groups: Collection[str]) -> dict[str, Any]:
        """Return the kept actors of some groups, as far as they are of use, for a run; the others end."""
        kept = self._detach()
        asked = {name: actor.is_current.remote() for name, actor in kept.items() if name in groups}
        found = {name: kept.pop(name) for name, answer in asked.items() if _says_yes(answer)}
        _end(kept)
        return found

    def keep(self, actors: Mapping[str, Any]) -> None:
        """Have actors leave the mailboxes of a run that has ended, and keep them for the next one."""
        calls = {actor.rest.remote(): name for name, actor in actors.items()}
        rested = {calls[done] for done in attempt([*calls])}
        _end({name: actor for name, actor in actors.items() if name not in rested})
        with self._lock:
            self._kept = {name: actor for name, actor in actors.items() if name in rested}
            self._end = threading.Timer(_IDLE_S, self.end)
            self._end.daemon = True
            self._end.start()

    def end(self) -> None:
        """End all of them."""
        _end(self._detach())

    def _detach(self) -> dict[str, Any]:
        with self._lock:
            kept, self._kept = self._kept, {}
            if self._end is not None:
                self._end.cancel()
            return kept


def start_run_actor() -> Any:  # noqa: ANN401 - a Ray actor handle
    """Start an actor for one group of a run."""
    return remote(RunActor, _KIND).remote()


def _says_yes(answer: Any) -> bool:  # noqa: ANN401 - an ObjectRef
    try:
        return bool(ray.get(answer))
    except RayActorError:  # it was killed, and Ray does not start it again
        return False


def _end(actors: Mapping[str, Any]) -> None:
    if ray.is_initialized():
        for actor in actors.values():
            ray.kill(actor)
