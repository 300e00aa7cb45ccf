"""What the workers of a study get and return.

It has a module of its own, so that the program that starts the workers need not import the code that carries out runs.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ray_messaging.cluster.run.kinds import functions_in
from ray_messaging.cluster.run.result import CallCounts
from ray_messaging.studies.design import PlannedRun

# These two arguments, and `start`, are used only when a run begins, so they cannot change in a later step.
OF_THE_BEGINNING = "agents", "groups"
# These arguments may be functions of a row of parameters.
OF_THE_ROW = "agents", "until", "max_steps", "graph", "shared", "rules", "groups"
# If the worker of a run, or a part of the run's cluster, died, the run's error begins with this text. The next call of
# `batch_run` makes the run again.
DIED = "WorkerDied: "
# If a run ended early because its budget of calls was spent, the run's error begins with this text. The next call of
# `batch_run` with another budget makes the run again.
SPENT = "BudgetSpent: "


def spent(budget: int | str | None) -> str:
    """Return the text with which the error of a run begins if its budget (a number of calls, or money) was spent."""
    return f"{SPENT}the run's budget of {budget if isinstance(budget, str) else f'{budget} calls'} was spent"


class EndedRun(NamedTuple):
    """The result of a run: its outcomes, or its error with the place in the code.

    `series` is a table in Arrow's format.
    """

    outcomes: dict[str, Any]
    digest: str | None
    seconds: float
    error: str | None = None
    series: bytes | None = None
    calls: CallCounts = CallCounts()
    end: bytes | None = None  # only of a BeginningRun: the state from which other runs go on

    @property
    def died(self) -> bool:
        """Return whether the run has no result because its worker, or a part of its cluster, died."""
        return self.error is not None and self.error.startswith(DIED)


class BeginningRun(NamedTuple):
    """The steps before `step`, which several runs share. `planned` has the parameters of these steps."""

    planned: PlannedRun
    step: int


class ForkedRun(NamedTuple):
    """The steps of a run from `step` on.

    `beginning` is the state before `step`. `before` has the parameters of the steps before `step`.
    """

    planned: PlannedRun
    before: PlannedRun
    step: int
    beginning: bytes


Task = PlannedRun | BeginningRun | ForkedRun  # what a worker gets


@dataclass(frozen=True)
class RunTemplate:
    """The arguments that all runs of a study share.

    `given` maps the names of arguments to their values. The values of arguments in OF_THE_ROW, such as `agents`, may be
    functions that compute the value from the run's parameters. `outcomes` has functions of a run's result, each with
    its name, which is "" if the function returns a dict.
    """

    model: Callable[..., Any] | Mapping[str, Callable[..., Any]]
    given: Mapping[str, Any]
    outcomes: Sequence[tuple[str, Callable[..., Any]]] = ()
    start: Callable[..., Any] | Mapping[str, Callable[..., Any]] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    logs: str | None = None  # the folder for the event logs of the runs; None: there are no logs
    whole_cluster: bool = False  # whether the groups of each run are Ray actors on the whole cluster

    def functions(self) -> dict[str, tuple[Callable[..., Any], int]]:
        """Return, by argument, each function that may take parameters by name.

        Each function comes with its number of positional arguments.
        """
        found = {name: (each, 2) for name, each in functions_in("model", self.model)}
        if self.start is not None:
            found |= {name: (each, 1) for name, each in functions_in("start", self.start)}
        found |= {name: (self.given[name], self.values_of(name)) for name in OF_THE_ROW if callable(self.given[name])}
        return found | {f"outcomes[{name!r}]" if name else "outcomes": (each, 1) for name, each in self.outcomes}

    def values_of(self, name: str) -> int:
        """Return how many positional arguments a study passes to the function `name`: 1 for a condition, otherwise 0.

        Only `until` of a run with `max_steps` is a condition. Its argument is the collected values.
        """
        return int(name == "until" and self.given["max_steps"] is not None)
