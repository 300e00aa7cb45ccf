"""Cost of the event log: each figure beside the same one without the log, in one run.

python -m benchmarks.event_log [--agents 2000] [--seconds 5] [--repeats 3] [--memory-seconds 60] [--json FILE]
"""

import argparse
import asyncio
import json
import logging
import os
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import ray
from rich.console import Console
from rich.table import Table

from benchmarks.figures import percentiles
from benchmarks.peers.ours import Ours
from benchmarks.runs.driver import lone, rate
from ray_messaging import Messaging
from ray_messaging.interception.verdict_client import verdict_client_for
from ray_messaging.model.batch import Batch
from ray_messaging.model.columns import IdColumn

PINGS = 1000
PROBE_GAP_S = 0.001
PACED_ROWS, PACED_GAP_S = 500, 0.01  # 100,000 messages/s in all
MIB = 2**20


@ray.remote(num_cpus=0)
class LaneProbe:
    """Ask the interceptor about small batches, and time its answers."""

    async def measure(self, messaging: Messaging, seconds: float) -> list[float]:
        """Return how long each answer took, in ms."""
        judge, found = verdict_client_for(messaging.interceptor, 30.0, messaging.exp_id), []
        ids = IdColumn(np.arange(100))
        end, number = time.perf_counter() + seconds, 0
        while time.perf_counter() < end:
            batch = Batch(
                sender="probe", epoch=1, first=number, from_ids=ids, rows=len(ids), to_ids=ids, topics=("agent-chat",)
            )
            began = time.perf_counter()
            await judge.judge(batch)
            found.append(1000 * (time.perf_counter() - began))
            number += len(batch)
            await asyncio.sleep(PROBE_GAP_S)
        await judge.close()
        return found


def process_of(actor: Any) -> Path:
    """Return the /proc folder of an actor's process, which is on this machine."""
    pid: int = ray.get(actor.__ray_call__.remote(lambda _: os.getpid()))
    return Path("/proc") / str(pid)


def resident_mib(process: Path) -> float:
    """Return the memory that a process holds, in MiB."""
    line = next(line for line in (process / "status").read_text().splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) / 1024


def lane(peer: Ours, seconds: float, before: list[int]) -> dict[str, float]:
    """Ask the interceptor while both halves send at a steady pace; return the latency of its verdicts, in ms."""
    probe = LaneProbe.remote()
    ray.get(probe.measure.remote(peer.messaging, 0.2))
    sending = [half.paced.remote(seconds + 1.0, PACED_ROWS, PACED_GAP_S) for half in peer.halves]
    found = sorted(ray.get(probe.measure.remote(peer.messaging, seconds)))
    for place, count in enumerate(reversed(ray.get(sending))):
        before[place] += count
    ray.kill(probe)
    return {f"p{p}": found[len(found) * p // 100] for p in (50, 99)}


def caught_up(peer: Ours) -> float:
    """Wait until the log has everything; return how long that took, in seconds."""
    began = time.perf_counter()
    peer.messaging.log.count()  # it answers when all that was sent is there
    return time.perf_counter() - began


def cost(agents: int, seconds: float, log_dir: Path | None, before: list[int]) -> dict[str, Any]:
    """Measure rates and lone messages once."""
    peer = Ours(agents, log_dir=log_dir)
    try:
        ray.get([half.ready.remote() for half in peer.halves])
        before[:] = [0, 0]
        rate(peer.halves, "bulk", 1.0, before)
        if log_dir is not None:
            caught_up(peer)
        found: dict[str, Any] = {"bulk": rate(peer.halves, "bulk", seconds, before).per_s}
        if log_dir is not None:
            found["behind_s"] = caught_up(peer)
        found["awaited"] = rate(peer.halves, "awaited", seconds, before).per_s
        if log_dir is not None:
            caught_up(peer)
        p50, p99 = percentiles(lone(peer.halves, PINGS, before), 50, 99)
        found["lone_ms"] = {"p50": p50, "p99": p99}
        found["lane_ms"] = lane(peer, seconds, before)
        return found
    finally:
        peer.close()


def memory(agents: int, seconds: float, log_dir: Path) -> dict[str, Any]:
    """Send for some time with the log on; return how much the processes grew, in MiB, and the size of the folder."""
    peer, before = Ours(agents, log_dir=log_dir), [0, 0]
    try:
        ray.get([half.ready.remote() for half in peer.halves])
        rate(peer.halves, "bulk", 3.0, before)
        caught_up(peer)
        actors = {"interceptor": peer.messaging.interceptor, "log": peer.messaging.log_actor}
        processes = {name: process_of(actor) for name, actor in actors.items()}
        first = {name: resident_mib(process) for name, process in processes.items()}
        most, rows = dict(first), peer.messaging.log.end
        worst_lag = 0.0
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            rate(peer.halves, "bulk", 5.0, before)
            worst_lag = max(worst_lag, peer.messaging.stats()["log"]["lag_s"])
            for name, process in processes.items():
                most[name] = max(most[name], resident_mib(process))
        behind_s = caught_up(peer)
        balance = peer.messaging.log.balance()
        return {
            "messages": peer.messaging.log.end - rows,
            "balance": str(balance),
            "sent": sum(before),
            "behind_s": behind_s,
            "worst_lag_s": worst_lag,
            "grew_mib": {name: most[name] - first[name] for name in first},
            "folder_mib": sum(file.stat().st_size for file in log_dir.iterdir()) / MIB,
            "segments": peer.messaging.stats()["log"]["segments"],
        }
    finally:
        peer.close()


def middle(found: list[dict[str, Any]], *path: str) -> float:
    """Return the median of one figure."""
    values = []
    for each in found:
        value: Any = each
        for key in path:
            value = value[key]
        values.append(value)
    return statistics.median(values)


def main() -> None:
    """Measure, by turns, with and without the log."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--agents", type=int, default=2000)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--memory-seconds", type=float, default=60.0)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    console = Console(width=None if sys.stdout.isatty() else 130)
    os.environ.setdefault("RAY_DEDUP_LOGS", "1")
    ray.init(include_dashboard=False, logging_level=logging.ERROR)
    folder = Path(tempfile.mkdtemp(prefix="ray-messaging-bench-"))
    results: dict[str, list[dict[str, Any]]] = {"off": [], "on": []}
    try:
        with console.status("measuring ..."):
            for turn in range(args.repeats):
                for way in ("off", "on"):
                    log_dir = folder / f"log-{turn}" if way == "on" else None
                    results[way].append(cost(args.agents, args.seconds, log_dir, [0, 0]))
                    shutil.rmtree(folder / f"log-{turn}", ignore_errors=True)
            grown = memory(args.agents, args.memory_seconds, folder / "memory") if args.memory_seconds else {}
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    table = Table(title=f"{args.agents:,} agents in two groups, both directions; medians of {args.repeats}")
    for column in ("", "log off", "log on", "on / off"):
        table.add_column(column, justify="right" if column else "left")
    for name, path, form in (
        ("bulk, messages/s", ("bulk",), "{:,.0f}"),
        ("one awaited call each, messages/s", ("awaited",), "{:,.0f}"),
        ("lone message p50, ms", ("lone_ms", "p50"), "{:.2f}"),
        ("lone message p99, ms", ("lone_ms", "p99"), "{:.2f}"),
        ("verdict over the lane at 100,000 messages/s, p50, ms", ("lane_ms", "p50"), "{:.2f}"),
        ("verdict over the lane at 100,000 messages/s, p99, ms", ("lane_ms", "p99"), "{:.2f}"),
    ):
        off, on = middle(results["off"], *path), middle(results["on"], *path)
        table.add_row(name, form.format(off), form.format(on), f"{on / off:.2f}")
    table.add_row("behind at the end of bulk, s", "", f"{middle(results['on'], 'behind_s'):.2f}", "")
    console.print(table)
    if grown:
        console.print(grown)
    if args.json:
        args.json.write_text(json.dumps(results | {"memory": grown}, indent=2))
    ray.shutdown()


if __name__ == "__main__":
    main()
