"""Which parts a run has: a process per peer and size, and one per axis."""

import json
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.axes import AXES
from benchmarks.figures import Plan
from benchmarks.peers import PEERS, Peer
from benchmarks.runner import Part

AXIS = "peers"
PEER_LIMIT_S, AXIS_LIMIT_S = 180.0, 240.0  # two or three times what they take: who reaches that hangs
LONGER_S = {"agents": 420.0}  # a million of them must come first
QUICK = 0.75  # of these limits
USUAL_S = 6.0  # repeats x seconds of the usual plan


def choose(plan: Plan, only: Sequence[str], envs: Path) -> list[Part]:
    """Return the parts whose names hold one of the texts, upper case or lower; all of them without a text."""
    every = [part for _, part in _peers(plan, envs)] + [_axis(name, plan) for name in AXES]
    return [part for part in every if _wanted(part.name, only)]


def environments(plan: Plan, only: Sequence[str], envs: Path) -> list[str]:
    """Return the environments that the chosen parts need."""
    chosen = (peer.environment for peer, part in _peers(plan, envs) if _wanted(part.name, only))
    return [name for name in dict.fromkeys(chosen) if name]


def _wanted(name: str, only: Sequence[str]) -> bool:
    return not only or any(text.casefold() in name.casefold() for text in only)


def _limit(seconds: float, plan: Plan) -> float:
    return seconds * (QUICK if plan.quick else 1) * max(1.0, plan.seconds * plan.repeats / USUAL_S)


def _axis(name: str, plan: Plan) -> Part:
    command = [sys.executable, "-m", "benchmarks.axes", name]
    limit_s = _limit(LONGER_S.get(name, AXIS_LIMIT_S), plan)
    return Part(f"axis {name}", name, lambda: command, lambda _: plan.to_json(), limit_s)


def _peers(plan: Plan, envs: Path) -> list[tuple[Peer, Part]]:
    sizes = [(peer, agents) for peer in PEERS for agents in peer.agents]
    # By size, so that what is compared stands side by side.
    sizes += sorted(((peer, agents) for peer in PEERS for agents in peer.again), key=lambda pair: pair[1])
    return [(peer, _peer(peer, agents, plan, envs)) for peer, agents in sizes]


def _peer(peer: Peer, agents: int, plan: Plan, envs: Path) -> Part:
    def stdin(server: dict[str, Any] | None) -> str:
        job = {"peer": peer.name, "agents": agents, "plan": asdict(plan), "kinds": list(peer.kinds), "server": server}
        return json.dumps(job)

    return Part(
        f"{AXIS}: {peer.name}, {agents:,} agents",
        AXIS,
        partial(_command, peer, envs),
        stdin,
        _limit(PEER_LIMIT_S, plan),
        partial(_serving, peer.server, envs),
    )


def _command(peer: Peer, envs: Path) -> list[str]:
    from benchmarks.peers.environments import python

    return [str(python(envs, peer.environment)) if peer.environment else sys.executable, "-m", "benchmarks.drive"]


def _serving(kind: str, envs: Path) -> AbstractContextManager[dict[str, Any] | None]:
    if not kind:
        return nullcontext()
    from benchmarks.peers.servers import serving

    return serving(kind, envs)
