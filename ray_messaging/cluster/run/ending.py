"""The end of a run: before a given step, or after the first step whose collected values fulfil a condition."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ray_messaging.cluster.run.run_plan import RunOptions
from ray_messaging.common.awaitables import RAISED, call_problem, is_async
from ray_messaging.common.texts import short_repr
from ray_messaging.errors import ConfigError, StepFailed
from ray_messaging.model.aggregates import Count
from ray_messaging.model.collect import aggregates_of
from ray_messaging.model.series import decode_series, values_of
from ray_messaging.model.series_columns import STEP
from ray_messaging.model.whole_numbers import check_until


class Ending(NamedTuple):
    """The end of a run: before step `most`, or earlier, after the first step whose values fulfil the `condition`.

    `condition` gets the values that `collect=` has measured in a step (None: there is no condition). Values are
    collected in every n-th step, where n is `every`. `counts` are the names of `Count` aggregates, which have one
    column for each value that they count.
    """

    most: int
    condition: Callable[[Mapping[str, Any]], bool] | None = None
    every: int = 1
    counts: Collection[str] = ()

    def before(self, step: int) -> int:
        """Return the step before which a run stops, if `step` is the next step to run.

        There the run ends, or checks whether its condition is fulfilled.
        """
        if self.condition is None:
            return self.most
        collected = -(-step // self.every) * self.every
        return min(self.most, collected + 1)

    def looks_at(self, step: int) -> bool:
        """Return whether the condition is checked after a step."""
        return self.condition is not None and step >= 0 and step % self.every == 0

    def is_fulfilled(self, step: int, values: Mapping[str, Any]) -> bool:
        """Return whether the run ends after a step, because the values collected in the step fulfil the condition.

        If `values` has only the step's number, the result is False, and the condition is not called. This is so if an
        earlier call of `run`, without `collect=`, has run the step.

        Raises: StepFailed if the condition raises an exception; ConfigError if it does not return a bool.
        """
        assert self.condition is not None
        if values.keys() <= {STEP}:
            return False
        try:
            answer = self.condition(_Values(values, self.counts))
        except RAISED as error:
            from ray_messaging.cluster.run.agent import users_trace  # noqa: PLC0415 - only this error needs it

            trace, where = users_trace(error)
            text = f"until= failed after step {step}: {type(error).__name__}: {error}{where}"
            raise StepFailed(text, agent=None, step=step, group="", trace=trace) from error
        if not isinstance(answer, bool | np.bool_):
            raise ConfigError(
                f"until= returned {short_repr(answer)} after step {step}: it must return True, which ends the run, or "
                "False"
            )
        return bool(answer)


class _Values(dict[str, Any]):
    """The values that were collected in a step, by column.

    A `Count` aggregate has a column for each value that some agent has, such as "health=ill". For a value that no agent
    has, such as "health=dead", this dict returns 0.
    """

    def __init__(self, values: Mapping[str, Any], counts: Collection[str]) -> None:
        super().__init__(values)
        self._counts = counts

    def __missing__(self, name: object) -> int:
        if isinstance(name, str) and name.partition("=")[0] in self._counts and "=" in name:
            return 0
        raise KeyError(f"{name!r} is not collected: collect= returns {', '.join(map(repr, self)) or 'nothing'}")


def ending_of(until: object, max_steps: object, options: RunOptions) -> Ending:
    """Return when a run ends, as its arguments `until` and `max_steps` say.

    Raises: ConfigError for arguments that are invalid, or do not fit each other or `collect=`.
    """
    if not callable(until):
        if max_steps is not None:
            raise ConfigError(
                f"max_steps={max_steps!r} is only for a condition, as in until=lambda now: now['ill'] == 0, but "
                "until= is a number of steps: leave max_steps= out"
            )
        return Ending(check_until(until))
    if max_steps is None:
        raise ConfigError(
            "until= is a condition, which may never be fulfilled: also pass max_steps=, the number of steps after "
            "which the run ends in any case"
        )
    if isinstance(max_steps, bool) or not isinstance(max_steps, int) or max_steps < 0:
        raise ConfigError(f"max_steps={max_steps!r} must be a whole number of steps, 0 or more")
    if options.collect is None:
        raise ConfigError("until= is a condition on collected values: also pass collect=, such as Count('health')")
    if is_async(until) or (problem := call_problem(until, 1)):
        told = "it is async" if is_async(until) else problem
        raise ConfigError(
            f"until={short_repr(until)} must be a plain function of the collected values, such as lambda now: "
            f"now['ill'] == 0, but {told}"
        )
    counts = [each.name for each in aggregates_of(options.collect) if isinstance(each, Count)]
    return Ending(max_steps, until, options.collect_every, counts)


def values_after(step: int, parts: Sequence[bytes]) -> dict[str, Any]:
    """Return, by column, the values that were collected in a step, and the step's number.

    `parts` has the encoded values of each group. Values of aggregates are computed over all groups.
    """
    return {STEP: step} | values_of([decode_series(part) for part in parts if part])
