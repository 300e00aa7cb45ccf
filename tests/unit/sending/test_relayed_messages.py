"""Messages that handles have encoded one by one: they go in batches together, and each keeps what it had."""

import asyncio
import pickle

import pytest
from support.contracts import fetch_all
from support.frames import frames_of_sends
from support.patience import WAIT_S

from ray_messaging.errors import PayloadMismatch
from ray_messaging.interception.interceptor.interceptor import Interceptor
from ray_messaging.interception.rules import BlackList
from ray_messaging.message import Handled
from ray_messaging.model.json_types import described
from ray_messaging.outgoing import Outgoing
from ray_messaging.wire.frames import decode


def framed(messager, step, *messages):
    return frames_of_sends(messager.exp_id, messages, step)


@pytest.fixture
async def pair(opener, local):
    receiver = await opener(local, host=range(10))
    sender = await opener(local, Interceptor("x", [BlackList([(3, None)])]), name="sender")
    await sender.send(1, 9, {"n": -1})
    assert len(await receiver.fetch_messages(timeout=WAIT_S)) == 1
    return sender, receiver


async def test_many_calls_go_in_few_batches_and_keep_their_order_steps_and_times(pair):
    sender, receiver = pair
    calls = [framed(sender, n // 40, Outgoing.to_agent(n % 10, {"n": n}, from_id=n)) for n in range(100)]
    times = [decode(frame).sent_time(0) for [frame] in calls]
    sender.step = 77
    before = sender.stats()["batches"]
    own = sender.get_agent_chat_channel(5)
    sends = [sender.relay(frames) for frames in calls]
    sends.insert(50, sender.send_messages([Outgoing(own, {"n": 1000}, from_id=1)]))
    found = await asyncio.gather(*sends)
    blocked = found.pop(3)
    assert [receipts.fates.tolist() for receipts in found] == [["delivered"]] * 100
    assert (blocked[0].fate, blocked[0].rule) == ("blocked", "black_list")
    messages = await fetch_all(receiver, 100)  # on a busy machine they come by several fetches
    del calls[3], times[3]
    expected = [n for n in range(100) if n != 3]
    expected.insert(49, 1000)
    assert [message.payload["n"] for message in messages] == expected
    assert [message.id for message in messages] == [receipts[0].message_id for receipts in found]
    plain = [message for message in messages if message.payload["n"] < 1000]
    assert [message.step for message in plain] == [message.payload["n"] // 40 for message in plain]
    assert [message.sent_at for message in plain] == pytest.approx(times, abs=1e-6)
    assert [message.step for message in messages if message.payload["n"] == 1000] == [77]
    assert sender.stats()["batches"] - before < 10


async def test_a_receipt_is_of_its_own_call(pair):
    sender, _ = pair
    calls = [
        framed(sender, None, *(Outgoing.to_agent(to, {}, from_id=1) for to in to_ids)) for to_ids in ([1], [2, 50])
    ]
    one, two = await asyncio.gather(*map(sender.relay, calls))
    assert (len(one), len(two)) == (1, 2)
    assert len({*one.message_ids, *two.message_ids}) == 3
    copy = pickle.loads(pickle.dumps(two))
    assert copy.fates.tolist() == ["delivered", "undeliverable"]
    assert "agent 50" in copy[1].reason
    assert [len(outcome) for outcome, _, _ in copy.parts] == [2]


async def test_a_message_after_relayed_ones_keeps_its_own_cause(pair):
    sender, receiver = pair
    await sender.send(1, 5, {"n": 0})
    [question] = await receiver.fetch_messages(timeout=WAIT_S)

    async def handle():
        handled = Handled(question)
        await sender.send(1, 4, {"n": 2})
        handled.over = True

    relayed = framed(sender, None, *(Outgoing.to_agent(4, {"n": n}, from_id=1) for n in (0, 1)))
    await asyncio.gather(sender.relay(relayed), handle(), sender.relay(relayed))
    messages = await receiver.fetch_messages(timeout=WAIT_S)
    causes = [(message.payload["n"], message.caused_by) for message in messages]
    assert causes == [(0, None), (1, None), (2, question.id), (0, None), (1, None)]


async def test_a_call_that_is_refused_fails_alone(pair):
    sender, _ = pair
    await sender.engine.transport.set_schema("agent-chat", described(dict[str, int]))
    await sender.engine.frame_sender.reload()
    calls = [framed(sender, None, Outgoing.to_agent(1, {"n": n}, from_id=1)) for n in (1, "two", 3)]
    first, second, third = await asyncio.gather(*map(sender.relay, calls), return_exceptions=True)
    assert first.fates.tolist() == third.fates.tolist() == ["delivered"]
    assert isinstance(second, PayloadMismatch)
