"""Compare our runtime for AutoGen's agents with AutoGen's gRPC runtime and its single-threaded one, by turns.

    pip install "autogen-ext[grpc]>=0.7.5,<0.8" "ray_messaging[autogen]"
    python -m benchmarks.compat.autogen_runtimes [--rounds 7]

In each round each runtime carries events, of which each reaches 100 agents, and questions that are asked at once. All
of it is in one process, so that agents and transport share a core.
"""

import argparse
import asyncio
import gc
import time
from contextlib import asynccontextmanager
from dataclasses import dataclass

from autogen_core import (
    AgentId,
    MessageContext,
    RoutedAgent,
    SingleThreadedAgentRuntime,
    TopicId,
    TypeSubscription,
    message_handler,
    try_get_known_serializers_for_type,
)
from autogen_ext.runtimes.grpc import GrpcWorkerAgentRuntime, GrpcWorkerAgentRuntimeHost

from benchmarks.reports.lines import Line, ratios, show
from ray_messaging.compat.autogen import RayAgentRuntime

AGENTS, EVENTS, QUESTIONS = 100, 100, 2_000
ADDRESS = "127.0.0.1:50231"


@dataclass
class Said:
    text: str
    n: int


class Hearer(RoutedAgent):
    heard = 0
    all_heard: asyncio.Event

    def __init__(self):
        super().__init__("It counts.")

    @message_handler
    async def hear(self, message: Said, ctx: MessageContext) -> Said | None:
        if ctx.is_rpc:
            return message
        Hearer.heard += 1
        if Hearer.heard == AGENTS * EVENTS:
            Hearer.all_heard.set()
        return None


@asynccontextmanager
async def ours():
    async with RayAgentRuntime() as runtime:
        runtime.start()
        yield runtime


@asynccontextmanager
async def single_threaded():
    runtime = SingleThreadedAgentRuntime()
    runtime.start()
    yield runtime
    await runtime.stop()


@asynccontextmanager
async def grpc():
    host = GrpcWorkerAgentRuntimeHost(ADDRESS)
    host.start()
    runtime = GrpcWorkerAgentRuntime(ADDRESS)
    await runtime.start()
    yield runtime
    await runtime.stop()
    await host.stop()


async def rates(opened):
    """Return the deliveries of events and the answered questions per second of one runtime."""
    async with opened() as runtime:
        for number in range(AGENTS):
            kind = await Hearer.register(runtime, f"hearer{number}", Hearer, skip_class_subscriptions=True)
            await runtime.add_subscription(TypeSubscription("news", kind.type))
        runtime.add_message_serializer(try_get_known_serializers_for_type(Said))
        Hearer.heard, Hearer.all_heard = 0, asyncio.Event()
        begun = time.perf_counter()
        await asyncio.gather(
            *(runtime.publish_message(Said("hello", n), TopicId("news", "all")) for n in range(EVENTS))
        )
        await Hearer.all_heard.wait()
        heard = time.perf_counter()
        asked = (
            runtime.send_message(Said("hello", n), AgentId(f"hearer{n % AGENTS}", "all")) for n in range(QUESTIONS)
        )
        answers = await asyncio.gather(*asked)
        ended = time.perf_counter()
        assert [answer.n for answer in answers] == [*range(QUESTIONS)]
        return AGENTS * EVENTS / (heard - begun), QUESTIONS / (ended - heard)


async def compare(rounds):
    gc.freeze()
    ways = (ours, grpc, single_threaded)
    found = [[await rates(way) for way in ways] for _ in range(rounds + 1)][1:]
    lines = []
    for place, what in enumerate(("events", "questions")):
        mine, *others = ([figures[way][place] for figures in found] for way in range(len(ways)))
        lines.append(Line(what, "ours", "/s", mine))
        for way, theirs in zip(ways[1:], others, strict=True):
            lines += [Line(what, way.__name__, "/s", theirs), Line(what, "ratio", "x", ratios(mine, theirs))]
    show(lines, f"runtimes for AutoGen, {AGENTS} agents")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    asyncio.run(compare(parser.parse_args().rounds))
