"""Versions of the rules that judge later steps, and the gate that says up to which step batches may be judged."""

import asyncio
import math
from collections.abc import Sequence

from ray_messaging.interception.rules.rule import Rule


class RuleVersions:
    """The versions of the rules that will be used in later steps, each with the first step for which it is used.

    While versions wait, a step begins only after all groups have closed the previous step, so one version is used at a
    time. The first batch of a step, or anything else that needs the step's rules, makes the interceptor use them. This
    base class has no versions. A subclass may have some.
    """

    @property
    def first(self) -> float:
        """Return the first step of the next version of the rules, or infinity if no version waits."""
        return math.inf

    def to_come(self) -> Sequence[Rule]:
        """Return the rules that will be used from a later step on, because of changes that are not in force yet."""
        return ()

    async def apply(self, step: int) -> None:
        """Make the interceptor use the version of the rules that judges a step."""

    async def following(self) -> int:
        """Return the step in which messages sent now from outside of steps will be read (-1: no steps)."""
        return -1


class StepGate:
    """The gate for batches of steps. `begun` is the latest step whose batches may be judged (infinity: all steps)."""

    def __init__(self) -> None:
        self.begun: float = math.inf
        self._news = asyncio.Event()

    def set(self, begun: float) -> None:
        """Set the latest step whose batches may be judged."""
        self.begun = begun
        self._news.set()

    async def until(self, step: int) -> None:
        """Wait until batches of a step may be judged."""
        while step > self.begun:
            self._news.clear()
            await self._news.wait()
