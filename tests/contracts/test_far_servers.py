"""How many round trips a messager takes whose server is far; a round trip is counted, not timed."""

import pytest
from faults.proxy import Proxy
from support.contracts import fetch_all, until

BACKLOG = 400
ONE_WAY_S = 0.05


@pytest.fixture
def server(valkey_config):
    return valkey_config


@pytest.fixture
def proxy(server):
    with Proxy(server) as made:
        yield made


async def send_singly(sender, *numbers):
    for n in numbers:
        await sender.send(None, 1, {"n": n})


async def left_backlog(opener, server, **settings):
    """Have messages wait in the mailbox of a messager that is away; return who sent them."""
    receiver = await opener(server, name="group", host=[1], **settings)
    await receiver.close()
    sender = await opener(server)
    await send_singly(sender, *range(BACKLOG))
    return sender


async def test_a_read_from_a_far_server_takes_more(server, proxy, opener):
    await left_backlog(opener, server)
    proxy.delay_s = ONE_WAY_S
    proxy.count(b"XREAD")
    receiver = await opener(proxy.config, name="group", host=[1])
    found = await fetch_all(receiver, BACKLOG)
    assert [message.payload["n"] for message in found] == [*range(BACKLOG)]
    assert proxy.asked <= 8


async def test_a_read_that_took_more_than_expected_keeps_to_the_limit_of_the_inbox(opener, server):
    sender = await left_backlog(opener, server, inbox_messages=40)
    receiver = await opener(server, name="group", host=[1], inbox_messages=40)
    await until(lambda: _is(receiver.stats()["inbox"] >= 31))
    for low in range(BACKLOG, BACKLOG + 200, 10):  # frames of ten follow those of one
        await sender.send_columns([7] * 10, [1] * 10, [{"n": n} for n in range(low, low + 10)])
    found = []
    while len(found) < BACKLOG + 200:
        assert receiver.stats()["inbox"] <= 40
        found += [message.payload["n"] for message in await receiver.fetch_messages(limit=3, timeout=60.0)]
    assert found == [*range(BACKLOG + 200)]


async def _is(truth):
    return truth
