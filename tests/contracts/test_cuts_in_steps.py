"""A step waits for a server that it cannot reach, for longer than a send does; then the error says all one needs."""

import asyncio
import socket

import pytest
from faults.proxy import Proxy
from support.patience import WAIT_S
from support.stepped import begin_steps

from ray_messaging.errors import ConnectionFailed, StepAborted

SEND_S = 0.4  # the bound of a send outside of steps


@pytest.fixture
def proxy(valkey_config):
    with Proxy(valkey_config) as made:
        yield made


@pytest.fixture
def server(valkey_config):
    return valkey_config


@pytest.fixture
def group(valkey_config, proxy, opener):
    """Open a group that reaches its server over the proxy."""

    async def open_group(**settings):
        await begin_steps(await opener(valkey_config, name="setup"), groups=1)
        return await opener(proxy.config, name="east", host=[1, 2], send_timeout_s=SEND_S, **settings)

    return open_group


async def cut_for(proxy, seconds):
    """Lose all replies for some time: the fault lasts as long, and nobody waits for this."""
    proxy.cut_replies = 1.0
    await asyncio.sleep(seconds)
    proxy.cut_replies = 0.0


@pytest.mark.parametrize("at", ["commit", "body"])
async def test_a_cut_that_is_longer_than_a_send_may_take_ends_no_step(proxy, group, at):
    east, found = await group(cut_timeout_s=WAIT_S), []
    async with asyncio.timeout(2 * WAIT_S), asyncio.TaskGroup() as tasks:
        async for step in east.steps(until=4):
            found.append([message.payload["n"] for message in step.messages])
            if step.number == 1 and at == "commit":
                tasks.create_task(cut_for(proxy, 4 * SEND_S))
            if step.number == 1 and at == "body":
                await cut_for(proxy, 4 * SEND_S)
            step.send(1, 2, {"n": step.number})
    assert found == [[], [0], [1], [2]]


async def test_a_cut_without_end_raises_an_error_that_names_group_host_server_and_remedy(proxy, group):
    east = await group(cut_timeout_s=3 * SEND_S)

    async def drive():
        async for step in east.steps(until=4):
            proxy.cut_replies = 1.0
            step.send(1, 2, {"n": step.number})

    with pytest.raises((StepAborted, ConnectionFailed)) as raised:
        await drive()
    text = str(raised.value)
    assert f"cannot reach the server at 127.0.0.1:{proxy.config.port} for 1.2 s" in text
    assert f"(MessagingConfig.cut_timeout_s) from group 'east' on host {socket.gethostname()}" in text
    assert "the network between the two machines, then start again with on_existing='resume'" in text
    proxy.cut_replies = 0.0


async def test_outside_of_steps_a_call_keeps_the_bound_of_a_send(valkey_config, proxy, opener):
    sender = await opener(proxy.config, name="west", host=[1], send_timeout_s=SEND_S, cut_timeout_s=60 * WAIT_S)
    proxy.cut_replies = 1.0
    with pytest.raises(Exception, match=f"from 'west' on host {socket.gethostname()}"):
        async with asyncio.timeout(WAIT_S):
            await sender.send(1, 1, {})
    proxy.cut_replies = 0.0
