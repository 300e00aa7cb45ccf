"""Metaclass for a class that becomes a Ray actor by `.remote(...)`, and an ordinary object by a plain call."""

from abc import ABCMeta
from collections.abc import Callable
from typing import Any

import ray


class ActorClass(ABCMeta):
    """Metaclass that adds `remote` and `options`, as `ray.remote` does; the class can still be called.

    If the class itself had them, they would be methods of the actor. This is an ABCMeta, so that a subclass may be
    abstract.
    """

    @property
    def remote(cls) -> Callable[..., Any]:
        """Return a function that starts an actor with the class' arguments, and returns its handle."""
        return _on_ray(cls, "remote").remote  # type: ignore[no-any-return]  # Ray's are untyped

    @property
    def options(cls) -> Callable[..., Any]:
        """Return a function that sets Ray's options for an actor (name, num_cpus ...).

        Call `.remote(...)` on its result.
        """
        return _on_ray(cls, "options").options  # type: ignore[no-any-return]  # as above


def _on_ray(cls: type, attribute: str) -> Any:  # noqa: ANN401 - an actor class of Ray's
    if hasattr(cls, "__ray_actor_class__"):
        # Ray sets its own `remote` in the class that it derives, and would warn that it overwrites ours.
        raise AttributeError(f"{cls.__name__} has no {attribute!r}")
    return ray.remote(cls)
