"""Helpers that call users' functions, plain or async, run coroutines without an event loop, or act when a loop ends."""

import asyncio
import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from functools import partial
from inspect import CO_COROUTINE
from types import FunctionType
from typing import Any, TypeVar

T = TypeVar("T")

# Exceptions that are treated as failures of the called code. They must not end the loop or the task that calls the
# code.
RAISED = (Exception, SystemExit, asyncio.CancelledError)


def raising(function: Callable[..., T], *args: Any) -> T:  # noqa: ANN401 - the function's
    """Call a function, and return its result. If it raises a StopIteration, raise a RuntimeError instead.

    Use this for a function that runs in a thread and sets its result or error in a future, because a future cannot
    raise a StopIteration.
    """
    try:
        return function(*args)
    except StopIteration as error:
        raise RuntimeError(
            f"the function raised StopIteration ({error}): give next(...) a default value, or catch the error"
        ) from error


def is_async(function: object) -> bool:
    """Return whether calls of a function, method, partial or callable object are known to return an awaitable."""
    while isinstance(function, partial):
        function = function.func
    # This check is fast for the common case. A call of `inspect` takes a microsecond.
    if type(function) is FunctionType and function.__code__.co_flags & CO_COROUTINE:
        return True
    by_class = getattr(type(function), "__call__", None)  # noqa: B004 - the method itself is needed
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(by_class)


def without_partial(function: Any, arguments: int) -> Any:  # noqa: ANN401 - a function of any kind
    """Return a partial as a function whose defaults are the values that the partial passes by name.

    A call of this function takes about half of the time that a call of the partial takes. Only a partial that passes
    all of its values by name to a plain Python function is converted. Any other object is returned unchanged.

    Args: `arguments` is the number of positional arguments with which the function is called.
    """
    if type(function) is not partial or function.args or type(function.func) is not FunctionType:
        return function
    inner, given, code = function.func, function.keywords, function.func.__code__
    by_place = code.co_varnames[arguments : code.co_argcount]
    by_name = code.co_varnames[code.co_argcount : code.co_argcount + code.co_kwonlyargcount]
    known = dict(zip(reversed(by_place), reversed(inner.__defaults__ or ()), strict=False)) | given
    # The partial is returned if the function gets some of the values in **kwargs, or if a parameter has no value. In
    # the second case, a call of the partial raises a TypeError.
    takes_all = code.co_posonlyargcount <= arguments and given.keys() <= {*by_place, *by_name}
    if not takes_all or not known.keys() >= {*by_place}:
        return function
    defaults = tuple(known[name] for name in by_place)
    made = FunctionType(code, inner.__globals__, inner.__name__, defaults, inner.__closure__)
    made.__kwdefaults__ = (inner.__kwdefaults__ or {}) | {name: given[name] for name in by_name if name in given}
    made.__dict__.update(inner.__dict__)
    return made


def call_problem(function: Callable[..., object], arguments: int) -> str | None:
    """Return why a function cannot be called with this number of arguments, or None if no reason is known."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # Python does not know the parameters of some builtins
        return None
    try:
        signature.bind(*range(arguments))
    except TypeError as error:
        why = "" if str(error) == "too many positional arguments" else f" ({error})"
        return f"its parameters are {signature}{why}"
    return None


def finish(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end without an event loop, and return its result.

    The coroutine must block instead of awaiting.
    """
    try:
        work.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    work.close()
    raise RuntimeError(f"{work!r} would wait for an event loop, although it must not: please report this")


Life = AsyncGenerator[None, None]


async def at_loop_end(end: Callable[[], Awaitable[object] | None]) -> Life:
    """Make the running event loop call `end` when the loop ends. Closing or dropping the returned object also calls it.

    This is done by an async generator, because asyncio closes open generators as the last thing before a loop ends,
    after all asyncio tasks were cancelled.
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
