"""The name and the source of a model, and digests of its inputs. A later call of `run` compares them."""

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from hashlib import blake2b
from types import CodeType, FunctionType, MethodType
from typing import Any, Final

import msgspec
import numpy as np

from ray_messaging.cluster.run.content_digest import content_digest
from ray_messaging.cluster.run.run_plan import GroupPlan, RunOptions
from ray_messaging.cluster.unpicklable import names_in

_INPUTS: Final = {
    "agents": "the DataFrame agents=", "kinds": "the kind of some agents in agents=", "graph": "graph=",
    "shared": "shared=",
}  # fmt: skip
_PLAIN = bool, int, float, str, type(None)
_DATA = *_PLAIN, bytes, np.generic, np.ndarray
_encode = msgspec.msgpack.encode


def name_of(function: object) -> str:
    """Return the name of a function, or of an object's class, with its module. For several kinds, return all names."""
    if isinstance(function, Mapping):
        return ", ".join(f"{kind}: {name_of(each)}" for kind, each in function.items())
    name = getattr(function, "__qualname__", None) or type(function).__qualname__
    return f"{getattr(function, '__module__', '?')}.{name}"


def source_of(model: object) -> str | None:
    """Return a digest of a model's file, or of the model's text if it is in a notebook or in the main program.

    If the model is in the program that calls `run`, the digest covers the text of the model, and of everything that the
    model uses from the program. The rest of the program may change. Models of several kinds have one digest. If the
    source cannot be read, the result is None.
    """
    if isinstance(model, Mapping):
        sources = {kind: source_of(each) for kind, each in model.items()}
        return None if None in sources.values() else blake2b(_encode(sources), digest_size=8).hexdigest()
    while isinstance(model, partial):
        model = model.func
    code = model if hasattr(model, "__qualname__") else type(model)
    if getattr(code, "__module__", None) == "__main__":
        with suppress(OSError, TypeError):
            texts = "\n".join(_texts_in_program(code, set()))
            return blake2b(texts.encode(), digest_size=8).hexdigest()
        return None
    for found in (inspect.getmodule(code), code):
        with suppress(OSError, TypeError):
            return blake2b(inspect.getsource(found).encode(), digest_size=8).hexdigest()  # type: ignore[arg-type]
    return None


def _texts_in_program(code: Any, seen: set[object]) -> Iterator[str]:  # noqa: ANN401 - a function or a class
    """Yield the text of a function or class, and of the functions, classes and plain values that it uses."""
    seen.add(code)
    if getattr(code, "__name__", "") == "<lambda>":  # the source of a lambda includes the whole call around it
        yield " ".join(_parts_of_code(code.__code__))
    else:
        yield inspect.getsource(code)
    functions = [each for each in vars(code).values() if inspect.isfunction(each)] if inspect.isclass(code) else [code]
    for function in functions:
        for name in sorted(names_in(function.__code__)):
            value = function.__globals__.get(name)
            if isinstance(value, _PLAIN):
                yield f"{name}={value!r}"
            elif (inspect.isfunction(value) or inspect.isclass(value)) and value.__module__ == "__main__":
                yield from () if value in seen else _texts_in_program(value, seen)


def _parts_of_code(code: CodeType) -> Iterator[str]:
    yield from (code.co_code.hex(), *code.co_names)
    for constant in code.co_consts:
        yield from _parts_of_code(constant) if isinstance(constant, CodeType) else [repr(constant)]


def held_by(function: object) -> dict[str, str | None]:
    """Return digests of what a function has from elsewhere than its source, by name.

    These are arguments of a partial, defaults, variables of enclosing functions and attributes of the function's
    object, if they are data or functions. Other values, such as clients, may differ in each process, and are left out.
    """
    return dict(_held_by(function, "", set()))


def _held_by(function: object, of: str, seen: set[int]) -> Iterator[tuple[str, str | None]]:
    if id(function) in seen:
        return
    seen.add(id(function))
    if isinstance(function, Mapping):
        for kind, each in function.items():
            yield from _held_by(each, f" of {kind!r}{of}", seen)
        return
    for name, value in _given_to(function).items():
        if _is_data(value):
            yield f"{name}{of}", content_digest(value)
        elif isinstance(value, FunctionType | MethodType | partial):
            yield f"{name}{of}", source_of(value)
            yield from _held_by(value, f" of {name}{of}", seen)
    if isinstance(function, MethodType | partial):
        yield from _held_by(function.__func__ if isinstance(function, MethodType) else function.func, of, seen)


def _given_to(function: Any) -> dict[str, Any]:  # noqa: ANN401 - a function of any kind
    """Return the values of a function, apart from those of functions within it, by name."""
    if isinstance(function, partial):
        return {f"argument {place}": each for place, each in enumerate(function.args)} | function.keywords
    if isinstance(function, MethodType):
        return dict(getattr(function.__self__, "__dict__", {}))
    if not isinstance(function, FunctionType):
        return dict(getattr(function, "__dict__", {}))
    code = function.__code__
    found = dict(
        zip(reversed(code.co_varnames[: code.co_argcount]), reversed(function.__defaults__ or ()), strict=False)
    )
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        with suppress(ValueError):  # the variable has no value yet
            found[name] = cell.cell_contents
    return found | (function.__kwdefaults__ or {})


def _is_data(value: Any) -> bool:  # noqa: ANN401 - any value
    if isinstance(value, dict):
        return all(map(_is_data, value)) and all(map(_is_data, value.values()))
    if isinstance(value, list | tuple | set | frozenset):
        return all(map(_is_data, value))
    return isinstance(value, _DATA) or (hasattr(value, "itertuples") and hasattr(value, "iloc"))


def inputs_of(agents: Any, graph: object, shared: object, plans: Sequence[GroupPlan]) -> dict[str, str | None]:  # noqa: ANN401 - a DataFrame, or ids
    """Return digests of the agents' DataFrame, the graph and `shared` of a run.

    A digest is None if the input was not given, or has no digest.
    """
    frame = agents if hasattr(agents, "itertuples") and hasattr(agents, "sort_index") else None
    with suppress(TypeError):  # the ids have several types
        frame = None if frame is None else frame.sort_index()
    ends = [[neighbours for _, neighbours in plan.rows.values()] for plan in plans]
    kinds = [{kind: [*found] for kind, found in sorted(plan.kinds.items())} for plan in plans]
    found = {
        "agents": None if frame is None else content_digest(frame),
        "graph": None if graph is None else blake2b(_encode(ends), digest_size=16).hexdigest(),
        "shared": None if shared is None else content_digest(shared),
    }
    return found | ({"kinds": blake2b(_encode(kinds), digest_size=16).hexdigest()} if any(kinds) else {})


def facts_of(model: object, until: int | None, options: RunOptions, inputs: Mapping[str, str | None]) -> dict[str, Any]:
    """Return the facts about a call of `run` that are recorded in the folder of its log.

    Args: `inputs` has the digests from `inputs_of`.
    """
    return {
        "model": name_of(model),
        "source": source_of(model),
        "start": None if options.start is None else name_of(options.start),
        "by": options.by,
        "until": until,
        "concurrency": options.concurrency,
        "timeout": options.timeout,
        **inputs,
    }


def changes_of(now: Mapping[str, Any], before: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for each input of a run that differs from the input of the call `before`."""
    for name, what in _INPUTS.items():
        given = now.get(name), before.get(name)
        if None not in given and given[0] != given[1]:
            yield (
                f"{what} of this call of run differs from the last call's: the steps so far used the former one, and "
                f"the next steps use this one. To begin anew, pass on_existing='reset'\n"
            )


def change_of(now: Mapping[str, Any], before: Mapping[str, Any]) -> str | None:
    """Return a line that says that a run's model has changed, or None if its source is the same as before."""
    sources = now["source"], before.get("source")
    if None in sources or sources[0] == sources[1]:
        return None
    former = "" if before["model"] == now["model"] else f", in place of {before['model']},"
    return (
        f"the source of the model {now['model']}{former} differs from the source at this run's last start. If the "
        "model itself has changed, the steps so far came from the former model. To begin anew, pass "
        f"on_existing='reset'\n"
    )
