"""Epochs are never reused: an owner from before a data loss is never taken for a later one."""

import pytest
from support.contracts import fetch_all
from support.delegation import Actor, InterceptorEpoch, delegate_at_once
from support.server_side import forget_owners

from ray_messaging import rules
from ray_messaging.errors import Fenced, InterceptorUnavailable


@pytest.fixture(params=["all", "the interceptor"])
def forget(request, clocked_server, server_clock, exp_id):
    """Return a function by which the server forgets an experiment, or who owns its parts, and sets its clock back."""

    def forget():
        with clocked_server.client() as client:
            if request.param == "all":
                client.flushall()
            else:
                forget_owners(client, exp_id)
            server_clock.step(client, -60)

    return forget


@pytest.fixture
async def interceptor_epoch(clocked_server, exp_id):
    made = InterceptorEpoch(clocked_server.config, exp_id)
    yield made
    await made.close()


@pytest.mark.parametrize("rule", [rules.BlackList([(-1, None)]), rules.MaxLength(100)], ids=["granted", "asked"])
async def test_a_server_that_forgot_an_interceptor_rejects_its_verdicts(
    clocked_server, interceptor_epoch, opener, exp_id, forget, rule, monkeypatch
):
    delegate_at_once(monkeypatch)
    old = await Actor(interceptor_epoch, exp_id).begin(rule)
    new = Actor(interceptor_epoch, exp_id)
    try:
        early = await opener(clocked_server.config, old, host=[1], interceptor_timeout_s=2.0)
        for _ in range(10):
            assert await early.send_message(early.get_agent_chat_channel(1), {}, from_id=2)
        forget()
        await new.begin(rules.BlackList([(2, 3)]))
        assert new.interceptor.epoch != old.interceptor.epoch
        receiver = await opener(clocked_server.config, new, host=[3, 4])
        late = await opener(clocked_server.config, old, interceptor_timeout_s=0.1)
        channel = receiver.get_agent_chat_channel(3)
        for sender in (early, late, late):
            with pytest.raises((Fenced, InterceptorUnavailable)):
                await sender.send_message(channel, {"n": "old"}, from_id=2)
        assert (await receiver.send_message(channel, {"n": "new"}, from_id=2)).fate == "blocked"
        assert await receiver.send_message(channel, {"n": "new"}, from_id=4)
        assert [message.payload["n"] for message in await fetch_all(receiver, 1)] == ["new"]
        assert len(await receiver.fetch_messages()) == 0
    finally:
        await old.close()
        await new.close()
