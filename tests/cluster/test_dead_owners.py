"""Taking over a dead owner's name: at once if Ray knows of the death, never beside a live owner."""

import uuid

import pytest
import ray
from support.cluster import numbers, wait_for

from ray_messaging import AlreadyExists, Messaging, MessagingConfig

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("ray_cluster")]

LEASE_S = 3600.0  # longer than any test


@ray.remote(num_cpus=0)
class Member:
    """A group in an actor of the user's own, or in a task's worker that calls `run`."""

    def __init__(self, messaging):
        self.messaging = messaging

    async def open(self, name):
        self.messager = await self.messaging.open_messager(name, [7])

    async def receive(self):
        return await self.messager.fetch_messages(timeout=60)


@pytest.fixture
def town():
    settings = MessagingConfig(lease_s=LEASE_S)
    with Messaging.start(f"town-{uuid.uuid4().hex[:8]}", settings=settings) as messaging:
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
    rival = Member.remote(town)
    if who == "an actor":
        first = Member.remote(town)
        ray.get(first.open.remote("own"))
        with pytest.raises(AlreadyExists, match="is held by"):
            ray.get(rival.open.remote("own"))
        assert not waits_for_a_dead_owner(town, "own")
        ray.kill(first)
    else:
        with pytest.raises(ray.exceptions.WorkerCrashedError):
            ray.get(open_and_die.remote(town, "own"))
    wait_for(lambda: waits_for_a_dead_owner(town, "own"), "the finding")
    assert west.send(1, 7, {"n": 1}).fate == "delivered"
    ray.get(rival.open.remote("own"))
    assert not waits_for_a_dead_owner(town, "own")
    assert numbers(ray.get(rival.receive.remote())) == [1]
    with pytest.raises(AlreadyExists, match="is held by"):
        ray.get(Member.remote(town).open.remote("own"))
