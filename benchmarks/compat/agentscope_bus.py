"""Compare our message bus for AgentScope with AgentScope's own Redis bus, by turns on one Valkey server.

    pip install --group agentscope
    python -m benchmarks.compat.agentscope_bus [--batch 100] [--rounds 15]

In each round each bus pushes items by batches, as many pushes at once as a batch has, and then drains them by batches.
Ours also pushes a batch by one call, `queue_push_all`.
AgentScope's bus, whose pool refuses more than 100 connections and keeps no order among them, pushes 50 at once, or one
after the other: its faster way counts.
"""

import argparse
import asyncio
import gc
import statistics
import time
from operator import itemgetter

from agentscope.app.message_bus import RedisMessageBus

from benchmarks.reports.lines import Line, ratios, show
from benchmarks.work import payload
from ray_messaging.compat.agentscope import RayMessageBus
from ray_messaging.embedded.redis_server import EmbeddedServer

ITEMS, THEIR_MOST = 5_000, 50


async def push_at_once(bus, items, batch):
    for start in range(0, len(items), batch):
        await asyncio.gather(*(bus.queue_push("work", item) for item in items[start : start + batch]))


async def push_batches(bus, items, batch):
    for start in range(0, len(items), batch):
        await bus.queue_push_all("work", items[start : start + batch])


async def push_some_at_once(bus, items, batch):
    await push_at_once(bus, items, min(batch, THEIR_MOST))


async def push_in_turn(bus, items, _batch):
    for item in items:
        await bus.queue_push("work", item)


async def rates(bus, push, items, batch):
    """Return the items per second of a push and of a drain of all, and of both together."""
    start = time.perf_counter()
    await push(bus, items, batch)
    pushed = time.perf_counter()
    drained = []
    while found := await bus.queue_drain("work", batch):
        drained += [item for _, item in found]
    ended = time.perf_counter()
    assert sorted(drained, key=itemgetter("n")) == items
    return [len(items) / seconds for seconds in (pushed - start, ended - pushed, ended - start)]


async def compare(batch, rounds):
    gc.freeze()  # AgentScope's modules have a million objects, which each full collection would visit
    items = [payload(number) for number in range(ITEMS)]
    with EmbeddedServer("127.0.0.1", append_only=False) as server:
        config = server.start()
        their_server = {"host": config.server, "port": config.port, "password": config.password}
        async with RayMessageBus(config) as ours, RedisMessageBus(**their_server) as theirs:
            ways = [(ours, push_batches), (ours, push_at_once), (theirs, push_some_at_once), (theirs, push_in_turn)]
            found = [[] for _ in ways]
            for number in range(rounds + 1):
                for (bus, push), seen in zip(ways, found, strict=True):
                    figures = await rates(bus, push, items, batch)
                    if number:  # the first round opens connections
                        seen.append(figures)
    lines = []
    for place, what in enumerate(("push", "drain", "both")):
        *ours_found, at_once, in_turn = ([figures[place] for figures in seen] for seen in found)
        best = max(at_once, in_turn, key=statistics.median)
        lines.append(Line(what, "AgentScope", "/s", best))
        for way, mine in zip(("by queue_push_all", "at once"), ours_found, strict=True):
            lines += [Line(what, f"ours {way}", "/s", mine), Line(what, "ratio", "x", ratios(mine, best))]
    show(lines, f"buses for AgentScope, {ITEMS:,} items by {batch}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=15)
    asked = parser.parse_args()
    asyncio.run(compare(asked.batch, asked.rounds))
