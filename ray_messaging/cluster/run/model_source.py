"""The name of a model, and digests of its source and its inputs, by which a later call of `run` finds changes."""

import dis
import inspect
import os
import sysconfig
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from hashlib import blake2b
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any, Final

import msgspec

from ray_messaging.cluster.run.content_digest import content_digest
from ray_messaging.cluster.run.run_plan import GroupPlan, RunOptions
from ray_messaging.cluster.unpicklable import names_in

_INPUTS: Final = {
    "agents": "the DataFrame agents=", "kinds": "the kind of some agents in agents=", "graph": "graph=",
    "shared": "shared=",
}  # fmt: skip
_PLAIN = bool, int, float, str, type(None)
# The types of objects that do not count as values that a model uses. The last type is that of `os.environ`, which has
# variables that differ between any two shells.
_NO_VALUES = type, FunctionType, BuiltinFunctionType, ModuleType, type(os.environ)
_WITH_CACHE: Final = type(lru_cache(len))
_STANDARD_LIBRARY: Final = sysconfig.get_path("stdlib")
_encode = msgspec.msgpack.encode


def name_of(function: object) -> str:
    """Return the name of a function, or of an object's class, with its module.

    For a dict of functions by kind of agents, return a text with all kinds and names.
    """
    if isinstance(function, Mapping):
        return ", ".join(f"{kind}: {name_of(each)}" for kind, each in function.items())
    name = getattr(function, "__qualname__", None) or type(function).__qualname__
    return f"{getattr(function, '__module__', '?')}.{name}"


def source_of(model: object) -> str | None:
    """Return a digest of a model's file, or of the model's text if it is in a notebook or in the main program.

    If the model is in the program that calls `run`, the digest covers the text of the model, and of everything that the
    model uses from the program. The rest of the program may change without changing the digest. A dict of models by
    kind of agents has one digest. If the source cannot be read, the result is None.
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
    """Yield the text of a function or class, and of the main program's functions, classes and values that it uses.

    The values are plain ones, such as numbers. `seen` has the functions and classes that were yielded already.
    """
    seen.add(code)
    # The source of a lambda includes the whole call around it, so the compiled code stands for its text.
    if getattr(code, "__name__", "") == "<lambda>":
        yield " ".join(_parts_of_code(code.__code__))
    else:
        yield inspect.getsource(code)
    functions = [each for each in vars(code).values() if inspect.isfunction(each)] if inspect.isclass(code) else [code]
    for function in functions:
        for name in sorted(names_in(function.__code__)):
            value = _without_cache(function.__globals__.get(name))
            if isinstance(value, _PLAIN):
                yield f"{name}={value!r}"
            elif (inspect.isfunction(value) or inspect.isclass(value)) and value.__module__ == "__main__":
                yield from () if value in seen else _texts_in_program(value, seen)


def _without_cache(value: Any) -> Any:  # noqa: ANN401 - of any kind
    """Return the function itself if a value is a function with `functools.cache`; otherwise return the value."""
    return value.__wrapped__ if isinstance(value, _WITH_CACHE) else value


def _parts_of_code(code: CodeType) -> Iterator[str]:
    yield from (code.co_code.hex(), *code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, frozenset):  # the order of a frozenset differs between processes
            yield f"frozenset({sorted(map(repr, constant))})"
        else:
            yield from _parts_of_code(constant) if isinstance(constant, CodeType) else [repr(constant)]


def values_used(model: object) -> dict[str, str | None]:
    """Return digests of the values that a model uses besides its source, by name.

    These are the arguments of a partial, the variables of a closure, the defaults of parameters, and the attributes of
    an object. If the model is in the program that calls `run`, they are also the program's lists, dicts and other
    objects that the model uses. If a value is itself a function of the user's, its digest covers its text, and the
    values that this function uses are added. A digest is None if the value has no digest.
    """
    return _digests(_values_in(model, set()))


def functions_among(values: Mapping[str, object]) -> dict[str, str | None]:
    """Return digests, by name, of the user's functions among `values`, and of the values that these functions use."""
    seen: set[int] = set()
    functions = [(name, value) for name, value in values.items() if _is_users(_without_cache(value))]
    return _digests(each for name, value in functions for each in _value(name, value, seen))


def _digests(values: Iterable[tuple[str, object]]) -> dict[str, str | None]:
    found: dict[str, list[object]] = {}
    for name, value in values:
        found.setdefault(name, []).append(value)
    return {name: content_digest(each[0] if len(each) == 1 else each) for name, each in found.items()}


def _values_in(model: Any, seen: set[int]) -> Iterator[tuple[str, object]]:  # noqa: ANN401 - a function, or an object
    if isinstance(model, Mapping):
        for each in model.values():
            yield from _values_in(each, seen)
        return
    while isinstance(model, partial):
        named = {f"argument {place}": each for place, each in enumerate(model.args)} | model.keywords
        for name, each in named.items():
            yield from _value(f"{name!r} of a partial of {name_of(model.func)}", each, seen)
        model = model.func
    if isinstance(model, MethodType):
        yield from _values_of_object(f"the object of {model.__qualname__}", model.__self__, seen)
        model = model.__func__
    elif not hasattr(model, "__qualname__"):
        yield from _values_of_object(f"the object of {type(model).__qualname__}", model, seen)
        model = type(model)
    if id(model) not in seen:
        seen.add(id(model))
        for function in filter(inspect.isfunction, vars(model).values() if inspect.isclass(model) else [model]):
            yield from _values_of_function(function, seen)


def _values_of_object(name: str, value: object, seen: set[int]) -> Iterator[tuple[str, object]]:
    yield name, value
    for attribute, each in getattr(value, "__dict__", {}).items():
        if _is_users(_without_cache(each)):
            yield from _value(f"{attribute!r} of {name}", each, seen)


def _values_of_function(function: FunctionType, seen: set[int]) -> Iterator[tuple[str, object]]:
    name = function.__qualname__
    given = (function.__defaults__, function.__kwdefaults__)
    yield from ((f"a default of {name}", each) for each in given if each)
    for variable, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with suppress(ValueError):  # the variable has no value yet
            yield from _value(f"{variable!r} of {name}", cell.cell_contents, seen)
    for variable, value in _program_values(function):
        if _is_users(value):
            if value.__module__ != "__main__":  # `source_of` covers the text of functions in the main program
                yield f"{variable!r} of {name}", name_of(value)
            yield from _values_in(value, seen)
        elif not isinstance(value, _NO_VALUES):
            yield f"{variable!r} of {name}", value


def _value(name: str, value: Any, seen: set[int]) -> Iterator[tuple[str, object]]:  # noqa: ANN401 - of any kind
    """Yield (name, value). For a function of the user's, yield its name and text as the value, then the values it uses.

    Functions whose values were yielded already are in `seen`.
    """
    value = _without_cache(value)
    if not _is_users(value):
        yield name, value
        return
    texts: list[str] = []
    with suppress(OSError, TypeError):  # the text cannot be read
        texts += _texts_in_program(value, set())
    yield name, (name_of(value), texts)
    yield from _values_in(value, seen)


def _is_users(value: object) -> bool:
    """Return whether a value is a function that the user has written, or a class of the program that calls `run`.

    Functions of Python and of installed packages do not count, because another version of them is no change of the
    user's model.
    """
    if inspect.isfunction(value):
        file = value.__code__.co_filename
        return "-packages" not in file and not file.startswith(_STANDARD_LIBRARY)
    return inspect.isclass(value) and value.__module__ == "__main__"


def _program_values(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """Yield (name, value) for each global variable that a function of the main program uses, unless it is plain."""
    if function.__module__ == "__main__":
        for name in sorted({*_globals_in(function.__code__)} & function.__globals__.keys()):
            value = _without_cache(function.__globals__[name])
            if not isinstance(value, _PLAIN):  # `source_of` covers plain values
                yield name, value


def _globals_in(code: CodeType) -> Iterator[str]:
    yield from (str(each.argval) for each in dis.get_instructions(code) if each.opname == "LOAD_GLOBAL")
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _globals_in(constant)


def changed_values(now: Mapping[str, str | None], before: Mapping[str, str | None]) -> list[str]:
    """Return the names of the values that differ between two results of `values_used`, or that only one of them has.

    A value that has no digest in one of them is left out, because it cannot be compared.
    """
    differ = {name for name in now.keys() & before.keys() if now[name] != before[name]}
    unknown = {name for name in differ if None in (now[name], before[name])}
    return sorted((differ - unknown) | (now.keys() ^ before.keys()))


def inputs_of(agents: Any, graph: object, shared: object, plans: Sequence[GroupPlan]) -> dict[str, str | None]:  # noqa: ANN401 - a DataFrame, or ids
    """Return digests of a run's inputs, by name: "agents" (their DataFrame), "graph" and "shared".

    If there are kinds of agents, "kinds" has a digest of which agents are of which kind. A digest is None if the input
    was not given, or has no digest.
    """
    frame = agents if hasattr(agents, "itertuples") and hasattr(agents, "sort_index") else None
    with suppress(TypeError):  # ids of several types, such as int and str, cannot be sorted
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
        "values": values_used(model),
        "start": None if options.start is None else name_of(options.start),
        "by": options.by,
        "until": until,
        "concurrency": options.concurrency,
        "timeout": options.timeout,
        **inputs,
    }


def changes_of(now: Mapping[str, Any], before: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for the user for each input, such as the graph, that differs between two calls of `run`.

    Args: `now` has the digests of the inputs of this call, and `before` those of the call before it.
    """
    for name, what in _INPUTS.items():
        given = now.get(name), before.get(name)
        if None not in given and given[0] != given[1]:
            yield (
                f"{what} of this call of run differs from the last call's: the steps so far used the former one, and "
                f"the next steps use this one. To begin anew, pass on_existing='reset'\n"
            )


def change_of(now: Mapping[str, Any], before: Mapping[str, Any]) -> str | None:
    """Return a line for the user that says that a run's model has changed, or None if no change is found.

    Args: `now` and `before` are the facts about this and an earlier call of `run`, from `facts_of`. The sources are
    compared if both are known. If no difference is found, the values that the model uses are compared, unless version
    1.0.0 has written `before`, which then lacks these values.
    """
    sources = now["source"], before.get("source")
    if None in sources or sources[0] == sources[1]:
        if "values" in before and (changed := changed_values(now["values"], before["values"])):
            return (
                f"{changed[0]}, which the model uses, differs from that at this run's last start: the steps so far "
                "used the former value. To begin anew, pass on_existing='reset'\n"
            )
        return None
    former = "" if before["model"] == now["model"] else f", in place of {before['model']},"
    return (
        f"the source of the model {now['model']}{former} differs from the source at this run's last start. If the "
        "model itself has changed, the steps so far came from the former model. To begin anew, pass "
        f"on_existing='reset'\n"
    )
