"""Taking over a dead owner's name: at once if Ray knows of the death, never beside a live owner."""

import pytest
import ray
from support.cluster import Society, numbers, wait_for

from ray_messaging import Messaging, MessagingConfig
from ray_messaging.errors import AlreadyExists

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("ray_cluster")]

LEASE_S = 3600.0  # longer than any test


@pytest.fixture
def town(exp_id):
    settings = MessagingConfig(lease_s=LEASE_S)
    with Messaging.start(exp_id, settings=settings) as messaging:
        yield messaging


def waits_for_a_dead_owner(messaging, name):
    return any(
        finding.what == f"mailbox {name!r}" and "its owner is dead" in finding.value
        for finding in messaging.health().problems
    )


@ray.remote(num_cpus=0, max_retries=0)
def open_and_die(messaging, name):
    """Hold a name in a worker that is no actor, and kill the worker."""
    import asyncio
    import os

    async def run():
        await messaging.open_messager(name, [7])
        os._exit(1)

    asyncio.run(run())


@pytest.mark.parametrize("who", ["an actor", "a worker"])
def test_a_dead_owners_name_is_taken_over_at_once(town, who):
    west = town.create_group("west", [1])
    rival = Society.remote(town, "own", [7])
    if who == "an actor":
        first = Society.remote(town, "own", [7])
        ray.get(first.open.remote())
        with pytest.raises(AlreadyExists, match="belongs to"):
            ray.get(rival.open.remote())
        assert not waits_for_a_dead_owner(town, "own")
        ray.kill(first)
    else:
        with pytest.raises(ray.exceptions.WorkerCrashedError):
            ray.get(open_and_die.remote(town, "own"))
    wait_for(lambda: waits_for_a_dead_owner(town, "own"), "the finding")
    assert west.send(1, 7, {"n": 1}).fate == "delivered"
    ray.get(rival.open.remote())
    assert not waits_for_a_dead_owner(town, "own")
    assert numbers(ray.get(rival.receive.remote(1))) == [1]
    with pytest.raises(AlreadyExists, match="belongs to"):
        ray.get(Society.remote(town, "own", [7]).open.remote())
