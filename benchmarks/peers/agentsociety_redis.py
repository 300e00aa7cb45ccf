"""AgentSociety 1.3.7's Messager on Redis with its MessageInterceptor, both as installed and by their public calls.

Awaits: its interceptor, a Ray actor, has let the message pass (one Ray call), and Redis has answered the PUBLISH.
Filters by one block that looks a pair up in the black set, as our rule does. Keeps nothing: a message that comes while
nobody listens is lost, and nobody is told. Listens as its AgentGroup does: by one pattern per agent, `...:agents:7:*`.
It has no bulk path. Fast way: its logger at ERROR by its own switch; its inbox is awaited where its own loop polls
every 3 s; and 100 agents of each half talk at once, by turns, from where on more of them only wait.
"""

import asyncio
import json
import time
from typing import Any

import ray
from agentsociety.llm import LLMConfig
from agentsociety.logger import set_logger_level
from agentsociety.message import MessageBlockBase, MessageInterceptor, Messager, RedisConfig
from ray.util.queue import Queue

from benchmarks.work import STAMP, Half

EXP_ID = "benchmark"
AT_ONCE = 100
LISTEN_S, LOOK_S = 120.0, 0.1
NOBODY = LLMConfig(provider="vllm", base_url="http://127.0.0.1:9/v1", api_key="none", model="none")


class BlackSetBlock(MessageBlockBase):
    """Refuse the pairs of the black set."""

    async def forward(self, llm: Any, from_id: int, to_id: int, msg: str, violation_counts: Any, black_set: Any) -> Any:  # noqa: ARG002 - it names them
        """Judge a message."""
        if (from_id, to_id) in black_set:
            return False, f"{from_id} may not write to {to_id}"
        return True, ""


@ray.remote(num_cpus=0)
class SocietyHalf(Half):
    """A group with one Messager for all of its agents."""

    at_once = AT_ONCE

    async def listen(self, server: dict[str, Any], interceptor: Any) -> None:
        """Connect, and listen by a pattern per agent; it subscribes in the background."""
        set_logger_level("ERROR")
        config = RedisConfig(server=server["host"], port=server["port"], password=server["password"])
        self.messager = Messager(config, EXP_ID, interceptor)
        await self.messager.init()
        await self.messager.subscribe_and_start_listening([f"exps:{EXP_ID}:agents:{each}:*" for each in self.agents])
        self.counting = asyncio.create_task(self._count())

    async def _count(self) -> None:
        while True:
            messages = [await self.messager.message_queue.get(), *await self.messager.fetch_messages()]
            for message in messages:
                if STAMP in message["data"]:
                    self.arrivals.time(json.loads(message["data"]))
            self.arrivals.add(len(messages))

    async def patterns(self) -> int:
        """Return how many patterns the server knows, of all halves."""
        return int(await self.messager.client.pubsub_numpat())

    async def send(self, to_id: int, content: dict[str, Any], from_id: int) -> bool:
        """Send one message."""
        await self.messager.send_message(self.messager.get_agent_chat_channel(to_id), content, from_id, to_id)
        return True


class AgentSociety:
    """Start an interceptor and two halves on a server."""

    def __init__(self, agents: int, server: dict[str, Any]) -> None:
        self._queue = Queue(actor_options={"num_cpus": 0})
        self._interceptor = MessageInterceptor.options(num_cpus=0).remote(
            blocks=[BlackSetBlock("black set")], llm_config=[NOBODY], queue=self._queue, black_set={(-1, -2)}
        )
        ray.get(self._interceptor.init.remote())
        west, east = range(agents // 2), range(agents // 2, agents)
        self.halves: list[Any] = [SocietyHalf.remote(west, east), SocietyHalf.remote(east, west)]
        ray.get([half.listen.remote(server, self._interceptor) for half in self.halves])
        self._await_patterns(agents)
        self.notes = [f"{agents:,} patterns"]

    def _await_patterns(self, agents: int) -> None:
        end = time.monotonic() + LISTEN_S
        while (there := ray.get(self.halves[0].patterns.remote())) < agents:
            if time.monotonic() > end:
                raise TimeoutError(f"{there:,} of {agents:,} patterns within {LISTEN_S:g} s")
            time.sleep(LOOK_S)

    def close(self) -> None:
        """Stop all."""
        for actor in (*self.halves, self._interceptor):
            ray.kill(actor)
        self._queue.shutdown(force=True)
