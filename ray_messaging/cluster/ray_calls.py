"""Calls of Ray that raise Closed after the Ray of this process has ended, while Ray's own calls would start a new Ray.

A new Ray would not have the experiment's actors. A new Ray that a thread started would also be killed when that thread
ends.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import ray

from ray_messaging.errors import Closed, ended

_NO_RAY = "no Ray runs in this process, after ray.shutdown() or the end of its last experiment"
_OTHER_RAY = "this process has shut down the Ray in which the experiment ran, and uses another Ray now"
_STALE = "different cluster"  # words of the bare Exception that Ray raises for an actor of an earlier Ray


def check_ray(exp_id: str) -> None:
    """Raise Closed if the Ray of this process has ended. The error names the experiment."""
    if not ray.is_initialized():
        raise ended(exp_id, _NO_RAY, unsent=True)


def _check() -> None:
    if not ray.is_initialized():
        raise Closed(f"{_NO_RAY}: start or connect to an experiment first", unsent=True)


class OurActor:
    """A handle of an experiment's actor, which is used like Ray's handle. After the end of Ray its calls raise Closed.

    Ray accepts this object as one of its own handles, so tasks and actors can get it as an argument. The function
    `kill` of this module ends the actor.
    """

    def __init__(self, handle: Any, exp_id: str) -> None:  # noqa: ANN401 - a Ray actor handle
        self._handle = handle
        self._exp_id = exp_id

    @property  # type: ignore[misc]  # Ray asks isinstance
    def __class__(self) -> type:
        return type(self._handle)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - a method of the actor, or what Ray keeps with a handle
        if name.startswith("_"):
            return getattr(self._handle, name)
        return _Method(getattr(self._handle, name), self._exp_id)

    def __reduce__(self) -> tuple[Any, ...]:
        return OurActor, (self._handle, self._exp_id)

    def __eq__(self, other: object) -> bool:
        return bool(self._handle == (other._handle if type(other) is OurActor else other))

    def __hash__(self) -> int:
        return hash(self._handle)

    def __repr__(self) -> str:
        return repr(self._handle)


class _Method(NamedTuple):
    """A method of one of our actors. Its calls raise Closed if Ray has ended, instead of starting a new Ray."""

    method: Any  # of Ray's actor handle
    exp_id: str

    def remote(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - the method's arguments, and an ObjectRef
        """Call the method; raise Closed if the Ray in which the actor ran has ended."""
        check_ray(self.exp_id)
        try:
            return self.method.remote(*args, **kwargs)
        except Exception as error:
            if type(error) is Exception and _STALE in str(error):
                raise ended(self.exp_id, _OTHER_RAY, unsent=True) from error
            raise

    def options(self, **options: Any) -> "_Method":  # noqa: ANN401 - Ray's options
        """Return this method with some of Ray's options for calls."""
        return _Method(self.method.options(**options), self.exp_id)


def start_actor(exp_id: str, actor_class: type, options: dict[str, Any], *arguments: object) -> OurActor:
    """Start an actor of an experiment; return a handle whose calls raise Closed once Ray has ended."""
    check_ray(exp_id)
    return OurActor(ray.remote(**options)(actor_class).remote(*arguments), exp_id)


def get(refs: Any, *, timeout: float | None = None) -> Any:  # noqa: ANN401 - ObjectRefs and their values
    """Do the same as `ray.get`; raise Closed if Ray has ended."""
    _check()
    return ray.get(refs, timeout=timeout)


def wait(refs: Sequence[Any], *, num_returns: int = 1, timeout: float | None = None) -> tuple[list[Any], list[Any]]:
    """Do the same as `ray.wait`; raise Closed if Ray has ended."""
    _check()
    return ray.wait(list(refs), num_returns=num_returns, timeout=timeout)


def put(value: object) -> Any:  # noqa: ANN401 - an ObjectRef
    """Do the same as `ray.put`; raise Closed if Ray has ended."""
    _check()
    return ray.put(value)


def cancel(ref: Any) -> None:  # noqa: ANN401 - an ObjectRef
    """Cancel a task, and kill the process that runs it."""
    ray.cancel(ref, force=True)


def kill(actor: Any) -> None:  # noqa: ANN401 - a Ray actor handle
    """Kill an actor as `ray.kill` does; do nothing if Ray has ended, because the actor has ended with it."""
    if ray.is_initialized():
        # Ray Client needs Ray's own handle.
        ray.kill(actor._handle if type(actor) is OurActor else actor)


def context() -> Any:  # noqa: ANN401 - Ray's context of this process
    """Do the same as `ray.get_runtime_context`; raise Closed if Ray has ended."""
    _check()
    return ray.get_runtime_context()


def find_named(name: str, namespace: str) -> Any:  # noqa: ANN401 - a Ray actor handle
    """Do the same as `ray.get_actor`; raise Closed if Ray has ended."""
    _check()
    return ray.get_actor(name, namespace=namespace)


def all_names() -> list[dict[str, str]]:
    """Return the name and the namespace of each living actor that has a name."""
    _check()
    found: list[dict[str, str]] = ray.util.list_named_actors(all_namespaces=True)
    return found
