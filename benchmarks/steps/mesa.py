"""The rumour beside Mesa 3: `messaging.run` by agent and by group, at three sizes, with the same result.

`local` compares `ray_messaging.run` by agent, which needs no cluster, in the rumour and in the contagion of
`benchmarks.contagion`. Each side is a fresh process.
"""

import json
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from benchmarks.setup import environments
from benchmarks.steps.rumour import KNOWS_AT_FIRST, OFFSETS, choice
from ray_messaging import Messaging, Steps

ENVIRONMENT = "mesa"
SIZES = {1_000: 30, 100_000: 10, 1_000_000: 6}  # agents: steps
# For each model, agents: steps, and the most times as long as Mesa's step.
LOCAL: dict[str, dict[int, tuple[int, float | None]]] = {
    "contagion": {1_000: (40, 2.0), 20_000: (40, None), 100_000: (40, 1.2)},
    "rumour": {1_000: (200, 2.0), 10_000: (60, None), 100_000: (16, 1.2)},
}
GROUPS = 2


def mesa(envs: Path, agents: int, steps: int) -> dict:
    """Run the rumour in Mesa, in its own environment; return version, ms of a step, how many know it."""
    environments.build(envs, [ENVIRONMENT], say=lambda _: None)
    python = environments.python(envs, ENVIRONMENT)
    command = [python, "-m", "benchmarks.steps.mesa_side", str(agents), str(steps)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=600)
    return json.loads(done.stdout)


def local(envs: Path, model: str, agents: int, steps: int) -> dict[str, float]:
    """Run a model in Mesa and by `ray_messaging.run`; return each side's ms of a step.

    The rumour runs in Mesa without and with messages.

    Mesa is in its own environment, or in this one. Raises RuntimeError where the results differ.
    """
    if not (here := find_spec("mesa")):
        environments.build(envs, [ENVIRONMENT], say=lambda _: None)
    mesas = sys.executable if here else environments.python(envs, ENVIRONMENT)
    kinds = {"Mesa": model} | ({"Mesa, with messages": "messages"} if model == "rumour" else {})
    sides = {name: [mesas, "mesa_side", kind] for name, kind in kinds.items()}
    sides["ray_messaging.run"] = [sys.executable, "local_side", model]
    found = {}
    for name, (python, side, *more) in sides.items():
        command = [python, "-m", f"benchmarks.steps.{side}", str(agents), str(steps), *more]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=600)
        found[name] = json.loads(done.stdout)
    if len({values["known"] for values in found.values()}) > 1:
        raise RuntimeError(f"the sides differ in how many agents were reached: {found}")
    return {name: values["mean_ms"] for name, values in found.items()}


def person(me, inbox):
    """Run the rumour for one agent."""
    if len(inbox):
        me.state["knows"] = True
    if me.state["knows"]:
        me.send((me.id + OFFSETS[choice(me.id, me.step)]) % me.shared, {})
    if me.id == 0:
        me.state["stamps"] = [*me.state.get("stamps", []), time.perf_counter()]


def crowd(group, step):
    """Run the rumour for a group: no Python call per agent."""
    knows = group.state["knows"]
    knows[np.searchsorted(group.ids, step.messages.to_ids)] = True
    tellers = group.ids[knows]
    friends = np.array(OFFSETS)[choice(tellers.astype(np.uint64), step.number)]
    step.send_columns(tellers, (tellers + friends) % group.shared, {})
    group.state["stamps"] = np.append(group.state["stamps"], time.perf_counter())


def knows_first(me) -> dict:
    """Return the first state of an agent."""
    return {"knows": me.id % KNOWS_AT_FIRST == 0}


def crowd_knows_first(group) -> dict:
    """Return the first state of a group."""
    return {"knows": group.ids % KNOWS_AT_FIRST == 0, "stamps": np.zeros(0)}


def ours(agents: int, steps: int, *, by: str) -> dict:
    """Run the rumour in ours; return ms of a step, how many know it."""
    with Messaging.start(f"rumour-{by}-{agents}", steps=Steps(seed=7)) as messaging:
        result = messaging.run(
            person if by == "agent" else crowd,
            agents=agents,
            groups=GROUPS,
            until=steps,
            start=knows_first if by == "agent" else crowd_knows_first,
            shared=agents,
            by=by,
            progress=False,
        )
    states = list(result.states.values())
    stamps = next(state["stamps"] for state in states if "stamps" in state)
    known = sum(int(np.sum(state["knows"])) for state in states)
    return {"ms": 1e3 * float(np.median(np.diff(stamps))), "known": known}


def compare(envs: Path, agents: int) -> dict[str, float]:
    """Run all sides once; return the ms of a step of each. Raises RuntimeError where their results differ."""
    steps = SIZES[agents]
    beside = mesa(envs, agents, steps)
    found = {f"Mesa {beside['version']}": beside} | {
        f"messaging.run by {by}": ours(agents, steps, by=by) for by in ("agent", "group")
    }
    if len({side["known"] for side in found.values()}) > 1:
        raise RuntimeError(f"the sides differ in how many know the rumour: {found}")
    return {side: values["ms"] for side, values in found.items()}
