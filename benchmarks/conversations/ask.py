"""Questions from one agent to another: one at a time, and 2,000 at once at agents that wait for a model."""

import asyncio
import statistics
import time

import ray

from benchmarks.work import PING_GAP_S
from ray_messaging import Messager, Messaging

MODEL_S = 0.05  # an answer of the model
ASKED = range(100_000, 102_000)


@ray.remote(num_cpus=0)
class Asker:
    """The agents that ask, in an actor of one's own."""

    async def open(self, messaging: Messaging) -> None:
        """Host agent 1."""
        self._messager: Messager = await messaging.open_messager("askers", [1])
        self._channel = self._messager.get_agent_chat_channel(ASKED[0])

    async def lone(self, count: int) -> None:
        """Send messages to the other side, one every 2 ms, with the time."""
        for _ in range(count):
            await self._messager.send_message(self._channel, {"at": time.perf_counter()}, 1)
            await asyncio.sleep(PING_GAP_S)

    async def ask(self, count: int) -> list[float]:
        """Ask questions one after the other, one every 2 ms; return the ms of each."""
        took = []
        for _ in range(count):
            begun = time.perf_counter()
            await self._messager.ask(1, ASKED[0], {"at": begun}, timeout=10)
            took.append(1000 * (time.perf_counter() - begun))
            await asyncio.sleep(PING_GAP_S)
        return took

    async def ask_all(self) -> float:
        """Ask all agents at once; return the seconds until the last answer."""
        begun = time.perf_counter()
        await asyncio.gather(*(self._messager.ask(1, agent, {"n": agent}, timeout=30) for agent in ASKED))
        return time.perf_counter() - begun


@ray.remote(num_cpus=0)
class Asked:
    """The agents that are asked, in an actor of one's own: `serve` with a model of some time."""

    async def open(self, messaging: Messaging) -> None:
        """Host the agents, and serve."""
        self._messager = await messaging.open_messager("asked", ASKED)
        self._model_s = 0.0
        self._took: list[float] = []
        self._serving = asyncio.create_task(self._messager.serve(self._answer, concurrency=len(ASKED)))

    async def _answer(self, message):
        if not message.expects_answer:
            self._took.append(1000 * (time.perf_counter() - message.payload["at"]))
            return None
        if self._model_s:
            await asyncio.sleep(self._model_s)
        return {"ok": True}

    async def take(self, model_s: float = 0.0) -> list[float]:
        """Set the time of the model; return the ms that lone messages took since the last call."""
        self._model_s = model_s
        found, self._took = self._took, []
        return found


@ray.remote(num_cpus=0)
class Called:
    """The agents of plain Ray."""

    async def ask(self, content: dict) -> dict:  # noqa: ARG002 - it travels
        """Wait for the model, and answer."""
        await asyncio.sleep(MODEL_S)
        return {"ok": True}


@ray.remote(num_cpus=0)
class Caller:
    """The asker of plain Ray."""

    async def ask_all(self, called) -> float:
        """Ask 2,000 agents at once; return the seconds until the last answer."""
        begun = time.perf_counter()
        await asyncio.gather(*(called.ask.remote({"n": agent}) for agent in ASKED))
        return time.perf_counter() - begun


class Pair:
    """The two sides of ours, each in its own actor."""

    def __init__(self) -> None:
        self._messaging = Messaging.start("asks")
        self._asker, self._asked = Asker.remote(), Asked.remote()
        ray.get([self._asker.open.remote(self._messaging), self._asked.open.remote(self._messaging)])
        ray.get(self._asker.ask.remote(50))

    def lone_ms(self, count: int) -> float:
        """Return the median of a lone message, from the call to its handler."""
        ray.get(self._asked.take.remote())
        ray.get(self._asker.lone.remote(count))
        return statistics.median(ray.get(self._asked.take.remote()))

    def ask_ms(self, count: int) -> float:
        """Return the median of a question, from the call to its answer."""
        return statistics.median(ray.get(self._asker.ask.remote(count)))

    def all_s(self) -> float:
        """Return the seconds of 2,000 questions at once."""
        ray.get(self._asked.take.remote(MODEL_S))
        took = ray.get(self._asker.ask_all.remote())
        ray.get(self._asked.take.remote())
        return took

    def shutdown(self) -> None:
        """End the experiment."""
        ray.kill(self._asker)
        ray.kill(self._asked)
        self._messaging.shutdown()


class PlainRay:
    """The two sides of plain Ray."""

    def __init__(self) -> None:
        self._caller, self._called = Caller.remote(), Called.options(max_concurrency=len(ASKED)).remote()

    def all_s(self) -> float:
        """Return the seconds of 2,000 questions at once."""
        return ray.get(self._caller.ask_all.remote(self._called))

    def shutdown(self) -> None:
        """End the actors."""
        ray.kill(self._caller)
        ray.kill(self._called)
