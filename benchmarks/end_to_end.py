"""Delivered messages per second and lone-message latency, beside what people use today, in one run.

python -m benchmarks.end_to_end [--agents 200 2000 10000] [--seconds 3] [--repeats 3] [--json FILE]
"""

import argparse
import json
import logging
import statistics
import sys
import time
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


def measure(peer_class: Any, agents: int, seconds: float, repeats: int) -> dict[str, Any]:
    """Measure one peer at one size; rates are medians, with the lowest and the highest."""
    peer = peer_class(agents)
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


def table(rows: list[dict[str, Any]]) -> Table:
    """Draw the rows, each peer's beside ours."""
    made = Table(title="delivered messages/s, two groups, both directions (median); lone message, send to inbox")
    for column in ("agents", "", "bulk", "ours is", "one awaited call each", "ours is", "p50 ms", "p99 ms"):
        made.add_column(column, justify="left" if not column else "right")
    ours = {row["agents"]: row for row in rows if row["peer"] == Ours.name}
    for row in rows:
        mine = ours[row["agents"]]
        cells = [f"{row['agents']:,}", row["peer"]]
        for kind in ("bulk", "awaited"):
            theirs = row.get(kind) or row["awaited"]  # who has no bulk path sends one by one
            cells += [f"{theirs['median']:,.0f}", f"{mine[kind]['median'] / theirs['median']:,.1f} x"]
        made.add_row(*cells, f"{row['latency_ms']['p50']:.2f}", f"{row['latency_ms']['p99']:.2f}")
    return made


def main() -> None:
    """Run all peers at all sizes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--agents", type=int, nargs="+", default=[200, 2000, 10_000])
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    console = Console(width=None if sys.stdout.isatty() else 130)
    ray.init(include_dashboard=False, logging_level=logging.ERROR)
    rows = []
    with console.status("measuring ...") as status:
        for agents in args.agents:
            for peer in PEERS:
                status.update(f"measuring {peer.name} with {agents:,} agents ...")
                rows.append(measure(peer, agents, args.seconds, args.repeats))
    console.print(table(rows))
    if args.json:
        args.json.write_text(json.dumps(rows, indent=2))
    ray.shutdown()


if __name__ == "__main__":
    main()
