"""A standing run: what `collect=`, checkpoints and a log cost of a step, and what it costs to advance step by step."""

import shutil
import tempfile
import time
from typing import Any

import numpy as np

from ray_messaging import Messaging, Steps

COLUMNS = [f"x{number}" for number in range(10)]


def beginning(me: Any) -> dict[str, Any]:
    """Return ten numbers."""
    return dict.fromkeys(COLUMNS, me.id + 0.5)


def person(me: Any, inbox: Any) -> None:
    """Change a number by what was heard and by chance, and tell it to the next agent."""
    me.state["x0"] = sum(message.payload["x"] for message in inbox) / 2 + me.rng.normal()
    me.send((me.id + 1) % me.shared, {"x": me.state["x0"]})


def ten_numbers(me: Any) -> dict[str, float]:
    """Return all of the state, as a literal, which is how most models would write it."""
    state = me.state
    return {
        "x0": state["x0"], "x1": state["x1"], "x2": state["x2"], "x3": state["x3"], "x4": state["x4"],
        "x5": state["x5"], "x6": state["x6"], "x7": state["x7"], "x8": state["x8"], "x9": state["x9"],
    }  # fmt: skip


class StandingRun:
    """A run of `agents` agents; with `one_by_one` each step is a call of `advance`."""

    def __init__(self, agents: int, groups: int, *, collect: object = None, one_by_one: bool = False) -> None:
        self._one_by_one = one_by_one
        self._messaging = Messaging.start(f"standing-{bool(collect)}-{one_by_one}", steps=Steps(seed=1))
        self._run = self._messaging.start_run(
            person, agents=agents, groups=groups, start=beginning, shared=agents, collect=collect
        )

    def turn(self, steps: int) -> float:
        """Run some steps; return the milliseconds of one."""
        began = time.perf_counter()
        for n in [1] * steps if self._one_by_one else [steps]:
            self._run.advance(n)
        return (time.perf_counter() - began) / steps * 1000

    def shutdown(self) -> None:
        """End the experiment."""
        self._messaging.shutdown()


def crowd(group: Any, _step: Any) -> None:
    """Change 100 bytes of state of each agent, and send nothing."""
    group.state["x"] = group.state["x"] + 1.0


def hundred_bytes(group: Any) -> dict[str, Any]:
    """Return 13 floats of each agent, which are 104 bytes."""
    return {"x": np.zeros((len(group.ids), 13))}


class LoggedCrowd:
    """A run by group of `agents` agents, with or without a log, which has a checkpoint after every n-th step."""

    def __init__(self, agents: int, groups: int, *, checkpoint: int | None = None, logged: bool = True) -> None:
        self._folder = tempfile.mkdtemp(prefix="crowd-")
        name = f"crowd-{checkpoint}-{logged}"
        log = f"{self._folder}/log" if logged else None
        self._messaging = Messaging.start(name, steps=Steps(seed=1, checkpoint=checkpoint), log_dir=log)
        self._run = self._messaging.start_run(crowd, agents=agents, groups=groups, start=hundred_bytes, by="group")

    def turn(self, steps: int) -> float:
        """Run some steps; return the milliseconds of one."""
        began = time.perf_counter()
        self._run.advance(steps)
        return (time.perf_counter() - began) / steps * 1000

    def shutdown(self) -> None:
        """End the experiment, and remove its files."""
        self._messaging.shutdown()
        shutil.rmtree(self._folder)
