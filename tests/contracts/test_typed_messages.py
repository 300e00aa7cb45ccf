"""Pydantic models, msgspec.Structs and dataclasses as payloads, sent and read by every door of a messager."""

import asyncio
import dataclasses
import math

import msgspec
import pydantic
import pytest
from support.contracts import WAIT_S, fetch_all, fetch_batch

from ray_messaging import Outgoing, columns
from ray_messaging.errors import FrameError, InvalidPayload, PayloadMismatch


class Offer(pydantic.BaseModel):
    price: float
    text: str = ""


class Bid(msgspec.Struct):
    price: float
    text: str = ""


@dataclasses.dataclass
class Deal:
    price: float
    text: str = ""


KINDS = [Offer, Bid, Deal]


@pytest.mark.parametrize("kind", KINDS)
async def test_objects_are_sent_and_read(messagers, kind):
    sender, receiver = await messagers(), await messagers(host=[1, 2])
    made = [kind(price=n, text="你好\n") for n in range(7)]
    channel = sender.get_agent_chat_channel(1)
    await sender.send_message(channel, made[0], from_id=9)
    await sender.send(9, 1, made[1])
    await sender.send_messages([Outgoing(channel, made[2], 9), Outgoing.to_agents([1, 2], made[3], 9)])
    await sender.send_columns([9, 9], [1, 2], made[4:6])
    await sender.send_columns(9, [1, 2], made[6])
    found = await fetch_batch(receiver, 9)
    assert found.to(kind) == [message.to(kind) for message in found] == [made[n] for n in (0, 1, 2, 3, 3, 4, 5, 6, 6)]
    assert found[0].payload == {"price": 0.0, "text": "你好\n"}
    assert sender.get_log_list()[0]["payload"] == found[0].payload


async def test_objects_are_asked_and_answered(messagers):
    west, east = await messagers(name="west", host=[1]), await messagers(name="east", host=[11])

    async def answer():
        (question,) = await fetch_all(east, 1)
        await east.reply(question, Bid(question.to(Offer).price * 2))

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(answer())
        found = await west.ask(1, 11, Offer(price=4), timeout=WAIT_S)
    assert found.to(Bid) == Bid(8.0)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_payload_of_another_form_names_agent_message_and_field(messagers, kind):
    sender, receiver = await messagers(), await messagers(host=[1])
    receipt = await sender.send(9, 1, {"price": "dear"})
    messages = await receiver.fetch_messages(timeout=WAIT_S)
    for read in (messages[0].to, messages.to):
        with pytest.raises(PayloadMismatch, match=rf"of agent 9 on .* does not fit {kind.__name__}: price: ") as caught:
            read(kind)
        error = caught.value
        assert (error.agent, error.message_id, error.field) == (9, receipt.message_id, "price")
        assert isinstance(error, InvalidPayload)


@pytest.mark.parametrize("kind", KINDS)
async def test_typed_columns_are_read_as_objects(messagers, kind):
    sender, receiver = await messagers(), await messagers(host=[1])
    await sender.send_columns(9, [1, 1], columns(price=[1.5, math.nan], text=["a", "b"]))
    first, second = (await receiver.fetch_messages(timeout=WAIT_S)).to(kind)
    assert first == kind(price=1.5, text="a")
    assert math.isnan(second.price)
    await sender.send_columns(9, [1], columns(price=["dear"]))
    with pytest.raises(PayloadMismatch) as caught:
        (await receiver.fetch_messages(timeout=WAIT_S)).to(kind)
    assert caught.value.field == "price"


async def test_what_is_no_json_is_a_frame_error(messagers, store, news):
    receiver = await messagers(listen=[news])
    await store.publish(news, b"no JSON")
    (message,) = await fetch_all(receiver, 1)
    for kind in KINDS:
        with pytest.raises(FrameError, match="is not JSON"):
            message.to(kind)
