"""An experiment's format number: with data of another one a process is refused at the door, but for a reset."""

import pytest
from support.contracts import fetch_all

from ray_messaging.errors import ConfigError

pytestmark = pytest.mark.parametrize("server", ["valkey"], indirect=True)
BESIDE = pytest.mark.parametrize("beside", [-1, 1])


def refused(other, ours):
    return pytest.raises(ConfigError, match=f"format {other} .* reads only format {ours}: .*on_existing='reset'")


async def number(store):
    return int(await store.client.hget(store.keys.meta, "format") or 0)


@BESIDE
async def test_an_experiment_of_another_format_is_refused_and_left_alone(messagers, store, beside):
    await messagers(name="first", host=[1])
    ours = await number(store)
    other = ours + beside
    await store.client.hset(store.keys.meta, "format", other)
    before = await store.client.hgetall(store.keys.meta)
    with refused(other, ours):
        await messagers(name="second", host=[2])
    with refused(other, ours):
        await messagers()  # which would only send
    assert await store.client.hgetall(store.keys.meta) == before
    assert await store.mailboxes() == {"first"}


async def test_a_messager_that_is_there_when_the_number_changes_stays(messagers, store):
    first = await messagers(name="first", host=[1])
    other = await number(store) + 1
    await store.client.hset(store.keys.meta, "format", other)
    await store.client.client_kill_filter(_type="normal", skipme=True)
    await first.send_message(first.get_agent_chat_channel(1), {"n": 1})
    assert [message.payload for message in await fetch_all(first, 1)] == [{"n": 1}]
    assert await number(store) == other
