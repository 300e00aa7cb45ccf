"""AgentSociety 1.0.5's Messager over MQTT with its MessageInterceptor, both as installed and by their public calls.

Awaits: the Messager, a Ray actor beside the group, has done the send: its interceptor, another one, has let the message
pass, and the broker has acknowledged it (QoS 1): three Ray calls' worth of waiting for each message. Filters by one
block that looks a pair up in the black list, as our rule does. Listens as its AgentGroup does: by one filter per agent.
The broker (Mosquitto) keeps acknowledged messages. It has no bulk path. Fast way: its inbox is fetched every 20 ms
under load and each millisecond in between, where its own loop polls every 3 s; aiomqtt's warnings are off; 100
agents of each half talk at once, by turns, from where on more of them only wait.

Its package imports models, maps and a simulator that no message passes through, 5 GB of them. Only its `message`
package is imported here, and its classes go to Ray by value, so that no worker imports the rest.
"""

import asyncio
import importlib.util
import json
import logging
import sys
from types import ModuleType
from typing import Any

import ray

from benchmarks.work import STAMP, Half

EXP_ID = "benchmark"
AT_ONCE = 100
BUSY_S, IDLE_S = 0.02, 0.001


def message_package() -> ModuleType:
    """Import `agentsociety.message` without the imports of its parent and its models."""
    found = importlib.util.find_spec("agentsociety")
    assert found is not None
    parent, models = ModuleType("agentsociety"), ModuleType("agentsociety.llm")
    parent.__path__ = found.submodule_search_locations  # type: ignore[assignment]
    models.LLM = None  # type: ignore[attr-defined] # its interceptor makes one only where it is told of a model
    sys.modules |= {"agentsociety": parent, "agentsociety.llm": models}
    package = importlib.import_module("agentsociety.message")
    ray.cloudpickle.register_pickle_by_value(parent)
    return package


def quiet(_: Any) -> None:
    """Have aiomqtt write no line for each call above ten under way."""
    logging.getLogger("mqtt").setLevel(logging.ERROR)


@ray.remote(num_cpus=0)
class SocietyHalf(Half):
    """A group beside its Messager."""

    at_once = AT_ONCE

    async def listen(self, messager: Any) -> None:
        """Connect, and listen by a filter per agent."""
        self.messager = messager
        await messager.connect.remote()
        await messager.start_listening.remote()
        filters = [(f"exps/{EXP_ID}/agents/{agent}/#", 1) for agent in self.agents]
        await messager.subscribe.remote(filters, [str(agent) for agent in self.agents])
        self.counting = asyncio.create_task(self._count())

    async def _count(self) -> None:
        while True:
            messages = await self.messager.fetch_messages.remote()
            for message in messages:
                if STAMP in message.payload:
                    self.arrivals.time(json.loads(message.payload))
            self.arrivals.add(len(messages))
            await asyncio.sleep(BUSY_S if len(messages) > 1 else IDLE_S)

    async def send(self, to_id: int, content: dict[str, Any], from_id: int) -> bool:
        """Send one message."""
        topic = f"exps/{EXP_ID}/agents/{to_id}/agent-chat"
        await self.messager.send_message.remote(topic, content, str(from_id), str(to_id))
        return True


class AgentSociety:
    """Start an interceptor, two Messagers and two halves on a broker."""

    def __init__(self, agents: int, server: dict[str, Any]) -> None:
        message = message_package()

        class BlackListBlock(message.MessageBlockBase):  # type: ignore[misc, name-defined]
            """Refuse the pairs of the black list."""

            async def forward(self, from_uuid: str, to_uuid: str, msg: str, black_list: Any) -> tuple[bool, str]:  # noqa: ARG002 - it names them
                return (from_uuid, to_uuid) not in black_list, f"{from_uuid} may not write to {to_uuid}"

        self._interceptor = message.MessageInterceptor.options(num_cpus=0).remote(
            blocks=[BlackListBlock("black list")], black_list=[("-1", "-2")]
        )
        self._messagers = [
            message.Messager.options(num_cpus=0).remote(
                hostname=server["host"], port=server["port"], message_interceptor=self._interceptor
            )
            for _ in range(2)
        ]
        ray.get([messager.__ray_call__.remote(quiet) for messager in self._messagers])
        west, east = range(agents // 2), range(agents // 2, agents)
        self.halves: list[Any] = [SocietyHalf.remote(west, east), SocietyHalf.remote(east, west)]
        ray.get([half.listen.remote(each) for half, each in zip(self.halves, self._messagers, strict=True)])

    def close(self) -> None:
        """Stop all."""
        for actor in (*self.halves, *self._messagers, self._interceptor):
            ray.kill(actor)
