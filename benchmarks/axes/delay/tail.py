"""Effect of a slow receiver, huge payloads and a slow rule on the others: none, if all is well."""

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import ray

from benchmarks.axes.bounds.raw import RawPair
from benchmarks.axes.society.society import BLACK_LIST, Society, cluster
from benchmarks.figures import LIMIT, OURS, Figure, Plan, percentile_figures
from ray_messaging import Messaging, MessagingConfig, rules

PINGS = 600
HUGE_BYTES = 32_000_000
SLOW_IDS = 1_000_000  # the rule is slow for these ids and larger ones
SLOW_RATE = 100_000.0  # as many as the pace allows: they wait for the rule
SETTINGS = MessagingConfig(
    payload_bytes=64 * 2**20, mailbox_messages=50_000, inbox_messages=10_000, send_timeout_s=120.0
)
FOREVER_S = 3_600.0
SAME = "a full mailbox, same sender"
ALONE, WRITER = f"{OURS}, nothing beside", f"{LIMIT}beside redis-py's XADD of the same size"
Disturbance = Callable[[], AbstractContextManager[None]]


class SlowForSome(rules.SlowRule):
    """Take a second for the messages of some agents."""

    needs_payload = False

    def at_once(self, message: Any) -> Any:
        """Let all others pass."""
        return None if (message.from_id or 0) >= SLOW_IDS else rules.ALLOW

    async def judge(self, message: Any) -> Any:  # noqa: ARG002 - a SlowRule's
        """Take a second."""
        await asyncio.sleep(1.0)
        return rules.ALLOW


@contextmanager
def full_mailbox(messaging: Messaging, society: Society) -> Iterator[None]:
    """Have one group send to another that fetches nothing, so that its mailbox is full and the sender waits."""
    west, east = society.members
    society.aim(100)
    ray.get(east.fetch_no_more.remote())
    sending = west.steady.remote(1e9)
    waiting = [0, 1]  # the last two looks: while they differ it is being filled, which is work like any other
    while waiting[-1] < SETTINGS.mailbox_messages // 2 or waiting[-1] != waiting[-2]:
        time.sleep(0.2)
        waiting.append(max(messaging.stats()["waiting"].values()))
    try:
        yield
    finally:
        ray.get(west.rest.remote())  # before there is room again
        ray.get(east.fetch_again.remote())
        ray.get(sending)


@contextmanager
def one_sender(member: Any) -> Iterator[None]:
    """Have one group send one payload after the other."""
    sending = member.steady.remote(1.0)
    try:
        yield
    finally:
        ray.get(member.rest.remote())
        ray.get(sending)


@contextmanager
def one_writer(raw: RawPair) -> Iterator[None]:
    """Have redis-py write one entry of the same size after the other into the same server."""
    writing = raw.halves[0].bulk.remote(FOREVER_S, HUGE_BYTES)
    try:
        yield
    finally:
        ray.get(raw.halves[0].rest.remote())
        ray.get(writing)


def measure(plan: Plan) -> Iterator[Figure]:
    """Measure a pair of groups, by turns beside each disturbance and without it."""
    start: dict[str, Any] = {"rules": [BLACK_LIST, SlowForSome()], "settings": SETTINGS}
    with (
        cluster(),
        Messaging.start("tail", **start) as messaging,
        Society(messaging, 20) as pair,
        Society(messaging, 2_000, first=1_000) as full,
        Society(messaging, 2, first=10_000, nbytes=HUGE_BYTES) as huge,
        Society(messaging, 1_000, first=SLOW_IDS) as slow,
    ):
        raw, west = RawPair(messaging.redis), full.members[0]
        disturbed: dict[str, dict[str, Disturbance]] = {
            "a full mailbox": {OURS: lambda: full_mailbox(messaging, full)},
            SAME: {OURS: lambda: full_mailbox(messaging, full)},
            "payloads of 32 MB": {OURS: lambda: one_sender(huge.members[0]), WRITER: lambda: one_writer(raw)},
            "a rule that takes 1 s": {OURS: lambda: slow.busy(SLOW_RATE)},
        }
        pair.lone(PINGS)
        for name, ways in disturbed.items():
            took: dict[str, list[list[float]]] = {}
            for _ in range(plan.repeats):
                for who, way in ({ALONE: nullcontext} | ways).items():
                    with way():
                        took.setdefault(who, []).append(pair.lone(PINGS, west if name == SAME else None))
            yield from percentile_figures("tail", took, {"beside": name})
        raw.close()
