"""AgentScope's Msg as a payload: accepted wherever a dict is, and received as it was sent."""

import json
import pickle

import numpy as np
import pytest
from support.contracts import fetch_all
from support.interceptors import interceptor_with
from support.rules import Only

from ray_messaging import Msg, Outgoing, rules
from ray_messaging.errors import InvalidColumns, InvalidMsg, InvalidPayload


def said(content="B", role="user", **fields):
    return Msg("A", content, role, **fields)


async def test_a_msg_arrives_unchanged(messagers):
    sender, receiver = await messagers(), await messagers(host=[1])
    msg = said({"text": "你好\n", "n": [1, None]}, url=["u", "v"], metadata={"mood": "glad"})
    receipt = await sender.send_message(sender.get_agent_chat_channel(1), msg, from_id=2)
    assert receipt.fate == "delivered"
    (message,) = await fetch_all(receiver, 1)
    assert message.msg == msg
    assert message.msg is message.msg
    assert message.payload == msg.to_dict()
    assert json.loads(message["data"].decode()) == msg.to_dict()
    assert pickle.loads(pickle.dumps(message)).msg == msg
    (row,) = sender.get_log_list()
    assert row["payload"] == msg.to_dict()
    assert row["sent"]


async def test_other_payloads_have_no_msg(messagers, store, news):
    sender, receiver = await messagers(), await messagers(host=[1], listen=[news])
    await sender.send_message(sender.get_agent_chat_channel(1), {"content": "B", "role": "user"})
    await sender.send_message(news, said().to_dict() | {"__name__": "Thought"})
    for data in (b"no JSON", b"[1]", b'"text"', b"null"):
        await store.publish(news, data)
    assert [message.msg for message in await fetch_all(receiver, 6)] == [None] * 6


async def test_bulk_sends_and_columns_take_msgs_among_dicts(messagers):
    sender, receiver = await messagers(), await messagers(host=[1, 2, 3])
    one, shared, plain = said("one"), said("to all", "system"), {"plain": True}
    receipts = await sender.send_messages(
        [
            Outgoing.to_agent(1, one, from_id=9),
            Outgoing(sender.get_agent_chat_channel(2), plain, 9),
            Outgoing.to_agents([1, 2, 3], shared, from_id=9),
        ]
    )
    assert list(receipts.fates) == ["delivered"] * 5
    await sender.send_columns([9, 9, 9], np.array([1, 2, 3]), [one, plain, shared])
    await sender.send_columns(9, [1, 2, 3], one)
    await sender.send_columns(9, [1, 2, 3], (one, one, shared))
    found = await fetch_all(receiver, 14)
    assert [message.to_id for message in found] == [1, 2, 1, 2, 3] + [1, 2, 3] * 3
    sent = [one, None, shared, shared, shared, one, None, shared, one, one, one, one, one, shared]
    assert [message.msg for message in found] == sent


async def test_agentscope_and_we_read_each_others_msgs(messagers, store):
    # A foreign client sends what AgentScope's to_dict made, in its order, and listens with a Redis client of its own.
    receiver = await messagers(host=[1])
    heard = await store.subscribe("agentscope")
    msg = said("from far")
    written = dict(reversed(msg.to_dict().items()))
    await store.publish(receiver.get_user_chat_channel(1), json.dumps(written, indent=1).encode())
    (message,) = await fetch_all(receiver, 1)
    assert message.msg == msg
    assert (await receiver.send_message("agentscope", message.msg)).fate == "published"
    _, data = await heard()
    assert json.loads(data) == written


async def test_an_invalid_msg_raises(messagers, store):
    receiver = await messagers(host=[1])
    written = said().to_dict()
    del written["url"]
    await store.publish(receiver.get_user_chat_channel(1), json.dumps(written).encode())
    await store.publish(receiver.get_user_chat_channel(1), json.dumps(said().to_dict() | {"role": "admin"}).encode())
    first, second = await fetch_all(receiver, 2)
    with pytest.raises(InvalidMsg, match="lacks 'url'"):
        _ = first.msg
    with pytest.raises(InvalidMsg, match="'admin'"):
        _ = second.msg
    assert first.payload == written


async def test_an_invalid_msg_in_a_batch_refuses_the_whole_batch(messagers):
    sender, receiver = await messagers(), await messagers(host=[1])
    bad = said(b"bytes")
    with pytest.raises(InvalidPayload, match="the content of this Msg"):
        await sender.send_message(sender.get_agent_chat_channel(1), bad)
    with pytest.raises(InvalidPayload, match="the content of this Msg"):
        await sender.send_messages([Outgoing.to_agent(1, {}), Outgoing.to_agent(1, bad)])
    with pytest.raises(InvalidPayload, match="row 1: the content of this Msg"):
        await sender.send_columns(9, [1, 1], [said(), bad])
    with pytest.raises(InvalidColumns, match="dicts, Msgs"):
        await sender.send_columns(9, [1, 1], 5)
    assert len(await receiver.fetch_messages()) == 0


async def test_rules_read_and_rewrite_msgs(messagers):
    def judge(message):
        msg = message.msg
        if msg is None:
            return rules.ALLOW
        if msg.role == "system":
            return rules.block(f"{msg.name} is no system")
        msg.content = msg.content.upper()
        return rules.rewrite(msg)

    sender, receiver = await messagers(interceptor_with(Only(judge, needs_payload=True))), await messagers(host=[1])
    msgs = [said("one"), said("two", "system")]
    receipts = await sender.send_columns(9, [1, 1, 1], [*msgs, {"plain": True}])
    assert list(receipts.fates) == ["delivered", "blocked", "delivered"]
    assert receipts[1].reason == "A is no system"
    first, second = await fetch_all(receiver, 2)
    assert first.msg.to_dict() == msgs[0].to_dict() | {"content": "ONE"}
    assert second.payload == {"plain": True}


async def test_a_pattern_checks_only_a_msgs_content(messagers):
    # The first Msg's content has none of these words; its class, role, id and time would match each of them.
    rule = rules.Pattern(["user", "agentscope", "msg"], [r"\d+"], action="mask")
    sender, receiver = await messagers(interceptor_with(rule)), await messagers(host=[1])
    clean, spoken, hidden = said("fine"), said("user 7"), said("fine")
    hidden.id, hidden.timestamp = "msg", "user at 2026-01-01 00:00:00"
    await sender.send_columns(9, [1, 1, 1], [clean, spoken, hidden])
    first, second, third = [message.msg for message in await fetch_all(receiver, 3)]
    assert first == clean
    assert second.to_dict() == spoken.to_dict() | {"content": "*** ***"}
    assert (third.id, third.timestamp, third.role) == ("***", "*** at ***-***-*** ***:***:***", "user")


async def test_forward_takes_a_msg():
    interceptor = interceptor_with(rules.Pattern(["bad"], field="content"))
    assert await interceptor.forward(1, 2, said("good"))
    assert not await interceptor.forward(1, 2, said("bad"))
