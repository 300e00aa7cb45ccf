"""Targets of a run: bounds of its figures and of their ratios."""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from benchmarks.figures import LIMIT, OURS, TURNS, Figure, paired

SEED = "agentsociety 1.3.7"
GB = 10**9


@dataclass(frozen=True)
class Which:
    """Name one figure; of several at points that agree with `at`, the first."""

    axis: str
    case: str
    who: str = OURS
    at: dict[str, int | float | str] = field(default_factory=dict)

    def found_in(self, figures: Iterable[Figure]) -> Figure | None:
        """Return it, or None."""
        wanted = (self.axis, self.case, self.who)
        return next(
            (
                each
                for each in figures
                if (each.axis, each.case, each.who) == wanted and self.at.items() <= each.at.items()
            ),
            None,
        )


@dataclass(frozen=True)
class Target:
    """A bound of one figure (plus `added`), or of its ratio to another figure of the same run.

    For figures that alternate, the ratio is the median of the rounds' ratios.
    """

    text: str
    figure: Which
    bound: float
    beside: Which | None = None
    at_least: bool = True
    added: Which | None = None

    def checked(self, figures: list[Figure]) -> "Checked":
        """Compare it with the run."""
        values = self._values(figures)
        if not values:
            return Checked(self)
        value = statistics.median(values)
        return Checked(self, value, value >= self.bound if self.at_least else value <= self.bound, values)

    def _values(self, figures: list[Figure]) -> list[float]:
        """Return the values to compare with the bound: a ratio per round, or one value; empty if not measured."""
        parts = [which.found_in(figures) for which in (self.figure, self.added, self.beside) if which]
        found = [each for each in parts if each]
        if len(found) < len(parts):
            return []
        if self.beside and self.beside.axis == TURNS:
            return paired(*found)
        divisor = found.pop().median if self.beside else 1.0
        return [sum(each.median for each in found) / divisor] if divisor else []


class Checked(NamedTuple):
    """A target with its measured value (None if not measured); `values` has the ratio of each round."""

    target: Target
    value: float | None = None
    kept: bool | None = None
    values: Sequence[float] = ()


def _beside_peer(what: str, case: str, peer: str, bound: float, agents: int = 2000, *, at_least: bool = True) -> Target:
    text = f"{what}, {agents:,} agents, beside {peer}"
    at: dict[str, int | float | str] = {"agents": agents, "beside": peer}
    return Target(text, Which(TURNS, case, OURS, at), bound, Which(TURNS, case, peer, at), at_least)


def _log(until: str, case: str) -> Target:
    text = f"bulk with the log on, until {until}, beside the log off"
    return Target(text, Which("log", case, at={"log": "on"}), 0.5, Which("log", "bulk", at={"log": "off"}))


def _million(case: str) -> Which:
    return Which("agents", case, at={"agents": 1_000_000})


XADD_HOP = LIMIT + "bare XADD to reader"
IDLE = {"load": "idle"}

TARGETS = (
    _beside_peer("bulk", "bulk", SEED, 1000),
    _beside_peer("bulk", "bulk", SEED, 3000, 10_000),
    _beside_peer("bulk", "bulk", "Ray actor calls", 1.5),
    _beside_peer("bulk", "bulk", "redis-py frames", 0.6),
    _log("the last has arrived", "bulk"),
    _log("the log has it, too", "bulk, until logged"),
    Target("messages lost when the log lags", Which("log", "lost when the log lags"), 0, at_least=False),
    _beside_peer("one awaited call each", "awaited", SEED, 500),
    _beside_peer("one awaited call each", "awaited", "NATS core", 1),
    _beside_peer("one awaited call each", "awaited", "pyzmq asyncio", 1),
    _beside_peer("lone message p50", "lone p50", SEED, 0.15, at_least=False),
    _beside_peer("lone message p50", "lone p50", SEED, 0.15, 10_000, at_least=False),
    Target(
        "lone message p50, idle, beside a bare XADD to its reader",
        Which("latency", "p50", at=IDLE),
        2,
        Which("latency", "p50", XADD_HOP, IDLE),
        at_least=False,
    ),
    Target("lone message p99, idle (ms)", Which("latency", "p99", at=IDLE), 1.5, at_least=False),
    Target("1,000,000 agents: set up (s)", _million("set up"), 60, at_least=False),
    Target("1,000,000 agents: a step of one message each (s)", _million("step"), 3, at_least=False),
    Target(
        "1,000,000 agents: memory in all, Ray's own processes, too (bytes)",
        _million("memory"),
        4 * GB,
        at_least=False,
        added=Which("agents", "memory", "Ray's own processes", {"agents": 1_000_000}),
    ),
    Target(
        "bulk at 1,000,000 agents, beside 200",
        _million("bulk"),
        0.75,
        Which("agents", "bulk", at={"agents": 200}),
    ),
)


def checked(figures: Iterable[Figure]) -> list[Checked]:
    """Compare all targets with a run."""
    measured = list(figures)
    return [target.checked(measured) for target in TARGETS]
