"""Sending of users' objects to other processes, with errors that name the part that cannot be pickled."""

import io
import sys
from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache, partial
from types import CodeType, FunctionType, MethodType
from typing import Any

import cloudpickle

from ray_messaging.errors import ConfigError

_DEEPEST = 20  # at most this many levels of nested parts are searched


def sent(name: str, value: object, send: Callable[[Any], Any]) -> Any:  # noqa: ANN401 - what `send` returns
    """Send a user's object, which `name` describes, to other processes; raise ConfigError if it cannot be pickled.

    Ray's own error has thirty lines, and is not shown.
    """
    try:
        return send(value)
    except Exception:  # pickling runs code of the objects, which may raise any error
        if (reason := unpicklable(value)) is None:
            raise
        raise ConfigError(
            f"{name} cannot be sent to other processes: {reason}. Create this object in the function that uses "
            "the object, so that each process has its own"
        ) from None


def dumped(value: object) -> bytes:
    """Pickle a user's object for another process, which has the same packages.

    Functions and classes of the program itself are pickled by value. They keep the names of their files, so that
    tracebacks show the files. `pickle.loads` reads the result.
    """
    with io.BytesIO() as stream:
        _PicklerWithFiles(stream).dump(value)
        return stream.getvalue()


def _reduced(code: CodeType) -> tuple[Callable[..., CodeType], tuple[Any, ...]]:
    make, parts = cloudpickle.CloudPickler.dispatch_table[CodeType](code)
    return _with_file, (code.co_filename, make, parts)


def _with_file(name: str, make: Callable[..., CodeType], parts: tuple[Any, ...]) -> CodeType:
    return make(*parts).replace(co_filename=name)


def _reduced_cache(cached: Any) -> Any:  # noqa: ANN401 - what pickle wants
    """Reduce a function with `functools.cache` for pickle: by value if its module is __main__, otherwise by name.

    Each process has its own cached results.
    """
    if cached.__module__ == "__main__":
        return _with_cache, (cached.__wrapped__, cached.cache_parameters())
    return cached.__reduce__()


def _with_cache(function: Callable[..., Any], parameters: dict[str, Any]) -> Callable[..., Any]:
    cached: Callable[..., Any] = lru_cache(**parameters)(function)
    return cached


class _PicklerWithFiles(cloudpickle.CloudPickler):  # type: ignore[misc] # the package has no types
    """Cloudpickle's pickler with two changes, for functions with `functools.cache` and for the names of files.

    Functions with `functools.cache` are pickled by value if their module is __main__. The names of the files in which
    functions are defined are kept. From version 3.1.2 on, cloudpickle's own pickler leaves them out.
    """

    def __init__(self, stream: io.BytesIO) -> None:
        tables = [{CodeType: _reduced, type(lru_cache(len)): _reduced_cache}, cloudpickle.CloudPickler.dispatch_table]
        # Only Ray can pickle its ObjectRefs so that another process can get the objects.
        if (ray := sys.modules.get("ray")) is not None:
            tables.append(ray.cloudpickle.CloudPickler.dispatch_table)
        self.dispatch_table = ChainMap(*tables)
        super().__init__(stream)


def unpicklable(value: object) -> str | None:
    """Return which part of an object cannot be pickled, and why; None if the whole object can be pickled."""
    error = _failure(value)
    if error is None:
        return None
    place, seen = "", {id(value)}
    for _ in range(_DEEPEST):
        for name, part in _parts(value):
            if id(part) not in seen and (failure := _failure(part)) is not None:
                place, value, error = place + name, part, failure
                seen.add(id(part))
                break
        else:
            break
    where = f"its {place.lstrip('.')!r}" if place else f"an object of type {type(value).__name__}"
    return f"{where} cannot be pickled ({type(error).__name__}: {error})"


def _failure(value: object) -> Exception | None:
    try:
        cloudpickle.dumps(value)
    except Exception as error:  # noqa: BLE001 - as above
        return error
    return None


def _parts(value: object) -> Iterator[tuple[str, object]]:
    """Yield the parts of an object that are pickled with the object, each after its name in it, such as `.field`."""
    match value:
        case MethodType():
            yield "", value.__self__
        case FunctionType():
            yield from _variables(value)
        case partial():
            yield from [("", value.func), ("", value.args), ("", value.keywords)]
        case Mapping():
            yield from ((f"[{key!r}]", part) for key, part in value.items())
        case list() | tuple() | set() | frozenset():
            names = [f".{name}" for name in getattr(value, "_fields", ())]
            yield from zip(names or (f"[{place}]" for place in range(len(value))), value, strict=True)
    yield from ((f".{name}", part) for name, part in getattr(value, "__dict__", {}).items())


def _variables(function: FunctionType) -> Iterator[tuple[str, object]]:
    """Yield the outer variables that a function uses, and the defaults of its parameters."""
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield f".{name}", cell.cell_contents
        except ValueError:  # the variable has no value yet
            continue
    for name in names_in(function.__code__):
        if name in function.__globals__:
            yield f".{name}", function.__globals__[name]
    yield ".__defaults__", function.__defaults__
    yield ".__kwdefaults__", function.__kwdefaults__


def names_in(code: CodeType) -> Iterator[str]:
    """Yield the names that a function's code uses, and the names that functions within it use."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from names_in(constant)
