"""A local run that waits after each step until it is told to go on, for the page of a model."""

from collections.abc import Mapping
from typing import Any

from ray_messaging.cluster.run.local_run import run_part
from ray_messaging.cluster.run.result import Result
from ray_messaging.cluster.run.run_actor import RunOptions
from ray_messaging.common.texts import short_repr
from ray_messaging.embedded.local_server import LocalServer
from ray_messaging.errors import ConfigError
from ray_messaging.model.series_columns import TAKEN
from ray_messaging.studies.by_name import bound

_OPTIONS = ("by", "concurrency", "timeout", "collect", "only_active")
_OTHERS = ("model", "agents", "start", "graph", "shared", "rules", "groups", "seed", "calls", "until")


class StepwiseRun:
    """A run like one of `ray_messaging.run`, but each call of `advance` runs only the next steps.

    Args: `arguments` are those of `run`, with `model`. `values` are the parameters that functions among the
    arguments may take by name.

    Raises: ConfigError for an argument that `run` does not take, for an `until` that is a condition, and if the model
    or the agents are missing.
    """

    def __init__(self, arguments: Mapping[str, Any], values: Mapping[str, Any], seed: int) -> None:
        if strange := arguments.keys() - {*_OPTIONS, *_OTHERS}:
            raise ConfigError(
                f"the argument {min(strange)!r} is unknown: a model's page takes {', '.join((*_OTHERS, *_OPTIONS))}"
            )
        if lacking := {"model", "agents"} - arguments.keys():
            raise ConfigError(f"{min(lacking)!r} is missing: return {{'model': person, 'agents': 100, ...}}")
        until = arguments.get("until")
        if until is not None and (isinstance(until, bool) or not isinstance(until, int)):
            raise ConfigError(
                f"until={short_repr(until)} must be a number of steps: a model's page has no conditions; leave until= "
                "out, and the run goes on until it is paused"
            )
        start = arguments.get("start")
        by_name = dict(values)
        self._model = bound(arguments["model"], 2, by_name)
        self._options = RunOptions(
            None if start is None else bound(start, 1, by_name),
            arguments.get("by", "agent"),
            arguments.get("concurrency", 100),
            arguments.get("timeout"),
            arguments.get("collect", _plain_state if arguments.get("by", "agent") == "agent" else None),
            1,
            arguments.get("only_active", False),
        )
        self._given: dict[str, Any] = {
            name: arguments.get(name) for name in ("agents", "groups", "graph", "shared", "calls")
        }
        self._rules, self._seed = [*arguments.get("rules", ())], arguments.get("seed", seed)
        self._most: int | None = until
        self._server = LocalServer()
        self._end: bytes | None = None
        self.step = 0

    @property
    def over(self) -> bool:
        """Return whether the run has reached its end, which the argument `until` gives."""
        return self._most is not None and self.step >= self._most

    def advance(self, steps: int = 1) -> Result:
        """Run more steps, and return the result of all steps so far. Raises the same errors as `run`.

        If a step fails, the run remains at the step before it.
        """
        until = self.step + steps
        part = run_part(
            self._model,
            until=until if self._most is None else min(until, self._most),
            max_steps=None,
            options=self._options,
            rules=self._rules,
            seed=self._seed,
            progress=False,
            beginning=self._end,
            keep=True,
            server=self._server,
            **self._given,
        )
        self.step, self._end = part.result.steps, part.end
        return part.result

    def close(self) -> None:
        """Stop the run's server."""
        self._server.stop()


def _plain_state(me: Any) -> dict[str, Any]:  # noqa: ANN401 - an Agent
    """Collect the numbers, bools and texts of an agent's state."""
    state = {str(key): value for key, value in me.state.items() if isinstance(value, bool | int | float | str)}
    return {key: value for key, value in state.items() if key not in TAKEN}
