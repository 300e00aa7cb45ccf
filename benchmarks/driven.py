"""Ray tasks that drive groups by their handles, beside two groups in actors of one's own, by turns in one run.

    python -m benchmarks.driven                # 6 rounds of 2 s
    python -m benchmarks.driven --rows 65536   # larger calls of the tasks
    python -m benchmarks.driven --processor    # also the processor time of a message, by process

Both sides do the same work: two groups of 1,000 agents write to each other in calls of 16,384 rows (tasks) and 32,768
(own actors), and each message counts once it is fetched. Each task sends from both groups and fetches from both. A
ratio is the tasks' rate divided by the own actors' of the same round. All processes run before the first round, as the
start of one takes longer than a round. Those that have nothing to do in a round take a hundredth of a processor each.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ray

from benchmarks.axes.cost.processor import TICKS_PER_S
from benchmarks.axes.scale.workers import AGENTS, CALL_ROWS, End, columns_of, ends_of, exchange
from benchmarks.axes.society.society import BLACK_LIST, cluster
from benchmarks.peers.ours import OurHalf
from ray_messaging import Messaging

TASKS = (1, 8)
WARM_S = 0.7


@ray.remote(num_cpus=0)
class Task:
    """A process that drives groups by their handles: an actor, because Ray ends the idle processes of tasks."""

    def __init__(self, ends: list[End], rows: int) -> None:
        self._ends = ends
        self._columns = [columns_of(end, rows) for end in ends]

    def drive(self, seconds: float) -> tuple[int, int]:
        """Send and fetch; return how many were delivered and fetched."""
        return exchange(self._ends, self._columns, seconds)


class Driven:
    """Two groups, driven by tasks."""

    def __init__(self, ends: list[End], tasks: list[Any]) -> None:
        self.name = f"{len(tasks)} task{'s' if len(tasks) > 1 else ''} by handles"
        self._ends = ends
        self._tasks = tasks

    def rate(self, seconds: float) -> tuple[int, float]:
        """Return how many messages were fetched, and how long that took."""
        begun = time.time()
        found = ray.get([task.drive.remote(seconds) for task in self._tasks])
        sent, fetched = (sum(column) for column in zip(*found, strict=True))
        while fetched < sent:
            fetched += sum(len(end.group.fetch_messages(timeout=0.1)) for end in self._ends)
        took = time.time() - begun
        for end in self._ends:
            end.group.ack()
        if fetched != sent:
            raise RuntimeError(f"{sent:,} messages were delivered, {fetched:,} fetched")
        return fetched, took


class Own:
    """Two groups in actors of one's own."""

    name = "own actors"

    def __init__(self, messaging: Messaging) -> None:
        west, east = range(AGENTS), range(AGENTS, 2 * AGENTS)
        self._halves = [OurHalf.remote(messaging, "west", west, east), OurHalf.remote(messaging, "east", east, west)]
        self._expected = [0, 0]

    def rate(self, seconds: float) -> tuple[int, float]:
        """Return how many messages arrived, and how long that took."""
        begun = time.time()
        sent = ray.get([half.bulk.remote(seconds) for half in self._halves])
        self._expected = [before + more for before, more in zip(self._expected, reversed(sent), strict=True)]
        ends = ray.get([half.drained.remote(count) for half, count in zip(self._halves, self._expected, strict=True)])
        return sum(sent), max(ends) - begun


def processor_times() -> dict[int, tuple[str, float]]:
    """Return the processor time of each process of this machine, in seconds, with its name."""
    found = {}
    for entry in Path("/proc").iterdir():
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split() if entry.name.isdigit() else None
            name = (entry / "cmdline").read_text().replace("\0", " ")[:40] if fields else ""
        except OSError:  # it has just ended
            continue
        if fields:
            found[int(entry.name)] = name, (int(fields[11]) + int(fields[12])) / TICKS_PER_S
    return found


def by_process(run: Callable[[], tuple[int, float]]) -> None:
    """Print the processor time of a message in each process of the machine that took at least 0.02 us."""
    before = processor_times()
    messages, _ = run()
    taken = [
        (1e6 * (seconds - before.get(pid, ("", 0.0))[1]) / messages, name, pid)
        for pid, (name, seconds) in processor_times().items()
    ]
    for took, name, pid in sorted(taken, reverse=True):
        if took >= 0.02:
            print(f"    {took:6.3f} us  {name} ({pid})")
    print(f"    {sum(took for took, _, _ in taken):6.3f} us  in all", flush=True)


def main() -> None:
    """Measure, and print rates and ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--rows", type=int, default=CALL_ROWS, help="messages in a call of a task")
    parser.add_argument("--processor", action="store_true", help="print the processor time of a message, by process")
    plan = parser.parse_args()
    with cluster():
        driven, own = (Messaging.start(name, rules=[BLACK_LIST]) for name in ("driven", "own"))
        ends = ends_of(driven)
        tasks = [Task.remote(ends, plan.rows) for _ in range(max(TASKS))]
        sides = [Own(own), *(Driven(ends, tasks[:count]) for count in TASKS)]
        rates: dict[str, list[float]] = {side.name: [] for side in sides}
        for side in sides:
            side.rate(WARM_S)
        for number in range(plan.rounds):
            for side in sides if number % 2 == 0 else reversed(sides):
                messages, took = side.rate(plan.seconds)
                rates[side.name].append(messages / took)
        for name, values in rates.items():
            ratios = [mine / theirs for mine, theirs in zip(values, rates[Own.name], strict=True)]
            print(
                f"{name:>20}: {statistics.median(values):,.0f} messages/s ({min(values):,.0f} to {max(values):,.0f}),"
                f" {statistics.median(ratios):.2f} x own actors ({min(ratios):.2f} to {max(ratios):.2f})",
                flush=True,
            )
        for side in sides if plan.processor else ():
            print(side.name)
            by_process(lambda side=side: side.rate(plan.seconds))
        for each in (driven, own):
            each.shutdown()


if __name__ == "__main__":
    main()
