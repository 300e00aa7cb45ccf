"""Coroutines without an event loop."""

from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def finish(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine whose waits all block, so that it never needs an event loop; return its result."""
    try:
        work.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    work.close()
    raise RuntimeError(f"{work!r} waits for an event loop: please report this")
