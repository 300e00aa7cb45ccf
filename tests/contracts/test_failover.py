"""A failover by a cluster or by Sentinels, amid sends and fetches, with foreign clients and without a kill."""

import asyncio
from functools import partial

import pytest
from support.contracts import RedisStore, fetch_all, numbers
from support.replicated import ReplicatedService
from support.servers import find_binary
from support.slots import ClusterService

pytestmark = pytest.mark.long


CLUSTERS = [("cluster", binary) for binary in ("valkey", "redis-server")]
SENTINELS = [("Sentinels", binary) for binary in ("valkey", "redis-server")]


@pytest.fixture
def service(request, tmp_path, exp_id):
    """Start a cluster, or a primary with a replica and three Sentinels, of the test's own."""
    kind, binary = request.param
    find_binary(binary)
    made = partial(ClusterService, exp_id=exp_id) if kind == "cluster" else ReplicatedService
    with made(tmp_path, binary=binary) as service:
        yield service


async def numbers_of(messager, count):
    return numbers(await fetch_all(messager, count))


@pytest.mark.parametrize("service", [*CLUSTERS, *SENTINELS], indirect=True, ids=" with ".join)
async def test_sends_and_fetches_go_on_at_the_new_primary(service, opener):
    receiver = await opener(service.config, name="b", host=[2], wait_replicas=1, send_timeout_s=60)
    sender = await opener(service.config, name="a", wait_replicas=1, send_timeout_s=60)
    await sender.send(1, 2, {"n": 0})
    old = service.primary
    old.kill()
    sending = asyncio.create_task(sender.send(1, 2, {"n": 1}))
    await asyncio.to_thread(service.failed_over)
    await asyncio.to_thread(service.join, old)
    assert (await sending).fate == "delivered"
    assert await numbers_of(receiver, 2) == [0, 1]


@pytest.mark.parametrize("service", CLUSTERS, indirect=True, ids=" with ".join)
async def test_a_primary_that_lives_on_as_a_replica_is_left_by_all_its_connections(service, opener, exp_id):
    """So is the subscription: a publication counts the subscribers of its own node."""
    listener = await opener(service.config, name="c", listen=["news"])
    receiver = await opener(service.config, name="b", host=[2], send_timeout_s=60)
    sender = await opener(service.config, name="a", send_timeout_s=60)
    for n in range(3):
        await asyncio.to_thread(service.hand_over)
        await asyncio.to_thread(service.settle)
        assert (await sender.send(1, 2, {"n": n})).fate == "delivered"
        assert await numbers_of(receiver, 1) == [n]
        await listener.send(1, 2, {"n": n})  # with its next call it hears of the new primary
        assert await numbers_of(receiver, 1) == [n]
        store = RedisStore(service.config, exp_id)
        try:
            await store.heard_by(1, "news", b'{"n":7}')  # by the owner of the slot, as a foreign client
        finally:
            await store.close()
    assert set(await numbers_of(listener, 3)) == {7}
