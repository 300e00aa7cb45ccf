"""AutoGen's agents on our runtime, beside AutoGen's own where that shows what its users expect."""

import asyncio
import importlib
import sys
from collections import Counter
from dataclasses import dataclass

import pytest

pytest.importorskip("autogen_agentchat", reason="AutoGen is not here: pip install --group autogen")
from autogen_agentchat.agents import BaseChatAgent
from autogen_agentchat.base import Response
from autogen_agentchat.conditions import MaxMessageTermination
from autogen_agentchat.messages import TextMessage
from autogen_agentchat.teams import RoundRobinGroupChat
from autogen_core import (
    AgentId,
    CancellationToken,
    DefaultInterventionHandler,
    DefaultTopicId,
    DropMessage,
    MessageContext,
    RoutedAgent,
    SingleThreadedAgentRuntime,
    TopicId,
    TypeSubscription,
    default_subscription,
    exceptions,
    message_handler,
)

from ray_messaging.compat import autogen
from ray_messaging.compat.autogen import RayAgentRuntime


@dataclass
class Said:
    text: str


@default_subscription
class Hearer(RoutedAgent):
    """An agent that answers a text with its own id, fails at "fail", and passes "on" to others."""

    def __init__(self):
        super().__init__("It hears.")
        self.heard = []
        self.waits, self.cancelled = asyncio.Event(), asyncio.Event()

    @message_handler
    async def hear(self, message: Said, ctx: MessageContext) -> Said:
        self.heard.append((message.text, str(ctx.sender), ctx.topic_id and str(ctx.topic_id)))
        if message.text == "fail":
            raise LookupError("no such word")
        if message.text == "wait":
            self.waits.set()
            try:
                await ctx.cancellation_token.link_future(asyncio.ensure_future(asyncio.Event().wait()))
            except asyncio.CancelledError:
                self.cancelled.set()
                raise
        if message.text == "on":
            await self.publish_message(Said("passed on"), DefaultTopicId())
        return Said(f"{message.text} at {self.id}")

    async def save_state(self):
        return {"heard": self.heard}

    async def load_state(self, state):
        self.heard = [tuple(each) for each in state["heard"]]


@pytest.fixture
async def runtime():
    async with RayAgentRuntime(ignore_unhandled_exceptions=False) as started:
        await Hearer.register(started, "hearer", Hearer)
        yield started


async def heard(runtime, agent="hearer/default"):
    return [text for text, *_ in (await runtime.try_get_underlying_agent_instance(AgentId.from_str(agent))).heard]


async def test_an_agent_answers_a_message_or_its_error_is_raised(runtime):
    runtime.start()
    ann = AgentId("hearer", "an id with / and [brackets]")
    answer = await runtime.send_message(Said("hello"), ann, sender=AgentId("hearer", "bob"))
    assert answer == Said(f"hello at {ann}")
    answer.text = "changed by the asker"
    assert await runtime.send_message(Said("hello"), ann) == Said(f"hello at {ann}")
    with pytest.raises(LookupError, match="no such word"):
        await runtime.send_message(Said("fail"), ann)
    agent = await runtime.try_get_underlying_agent_instance(ann, Hearer)
    assert agent.heard == [("hello", "hearer/bob", None), ("hello", "None", None), ("fail", "None", None)]
    with pytest.raises(Exception, match="Recipient not found"):
        await runtime.send_message(Said("hello"), AgentId("nobody", "1"))
    with pytest.raises(ValueError, match="Unknown type object"):
        await runtime.send_message(object(), ann)
    await asyncio.wait_for(runtime.stop_when_idle(), 30)


async def test_a_topic_reaches_its_subscribers_but_not_the_sender(runtime):
    await Hearer.register(runtime, "other", Hearer)
    await runtime.add_subscription(TypeSubscription("news", "other"))
    await runtime.publish_message(Said("on"), TopicId("news", "s1"))  # it waits for the start
    await runtime.publish_message(Said("nobody hears it"), TopicId("weather", "s1"))
    assert runtime.unprocessed_messages_count == 1
    runtime.start()
    await asyncio.wait_for(runtime.stop_when_idle(), 30)
    assert await heard(runtime, "other/s1") == ["on"]
    assert await heard(runtime, "hearer/s1") == ["passed on"]


async def test_the_error_of_an_event_is_raised_at_the_end_and_its_message_kept(runtime):
    runtime.start()
    await runtime.publish_message(Said("fail"), DefaultTopicId())
    with pytest.raises(LookupError, match="no such word"):
        await asyncio.wait_for(runtime.stop_when_idle(), 30)
    assert not runtime.unprocessed_messages_count


async def test_a_cancelled_question_cancels_its_handler(runtime):
    runtime.start()
    token, recipient = CancellationToken(), AgentId("hearer", "default")
    asked = asyncio.create_task(runtime.send_message(Said("wait"), recipient, cancellation_token=token))
    agent = await runtime.try_get_underlying_agent_instance(recipient, Hearer)
    await asyncio.wait_for(agent.waits.wait(), 30)
    token.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked
    await asyncio.wait_for(agent.cancelled.wait(), 30)
    assert await runtime.send_message(Said("more"), recipient) == Said("more at hearer/default")
    await asyncio.wait_for(runtime.stop_when_idle(), 30)


class Censor(DefaultInterventionHandler):
    """It drops texts that begin with a !, and writes the others large."""

    async def on_send(self, message, *, message_context, recipient):
        return DropMessage if message.text.startswith("!") else Said(message.text.upper())

    async def on_publish(self, message, *, message_context):
        return DropMessage if message.text.startswith("!") else message

    async def on_response(self, message, *, sender, recipient):
        return Said(message.text.replace("hearer", "censored"))


async def test_intervention_handlers_change_and_drop():
    async with RayAgentRuntime(intervention_handlers=[Censor()]) as runtime:
        await Hearer.register(runtime, "hearer", Hearer)
        runtime.start()
        recipient = AgentId("hearer", "default")
        assert await runtime.send_message(Said("hello"), recipient) == Said("HELLO at censored/default")
        with pytest.raises(exceptions.MessageDroppedException):
            await runtime.send_message(Said("!"), recipient)
        await runtime.publish_message(Said("!"), DefaultTopicId())
        await asyncio.wait_for(runtime.stop_when_idle(), 30)
        assert await heard(runtime) == ["HELLO"]


async def test_a_state_has_the_events_that_nobody_has_begun(runtime):
    runtime.start()
    await runtime.publish_message(Said("before"), DefaultTopicId())
    await asyncio.wait_for(runtime.stop_when_idle(), 30)
    for text in ("one", "two"):
        await runtime.publish_message(Said(text), DefaultTopicId())
    state = await asyncio.wait_for(runtime.save_state(), 30)
    assert [each["payload"]["message"] for each in state["messages"]] == [{"text": "one"}, {"text": "two"}]
    async with RayAgentRuntime() as empty:
        with pytest.raises(exceptions.UndeliverableException, match="hearer/default is undeliverable"):
            await empty.load_state(state)
    async with RayAgentRuntime() as second:
        await Hearer.register(second, "hearer", Hearer)
        await second.load_state(state)
        for each in (runtime, second):
            each.start()
            await asyncio.wait_for(each.stop_when_idle(), 30)
            assert Counter(await heard(each)) == Counter(["before", "one", "two"])


class Asking(RoutedAgent):
    """An agent that asks the hearer, once it may."""

    def __init__(self):
        super().__init__("It asks.")
        self.begun, self.may = asyncio.Event(), asyncio.Event()

    @message_handler
    async def hear(self, message: Said, ctx: MessageContext) -> None:
        self.begun.set()
        await self.may.wait()
        await self.send_message(Said("asked"), AgentId("hearer", "default"))

    async def save_state(self):
        return {}


async def test_a_state_waits_for_a_question_that_came_after_an_event_that_is_held(runtime):
    await Asking.register(runtime, "asking", Asking)
    await runtime.add_subscription(TypeSubscription("work", "asking"))
    runtime.start()
    await runtime.publish_message(Said("work"), TopicId("work", "default"))
    asking = await runtime.try_get_underlying_agent_instance(AgentId("asking", "default"), Asking)
    await asyncio.wait_for(asking.begun.wait(), 30)
    saving = asyncio.create_task(runtime.save_state())
    await runtime.publish_message(Said("later"), DefaultTopicId())
    asking.may.set()
    state = await asyncio.wait_for(saving, 30)
    assert [each["payload"]["message"] for each in state["messages"]] == [{"text": "later"}]
    await asyncio.wait_for(runtime.stop_when_idle(), 30)
    assert await heard(runtime) == ["asked", "later"]


class Scripted(BaseChatAgent):
    """A member of a team whose answers are written down."""

    def __init__(self, name):
        super().__init__(name, "It reads its lines.")
        self.line = 0

    produced_message_types = (TextMessage,)

    async def on_messages(self, messages, cancellation_token):
        self.line += 1
        heard = messages[-1].content if messages else ""
        return Response(chat_message=TextMessage(content=f"line {self.line} after {heard!r}", source=self.name))

    async def on_reset(self, cancellation_token):
        self.line = 0


async def transcript(runtime):
    team = RoundRobinGroupChat(
        [Scripted(name) for name in ("ann", "bob", "eve")],
        termination_condition=MaxMessageTermination(8),
        runtime=runtime,
    )
    result = await team.run(task="talk")
    states = (await team.save_state())["agent_states"]
    assert {"ann", "bob", "eve"} < states.keys()
    return [(each.source, each.content) for each in result.messages]


async def test_a_team_has_the_transcript_of_autogens_own_runtime():
    own = SingleThreadedAgentRuntime()
    own.start()
    expected = await transcript(own)
    await own.stop()
    async with RayAgentRuntime() as runtime:
        runtime.start()
        assert await asyncio.wait_for(transcript(runtime), 60) == expected
    assert len(expected) == 8


def test_another_version_and_a_missing_extra_are_named(monkeypatch):
    monkeypatch.setattr("importlib.metadata.version", lambda _: "0.8.1")
    with pytest.warns(UserWarning, match="autogen-core 0.8.1 is installed, and this runtime was tested with 0.7"):
        importlib.reload(autogen)
    monkeypatch.setitem(sys.modules, "autogen_core", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'ray-messaging\[autogen\]'"):
        importlib.reload(autogen)
    monkeypatch.undo()
    importlib.reload(autogen)


def test_what_cannot_be_is_refused():
    with pytest.raises(ValueError, match="needs an experiment on Ray"):
        RayAgentRuntime(actors=True)
