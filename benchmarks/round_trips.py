"""How many round trips of the network a message or a step takes: `python -m benchmarks.round_trips`.

    python -m benchmarks.round_trips               # without Ray: a lone message, batches, steps by hand; 30 seconds
    python -m benchmarks.round_trips --ray         # also `run` and `advance(1)`; a minute
    python -m benchmarks.round_trips --rtt-ms 80   # on a machine that is busy

All processes are on this machine. Each side reaches the server, and the interceptor's lane, by a link of its own that
delays all bytes by half a round trip each way. The figure is the median time divided by the round trip: it counts what
waits for the network, and is hardly changed by the machine. Ray's own calls are not delayed.
"""

import argparse
import asyncio
import statistics
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future
from contextlib import AsyncExitStack, contextmanager
from functools import partial
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

from ray_messaging.config import MessagingConfig, RedisConfig
from ray_messaging.embedded.redis_server import EmbeddedServer
from ray_messaging.interception.interceptor.interceptor import Interceptor
from ray_messaging.interception.interceptor.lane_server import LaneServer
from ray_messaging.messager import GroupMessager, Messager
from ray_messaging.transports.experiment_store import RedisExperimentStore
from ray_messaging.transports.step_values import StepSettings
from ray_messaging.transports.transport import RedisTransport

HOST = "127.0.0.1"
AGENTS = 1_000
PAUSE_S = 0.25
MESSAGES, STEPS = 20, 20
BATCH, BATCHES, ROUNDS = 1_000, 32, 10
CALM_S = 1.3  # after this time, and a question, rules are delegated


class Link:
    """A link to a port of this machine that delays all bytes; `port` leads to it. It runs in a thread of its own."""

    def __init__(self, port: int, one_way_s: float) -> None:
        self._target, self._one_way_s = port, one_way_s
        self._loop = asyncio.new_event_loop()
        self._ready: Future[int] = Future()
        self._end = asyncio.Event()
        self._thread = threading.Thread(target=lambda: self._loop.run_until_complete(self._serve()), daemon=True)

    def __enter__(self) -> "Link":
        self._thread.start()
        self.port = self._ready.result()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join()

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._accept, HOST, 0)
        self._ready.set_result(server.sockets[0].getsockname()[1])
        await self._end.wait()
        server.close()
        self._loop.set_exception_handler(lambda *_: None)  # connections that are open end with this thread
        open_still = asyncio.all_tasks() - {asyncio.current_task()}
        for task in open_still:
            task.cancel()
        await asyncio.gather(*open_still, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(2 * self._one_way_s)  # the handshake of TCP
        far_reader, far_writer = await asyncio.open_connection(HOST, self._target)
        try:
            await asyncio.gather(self._pass(reader, far_writer), self._pass(far_reader, writer))
        except OSError:
            pass
        finally:
            writer.transport.abort()
            far_writer.transport.abort()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(2**20):
            self._loop.call_later(self._one_way_s, writer.write, data)
        self._loop.call_later(self._one_way_s, writer.close)


class Hosts:
    """A server, and messagers that reach it and an interceptor by links of their own, each as if on another host."""

    def __init__(self, server: RedisConfig, exp_id: str, one_way_s: float, stack: AsyncExitStack) -> None:
        self.server, self.exp_id, self.one_way_s = server, exp_id, one_way_s
        self._stack = stack
        self._transport = RedisTransport(server, exp_id, patience_s=10.0)
        stack.push_async_callback(self._transport.close)

    async def begin(self, *, steps: bool) -> None:
        """Start the interceptor, which has no rules, beside the server."""
        if steps:
            await self._transport.steps.begin(StepSettings(groups=2))
        store = RedisExperimentStore(self._transport)
        epoch = await store.take_interceptor_epoch()
        publish = partial(store.delegate, epoch)
        self._interceptor = Interceptor(self.exp_id, epoch=epoch, publish_snapshot=publish)  # type: ignore[arg-type]
        self._lane = LaneServer(
            lambda request, patient: self._interceptor.answer(bytes(request), patient=patient),
            lambda request: self._interceptor.snapshot(request, 2),
        )
        self._address = await self._lane.start(HOST)
        self._stack.push_async_callback(self._lane.close)

    def _linked(self, port: int) -> int:
        return self._stack.enter_context(Link(port, self.one_way_s)).port

    async def messager(self, name: str, agents: range) -> Messager:
        """Open a messager on a host of its own."""
        address = self._address._replace(port=self._linked(self._address.port))

        async def lane(**_: object) -> object:
            await asyncio.sleep(2 * self.one_way_s)  # Ray's call
            return address

        actor = SimpleNamespace(lane=SimpleNamespace(remote=lane), forward_batch=None)
        config = self.server.model_copy(update={"port": self._linked(self.server.port)})
        made = GroupMessager(config, self.exp_id, actor, name=name, settings=MessagingConfig())
        await made.init()
        self._stack.push_async_callback(made.close)
        await made.host_agents(agents, ["agent-chat"])
        return made


async def lone_message(hosts: Hosts) -> list[float]:
    """Return the times from a send after a pause to the receiver's fetch, in seconds."""
    await hosts.begin(steps=False)
    sender, receiver = await hosts.messager("b", range(1)), await hosts.messager("c", range(1, 2))
    taken: list[float] = []
    for number in range(MESSAGES + 4):
        fetching = asyncio.create_task(receiver.fetch_messages(timeout=10.0))
        await asyncio.sleep(CALM_S if number == 1 else PAUSE_S)
        begun = time.perf_counter()
        receipt = asyncio.create_task(sender.send(0, 1, {"n": number}))
        assert len(await fetching) == 1
        taken.append(time.perf_counter() - begun)
        await receipt
    return taken[4:]


async def bulk(hosts: Hosts) -> list[float]:
    """Return the times for each batch of sends of many batches, from the send to all receipts, in seconds."""
    await hosts.begin(steps=False)
    sender, receiver = await hosts.messager("b", range(1)), await hosts.messager("c", range(1, 2))
    payloads, taken = [{"n": n} for n in range(BATCH)], list[float]()

    async def receive() -> None:
        left = BATCH * BATCHES * (ROUNDS + 2)
        while left:
            left -= len(await receiver.fetch_messages(timeout=10.0))

    receiving = asyncio.create_task(receive())
    for number in range(ROUNDS + 2):
        if number == 1:
            await asyncio.sleep(CALM_S)
        begun = time.perf_counter()
        await asyncio.gather(*(sender.send_columns(0, [1] * BATCH, payloads) for _ in range(BATCHES)))
        taken.append((time.perf_counter() - begun) / BATCHES)
    await receiving
    return taken[2:]


async def awaited(hosts: Hosts) -> list[float]:
    """Return the times of messages that 1,000 agents send, each awaiting the receipt of its last one, in seconds."""
    await hosts.begin(steps=False)
    sender, receiver = await hosts.messager("b", range(AGENTS)), await hosts.messager("c", range(AGENTS, AGENTS + 1))
    taken: list[float] = []

    async def receive() -> None:
        left = AGENTS * (ROUNDS + 2)
        while left:
            left -= len(await receiver.fetch_messages(timeout=10.0))

    async def talk(agent: int) -> None:
        for number in range(ROUNDS + 2):
            begun = time.perf_counter()
            await sender.send(agent, AGENTS, {"n": number})
            if number > 1:
                taken.append(time.perf_counter() - begun)
            elif number == 1 and agent == 0:
                await asyncio.sleep(CALM_S)

    receiving = asyncio.create_task(receive())
    await asyncio.gather(*map(talk, range(AGENTS)))
    await receiving
    return taken


async def steps_by_hand(hosts: Hosts) -> list[float]:
    """Return the times of steps of two groups, in which each agent writes to one of the other group, in seconds."""
    await hosts.begin(steps=True)
    half = AGENTS // 2
    sides = [await hosts.messager("b", range(half)), await hosts.messager("c", range(half, AGENTS))]
    begun: list[float] = []

    async def drive(side: Messager, first: int) -> None:
        others = (first + half) % AGENTS
        async for step in side.steps(until=STEPS + 4):
            if first == 0:
                begun.append(time.perf_counter())
            if step.number:
                assert sum(len(inbox) for _, inbox in step.by_agent()) == half
            if step.number == 1:
                await asyncio.sleep(CALM_S)
            for agent in range(half):
                step.send(first + agent, others + agent, {"n": step.number})

    await asyncio.gather(drive(sides[0], 0), drive(sides[1], half))
    return [after - before for before, after in pairwise(begun[4:])]


def person(me: Any, inbox: Any) -> None:
    """Write to one agent of the other group."""
    me.send((me.id + AGENTS // 2) % AGENTS, {"n": len(inbox)})
    if me.id == 0:
        me.state["stamps"] = [*me.state.get("stamps", []), time.perf_counter()]


@contextmanager
def on_ray(server: RedisConfig, one_way_s: float) -> Iterator[Any]:
    """Start an experiment with steps on Ray, all of whose processes reach the server by one link."""
    from ray_messaging import Messaging, Steps

    with Link(server.port, one_way_s) as link:
        config = server.model_copy(update={"port": link.port})
        with Messaging.start("trips", redis=config, steps=Steps(seed=7), on_existing="reset") as messaging:
            yield messaging


GROUPS = {"b": range(AGENTS // 2), "c": range(AGENTS // 2, AGENTS)}


def run(server: RedisConfig, one_way_s: float) -> list[float]:
    """Return the times of the steps of `messaging.run`, in seconds."""
    with on_ray(server, one_way_s) as messaging:
        result = messaging.run(person, agents=AGENTS, groups=GROUPS, until=STEPS + 6, progress=False)
        stamps = result.states[0]["stamps"]
    return [after - before for before, after in pairwise(stamps[5:])]


def advance(server: RedisConfig, one_way_s: float) -> list[float]:
    """Return the times of `advance(1)` of a standing run, in seconds."""
    taken: list[float] = []
    with (
        on_ray(server, one_way_s) as messaging,
        messaging.start_run(person, agents=AGENTS, groups=GROUPS) as standing,
    ):
        for _ in range(STEPS + 6):
            begun = time.perf_counter()
            standing.advance(1)
            taken.append(time.perf_counter() - begun)
    return taken[6:]


async def _measured(
    case: Callable[[Hosts], Awaitable[list[float]]], server: RedisConfig, one_way_s: float
) -> list[float]:
    async with AsyncExitStack() as stack:
        return await case(Hosts(server, case.__name__, one_way_s, stack))


def main() -> None:
    """Measure, and print a line for each case."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rtt-ms", type=float, default=40.0)
    parser.add_argument("--ray", action="store_true")
    parser.add_argument("--only", default="", help="the name of one case")
    plan = parser.parse_args()
    cases: list[tuple[str, Callable[[RedisConfig, float], list[float]]]] = [
        (name, lambda server, one_way_s, case=case: asyncio.run(_measured(case, server, one_way_s)))
        for name, case in {
            "a lone message after a pause": lone_message,
            "a batch of many": bulk,
            "an awaited message": awaited,
            "a step by hand": steps_by_hand,
        }.items()
    ]
    if plan.ray:
        cases += [("a step of run", run), ("advance(1)", advance)]
    for name, case in cases:
        if plan.only not in name:
            continue
        with EmbeddedServer(HOST) as embedded:
            taken = [1e3 * each / plan.rtt_ms for each in case(embedded.start(), plan.rtt_ms / 2e3)]
        low, *_, high = statistics.quantiles(taken, n=10)
        print(f"{name:30} {statistics.median(taken):5.2f} round trips ({low:.2f} to {high:.2f})", flush=True)


if __name__ == "__main__":
    main()
