"""The peers of a step of 6,000 messages, plain Ray actors; nothing of ours is imported."""

import time
from collections.abc import Sequence
from typing import Any

import ray

from benchmarks.steps.model import MEMBERS, TO, next_mood, noise_of, per_step_ms

Row = tuple[int, int, dict[str, float]]  # to, from, payload


@ray.remote(num_cpus=0)
class RayGroup:
    """A group of plain Ray: a step is one call with its inbox, in parts, and returns its outbox, by recipient's group.

    Each agent has random numbers of its own, as on our sides, so that groups do not change them. Its generator is made
    once, because nobody restores it after a fault.
    """

    def __init__(self, agents: range) -> None:
        self._moods = dict.fromkeys(agents, 0.0)
        self._noise = {agent: noise_of(agent) for agent in agents}

    def step(self, *inboxes: Sequence[Row]) -> list[list[Row]]:
        """Run the model for each agent."""
        heard: dict[int, list[float]] = {agent: [] for agent in self._moods}
        for inbox in inboxes:
            for to, _, payload in inbox:
                heard[to].append(payload["mood"])
        outbox: list[list[Row]] = [[] for _ in MEMBERS]
        for agent, moods in heard.items():
            self._moods[agent] = mood = next_mood(self._moods[agent], moods, self._noise[agent]())
            for friend in TO[agent]:
                outbox[friend // len(self._moods)].append((friend, agent, {"mood": mood}))
        return outbox


class RoutingDriver:
    """Four actors; in each step the driver calls each with its inbox, gets their outboxes, and routes them."""

    name = "plain Ray, the driver routes"

    def __init__(self) -> None:
        self._groups = [RayGroup.remote(agents) for agents in MEMBERS]
        self._inboxes: list[tuple[Any, ...]] = [() for _ in MEMBERS]

    def turn(self, steps: int) -> float:
        """Run some steps; return the milliseconds of one."""
        stamps = [time.perf_counter()]
        for _ in range(steps):
            self._inboxes = self._step()
            stamps.append(time.perf_counter())
        return per_step_ms(stamps)

    def _step(self) -> list[tuple[Any, ...]]:
        calls = zip(self._groups, self._inboxes, strict=True)
        outboxes = ray.get([group.step.remote(*inbox) for group, inbox in calls])
        # One list for a group: a list for each sender would take a tenth longer.
        return [([row for part in parts for row in part],) for parts in zip(*outboxes, strict=True)]

    def shutdown(self) -> None:
        """End the actors."""
        for group in self._groups:
            ray.kill(group)


class ReferencingDriver(RoutingDriver):
    """The same in half the time: messages go from actor to actor, and the driver holds only references to them."""

    name = "plain Ray, references"

    def _step(self) -> list[tuple[Any, ...]]:
        calls = zip(self._groups, self._inboxes, strict=True)
        outboxes = [group.step.options(num_returns=len(MEMBERS)).remote(*inbox) for group, inbox in calls]
        # The barrier: a step is done when all groups are.
        ray.wait([parts[0] for parts in outboxes], num_returns=len(outboxes), fetch_local=False)
        return list(zip(*outboxes, strict=True))
