"""The public face as a type checker sees it; mypy reads this, nobody runs it."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, assert_type
from uuid import UUID, uuid4

import aiomqtt
import msgspec
import networkx as nx
import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pydantic import BaseModel

import ray_messaging
from ray_messaging import (
    Agent,
    AsyncGroup,
    BlockedListener,
    BlockedMessage,
    Count,
    Crowd,
    EventLog,
    Group,
    GroupAnswers,
    LogRow,
    Mean,
    Message,
    Messager,
    Messages,
    Messaging,
    Msg,
    Of,
    Outgoing,
    Receipt,
    Receipts,
    RedisConfig,
    Result,
    Run,
    Step,
    Survey,
    rules,
    run,
)
from ray_messaging.compat.mqtt import Messager as MqttMessager
from ray_messaging.compat.mqtt import MqttConfig
from ray_messaging.testing import check_repeatable
from ray_messaging.transaction import Transaction


class Offer(BaseModel):
    price: float


@dataclass
class Bid:
    price: float


async def objects(messager: Messager, group: Group, message: Message) -> None:
    await messager.send(1, 2, Offer(price=1))
    assert_type(group.send(1, 2, Bid(1)), Receipt)
    assert_type(message.to(Offer), Offer)
    assert_type((await messager.fetch_messages()).to(Bid), list[Bid])
    await messager.send(1, 2, "text")  # type: ignore[arg-type]  # no payload


async def in_a_loop(group: Group) -> None:
    aio = group.aio
    assert_type(aio, AsyncGroup)
    assert_type(await aio.send(1, 2, {"a": 1}), Receipt)
    assert_type(await aio.send_columns([1], np.array([2]), [{"a": 1}]), Receipts)
    assert_type(await aio.ask(1, 2, {"a": 1}, timeout=5), Message)
    async with await aio.fetch_messages(timeout=1) as messages:
        assert_type(messages[0], Message)
    async for answer in await aio.ask_columns([1], [2], {"a": 1}):
        assert_type(answer, Message)
    assert_type(await aio.agents(), list[int | str])
    await aio.send(1, {"a": 1})  # type: ignore[call-arg, arg-type]  # for no one


async def in_process(messager: Messager) -> None:
    async with messager as same:
        assert_type(same, Messager)
    assert_type(await messager.send_message("exps:e:agents:1:agent-chat", {"a": 1}, 1), Receipt)
    assert_type(await messager.send_messages([Outgoing.to_agent(1, {"a": 1})]), Receipts)
    assert_type(await messager.send_columns([1], np.array([2]), [{"a": 1}]), Receipts)
    fetched = await messager.fetch_messages(limit=3, timeout=1.0)
    assert_type(fetched, Messages)
    assert_type(fetched[0], Message)
    assert_type(fetched[:2], list[Message])
    assert_type(fetched.sent_at, NDArray[np.float64])
    async for message in messager:
        assert_type(message, Message)
        assert_type(message.from_id, int | str | None)
        assert_type(message.step, int | None)
        assert_type(message.id, str)
    assert_type(messager.get_log_list(), list[dict[str, Any]])
    assert_type(messager.get_user_payback_channel(), str)
    assert_type(await messager.ack(), None)
    async with messager.transaction() as tx:
        assert_type(tx, Transaction)
        assert_type(await tx.fetch_messages(limit=3, timeout=None), Messages)
        assert_type(tx.state, bytes | None)
        tx.state = b"state"
        tx.state = {"a": 1}  # type: ignore[assignment]  # no bytes
        assert_type(tx.send_message("exps:e:agents:1:agent-chat", {"a": 1}, 1), None)
        assert_type(tx.send_messages([Outgoing.to_agent(1, {"a": 1})]), None)
        assert_type(tx.send_columns([1], np.array([2]), [{"a": 1}]), None)
    assert_type(tx.receipts, Receipts)


def on_ray() -> None:
    with Messaging.start("e", redis=RedisConfig(server="localhost"), rules=[rules.BlackList([(1, None)])]) as messaging:
        assert_type(messaging, Messaging)
        group = messaging.create_group("g", range(10))
        assert_type(group, Group)
        assert_type(messaging.groups(), list[Group])
        assert_type(messaging.group_of("alice"), Group)
        receipt = group.send(1, 2, {"a": 1})
        assert_type(receipt, Receipt)
        assert_type(bool(receipt), bool)
        assert_type(receipt.rule, str | None)
        assert_type(receipt.consumption, float)
        with group.fetch_messages(timeout=1) as messages:
            assert_type(messages[0], Message)
        assert_type(group.agents, list[int | str])
        assert_type(group.send_columns([1], np.array([2]), [{"a": 1}]), Receipts)
        group.send(1, 2, {"a": 1}, topic="x")  # type: ignore[call-arg]  # no such argument
        assert_type(group.stats(), dict[str, Any])
        assert_type(messaging.log, EventLog)
        assert_type(next(messaging.log.tail()), LogRow)
        assert_type(messaging.log.stats(), dict[str, Any])
        listener = messaging.on_blocked(lambda event: event.reason)
        assert_type(listener, BlockedListener)
        assert_type(listener.cursor, int)
    assert_type(Messaging.connect("e"), Messaging)
    assert_type(EventLog.open("folder"), EventLog)


class Mood(msgspec.Struct):
    mood: int


def surveys(messaging: Messaging) -> None:
    survey = messaging.create_survey(Mood, question={"text": "How are you?"})
    assert_type(survey, Survey[Mood])
    assert_type(survey.wait().answers, dict[int | str, Mood])
    assert_type(messaging.survey("moods", Mood), Survey[Mood])
    assert_type(messaging.survey("moods"), Survey[dict[str, Any]])
    for agent, answer in survey:
        assert_type(agent, int | str)
        assert_type(answer, Mood)


async def blocked(messaging: Messaging) -> None:
    async for event in messaging.blocked(after=0):
        assert_type(event, BlockedMessage)
        assert_type(event.cursor, int)
        assert_type(event.from_id, int | str | None)
        assert_type(event.rule, str | None)


def agentscope(message: Message) -> None:
    msg = Msg("A", ["any"], "user", url=["u"], metadata={"a": 1}, host="unused")
    assert_type(msg.role, Literal["system", "user", "assistant"])
    assert_type(msg.content, Any)
    assert_type(msg.url, str | list[str] | None)
    assert_type(msg.metadata, str | dict[str, Any] | None)
    assert_type(msg.timestamp, str)
    assert_type(msg.formatted_str(colored=True), str)
    assert_type(msg.to_dict(), dict[str, Any])
    assert_type(Msg.from_dict({}), Msg)
    assert_type(message.msg, Msg | None)
    assert_type(rules.rewrite(msg), rules.Verdict)
    assert_type(Outgoing.to_agent(1, msg), Outgoing)
    msg.role = "system"
    msg.role = "admin"  # type: ignore[assignment]  # none of the three


class Mine(rules.Rule):
    def check(self, message: Message) -> rules.Verdict:
        assert_type(rules.block("why"), rules.Verdict)
        assert_type(rules.rewrite({}, "label"), rules.Verdict)
        return rules.label("tag") if message.labels else rules.ALLOW


async def on_mqtt() -> None:
    inferred = [(f"exps/e/agents/{agent}/#", 1) for agent in range(2)]
    MqttMessager.remote("broker", port=1883)
    MqttMessager.options(num_cpus=0).remote(hostname="broker")
    async with MqttMessager(MqttConfig(server="broker"), name="n") as messager:
        assert_type(messager, MqttMessager)
        assert_type(await messager.is_connected(), bool)
        await messager.subscribe([("exps/e/agents/1/#", 1)], [1])
        await messager.subscribe(["exps/e/agents/1/#"], [1])
        await messager.subscribe("exps/e/agents/1/#", "1")
        await messager.subscribe(["exps/e/agents/1/#", ("news", 0)], [1])
        await messager.subscribe(("news", "weather"), None)
        await messager.subscribe(inferred, [1])
        await messager.subscribe({"news": 1}, None)  # type: ignore[arg-type]  # no sequence
        assert_type(await messager.send_message("exps/e/agents/1/agent-chat", {"a": 1}, "2", "1"), Receipt)
        assert_type(await messager.fetch_messages(timeout=None), list[aiomqtt.Message])
        assert_type(messager.get_log_list(), list[dict[str, Any]])


def person(me: Agent, inbox: Messages) -> None:
    assert_type(me.id, int | str)
    assert_type(me.state, dict[str, Any])
    assert_type(me.rng, np.random.Generator)
    assert_type(me.step, int)
    assert_type(me.ask(3, {"text": "home?"}), str)
    for message in inbox:
        assert_type(message, Message)
        me.reply(message, {"text": "yes"})
    me.state["mood"] = inbox.column("mood").mean() + me.shared["base"] + me.data["age"]
    for friend in me.neighbours:
        me.send(friend, {"mood": me.state["mood"]}, deliver_at=me.step + 2)
    me.sned(3, {"text": "hi"})  # type: ignore[attr-defined]  # no such call


async def ask_model(prompt: str, *, warmth: float = 1.0) -> str:
    return prompt if warmth else ""


async def thinker(me: Agent, inbox: Messages) -> None:
    assert_type(await me.remember(ask_model, "Who are you?", warmth=0.5), str)
    assert_type(await me.remember(len, inbox), int)
    await me.remember(ask_model, 3)  # type: ignore[call-overload]  # a prompt is a text


def crowd(group: Crowd, step: Step) -> None:
    assert_type(group.state, dict[str, NDArray[Any]])
    assert_type(group.uniform(2), NDArray[np.float64])
    assert_type(step.messages, Messages)
    assert_type(step.number, int)


def untyped(me, inbox):  # type: ignore[no-untyped-def]
    me.anything()


def mood(me: Agent) -> dict[str, Any]:
    return {"mood": me.state["mood"]}


def moods(group: Crowd) -> dict[str, Any]:
    return {"mood": group.state["mood"]}


def in_steps(messaging: Messaging, given: Iterator[UUID]) -> None:
    result = messaging.run(person, agents=10, until=5, start=mood, graph=[(1, 2)], collect=[Mean("a"), Count("b")])
    assert_type(result, Result)
    assert_type(result.states, dict[int | str, dict[str, Any]])
    assert_type(result.states[3]["mood"], Any)
    messaging.run(thinker, agents=["ann", "bob"], groups={"a": ["ann"], "b": ("bob",)}, until=5, timeout=3.0)
    messaging.run(untyped, agents=[1, "ann"], until=5, by="agent", start=lambda me: {"id": me.id}, collect=mood)
    messaging.run(person, agents=np.arange(3), until=5, graph=np.zeros((3, 2), np.int64), collect=lambda me: {"n": 1})
    messaging.run(person, agents=pd.DataFrame({"age": [1]}), until=5, graph=pd.DataFrame({"a": [1], "b": [2]}))
    messaging.run(person, agents=pd.Index([1, 2]), until=5, graph=nx.path_graph(3), only_active=True)
    messaging.run(person, agents=(agent for agent in range(3)), until=5, graph="friends", collect=Count("side"))
    messaging.run(person, agents={1, 2}, until=5, graph=messaging.audience("friends"), groups=2, shared=object())
    messaging.run(crowd, agents=range(10), until=5, by="group", start=moods, collect=moods, progress=False)
    messaging.run(person, agents=[uuid4()], until=5, graph=[(uuid4(), uuid4())], groups={"a": [np.int64(3)]})
    messaging.run(person, agents=[np.int64(3)], until=5, graph=[np.array([1, 2]), np.array([2, 1])])
    messaging.run(person, agents=given, until=5, graph=[[np.int64(3), "ann"]])
    messaging.run(crowd, agents=range(10), until=5, by="group", collect=[Mean("mood"), Of([7], Count("side"))])
    standing = messaging.start_run(person, agents=10, collect=Of([7, "ann"], mood))
    assert_type(standing, Run)
    assert_type(standing.states(), dict[int | str, dict[str, Any]])
    assert_type(messaging.start_run(crowd, agents=10, by="group"), Run)
    assert_type(messaging.ask_columns([1, 2], {"text": "home?"}), GroupAnswers)
    assert_type(run(person, agents=10, until=5, seed=7, rules=[rules.MaxLength(5)]), Result)
    assert_type(run(crowd, agents=10, until=5, by="group", groups=2), Result)
    check_repeatable(person, agents=10, until=5, graph=[(1, 2)])
    check_repeatable(crowd, agents=10, until=5, by="group", start=moods)
    assert_type(ray_messaging.__version__, str)


def wrong_runs(messaging: Messaging) -> None:
    messaging.run(person, agents="oops", until=5)  # type: ignore[call-overload]  # a text is no list of ids
    messaging.run(person, agents=5, until=5, by="groups")  # type: ignore[call-overload]  # agent, or group
    messaging.run(person, agents=5, until=5, graph=3)  # type: ignore[call-overload]  # no edges
    messaging.run(person, agents=5, until=5, collect=7)  # type: ignore[call-overload]  # not a function
    messaging.run(person, agents=5, until=5, groups="two")  # type: ignore[call-overload]  # a number, or {name: ids}
    messaging.run(person, agents=5)  # type: ignore[call-overload]  # up to which step?
    messaging.run(person, agents=5, until=5, by="group")  # type: ignore[call-overload]  # this model is of one agent
    messaging.run(crowd, agents=5, until=5)  # type: ignore[arg-type]  # this model is of a group
    messaging.run(crowd, agents=5, until=5, by="group", timeout=1)  # type: ignore[call-overload]  # of agents' calls
    messaging.run(person, agents=5, until=5, start=moods)  # type: ignore[arg-type]  # of a group
    messaging.run(person, agents=5, until=5, colect=mood)  # type: ignore[call-overload]  # no such argument
    messaging.run(len, agents=5, until=5)  # type: ignore[arg-type]  # a model has two arguments
    messaging.start_run(person, agents="oops")  # type: ignore[call-overload]
    messaging.start_run(person, agents=5, by="groups")  # type: ignore[call-overload]
    run(person, agents="oops", until=5)  # type: ignore[call-overload]
    run(crowd, agents=5, until=5, by="groups")  # type: ignore[call-overload]
    check_repeatable(person, agents="oops", until=5)  # type: ignore[arg-type]
    check_repeatable(person, agents=5, until=5, by="groups")  # type: ignore[arg-type]
