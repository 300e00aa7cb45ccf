"""Fates of messages, and their order."""

import asyncio
import gc
import pickle
from collections import Counter

import numpy as np
import pandas as pd
import pytest
from support.contracts import fetch_all, numbers, take_in
from support.interceptors import interceptor_with
from support.rules import Only, allow

from ray_messaging import Messager, Outgoing, rules


async def test_a_message_is_delivered(messagers):
    sender, receiver = await messagers(), await messagers(host=[2])
    channel = sender.get_agent_chat_channel(2)
    receipt = await sender.send_message(channel, {"text": "hi"}, from_id=1)
    said = receipt.fate, receipt.sent, bool(receipt), receipt.rule, receipt.reason
    assert said == ("delivered", True, True, None, None)
    assert receipt.consumption >= 0
    (message,) = await fetch_all(receiver, 1)
    assert (message.id, message.from_id, message.to_id, message.payload) == (receipt.message_id, 1, 2, {"text": "hi"})
    assert (message.channel, message.subtopic) == (channel, "agent-chat")


async def test_receipts_and_the_local_log_have_the_fate_of_each_message_of_a_batch(messagers, store):
    sender = await messagers(interceptor_with(rules.BlackList([(1, 13)])))
    await messagers(host=[2, 13])
    await store.subscribe("elsewhere")
    to = [Outgoing.to_agents([2, 13, "x"], {"n": 1}, from_id=1), Outgoing("elsewhere", {"n": 2}, from_id="ann")]
    receipts = await sender.send_messages([*to, Outgoing.to_agent(2, {"n": 3})])
    fates = ["delivered", "blocked", "undeliverable", "published", "delivered"]
    assert receipts.fates.tolist() == fates
    assert Counter(receipts.counts()) == Counter(fates)
    assert receipts.sent.tolist() == [True, False, False, True, True]
    assert receipts.blocked_by() == {"black_list": 1}
    assert len(set(receipts.message_ids)) == 5
    assert [receipt.message_id for receipt in receipts] == receipts.message_ids
    assert receipts[-1].fate == "delivered"
    assert [receipt.fate for receipt in receipts[1:3]] == ["blocked", "undeliverable"]
    with pytest.raises(IndexError):
        receipts[5]
    frame = receipts.to_pandas()
    assert (frame["fate"].tolist(), frame["message_id"].tolist()) == (fates, receipts.message_ids)
    assert frame["rule"].dropna().to_dict() == {1: "black_list"}
    rows = sender.get_log_list()
    told = [(row["fate"], row["sent"], row["message_id"]) for row in rows]
    assert told == [*zip(fates, receipts.sent.tolist(), receipts.message_ids, strict=True)]
    said = [(row["payload"]["n"], row["from_id"], row["to_id"]) for row in rows]
    assert said == [(1, 1, 2), (1, 1, 13), (1, 1, "x"), (2, "ann", None), (3, None, 2)]
    assert rows[1]["rule"] == "black_list"
    assert "may not write" in rows[1]["reason"]
    assert rows[3]["channel"] == "elsewhere"
    assert all(row["start_time"] > 1e9 and row["consumption"] >= 0 for row in rows)
    sender.clear_log_list()
    assert sender.get_log_list() == []


async def test_two_thousand_agents_await_their_sends(messagers):
    sender, receiver = await messagers(), await messagers(host=range(2000))
    channels = [sender.get_agent_chat_channel(agent) for agent in range(2000)]

    async def run(agent):
        return [await sender.send_message(channels[agent - 7], {"k": k}, from_id=agent) for k in range(3)]

    receipts = await asyncio.gather(*map(run, range(2000)))
    assert all(receipt.fate == "delivered" for each in receipts for receipt in each)
    ids = [receipt.message_id for each in receipts for receipt in each]
    assert len(set(ids)) == 6000
    got = await fetch_all(receiver, 6000)
    assert {message.id for message in got} == set(ids)
    assert sender.stats()["outbox"] == 0
    assert sender.stats()["batches"] < 200  # they shared batches


async def test_a_fan_out_sends_its_payload_once(messagers, store):
    sender, receiver = await messagers(), await messagers(host=range(500), name="hall")
    text = "x" * 1000
    _, receipts, _ = await asyncio.gather(  # beside others in its batch
        sender.send_message(sender.get_agent_chat_channel(7), {"n": 1}),
        sender.send_messages([Outgoing.to_agents(range(500), {"text": text}, from_id=1)]),
        sender.send_message(sender.get_agent_chat_channel(8), {"n": 2}),
    )
    assert receipts.counts()["delivered"] == 500
    first, *fan, last = await fetch_all(receiver, 502)
    assert [(message.to_id, message.payload) for message in (first, last)] == [(7, {"n": 1}), (8, {"n": 2})]
    assert [message.to_id for message in fan] == list(range(500))
    assert all(message.payload == {"text": text} for message in fan)
    assert sum(frame.count(text.encode()) for frame in await store.entries("hall")) == 1


async def test_a_message_is_delivered_when_every_mailbox_of_its_channel_has_it(messagers):
    sender = await messagers()
    free, tight = await messagers(listen=["news"]), await messagers(listen=["news"], mailbox_messages=4)
    sent = [await sender.send_message("news", {"n": n}) for n in range(4)]
    fifth = asyncio.create_task(sender.send_messages([Outgoing("news", {"n": 4}), Outgoing("nobody", {})]))
    found = await fetch_all(free, 5)  # the free one has it
    assert [message.id for message in found[:4]] == [receipt.message_id for receipt in sent]
    await sender.send(None, 1, {})  # behind it: its answer is there
    assert not fifth.done()
    assert numbers(await fetch_all(tight, 4)) == [0, 1, 2, 3]
    await tight.ack()
    assert (await fifth).fates.tolist() == ["delivered", "undeliverable"]
    assert numbers(await fetch_all(tight, 1)) == [4]
    assert len(await free.fetch_messages()) == 0


async def test_empty_sends_return_empty_receipts(messagers):
    sender = await messagers()
    for receipts in (
        await sender.send_messages([]),
        await sender.send_messages([Outgoing.to_agents([], {})]),
        await sender.send_columns([], [], []),
    ):
        assert len(receipts) == 0
        assert {*receipts.counts().values()} == {0}
        assert receipts.message_ids == []
        assert receipts.fates.tolist() == []


async def test_the_next_send_reaches_a_new_listener(messagers):
    sender = await messagers()
    assert (await sender.send(None, 5, {"n": 0})).fate == "undeliverable"
    receiver = await messagers(host=[5])
    assert (await sender.send(None, 5, {"n": 1})).fate == "delivered"
    await receiver.subscribe_and_start_listening(["news"])
    assert (await sender.send_message("news", {"n": 2})).fate == "delivered"
    await receiver.host_agents([6], ["agent-chat"])
    assert (await sender.send_message(sender.get_agent_chat_channel(6), {"n": 3})).fate == "delivered"
    assert [message.payload["n"] for message in await fetch_all(receiver, 3)] == [1, 2, 3]


@pytest.mark.parametrize("end", [Messager.flush, Messager.close], ids=["flush", "close"])
async def test_flush_and_close_send_what_was_accepted(messagers, end):
    sender, receiver = await messagers(), await messagers(host=[1])
    sends = [asyncio.create_task(sender.send(None, 1, {"n": n})) for n in range(50)]
    await asyncio.sleep(0)
    await end(sender)
    assert (sender.stats()["outbox"], len(sender.get_log_list())) == (0, 50)
    assert all(receipt.fate == "delivered" for receipt in await asyncio.gather(*sends))
    await fetch_all(receiver, 50)


async def test_messages_carry_the_senders_step(messagers):
    sender, receiver = await messagers(), await messagers(host=[1])
    sends = []
    for step in (1, 1, np.int64(2), None):  # in one batch
        sender.step = step
        assert sender.step == step
        sends.append(asyncio.create_task(sender.send(None, 1, {})))
        await asyncio.sleep(0)
    await asyncio.gather(*sends)
    sender.step = 9
    await sender.send_columns([1], [1], [{}])
    assert [message.step for message in await fetch_all(receiver, 5)] == [1, 1, 2, None, 9]


async def test_log_list_is_bounded(messagers):
    sender, silent = await messagers(log_list_messages=10), await messagers(log_list_messages=0)
    for n in range(8):
        await sender.send_message("nowhere", {"n": n})
    await sender.send_columns([1] * 5, [2] * 5, [{"n": n} for n in range(8, 13)])
    assert [row["payload"]["n"] for row in sender.get_log_list()] == list(range(3, 13))
    assert sender.stats()["log_dropped"] == 3
    await sender.send_columns([1] * 25, [2] * 25, [{"n": n} for n in range(25)])
    assert [row["payload"]["n"] for row in sender.get_log_list()] == list(range(15, 25))
    assert sender.stats()["log_dropped"] == 28
    await silent.send_message("nowhere", {})
    assert silent.get_log_list() == []


async def test_a_message_looks_like_redis_pys_dict(messagers):
    sender, receiver = await messagers(), await messagers(host=[1])
    await sender.send_message(sender.get_agent_chat_channel(1), {"a": [1, None]}, from_id=3)
    (message,) = await fetch_all(receiver, 1)
    channel, data = message.channel.encode(), b'{"a":[1,null]}'
    assert dict(message) == {"type": "message", "pattern": None, "channel": channel, "data": data}
    assert message.get("data") == message.data
    assert message.get("nothing", 7) == 7
    assert "data" in message
    assert "nothing" not in message
    assert set(message.keys()) == set(message)
    with pytest.raises(KeyError):
        message["nothing"]


async def test_received_columns_and_pandas(messagers):
    sender, receiver = await messagers(), await messagers(host=["ann", 1])
    sender.step = 5
    await sender.send_columns([7, 8], [1, 1], [{"n": 1}, {"n": 2}])
    sender.step = None
    await sender.send_message(sender.get_user_chat_channel("ann"), {"n": 3})
    await take_in(receiver, 3)
    messages = await receiver.fetch_messages()
    assert messages.from_ids.tolist() == [7, 8, None]
    assert messages.to_ids.tolist() == [1, 1, "ann"]
    assert messages.steps.tolist() == [5, 5, None]
    assert messages.payloads == [{"n": 1}, {"n": 2}, {"n": 3}]
    assert messages.data == [message.data for message in messages]
    assert (messages.sent_at > 1e9).all()
    assert [message.sent_at for message in messages] == messages.sent_at.tolist()
    frame = messages.to_pandas()
    assert frame["from_id"].tolist() == [7, 8, pd.NA]
    assert frame["from_id"].dtype == pd.Int64Dtype()
    assert frame["payload"].tolist() == messages.payloads
    assert frame["message_id"].tolist() == [message.id for message in messages]
    assert frame["subtopic"].tolist() == ["agent-chat", "agent-chat", "user-chat"]
    assert [at.timestamp() for at in frame["sent_at"]] == pytest.approx(messages.sent_at.tolist(), abs=1e-6)
    assert str(frame["sent_at"].dtype.tz) == "UTC"
    assert frame["channel"].tolist() == [message.channel for message in messages]
    assert messages[-1].to_id == "ann"
    assert [message.to_id for message in messages[:2]] == [1, 1]
    with pytest.raises(IndexError):
        messages[3]
    empty = await receiver.fetch_messages()
    assert (len(empty), empty.from_ids.tolist(), empty.data) == (0, [], [])
    assert len(empty.to_pandas()) == 0


async def test_messages_and_receipts_pickle(messagers):
    sender, receiver = (
        await messagers(interceptor_with(Only(allow), rules.BlackList([(4, 1)]))),
        await messagers(host=[1]),
    )
    receipts = await sender.send_columns([3, 4], [1, 1], [{"n": 1}, {"n": 2}])
    copy = pickle.loads(pickle.dumps(receipts))
    assert copy.fates.tolist() == ["delivered", "blocked"]
    assert copy.message_ids == receipts.message_ids
    one = pickle.loads(pickle.dumps(receipts[1]))
    assert (one.fate, one.rule, one.reason) == ("blocked", "black_list", receipts[1].reason)
    await take_in(receiver, 1)
    messages = await receiver.fetch_messages()
    copies = pickle.loads(pickle.dumps(messages))
    assert copies.payloads == [{"n": 1}]
    assert copies[0].id == messages[0].id
    message = pickle.loads(pickle.dumps(messages[0]))
    assert (message.id, message.payload, message.channel) == (messages[0].id, {"n": 1}, messages[0].channel)


async def test_sent_messages_are_freed_without_the_garbage_collector(messagers):
    sender, receiver = await messagers(log_list_messages=0), await messagers(host=[1])

    async def send():
        await sender.send(2, 1, {"t": "x" * 100_000})
        assert len(await receiver.fetch_messages(timeout=10)) == 1

    await send()
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        for _ in range(5):
            await send()
        gc.collect()
        cycles = list(gc.garbage)
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
    kept = [len(part) for part in gc.get_referents(*cycles) if isinstance(part, bytes | bytearray)]
    assert sum(kept) < 50_000, "frames wait for the garbage collector"


async def test_frames_to_many_mailboxes_name_only_their_own_agents(messagers, store):
    sender = await messagers()
    names = [[f"agent-number-{box}-{n:04}-{'x' * 100}" for n in range(50)] for box in range(10)]
    for box, hosted in enumerate(names):
        await messagers(name=f"box-{box}", host=hosted)
    ids = [name for row in zip(*names, strict=True) for name in row]
    receipts = await sender.send_columns(ids, ids, {"n": 1})
    assert receipts.counts()["delivered"] == 500
    for box, hosted in enumerate(names):
        (frame,) = await store.entries(f"box-{box}")
        assert len(frame) < 2 * sum(map(len, hosted)) + 50 * 40 + 200
        assert not any(f"agent-number-{other}-".encode() in frame for other in range(10) if other != box)
