"""Delivered messages per second and lone-message latency of a few peers in one process, as a table."""

import argparse
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ray
from rich.console import Console
from rich.table import Table

from benchmarks.figures import percentiles
from benchmarks.runs.driver import lone, rate

PINGS = 1000


def measure(peer_class: Any, agents: int, seconds: float, repeats: int, *where: Any) -> dict[str, Any]:
    """Measure one peer at one size, with `where` for its constructor; rates are medians with low and high."""
    peer = peer_class(agents, *where)
    try:
        ray.get([half.ready.remote() for half in peer.halves])
        before = [0, 0]
        found: dict[str, Any] = {"peer": peer.name, "agents": agents}
        for kind in ("bulk", "awaited"):
            if not hasattr(peer.halves[0], kind):
                continue
            rate(peer.halves, kind, min(1.0, seconds), before)  # warm
            rates = [rate(peer.halves, kind, seconds, before).per_s for _ in range(repeats)]
            found[kind] = {"median": statistics.median(rates), "low": min(rates), "high": max(rates)}
        p50, p99 = percentiles(lone(peer.halves, PINGS, before), 50, 99)
        found["latency_ms"] = {"p50": p50, "p99": p99}
        return found
    finally:
        peer.close()


def measure_all(peers: Sequence[Any], args: argparse.Namespace, console: Console, *where: Any) -> list[dict[str, Any]]:
    """Measure every peer at every size."""
    rows = []
    with console.status("measuring ...") as status:
        for agents in args.agents:
            for peer in peers:
                status.update(f"measuring {peer.name} with {agents:,} agents ...")
                rows.append(measure(peer, agents, args.seconds, args.repeats, *where))
    return rows


def table(rows: list[dict[str, Any]], reference: str, where: str = "") -> Table:
    """Draw the rows, each peer's beside those of `reference`, one of the peers."""
    title = f"delivered messages/s{where}, two groups, both directions (median); lone message, send to inbox"
    made = Table(title=title)
    for column in ("agents", "", "bulk", "ours is", "one awaited call each", "ours is", "p50 ms", "p99 ms"):
        made.add_column(column, justify="left" if not column else "right")
    ours = {row["agents"]: row for row in rows if row["peer"] == reference}
    for row in rows:
        mine = ours[row["agents"]]
        cells = [f"{row['agents']:,}", row["peer"]]
        for kind in ("bulk", "awaited"):
            theirs = row.get(kind) or row["awaited"]  # a peer without a bulk path sends one by one
            cells += [f"{theirs['median']:,.0f}", f"{mine[kind]['median'] / theirs['median']:,.1f} x"]
        made.add_row(*cells, f"{row['latency_ms']['p50']:.2f}", f"{row['latency_ms']['p99']:.2f}")
    return made


def options(about: str | None, agents: list[int]) -> argparse.ArgumentParser:
    """Make a parser of the options that every run of peers has; `agents` are the default sizes."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--agents", type=int, nargs="+", default=agents)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path)
    return parser


def screen() -> Console:
    """Make the console: a file or a pipe has no width of its own."""
    return Console(width=None if sys.stdout.isatty() else 130)
