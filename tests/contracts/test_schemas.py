"""Schemas of subtopics: every door refuses a payload that does not fit, as soon as there is a schema."""

import asyncio
from contextlib import aclosing
from typing import Annotated, Literal

import msgspec
import numpy as np
import pydantic
import pytest
from support.contracts import WAIT_S, fetch_all
from support.schemas import relay, set_schema
from support.stepped import begin_steps

from ray_messaging import Outgoing, columns
from ray_messaging.errors import ConfigError, InvalidPayload, PayloadMismatch


class Offer(pydantic.BaseModel):
    price: Annotated[float, pydantic.Field(ge=0)]
    side: Literal["buy", "sell"] = "buy"


class Bid(msgspec.Struct, forbid_unknown_fields=True):
    price: float
    n: int = 0


GOOD, BAD = {"price": 1.5}, {"price": "dear"}


@pytest.fixture
async def pair(messagers):
    sender, receiver = await messagers(name="west"), await messagers(name="east")
    await receiver.host_agents([1, 2], ["offers", "bids", "agent-chat"])
    await sender.send(7, 1, GOOD, subtopic="offers")  # so that it has a directory without schemas
    return sender, receiver


async def refused(awaitable):
    with pytest.raises(PayloadMismatch) as caught:
        await awaitable
    assert isinstance(caught.value, InvalidPayload)
    return caught.value


async def test_what_does_not_fit_is_refused_at_once_and_nothing_of_it_is_sent(pair):
    sender, receiver = pair
    await set_schema(receiver, "offers", Offer)
    error = await refused(sender.send(7, 1, BAD, subtopic="offers"))
    assert (error.agent, error.field, error.subtopic) == (7, "price", "offers")
    assert "Expected `float`, got `str`" in str(error)
    await sender.send(7, 1, GOOD, subtopic="offers")
    await sender.send(7, 1, BAD, subtopic="agent-chat")
    found = await fetch_all(receiver, 3)
    assert [message.payload for message in found] == [GOOD, GOOD, BAD]
    assert not await receiver.fetch_messages(timeout=0.1)


async def test_every_door_refuses(pair):
    sender, receiver = pair
    await set_schema(receiver, "offers", Offer)
    await refused(sender.send(7, 1, BAD, subtopic="offers"))
    channel = f"exps:{sender.exp_id}:agents:1:offers"
    error = await refused(sender.send_messages([Outgoing(channel, GOOD, 7), Outgoing(channel, BAD, 8)]))
    assert (error.agent, error.row) == (8, 1)
    rows = 40_000
    payloads = [GOOD] * rows
    payloads[rows - 3] = {"price": -1}
    error = await refused(sender.send_columns(np.arange(rows), [1] * rows, payloads, subtopic="offers"))
    assert (error.agent, error.row, error.field) == (rows - 3, rows - 3, "price")
    await refused(sender.ask(7, 1, BAD, subtopic="offers", timeout=WAIT_S))
    await refused(sender.ask_columns(7, [1, 2], [GOOD, BAD], subtopic="offers", timeout=WAIT_S))
    with pytest.raises(PayloadMismatch):
        async with receiver.transaction() as tx:
            tx.send_message(channel, BAD, 1)
    assert len(await receiver.fetch_messages(timeout=0.1)) == 1


async def test_typed_columns_are_checked_by_their_types(pair):
    sender, receiver = pair
    await set_schema(receiver, "offers", Offer)
    await refused(sender.send(7, 1, BAD, subtopic="offers"))
    for bad, row, field in [
        (columns(price=["a", "b"]), None, "price"),
        (columns(side=["buy", "sell"]), None, "price"),
        (columns(price=[1.0, -2.0]), 1, "price"),
        (columns(price=[1.0, 2.0], side=["buy", "lend"]), 1, "side"),
        (columns(price=np.ones((2, 3))), None, "price"),
    ]:
        error = await refused(sender.send_columns([7, 8], [1, 2], bad, subtopic="offers"))
        assert (error.row, error.field, error.agent) == (row, field, 7 + (row or 0))
    good = columns(price=np.array([1, 2], np.int32), side=["buy", "sell"], more=[True, False])
    await sender.send_columns([7, 8], [1, 2], good, subtopic="offers")
    await set_schema(receiver, "bids", Bid)
    await refused(sender.send(7, 1, {"n": 1}, subtopic="bids"))
    error = await refused(sender.send_columns([7, 8], [1, 2], good, subtopic="bids"))
    assert (error.field, error.row) == ("side", None)


async def test_a_batch_under_way_is_checked_by_a_schema_that_came_meanwhile(pair):
    """The server refuses a call under an old directory, so nothing slips through."""
    sender, receiver = pair
    sends = [sender.send(7, 1, BAD if n % 2 else GOOD, subtopic="offers") for n in range(10)]
    await set_schema(receiver, "offers", Offer)
    results = await asyncio.gather(*sends, return_exceptions=True)
    assert [isinstance(result, PayloadMismatch) for result in results] == [bool(n % 2) for n in range(10)]
    columns_sent = sender.send_columns([7, 8], [1, 2], [GOOD, {"price": 1, "n": "x"}], subtopic="bids")
    await set_schema(receiver, "bids", Bid)
    error = await refused(columns_sent)
    assert (error.field, error.row, error.agent) == ("n", 1, 8)


async def test_a_schema_can_be_replaced_and_removed(pair):
    sender, receiver = pair
    await set_schema(receiver, "offers", Offer)
    await refused(sender.send(7, 1, BAD, subtopic="offers"))
    await set_schema(receiver, "offers", Bid)
    error = await refused(sender.send(7, 1, {"price": 1, "side": "buy"}, subtopic="offers"))
    assert error.field == "side"
    await set_schema(receiver, "offers", None)
    await sender.send(7, 1, BAD, subtopic="offers")


async def test_a_relayed_batch_is_refused_with_its_row(pair):
    sender, receiver = pair
    await set_schema(receiver, "offers", Offer)
    await refused(sender.send(7, 1, BAD, subtopic="offers"))
    error = await refused(relay(sender, [7, 8], [1, 2], [GOOD, BAD], "offers"))
    assert (error.agent, error.row, error.field) == (8, 1, "price")


async def test_a_schema_that_this_version_does_not_know_lets_nothing_pass(pair):
    sender, receiver = pair
    await set_schema(receiver, "offers", text=b'{"type":"object","not":{}}')
    with pytest.raises(ConfigError, match="schema of subtopic 'offers' cannot be used here"):
        await sender.send(7, 1, GOOD, subtopic="offers")


async def test_a_step_with_a_misfit_is_not_committed_and_runs_again(messagers):
    setup = await messagers(name="setup")
    await begin_steps(setup, seed=1, groups=1)
    await set_schema(setup, "offers", Offer)
    group = await messagers(name="group")
    await group.host_agents([5, 6], ["offers"])
    error = await refused(two_steps(group, BAD))
    assert (error.agent, error.field, error.subtopic) == (5, "price", "offers")
    assert await two_steps(group, GOOD) == [GOOD, GOOD]


async def two_steps(group, payload):
    """Send in step 0, and return the messages of step 1."""
    found = []
    async with aclosing(group.steps(until=2)) as steps:
        async for step in steps:
            found += [message.payload for message in step.messages]
            if step.number == 0:
                step.send_columns([6], [5], [GOOD], subtopic="offers")
                step.send(5, 6, payload, subtopic="offers")
    return found
