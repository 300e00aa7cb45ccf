"""The public face as a type checker sees it; mypy reads this, nobody runs it."""

from dataclasses import dataclass
from typing import Any, Literal, assert_type

import aiomqtt
import msgspec
import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel

from ray_messaging import (
    AsyncGroup,
    BlockedListener,
    BlockedMessage,
    EventLog,
    Group,
    LogRow,
    Message,
    Messager,
    Messages,
    Messaging,
    Msg,
    Outgoing,
    Receipt,
    Receipts,
    RedisConfig,
    Survey,
    rules,
)
from ray_messaging.compat.mqtt import Messager as MqttMessager
from ray_messaging.compat.mqtt import MqttConfig
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
