"""What a model of the zoo claims: a statistic, its published value, and how near the model's mean must come."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Claim:
    """A statistic with its published or analytical value.

    `measure(replicates, **sizes)` runs the model and returns a number per replicate. The mean of these numbers may be
    three standard errors away from `value`, plus `apart`. `spread` is the standard deviation of one replicate, and
    `apart` is the uncertainty of the published value. `why` says where `spread` and `apart` come from. `declared` says
    why a claim does not come out. A quick check has `small` replicates (0: none) and the sizes `small_sizes`.
    """

    statistic: str
    measure: Callable[..., Sequence[float]]
    value: float
    why: str
    spread: float = 0.0
    apart: float = 0.0
    replicates: int = 1
    small: int = 1
    sizes: Mapping[str, Any] = field(default_factory=dict)
    small_sizes: Mapping[str, Any] = field(default_factory=dict)
    declared: str = ""

    def tolerance(self, replicates: int) -> float:
        """Return how far the mean of so many replicates may be from the value."""
        return self.apart + 3 * self.spread / replicates**0.5


@dataclass(frozen=True)
class Outcome:
    """What came out of a claim: a number per replicate."""

    claim: Claim
    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Return the mean of the replicates."""
        return float(np.mean(self.values))

    @property
    def tolerance(self) -> float:
        """Return how far the mean may be from the value."""
        return self.claim.tolerance(len(self.values))

    @property
    def comes_out(self) -> bool:
        """Return whether the mean is within the tolerance. A mean that is NaN never is."""
        return bool(abs(self.mean - self.claim.value) <= self.tolerance + 1e-12)


def check(claim: Claim, *, small: bool = False) -> Outcome:
    """Run a claim's model and return what came out."""
    replicates = claim.small if small else claim.replicates
    sizes = {**claim.sizes, **(claim.small_sizes if small else {})}
    values = claim.measure(replicates, **sizes)
    if len(values) != replicates:
        raise ValueError(f"{claim.statistic!r} measured {len(values)} replicates, not {replicates}")
    return Outcome(claim, tuple(map(float, values)))


def check_model(name: str, *, small: bool = False) -> list[Outcome]:
    """Check the claims of a model, by the name of its file. A quick check leaves out claims with `small=0`."""
    claims = import_module(f"examples.zoo.{name}").CLAIMS
    return [check(claim, small=small) for claim in claims if claim.small or not small]
