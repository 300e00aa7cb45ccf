"""Turns of sends that wait for room in the outbox."""

import asyncio

from support.contracts import until
from support.interceptors import Foreign
from support.patience import WAIT_S


async def test_a_send_that_stops_waiting_for_room_lets_the_next_one_continue(messagers, monkeypatch):
    gate = asyncio.Event()
    interceptor = Foreign(lambda *_: gate.wait())
    sender = await messagers(interceptor, outbox_messages=1)
    first = asyncio.create_task(sender.send(1, 1, {"n": 0}))
    await until(lambda: interceptor.calls)
    second = asyncio.create_task(sender.send(1, 1, {"n": 1}))
    third = asyncio.create_task(sender.send(1, 1, {"n": 2}))
    await asyncio.sleep(0)
    add, loop = sender.engine.log.add, asyncio.get_running_loop()
    # At the moment of its turn.
    monkeypatch.setattr(sender.engine.log, "add", lambda *settled: (add(*settled), loop.call_soon(second.cancel)))
    gate.set()
    await first
    await asyncio.wait_for(third, WAIT_S)
    assert second.cancelled()
