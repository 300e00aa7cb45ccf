"""AutoGen's agents in Ray actors: one is killed in the middle, rules judge, and the log has all."""

import asyncio
import os
from collections import Counter
from dataclasses import dataclass

import pytest

pytest.importorskip("autogen_agentchat", reason="AutoGen is not here: pip install --group autogen")
from autogen_agentchat.agents import BaseChatAgent
from autogen_agentchat.base import Response
from autogen_agentchat.conditions import MaxMessageTermination
from autogen_agentchat.messages import TextMessage
from autogen_agentchat.teams import RoundRobinGroupChat
from autogen_core import AgentId, DefaultTopicId, MessageContext, RoutedAgent, default_subscription, exceptions
from autogen_core import message_handler as handler
from support.cluster import die_once

from ray_messaging import Messaging, rules
from ray_messaging.compat.autogen import RayAgentRuntime

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("by_value")]


@dataclass
class Number:
    n: int


@dataclass
class Reply:
    n: int
    process: int


class Writer(RoutedAgent):
    """An agent that writes each number that it hears into a file, and is killed once on the way."""

    def __init__(self, folder):
        super().__init__("It writes.")
        self.folder = folder

    @handler
    async def write(self, message: Number, ctx: MessageContext) -> Reply:
        if message.n == 30:
            die_once(self.folder / "killed")
        with (self.folder / "numbers").open("a") as file:
            file.write(f"{message.n}\n")
        return Reply(message.n, os.getpid())


@default_subscription
class Passing(RoutedAgent):
    """An agent that asks the writer for each event, and publishes one itself."""

    def __init__(self):
        super().__init__("It asks.")
        self.replies = 0

    @handler
    async def hear(self, message: Number, ctx: MessageContext) -> None:
        reply = await self.send_message(message, AgentId("writer", "default"))
        assert reply.n == message.n
        self.replies += 1
        if message.n == 0:
            await self.publish_message(Number(1000), DefaultTopicId())

    async def save_state(self):
        return {"replies": self.replies}


async def proves(messaging, folder):
    async with RayAgentRuntime(messaging, actors=True) as runtime:
        await Writer.register(runtime, "writer", lambda: Writer(folder))
        for name in ("ann", "answers"):  # the mailbox for answers is another one
            await Passing.register(runtime, name, Passing)
        with pytest.raises(exceptions.NotAccessibleError):
            await runtime.try_get_underlying_agent_instance(AgentId("writer", "default"))
        runtime.start()
        for n in range(100):
            await runtime.publish_message(Number(n), DefaultTopicId())
        with pytest.raises(RuntimeError, match="stop_when_idle"):
            _ = runtime.unprocessed_messages_count
        await asyncio.wait_for(runtime.stop_when_idle(), 120)
        states = (await runtime.save_state())["agents"]
        assert {agent: state["replies"] for agent, state in states.items() if state} == {
            "ann/default": 101,
            "answers/default": 101,
        }
        runtime.start()
        reply = await runtime.send_message(Number(7), AgentId("writer", "default"), sender=AgentId("ann", "x"))
        assert reply.process != os.getpid()
        with pytest.raises(exceptions.MessageDroppedException, match="black_list"):
            await runtime.send_message(Number(7), AgentId("writer", "default"), sender=AgentId("eve", "x"))
        await asyncio.wait_for(runtime.stop_when_idle(), 120)


def test_an_actor_is_killed_and_each_question_is_answered_once(ray_cluster, tmp_path, exp_id):
    listed = [rules.BlackList([("eve/x", "writer/default")])]
    with Messaging.start(exp_id, rules=listed, log_dir=tmp_path / "log") as messaging:
        asyncio.run(proves(messaging, tmp_path))
        assert (tmp_path / "killed").exists()
        balance = messaging.log.balance()
        assert balance.fates["blocked"] == 1
        assert not balance.fates["undeliverable"]
    written = Counter(map(int, (tmp_path / "numbers").read_text().split()))
    assert written.keys() == {*range(100), 1000}  # those before the kill whose commit was not stored came again


class Member(BaseChatAgent):
    """A member of a team that says where it lives."""

    produced_message_types = (TextMessage,)

    def __init__(self, name):
        super().__init__(name, "It says where it lives.")

    async def on_messages(self, messages, cancellation_token):
        return Response(chat_message=TextMessage(content=str(os.getpid()), source=self.name))

    async def on_reset(self, cancellation_token):
        pass


async def meets(messaging):
    async with RayAgentRuntime(messaging, actors=True) as runtime:
        runtime.start()
        members, end = [Member("ann"), Member("bob")], MaxMessageTermination(5)
        team = RoundRobinGroupChat(members, termination_condition=end, runtime=runtime)
        said = (await asyncio.wait_for(team.run(task="talk"), 120)).messages
        assert [each.source for each in said] == ["user", "ann", "bob", "ann", "bob"]
        processes = [each.content for each in said[1:]]
        assert processes[:2] == processes[2:]
        assert len({str(os.getpid()), *processes}) == 3


def test_the_members_of_a_team_live_in_actors_and_its_manager_here(ray_cluster, exp_id):
    with Messaging.start(exp_id) as messaging:
        asyncio.run(meets(messaging))
