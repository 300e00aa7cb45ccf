"""Functions of users' that may be async."""

import inspect
from functools import partial


def is_async(function: object) -> bool:
    """Return whether calls of a function, method, partial or callable object are known to return an awaitable."""
    while isinstance(function, partial):
        function = function.func
    by_class = getattr(type(function), "__call__", None)  # noqa: B004 - the method itself is needed
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(by_class)
