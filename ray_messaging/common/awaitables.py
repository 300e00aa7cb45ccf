"""Functions that call other code: plain or async functions, without an event loop, or at the end of an event loop."""

import asyncio
import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from functools import partial
from typing import Any, TypeVar

T = TypeVar("T")

# Exceptions that count as failures of the called code: they must end neither the loop nor the task that calls the code.
RAISED = (Exception, SystemExit, asyncio.CancelledError)


def raising(function: Callable[..., T], *args: Any) -> T:  # noqa: ANN401 - the function's
    """Call a function for `to_thread`. A StopIteration becomes a RuntimeError, because no future can hold it."""
    try:
        return function(*args)
    except StopIteration as error:
        raise RuntimeError(
            f"the function raised StopIteration ({error}): give next(...) a default, or catch it"
        ) from error


def is_async(function: object) -> bool:
    """Return whether calls of a function, method, partial or callable object are known to return an awaitable."""
    while isinstance(function, partial):
        function = function.func
    by_class = getattr(type(function), "__call__", None)  # noqa: B004 - the method itself is needed
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(by_class)


def call_problem(function: Callable[..., object], arguments: int) -> str | None:
    """Return why a function cannot be called with this number of arguments, or None if no reason is known."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # Python does not know the arguments of some builtins.
        return None
    try:
        signature.bind(*range(arguments))
    except TypeError as error:
        return f"{error} (its parameters are {signature})"
    return None


def finish(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine whose waits all block, so that it never needs an event loop; return its result."""
    try:
        work.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    work.close()
    raise RuntimeError(f"{work!r} waits for an event loop: please report this")


Life = AsyncGenerator[None, None]


async def at_loop_end(end: Callable[[], Awaitable[object] | None]) -> Life:
    """Call `end` when the running event loop ends, or when the returned object is closed or garbage-collected.

    Asyncio closes open generators as the last thing before a loop ends, when all tasks were cancelled.
    """
    life = _life(end)
    await anext(life)
    return life


async def _life(end: Callable[[], Awaitable[object] | None]) -> Life:
    try:
        yield
    finally:
        if (ending := end()) is not None:
            await ending
