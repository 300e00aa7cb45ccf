"""Random programs of senders and consumers whose calls are cut at any moment, by handles of groups on Ray."""

import asyncio
import random

import pytest
from support.cluster import new_handle
from support.random_traffic import Program


@pytest.mark.long
@pytest.mark.parametrize("seed", range(20))
async def test_each_message_is_handled_once_and_in_order_for_each_pair(messaging, pair, seed):
    west, east = pair
    choose = random.Random(seed)
    senders = [new_handle(west).aio for _ in range(choose.randint(1, 3))]
    consumers = [new_handle(east).aio for _ in range(choose.randint(1, 3))]
    program = Program(seed, [(a, b) for a in west.agents[:3] for b in east.agents[:2]])
    await program.run(senders, consumers)

    async def waiting():
        return (await asyncio.to_thread(messaging.stats))["waiting"][east.name]

    await program.drain(consumers, waiting)
    assert (await east.aio.stats())["lent"] == 0
