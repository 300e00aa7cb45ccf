"""Functions of users' that may be async."""

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

T = TypeVar("T")


def raising(function: Callable[..., T], *args: Any) -> T:  # noqa: ANN401 - the function's
    """Call a function in a thread; a StopIteration, which no future can hold, becomes a RuntimeError."""
    try:
        return function(*args)
    except StopIteration as error:
        raise RuntimeError(f"it raised StopIteration ({error}): give next(...) a default, or catch it") from error


def is_async(function: object) -> bool:
    """Return whether calls of a function, method, partial or callable object are known to return an awaitable."""
    while isinstance(function, partial):
        function = function.func
    by_class = getattr(type(function), "__call__", None)  # noqa: B004 - the method itself is needed
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(by_class)
