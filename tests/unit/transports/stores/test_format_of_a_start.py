"""A start of an experiment upon data of another format."""

import pytest

from ray_messaging.errors import ConfigError
from ray_messaging.transports.experiment_store import FORMAT, ExperimentClaim, RedisExperimentStore
from ray_messaging.transports.transport import RedisTransport

pytestmark = pytest.mark.parametrize("server", ["valkey"], indirect=True)
OTHERS = pytest.mark.parametrize("other", [FORMAT - 1, FORMAT + 1])


def refused(other):
    return pytest.raises(ConfigError, match=f"format {other} .* reads only format {FORMAT}: .*on_existing='reset'")


@pytest.fixture
async def experiments(server, exp_id):
    """Open the stores of starts of the experiment."""
    opened = []

    async def open_one(run, *, reset=False):
        transport = RedisTransport(server, exp_id, patience_s=5, run=run, reset=reset)
        await transport.connect()
        opened.append(transport)
        return RedisExperimentStore(transport)

    yield open_one
    for transport in opened:
        await transport.close()


async def number(store):
    return int(await store.client.hget(store.keys.meta, "format") or 0)


@OTHERS
async def test_a_start_upon_another_format_is_refused_unless_it_deletes_the_data(experiments, store, other):
    assert await (await experiments("one")).claim(None, reset=False) is ExperimentClaim.HELD
    assert await number(store) == FORMAT
    await store.client.hset(store.keys.meta, "format", other)
    await store.client.set(f"{store.keys.prefix}of-the-other-format", "something")
    with refused(other):
        await (await experiments("two")).claim(b"one", reset=False)
    assert await store.client.hget(store.keys.meta, "start:run") == b"one"
    third = await experiments("three", reset=True)
    assert await third.claim(b"one", reset=True) is ExperimentClaim.ERASE
    await third.erase_earlier()
    assert await number(store) == FORMAT
    assert not await store.client.exists(f"{store.keys.prefix}of-the-other-format")
