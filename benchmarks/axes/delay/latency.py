"""A lone message from send to inbox, idle and at half load: beside a bare hop and a Ray call, stage by stage."""

import asyncio
import time
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import numpy as np
import ray

from benchmarks.axes.bounds.raw import RawPair
from benchmarks.axes.society.member import stages_of
from benchmarks.axes.society.society import BLACK_LIST, Society, cluster
from benchmarks.figures import LIMIT, OURS, Figure, Plan, percentile_figures, percentiles
from benchmarks.work import PING_GAP_S, payload
from ray_messaging import Messaging

AGENTS = 2_000
PINGS, LIMIT_PINGS = 1_500, 500
HOP, CALL = f"{LIMIT}bare XADD to reader", f"{LIMIT}Ray call"
STAGES = {
    "until asked": "from send_message to the request for a verdict: encoded, through the accumulator",
    "until judged": "the verdict: over the lane, or by delegated rules",
    "until called": "cut into a frame, up to the script's call",
    "until read": "the wire, the script in the server, the receiver's blocked read",
    "until handed over": "decoded, through the inbox, to the waiting fetch_messages",
}


@ray.remote(num_cpus=0)
class Called:
    """Call another actor, and note how long calls took to arrive."""

    async def __init__(self) -> None:  # type: ignore[misc]
        self.latencies: list[float] = []

    async def take(self, at: float, content: dict[str, Any]) -> bool:  # noqa: ARG002 - it travels
        """Be called."""
        self.latencies.append(1000 * (time.perf_counter() - at))
        return True

    async def ping(self, other: Any, count: int) -> None:
        """Call the other one, once every 2 ms."""
        for number in range(count):
            await other.take.remote(time.perf_counter(), payload(number))
            await asyncio.sleep(PING_GAP_S)

    async def take_latencies(self) -> list[float]:
        """Return how long calls took since the last time, in ms."""
        found, self.latencies = self.latencies, []
        return found


class Lone:
    """Send lone messages in three ways; `take` repeats, `figures` tells."""

    def __init__(self, pair: Society, raw: RawPair, calls: list[Any], load: str) -> None:
        self._pair, self._raw, self._calls = pair, raw, calls
        self._at: dict[str, int | float | str] = {"load": load}
        self._took: dict[str, list[list[float]]] = {OURS: [], HOP: [], CALL: []}
        self._stages: dict[str, list[float]] = {}

    def take(self) -> None:
        """Send some of each."""
        west, east = self._pair.members
        ray.get([west.take_marks.remote(), east.take_marks.remote()])
        self._took[OURS].append(self._pair.lone(PINGS))
        self._explain(*ray.get([west.take_marks.remote(), east.take_marks.remote()]))
        self._took[HOP].append(self._raw.lone(LIMIT_PINGS))
        caller, called = self._calls
        ray.get(caller.ping.remote(called, LIMIT_PINGS))
        self._took[CALL].append(ray.get(called.take_latencies.remote()))

    def _explain(self, sender: dict[str, list[float]], receiver: dict[str, list[float]]) -> None:
        """Note the time of each stage at the median, and its average among the slowest hundredth of the messages."""
        stages = stages_of(sender, receiver)
        slowest = np.argsort(np.sum(list(stages.values()), axis=0))[-PINGS // 100 :] if stages else []
        for name, times in stages.items():
            self._stages.setdefault(f"stage: {name}, p50", []).append(percentiles(times, 50)[0])
            self._stages.setdefault(f"stage: {name}, slowest 1%", []).append(float(np.array(times)[slowest].mean()))

    def figures(self) -> Iterator[Figure]:
        """Yield the figures."""
        yield from percentile_figures("latency", self._took, self._at)
        for case, values in self._stages.items():
            note = STAGES.get(case.removeprefix("stage: ").partition(",")[0], "")
            yield Figure("latency", case, OURS, "ms", values, self._at, note)


def measure(plan: Plan) -> Iterator[Figure]:
    """Measure one pair of groups while another pair is idle, then while that pair sends at half its rate."""
    with (
        cluster(),
        Messaging.start("latency", rules=[BLACK_LIST]) as messaging,
        Society(messaging, AGENTS) as crowd,
        Society(messaging, 20, first=AGENTS) as pair,
    ):
        raw, calls = RawPair(messaging.redis), [Called.remote(), Called.remote()]
        ray.get([member.watch.remote() for member in pair.members])
        pair.lone(PINGS // 10)
        bulk = float(np.median(crowd.rates("bulk", plan.seconds, plan.repeats)))
        for load in ("idle", "half"):
            lone = Lone(pair, raw, calls, load)
            with crowd.busy(bulk / 2) if load == "half" else nullcontext():
                for _ in range(plan.repeats):
                    lone.take()
            yield from lone.figures()
        raw.close()
