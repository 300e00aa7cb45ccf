"""Half-open links: a waiting client notices a silent link by itself, and continues over another."""

import pytest
from faults.proxy import Proxy
from support.contracts import fetch_all


@pytest.fixture
def proxy(valkey_config):
    with Proxy(valkey_config) as made:
        yield made


@pytest.fixture
def server(valkey_config):
    return valkey_config


@pytest.mark.parametrize("send_timeout_s", [6.0, 2.0])  # a silent link may take half of it
async def test_a_send_on_a_silent_link_is_repeated_on_another(valkey_config, proxy, opener, send_timeout_s):
    receiver = await opener(valkey_config, host=[1])
    sender = await opener(proxy.config, send_timeout_s=send_timeout_s)
    await sender.send(None, 1, {"n": 0})
    proxy.swallow()
    assert (await sender.send(None, 1, {"n": 1})).fate == "delivered"
    assert [message.payload["n"] for message in await fetch_all(receiver, 2)] == [0, 1]
