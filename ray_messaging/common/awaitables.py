"""Functions of users': plain or async, and how they are called."""

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


def call_problem(function: Callable[..., object], arguments: int) -> str | None:
    """Return why a function cannot be called with so many arguments; None where it can, or nobody can tell."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some builtins have none
        return None
    try:
        signature.bind(*range(arguments))
    except TypeError as error:
        return f"{error} (its parameters are {signature})"
    return None
