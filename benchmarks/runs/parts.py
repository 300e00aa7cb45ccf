"""Parts of a run: a process per peer and size, one per alternating pair, and one per axis."""

import json
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.axes import AXES
from benchmarks.figures import OURS, TURNS, Plan, Task
from benchmarks.peers import BY_TURNS, PEERS, Peer, Turns, named
from benchmarks.runs.runner import Part

AXIS = "peers"
# Two or three times the usual duration: a part that reaches its limit hangs.
PEER_LIMIT_S, TURNS_LIMIT_S, AXIS_LIMIT_S = 180.0, 360.0, 240.0
LONGER_S = {"agents": 420.0}  # a million of them must come first
QUICK = 0.75  # of these limits
USUAL_S = 6.0  # repeats x seconds of the usual plan
WARM_S, WARM_AGAIN_S = 1.0, 0.3  # the second: after it was frozen
QUICK_PINGS, TURN_PINGS = 200, 300
ROUNDS, QUICK_ROUNDS = 6, 2  # even, so that both begin equally often


def choose(plan: Plan, only: Sequence[str], envs: Path) -> list[Part]:
    """Return the parts with one of the texts in their names, in any case; all parts without a text."""
    every = [part for _, part in _beside(plan, envs)] + [_axis(name, plan) for name in AXES]
    return [part for part in every if _wanted(part.name, only)]


def environments(plan: Plan, only: Sequence[str], envs: Path) -> list[str]:
    """Return the environments that the chosen parts need."""
    chosen = (peer.environment for peer, part in _beside(plan, envs) if _wanted(part.name, only))
    return [name for name in dict.fromkeys(chosen) if name]


def _wanted(name: str, only: Sequence[str]) -> bool:
    return not only or any(text.casefold() in name.casefold() for text in only)


def _limit(seconds: float, plan: Plan) -> float:
    return seconds * (QUICK if plan.quick else 1) * max(1.0, plan.seconds * plan.repeats / USUAL_S)


def _axis(name: str, plan: Plan) -> Part:
    command = [sys.executable, "-m", "benchmarks.axes", name]
    limit_s = _limit(LONGER_S.get(name, AXIS_LIMIT_S), plan)
    return Part(f"axis {name}", name, lambda: command, lambda _: plan.to_json(), limit_s)


def _beside(plan: Plan, envs: Path) -> list[tuple[Peer, Part]]:
    """Return the parts in which peers are measured, each with its peer."""
    alone = [(peer, _peer(peer, agents, plan, envs)) for peer in PEERS for agents in peer.agents]
    return alone + [(named(each.peer), _turns(each, plan, envs)) for each in BY_TURNS]


def _peer(peer: Peer, agents: int, plan: Plan, envs: Path) -> Part:
    pings = min(peer.pings, QUICK_PINGS) if plan.quick else peer.pings
    task = Task(peer.kinds, plan.seconds, plan.repeats, pings, min(WARM_S, plan.seconds))
    return Part(
        f"{AXIS}: {peer.name}, {agents:,} agents",
        AXIS,
        partial(_command, peer, envs),
        lambda server: f"{json.dumps(_job(peer, agents, server))}\n{task.to_json()}\n",
        _limit(PEER_LIMIT_S, plan),
        partial(_serving, peer.server, envs),
    )


def _turns(turns: Turns, plan: Plan, envs: Path) -> Part:
    peer = named(turns.peer)

    def stdin(server: dict[str, Any] | None) -> str:
        tasks = [asdict(Task((kind,), plan.seconds, 1, TURN_PINGS, WARM_AGAIN_S)) for kind in turns.kinds]
        sides = [
            {"who": each.name, "command": _command(each, envs), "job": _job(each, turns.agents, where)}
            for each, where in ((named(OURS), None), (peer, server))
        ]
        rounds = QUICK_ROUNDS if plan.quick else ROUNDS
        return json.dumps({"agents": turns.agents, "rounds": rounds, "tasks": tasks, "sides": sides})

    return Part(
        f"by turns: ours and {peer.name}, {turns.agents:,} agents",
        TURNS,
        lambda: [sys.executable, "-m", "benchmarks.runs.turns"],
        stdin,
        _limit(TURNS_LIMIT_S, plan),
        partial(_serving, peer.server, envs),
    )


def _job(peer: Peer, agents: int, server: dict[str, Any] | None) -> dict[str, Any]:
    return {"peer": peer.name, "agents": agents, "server": server}


def _command(peer: Peer, envs: Path) -> list[str]:
    from benchmarks.setup.environments import python

    return [str(python(envs, peer.environment)) if peer.environment else sys.executable, "-m", "benchmarks.runs.driver"]


def _serving(kind: str, envs: Path) -> AbstractContextManager[dict[str, Any] | None]:
    if not kind:
        return nullcontext()
    from benchmarks.setup.servers import serving

    return serving(kind, envs)
