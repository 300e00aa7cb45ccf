"""Delivered messages per second and lone-message latency, beside what people use today, in one run.

python -m benchmarks.end_to_end [--agents 200 2000 10000] [--seconds 3] [--repeats 3] [--json FILE]
"""

import argparse
import json
import logging
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ray
from rich.console import Console
from rich.table import Table

from benchmarks.ours import Ours
from benchmarks.peers import PlainPeer, QueuePeer

PINGS = 1000
PEERS = (Ours, QueuePeer, PlainPeer)


def rate(halves: list[Any], kind: str, seconds: float, before: list[int]) -> float:
    """Have both halves send for some time; return messages per second, counted where they arrive."""
    start = time.time()
    sent = ray.get([getattr(half, kind).remote(seconds) for half in halves])
    for place, count in enumerate(reversed(sent)):
        before[place] += count
    ends = ray.get([half.drained.remote(count) for half, count in zip(halves, before, strict=True)])
    return sum(sent) / (max(ends) - start)


def measure(peer_class: Any, agents: int, seconds: float, repeats: int, *where: Any) -> dict[str, Any]:
    """Measure one peer at one size (`where` is what its constructor asks for); rates are medians, with low and high."""
    peer = peer_class(agents, *where)
    try:
        ray.get([half.ready.remote() for half in peer.halves])
        before = [0, 0]
        found: dict[str, Any] = {"peer": peer.name, "agents": agents}
        for kind in ("bulk", "awaited"):
            if not hasattr(peer.halves[0], kind):
                continue
            rate(peer.halves, kind, min(1.0, seconds), before)  # warm
            rates = [rate(peer.halves, kind, seconds, before) for _ in range(repeats)]
            found[kind] = {"median": statistics.median(rates), "low": min(rates), "high": max(rates)}
        west, east = peer.halves
        ray.get(east.latencies.remote())
        before[1] += ray.get(west.ping.remote(PINGS))
        ray.get(east.drained.remote(before[1]))
        latencies = sorted(ray.get(east.latencies.remote()))
        found["latency_ms"] = {f"p{p}": 1000 * latencies[len(latencies) * p // 100] for p in (50, 99)}
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
            theirs = row.get(kind) or row["awaited"]  # who has no bulk path sends one by one
            cells += [f"{theirs['median']:,.0f}", f"{mine[kind]['median'] / theirs['median']:,.1f} x"]
        made.add_row(*cells, f"{row['latency_ms']['p50']:.2f}", f"{row['latency_ms']['p99']:.2f}")
    return made


def options(about: str | None, agents: list[int]) -> argparse.ArgumentParser:
    """Make a parser of what every run of peers can be told; `agents` are the sizes unless told otherwise."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--agents", type=int, nargs="+", default=agents)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path)
    return parser


def screen() -> Console:
    """Make the console: a file or a pipe has no width of its own."""
    return Console(width=None if sys.stdout.isatty() else 130)


def main() -> None:
    """Run all peers at all sizes."""
    args, console = options(__doc__, [200, 2000, 10_000]).parse_args(), screen()
    ray.init(include_dashboard=False, logging_level=logging.ERROR)
    rows = measure_all(PEERS, args, console)
    console.print(table(rows, Ours.name))
    if args.json:
        args.json.write_text(json.dumps(rows, indent=2))
    ray.shutdown()


if __name__ == "__main__":
    main()
