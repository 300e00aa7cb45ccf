"""Our sides of a step of 6,000 messages: own actors, handles, `messaging.run`."""

import time
from typing import Any

import numpy as np
import ray

from benchmarks.own_group import OwnGroup
from benchmarks.steps.model import AGENTS, MEMBERS, TO, next_mood, per_step_ms
from benchmarks.steps.plain import ReferencingDriver, RoutingDriver
from ray_messaging import Group, Messaging, Steps
from ray_messaging.steps.step import Step


def run_step(step: Step) -> None:
    """Run the model for each agent of a group, as docs/steps.md writes it."""
    before = np.frombuffer(step.state) if step.state else np.zeros(len(step.agents))
    moods = []
    for (agent, inbox), mood in zip(step.by_agent(), before.tolist(), strict=True):
        new = next_mood(mood, [m.payload["mood"] for m in inbox], step.rng(agent).normal())
        moods.append(new)
        for friend in TO[agent]:
            step.send(agent, friend, {"mood": new})
    step.state = np.array(moods).tobytes()


class OwnActors:
    """`messager.steps` in an actor of one's own for each group."""

    name = "messager.steps"
    most = 0.5

    def __init__(self) -> None:
        self._messaging = Messaging.start("own-steps", steps=Steps(seed=7, groups=len(MEMBERS)))
        self._groups = [OwnGroup.remote(run_step) for _ in MEMBERS]
        named = enumerate(zip(self._groups, MEMBERS, strict=True))
        ray.get([group.open.remote(self._messaging, f"group{n}", agents) for n, (group, agents) in named])
        self._until = 0

    def turn(self, steps: int) -> float:
        """Run some steps; return the milliseconds of one."""
        self._until += steps
        return per_step_ms(ray.get([group.run.remote(self._until) for group in self._groups])[0])

    def shutdown(self) -> None:
        """End the experiment."""
        for group in self._groups:
            ray.kill(group)
        self._messaging.shutdown()


@ray.remote(num_cpus=0)
class Task:
    """A process that drives a group by its handle: an actor, because Ray ends the idle processes of tasks."""

    def run(self, group: Group, until: int) -> list[float]:
        """Drive the group; return when each step began."""
        stamps = []
        for step in group.steps(until=until):
            stamps.append(time.perf_counter())
            run_step(step)
        return stamps


class Handles:
    """`group.steps` in a task for each group."""

    name = "group.steps"
    most = 0.6

    def __init__(self) -> None:
        self._messaging = Messaging.start("handle-steps", steps=Steps(seed=7, groups=len(MEMBERS)))
        agents = {f"group{number}": members for number, members in enumerate(MEMBERS)}
        self._groups = list(self._messaging.create_groups(agents).values())
        self._tasks = [Task.remote() for _ in MEMBERS]
        self._until = 0

    def turn(self, steps: int) -> float:
        """Run some steps; return the milliseconds of one."""
        self._until += steps
        driven = zip(self._tasks, self._groups, strict=True)
        return per_step_ms(ray.get([task.run.remote(group, self._until) for task, group in driven])[0])

    def shutdown(self) -> None:
        """End the experiment."""
        for task in self._tasks:
            ray.kill(task)
        self._messaging.shutdown()


def person(me: Any, inbox: Any) -> None:
    """Run the model for one agent."""
    if me.id == 0:  # a turn's steps are timed inside, because each call of `run` starts its actors
        me.state["stamps"] = [*me.state.get("stamps", []), time.perf_counter()][-me.shared :]
    heard = [m.payload["mood"] for m in inbox]
    me.state["mood"] = mood = next_mood(me.state.get("mood", 0.0), heard, me.rng.normal())
    for friend in me.neighbours:
        me.send(friend, {"mood": mood})


class Run:
    """`messaging.run`, called anew in each turn.

    The steps of a turn are the last ones of a longer run: while the first ones run, Ray starts processes in the place
    of those that the run's actors took, and these need a core for a second.
    """

    name = "messaging.run"
    most = 0.6
    warming = 100  # steps

    def __init__(self) -> None:
        self._messaging = Messaging.start("run-steps", steps=Steps(seed=7))
        self._until = 0

    def turn(self, steps: int) -> float:
        """Run some steps; return the milliseconds of one."""
        self._until += self.warming + steps
        result = self._messaging.run(
            person,
            agents=AGENTS,
            groups={f"group{number}": members for number, members in enumerate(MEMBERS)},
            until=self._until,
            graph=[(agent, friend) for agent in range(AGENTS) for friend in TO[agent]],
            shared=steps,
            progress=False,
        )
        return per_step_ms(result.states[0]["stamps"])

    def shutdown(self) -> None:
        """End the experiment."""
        self._messaging.shutdown()


PEERS = (RoutingDriver, ReferencingDriver)
SIDES = (OwnActors, Handles, Run)
