"""The end of a messager whose server is away."""

import asyncio

import pytest
from support.contracts import fetch_all
from support.patience import AT_ONCE_S

from ray_messaging.errors import TransitError


async def test_close_waits_only_briefly_for_an_absent_server(opener, redis_process, exp_id, monkeypatch, caplog):
    monkeypatch.setattr("ray_messaging.receiving.subscription._LEAVE_S", 0.3)
    nameless = await opener(redis_process.config, host=[1])
    handled, idle = [await opener(redis_process.config, name=name, listen=[name]) for name in ("handled", "idle")]
    await nameless.send_message("handled", {"n": 1})
    assert len(await fetch_all(handled, 1)) == 1
    redis_process.kill()
    await asyncio.wait_for(nameless.close(), AT_ONCE_S)
    await asyncio.wait_for(idle.close(), AT_ONCE_S)
    assert "could not give up its mailbox" in caplog.text
    with pytest.raises(TransitError, match=r"messages that it fetched last.*gets them again"):
        await asyncio.wait_for(handled.close(), AT_ONCE_S)
    redis_process.start()
    again = await opener(redis_process.config, name="handled", listen=["handled"])
    assert [message.payload["n"] for message in await fetch_all(again, 1)] == [1]
    await again.close()  # the server goes before the opener
