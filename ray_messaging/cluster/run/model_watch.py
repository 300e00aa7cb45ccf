"""Warnings about a model that stores data outside of its agents' states, or draws from shared random generators.

Other groups do not have such data, and the data are lost in a restart. The generators of the module `random` and of
numpy are shared by all agents of a process, so their numbers differ if the number of groups does.
"""

import logging
import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from ctypes import string_at
from functools import partial
from math import inf
from time import perf_counter, thread_time
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any, Final

import numpy as np

from ray_messaging.cluster.run.content_digest import content_digest

logger = logging.getLogger(__name__)

_SHARE: Final = 100  # the checks take at most 1/_SHARE of a run's time
_FUNCTIONS: Final = 200  # at most this many functions are searched for objects that a model uses
_FIRST_STEPS: Final = 20
_MT_BYTES: Final = 625 * 4
_PAGE: Final = "(docs/repeatability.md)"
_LONGEST_S: Final = 0.1  # the most seconds for all digests before or after a step, because the group waits for them


class ModelWatch:
    """Checks of one group's model: it must not change objects outside of its agents, or draw from global generators.

    Each problem is logged once, as a warning. The checks are so seldom that they take at most a hundredth of the run's
    time. In addition, the global random number generators are checked in each of the first _FIRST_STEPS steps.

    Args: `given` maps names to the objects that a model gets and must not change. `told` has the names of the problems
    that this run has already logged. Groups in one process share this set.
    """

    def __init__(self, model: object, given: Mapping[str, object], told: set[str] | None = None) -> None:
        self._model = model
        self._given = given
        self._told: set[str] = set() if told is None else told
        # For each object by name: the number of a step, and the object's digest before this step.
        self._before: dict[str, tuple[int, str | None]] = {}
        self._begun = 0
        self._next = 0.0  # the time of the next check

    @contextmanager
    def over(self, step: int) -> Iterator[None]:
        """Return a context in which step `step` runs. At the end of the context, the checks that are due are made."""
        began = perf_counter()
        due = began >= self._next
        if not due and self._begun >= _FIRST_STEPS:
            yield
            return
        drawn: dict[str, object] = {}
        with self._off_at_an_error():
            if not self._begun:
                self._before = {name: (step, digest) for name, digest in _digests(self._kept()).items()}
            self._begun += 1
            drawn = _drawn()
        spent = perf_counter() - began
        yield
        began = perf_counter()
        with self._off_at_an_error():
            now = _drawn()
            self._tell_drawn({name for name, state in drawn.items() if now[name] != state}, step)
            if due and drawn:
                self._compare(step)
                ended = perf_counter()
                self._next = ended + _SHARE * (spent + ended - began)

    @contextmanager
    def _off_at_an_error(self) -> Iterator[None]:
        """Return a context for a check. If the check raises an error, the error is logged, and no more checks are made.

        The run itself goes on.
        """
        try:
            yield
        except (Exception, SystemExit) as error:  # noqa: BLE001 - the user's objects may raise any error
            self._begun, self._next = _FIRST_STEPS, inf
            if "an error" not in self._told:
                self._told.add("an error")
                logger.warning(
                    "values that the model keeps outside of its agents are no longer checked for changes, because the "
                    "check failed: %s: %s %s",
                    type(error).__name__, error, _PAGE,
                )  # fmt: skip

    def _compare(self, step: int) -> None:
        """Log which of the objects that the model uses outside of its agents have changed since the last comparison."""
        for name, now in _digests(self._kept()).items():
            since, before = self._before.get(name, (step, None))
            if None not in (before, now) and before != now:
                self._tell_changed(name, since, step)
            self._before[name] = step + 1, now

    def _kept(self) -> Mapping[str, object]:
        """Return, by name, the objects to check for changes: those in `given`, and those to which the model refers.

        Objects whose change was already logged are left out.
        """
        found = {**_named(self._model), **self._given}
        return {name: value for name, value in found.items() if name not in self._told}

    def _tell_drawn(self, sources: set[str], step: int) -> None:
        for source in sorted(sources - self._told):
            logger.warning(
                "random numbers of %s were drawn in step %d: they differ if the number of groups differs, or if a "
                "step runs again. Draw random numbers by me.rng, or in a crowd by step.uniform(k). Numbers that do "
                "not influence the model, such as for a library's pause, do no harm %s",
                source, step, _PAGE,
            )  # fmt: skip
        self._told |= sources

    def _tell_changed(self, name: str, since: int, step: int) -> None:
        self._told.add(name)
        when = f"in step {step}" if since == step else f"between the steps {since} and {step}"
        logger.warning(
            "%s has changed %s: each group has its own copy, and a restart loses the change. Keep values that change "
            "in me.state, or send them. A cache of values that can be computed again does no harm %s",
            name, when, _PAGE,
        )  # fmt: skip


def _digests(kept: Mapping[str, object]) -> dict[str, str | None]:
    """Return, by name, a digest of each object, or None for an object without a digest, or if the time is used up."""
    end = thread_time() + _LONGEST_S
    found = {}
    for name, value in kept.items():
        left = (end - thread_time()) / 2  # half of the remaining time is for the following objects
        found[name] = content_digest(value, anywhere=False, longest_s=left)
    return found


def _drawn() -> dict[str, object]:
    """Return, by name, the states of the process's random number generators."""
    numpys: Any = np.random.get_bit_generator()  # type: ignore[attr-defined]  # numpy's types lack it
    # The bytes of the generator are read from memory, because numpy would take a hundred times as long.
    state = string_at(numpys.ctypes.state_address, _MT_BYTES) if type(numpys) is np.random.MT19937 else b""
    return {"the module random": random.getstate(), "numpy.random": state}


def _named(model: object) -> dict[str, object]:
    """Return, by name, the objects in globals and closures that a model, and the functions that it calls, use.

    Objects with `__call__`, and objects to which methods are bound, are included. Functions, modules and classes are
    left out.
    """
    found: dict[str, object] = {}
    left, seen = [*model.values()] if isinstance(model, Mapping) else [model], set[int]()
    while left and len(seen) < _FUNCTIONS:
        function = _function_of(left.pop(), found)
        if function is None or id(function) in seen or _is_installed(function):
            continue
        seen.add(id(function))
        for name, value in _references(function):
            kind = type(value)  # isinstance might run code of the value
            if issubclass(kind, FunctionType | MethodType | partial):
                left.append(value)
            elif not issubclass(kind, type | ModuleType):
                found[name] = value
    return found


def _function_of(model: Any, found: dict[str, object]) -> FunctionType | None:  # noqa: ANN401 - what can be called
    """Return the Python function that runs when `model` is called, or None if there is none.

    If `model` is a method, add the object to which it is bound to `found`. If `model` is an object with `__call__`, add
    `model` itself.
    """
    while issubclass(type(model), partial | MethodType):
        if issubclass(type(model), MethodType):
            found[f"the object of {getattr(model, '__qualname__', type(model).__qualname__)}"] = model.__self__
        model = model.func if issubclass(type(model), partial) else model.__func__
    if type(model) is FunctionType:
        return model
    found[f"the object of {type(model).__qualname__}"] = model
    called = getattr(type(model), "__dict__", {}).get("__call__")
    return called if isinstance(called, FunctionType) else None


def _references(function: FunctionType) -> Iterator[tuple[str, object]]:
    """Yield the objects in globals and closures that a function uses, with names for a warning."""
    for name in {*_names_in(function.__code__)} & function.__globals__.keys():
        yield f"the global {name!r} of {function.__globals__.get('__name__')}", function.__globals__[name]
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with suppress(ValueError):  # the variable has no value yet
            yield f"{name!r} of {function.__qualname__}", cell.cell_contents


def _names_in(code: CodeType) -> Iterator[str]:
    """Yield the names that a function's code uses, and the names that functions within it use."""
    yield from code.co_names
    for part in code.co_consts:
        if isinstance(part, CodeType):
            yield from _names_in(part)


def _is_installed(function: FunctionType) -> bool:
    """Return whether a function is part of an installed package, or of this one, so that it is not checked."""
    return "-packages/" in function.__code__.co_filename or f"{function.__module__}".startswith("ray_messaging.")
