"""What the page of a local model shows: the model's parameters, and a run that goes on one step at a time."""

import inspect
import threading
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

import pyarrow as pa

from ray_messaging.errors import ConfigError
from ray_messaging.inspector.page_values import Series, SocietyInStep, name
from ray_messaging.inspector.sources.log_rows import RunFacts
from ray_messaging.inspector.sources.society_in_step import measures_of, over_steps, society_in_step
from ray_messaging.model.series_columns import STEP, TAKEN
from ray_messaging.studies.stepwise_run import StepwiseRun

_PAGES = ("Overview", "Society", "Search", "Conversation", "Agent", "Calls", "Why", "Rules", "Dead letters")
_WHOLE = 10  # if a whole number has no given bounds, its slider reaches at least this number
_TEXTS = "such as def town(*, chance: float = 0.3, agents: int = 400)"


class ModelParameter(NamedTuple):
    """A parameter of a model: a number from `low` to `high`, a bool, or one of some `options`."""

    name: str
    default: Any
    low: float = 0.0
    high: float = 1.0
    step: float = 0.01
    options: tuple[Any, ...] = ()

    def check(self, value: Any) -> None:  # noqa: ANN401 - what a browser has sent
        """Raise ConfigError for a value that the parameter cannot have."""
        kind = type(self.default)
        fits = value in self.options if self.options else isinstance(value, bool) is (kind is bool)
        if fits and not self.options and kind is not bool:
            fits = isinstance(value, int if kind is int else int | float) and self.low <= value <= self.high
        if not fits:
            number = f"{'a whole' if kind is int else 'a'} number from {self.low:g} to {self.high:g}"
            allowed = f"one of {self.options!r}" if self.options else "True or False" if kind is bool else number
            raise ConfigError(f"the parameter {self.name!r} cannot be {value!r:.60}: it must be {allowed}")


def settings_of(function: Callable[..., Any]) -> list[ModelParameter]:
    """Return the parameters of a function, with the values that their defaults and type hints allow.

    Raises: ConfigError if a parameter has no default, or a default that is outside of its bounds or that a page cannot
    show.
    """
    try:
        hints = get_type_hints(function, include_extras=True)
    except (NameError, TypeError):  # an annotation has a name that is not defined
        hints = {}
    found = []
    for each in inspect.signature(function).parameters.values():
        if each.kind in (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL):
            continue
        if each.default is inspect.Parameter.empty:
            raise ConfigError(
                f"the parameter {each.name!r} of the function {function.__name__!r} has no default, but the "
                "inspector's "
                f"page begins with the defaults: give each parameter a default, {_TEXTS}"
            )
        found.append(_setting(each.name, each.default, hints.get(each.name)))
    return found


def _setting(parameter: str, default: Any, hint: Any) -> ModelParameter:  # noqa: ANN401 - of any kind
    if get_origin(hint) is Literal:
        return ModelParameter(parameter, default, options=get_args(hint))
    if isinstance(default, bool):
        return ModelParameter(parameter, default)
    if not isinstance(default, int | float):
        raise ConfigError(
            f"the default of parameter {parameter!r} is {default!r:.60}, but the model's page in the browser can set "
            'only numbers, bools, and choices such as Literal["none", "one"]'
        )
    notes = get_args(hint)[1:] if get_origin(hint) is Annotated else ()
    bounds = next((each for each in notes if _is_pair(each)), None)
    whole = isinstance(default, int)
    if bounds is None:
        reach = max(_WHOLE, 2 * abs(default)) if whole else 1.0 if abs(default) <= 1 else 2 * abs(default)
        bounds = (-reach if default < 0 else 0, reach)
    low, high = bounds
    if not low <= default <= high or low == high:
        raise ConfigError(
            f"the default of parameter {parameter!r} is {default!r}, and its bounds are {bounds!r}: the first bound "
            "must be lower than the second, and the default must be within them"
        )
    return ModelParameter(parameter, default, low, high, 1 if whole else (high - low) / 100)


def _is_pair(bounds: object) -> bool:
    return isinstance(bounds, tuple) and len(bounds) == 2 and all(isinstance(each, int | float) for each in bounds)


class ModelFacts(RunFacts):
    """A run of a local model, which all readers of its page share.

    Args: `function` takes the parameters, each with a default, and returns the arguments of `ray_messaging.run`,
    including "model", as a dict. The model and other functions in this dict may take parameters by name, as in
    `batch_run`.
    """

    lacks = _PAGES
    phase = "model"

    def __init__(self, function: Callable[..., Any], title: str) -> None:
        self.title = name(title)
        self._function = function
        self.settings = settings_of(function)
        self._lock = threading.Lock()
        self._run: StepwiseRun | None = None
        self._collected: pa.Table | None = None
        self.values: dict[str, Any] = {each.name: each.default for each in self.settings}
        self.seed = 0
        self.begin(self.values, 0)

    @property
    def step(self) -> int:
        """Return the number of the next step."""
        return 0 if self._run is None else self._run.step

    @property
    def over(self) -> bool:
        """Return whether the run has reached its end."""
        return self._run is not None and self._run.over

    def begin(self, values: Mapping[str, Any], seed: int) -> None:
        """Begin a new run, with these values of the parameters.

        Raises: ConfigError if a parameter cannot have its value, or if the function does not return a dict of
        arguments.
        """
        for each in self.settings:
            each.check(values[each.name])
        with self._lock:
            given = self._function(**values)
            if not isinstance(given, Mapping):
                raise ConfigError(
                    f"{self._function.__name__} returned {given!r:.60}: it must return the arguments of "
                    "ray_messaging.run as a dict, such as {'model': person, 'agents': 100}"
                )
            begun = StepwiseRun(given, values, seed)
            former, self._run, self._collected = self._run, begun, None
            self.values, self.seed = dict(values), seed
            if former is not None:
                former.close()

    def advance(self, steps: int = 1) -> int:
        """Run more steps, and return the number of the next step. Raises the same errors as `ray_messaging.run`."""
        with self._lock:
            assert self._run is not None
            if not self._run.over:
                self._collected = self._run.advance(steps)
            return self._run.step

    def society_in_step(self, measure: str, step: int | None, columns: int | None) -> SocietyInStep | None:
        """Return all agents in one step; None before the first step, or if no values of single agents are collected."""
        table = self._collected
        if table is None or not measures_of(table):
            return None
        return society_in_step(table, None, measure, step, columns)

    def over_steps(self, measure: str) -> Series | None:
        """Return, by step, the mean of a collected value over all agents; for texts, how many agents have each text.

        If the run collects no values of single agents, return the aggregates that it collects. Return None if nothing
        has been collected yet.
        """
        table = self._collected
        if table is None:
            return None
        if measures_of(table):
            return over_steps(table, measure)
        lines = {name(each): table[each].to_pylist() for each in table.column_names if each not in TAKEN}
        return Series(table[STEP].to_pylist(), lines)

    def close(self) -> None:
        """Stop the run's server."""
        with self._lock:
            if self._run is not None:
                self._run.close()
