"""The name and the source of a model, and digests of its inputs. A later call of `run` compares them."""

import dis
import inspect
import os
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from hashlib import blake2b
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any, Final

import msgspec
import numpy as np

from ray_messaging.cluster.run.content_digest import content_digest
from ray_messaging.cluster.run.module_files import files_used, is_installed, is_users
from ray_messaging.cluster.run.run_plan import GroupPlan, RunOptions
from ray_messaging.cluster.unpicklable import names_in

_INPUTS: Final = {
    "agents": "the DataFrame agents=", "kinds": "the kind of some agents in agents=", "graph": "graph=",
    "shared": "shared=",
}  # fmt: skip
_PLAIN = bool, int, float, str, type(None)
# What is not a value that a model uses. The environment has variables that differ between any two shells.
_NO_VALUES = type, FunctionType, BuiltinFunctionType, ModuleType, type(os.environ)
_WITH_CACHE: Final = type(lru_cache(len))
_GENERATORS: Final = random.Random, np.random.Generator, np.random.RandomState, np.random.BitGenerator
GENERATOR: Final = "the random generator "  # the name of a generator among the values of a model begins with this
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
        if isinstance(constant, frozenset):  # its order differs between processes
            yield f"frozenset({sorted(map(repr, constant))})"
        else:
            yield from _parts_of_code(constant) if isinstance(constant, CodeType) else [repr(constant)]


def values_used(model: object) -> dict[str, str | None]:
    """Return digests of the values that a model uses besides its source, by name.

    These are the arguments of a partial, the variables of a closure, the defaults of parameters, and the attributes of
    an object. If the model is in the program that calls `run`, they are also the program's lists, dicts and other
    objects that the model uses. If a value is a function of the user's, or contains one, its text and its own values
    count. The files of the user's modules from which the functions are, and of the modules that these import, are
    values, too. A digest is None if the value has no digest.
    """
    seen: set[object] = set()
    return _digests(_values_in(model, seen), seen)


def values_among(values: Mapping[str, object], *, only_functions: bool) -> dict[str, str | None]:
    """Return digests of values, and of the values that functions of the user's among them use, by name.

    Args: with `only_functions`, values that are no functions of the user's are left out.
    """
    seen: set[object] = set()
    some = [(name, value) for name, value in values.items() if not only_functions or _is_users(_without_cache(value))]
    return _digests((each for name, value in some for each in _value(name, value, seen)), seen)


def _digests(values: Iterable[tuple[str, object]], seen: set[object]) -> dict[str, str | None]:
    def told(value: object) -> object:
        """Return the digests of what a function or class uses, which is a part of another value.

        Return None for functions and classes that are in `seen`, and for all other values.
        """
        value = _without_cache(value)
        if not _is_users(value) or id(value) in seen:
            return None
        return _digests(_value("", value, seen), seen)

    found: dict[str, list[object]] = {}
    for name, value in values:
        found.setdefault(f"{GENERATOR if isinstance(value, _GENERATORS) else ''}{name}", []).append(value)
    return {name: content_digest(each[0] if len(each) == 1 else each, told=told) for name, each in found.items()}


def _values_in(model: Any, seen: set[object]) -> Iterator[tuple[str, object]]:  # noqa: ANN401 - a function, or an object
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
        yield from _modules([getattr(model, "__module__", None) or ""], seen)
        for base in filter(_is_users, model.__bases__ if inspect.isclass(model) else ()):
            yield from _value(f"the base {base.__qualname__} of {model.__qualname__}", base, seen)
        for function in filter(inspect.isfunction, vars(model).values() if inspect.isclass(model) else [model]):
            yield from _values_of_function(function, seen)


def _modules(names: Iterable[str], seen: set[object]) -> Iterator[tuple[str, object]]:
    for name, digest in files_used(names).items():
        if name not in seen:
            seen.add(name)
            yield f"the source of the module {name}", digest


def _values_of_object(name: str, value: object, seen: set[object]) -> Iterator[tuple[str, object]]:
    yield name, value
    for attribute, each in getattr(value, "__dict__", {}).items():
        if _is_users(_without_cache(each)):
            yield from _value(f"{attribute!r} of {name}", each, seen)


def _values_of_function(function: FunctionType, seen: set[object]) -> Iterator[tuple[str, object]]:
    name = function.__qualname__
    given = (function.__defaults__, function.__kwdefaults__)
    yield from ((f"a default of {name}", each) for each in given if each)
    for variable, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with suppress(ValueError):  # the variable has no value yet
            yield from _value(f"{variable!r} of {name}", cell.cell_contents, seen)
    if function.__module__ == "__main__":
        yield from _modules(_imported_by(function), seen)
    for variable, value in _program_values(function):
        if _is_users(value):
            if value.__module__ != "__main__":  # the source's digest has the text of functions in the program
                yield f"{variable!r} of {name}", name_of(value)
            yield from _values_in(value, seen)
        elif not isinstance(value, _NO_VALUES):
            yield f"{variable!r} of {name}", value


def _value(name: str, value: Any, seen: set[object]) -> Iterator[tuple[str, object]]:  # noqa: ANN401 - of any kind
    """Yield a value with its name. If it is a function of the user's, yield its text, and the values that it uses."""
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
    """Return whether a value is a function or a class of the user's.

    Functions of Python and of packages are not: in another version they may have other defaults.
    """
    if inspect.isfunction(value):
        return not is_installed(value.__code__.co_filename)
    return inspect.isclass(value) and (value.__module__ == "__main__" or is_users(value.__module__))


def _imported_by(function: FunctionType) -> Iterator[str]:
    """Yield the names of the modules that a function of the program uses, and imports."""
    names = {*names_in(function.__code__)}
    waiting = [function.__globals__.get(name) for name in names]
    while waiting:
        if isinstance(module := waiting.pop(), ModuleType):
            yield module.__name__
            parts = [vars(module).get(name) for name in names]
            waiting += [
                part
                for part in parts
                if isinstance(part, ModuleType) and part.__name__.startswith(f"{module.__name__}.")
            ]
    before = ""
    for each in _instructions(function.__code__):
        if each.opname == "IMPORT_NAME":
            yield (before := str(each.argval))
        elif each.opname == "IMPORT_FROM":
            yield f"{before}.{each.argval}"


def _program_values(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """Yield the objects of the main program that a function uses, by name."""
    if function.__module__ == "__main__":
        for name in sorted({*_globals_in(function.__code__)} & function.__globals__.keys()):
            value = _without_cache(function.__globals__[name])
            if not isinstance(value, _PLAIN):  # a plain value is in the source's digest
                yield name, value


def _globals_in(code: CodeType) -> Iterator[str]:
    yield from (str(each.argval) for each in _instructions(code) if each.opname == "LOAD_GLOBAL")


def _instructions(code: CodeType) -> Iterator[dis.Instruction]:
    yield from dis.get_instructions(code)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _instructions(constant)


def changed_values(now: Mapping[str, str | None], before: Mapping[str, str | None]) -> list[str]:
    """Return the names of the values that differ between two results of `values_used`."""
    differ = {name for name in now.keys() & before.keys() if now[name] != before[name]}
    unknown = {name for name in differ if None in (now[name], before[name])}
    return sorted((differ - unknown) | (now.keys() ^ before.keys()))


def inputs_of(agents: Any, graph: object, shared: object, plans: Sequence[GroupPlan]) -> dict[str, str | None]:  # noqa: ANN401 - a DataFrame, or ids
    """Return digests of a run's inputs, by name: "agents" (their DataFrame), "graph" and "shared".

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
        "values": values_used(model),
        "start": None if options.start is None else name_of(options.start),
        "by": options.by,
        "until": until,
        "concurrency": options.concurrency,
        "timeout": options.timeout,
        **inputs,
    }


def changes_of(now: Mapping[str, Any], before: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for each input of a run, such as the graph, that differs from the input of the last call of `run`.

    Args: `now` and `before` have the digests of the inputs of both calls.
    """
    for name, what in _INPUTS.items():
        given = now.get(name), before.get(name)
        if None not in given and given[0] != given[1]:
            yield (
                f"{what} of this call of run differs from the last call's: the steps so far used the former one, and "
                f"the next steps use this one. To begin anew, pass on_existing='reset'\n"
            )


def change_of(now: Mapping[str, Any], before: Mapping[str, Any]) -> str | None:
    """Return a line that says that a run's model has changed, or None if its source and values are the same as before.

    If version 1.0.0 wrote `before`, which then has no values, only the sources are compared.
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
