"""A sender's end, and the mailboxes that it forgets."""

import asyncio
import logging

from support.contracts import fetch_all

from ray_messaging import messager_engine
from ray_messaging.sending import frame_sender


async def test_closing_does_not_wait_for_a_server_that_does_not_answer(messagers, monkeypatch, caplog):
    async def away(*_args, **_options):
        await asyncio.Event().wait()

    monkeypatch.setattr(messager_engine, "_LEAVE_S", 0.01)
    sender = await messagers()
    await sender.send_message("nobody", {})
    monkeypatch.setattr(sender.engine.transport, "leave", away)
    with caplog.at_level(logging.INFO):
        await sender.close()
    assert f"the state of sender {sender.name} could not be removed" in caplog.text


async def test_a_sender_forgets_removed_mailboxes(messagers, store, monkeypatch):
    monkeypatch.setattr(frame_sender, "_GONE", 4)
    sender = await messagers()
    for number in range(10):
        visitor = await messagers(listen=[f"visit-{number}"])
        await sender.send_message(f"visit-{number}", {"n": number})
        await fetch_all(visitor, 1)
        await visitor.close()
    await sender.send_message("nobody", {})
    [written] = (await store.senders()).values()
    assert len(written - {""}) <= 4
    assert len(sender.engine.frame_sender.queues.written) <= 5
