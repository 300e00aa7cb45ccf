"""Sends that wait for capacity while a schema comes: they are checked by it before they are written."""

import asyncio
from functools import partial

import msgspec
import pytest
from support.contracts import WAIT_S, until
from support.schemas import relay, set_schema

from ray_messaging import columns
from ray_messaging.errors import PayloadMismatch


class Offer(msgspec.Struct):
    price: float


@pytest.mark.parametrize("way", ["columns", "questions", "relay"])
async def test_a_send_that_waits_for_capacity_is_checked_by_a_schema_that_came_meanwhile(opener, local, way):
    receiver, sender = await opener(local, host=[1, 2]), await opener(local, name="sender")
    await sender.send(7, 1, {"price": "dear"}, subtopic="offers")  # so that it has a directory without schemas
    capacity = sender.engine.accumulator.capacity
    capacity.rows += capacity.max_rows
    rows = [7, 8], [1, 2], columns(price=["a", "b"])
    sends = {
        "columns": partial(sender.send_columns, *rows, subtopic="offers"),
        "questions": partial(sender.ask_columns, *rows, subtopic="offers", timeout=WAIT_S),
        "relay": partial(relay, sender, *rows, "offers"),
    }
    waiting = asyncio.create_task(sends[way]())
    await until(lambda: capacity.waited_for)
    await set_schema(receiver, "offers", Offer)
    await sender.engine.frame_sender.refresh()
    capacity.give_back(capacity.max_rows, 0)
    with pytest.raises(PayloadMismatch, match="price"):
        await waiting
