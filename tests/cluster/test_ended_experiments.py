"""Use of an ended experiment or group raises at once; and groups that start together."""

import asyncio
import gc
import pickle
import uuid

import pytest
import ray
from support.cluster import kill, numbers, wait_for
from support.patience import AT_ONCE_S

from ray_messaging import Messager, Messaging
from ray_messaging.cluster.handles.connection import find_actor
from ray_messaging.cluster.lifecycle import leave
from ray_messaging.cluster.ray_internals import known_dead
from ray_messaging.errors import AlreadyExists, Closed, TransitError, UnknownName

pytestmark = pytest.mark.usefixtures("ray_cluster")


@pytest.mark.long
@pytest.mark.parametrize("end", ["its server ends with it", "another one begins on its server"])
async def test_old_messagers_are_closed_at_once(redis_config, exp_id, end):
    """None of them waits for its server or interceptor."""
    redis = None if end == "its server ends with it" else redis_config
    old = await asyncio.to_thread(Messaging.start, exp_id, redis=redis)
    await asyncio.to_thread(old.create_group, "all", [1])
    plain = Messager(old.redis, old.exp_id, old.interceptor)
    await plain.init()
    host = await old.open_messager("mine", [50])
    for messager in (plain, host):
        while not messager.stats()["delegated"]:  # until the sender itself applies the rules
            assert await messager.send_message(messager.get_agent_chat_channel(1), {"n": 0}, 50)
    new = old
    if redis is None:
        await asyncio.to_thread(old.shutdown, erase=True)
    else:
        new = await asyncio.to_thread(Messaging.start, old.exp_id, redis=redis, on_existing="reset")
    try:
        for messager in (plain, host):
            async with asyncio.timeout(AT_ONCE_S):
                with pytest.raises(Closed, match=f"experiment {old.exp_id!r} has ended.*connect") as caught:
                    await messager.send_message(messager.get_agent_chat_channel(1), {"n": 1}, 50)
                assert caught.value.unsent
                await messager.close()
    finally:
        await asyncio.to_thread(new.shutdown)


@pytest.mark.long
async def test_an_old_messager_with_unhandled_messages_raises_closed(exp_id):
    old = await asyncio.to_thread(Messaging.start, exp_id)
    host = await old.open_messager("mine", [50])
    await host.send_message(host.get_agent_chat_channel(50), {"n": 1}, 50)
    assert numbers(await host.fetch_messages(timeout=60)) == [1]
    await asyncio.to_thread(old.shutdown)
    with pytest.raises(Closed, match="could not commit the messages that it fetched last"):
        await host.close()


@pytest.mark.long
def test_no_group_starts_in_an_experiment_that_has_ended(exp_id, capfd):
    with Messaging.start(exp_id) as messaging:
        elsewhere = Messaging.connect(messaging.exp_id)
    for handle in (messaging, elsewhere, pickle.loads(pickle.dumps(messaging))):
        with pytest.raises(Closed, match=f"experiment {messaging.exp_id!r} has ended.*start"):
            handle.create_group("late", [1])
        with pytest.raises(Closed, match="has ended"):
            handle.create_groups({"late": [1], "later": [2]})
    names = [actor["name"] for actor in ray.util.list_named_actors(all_namespaces=True)]
    assert not [name for name in names if name.startswith(messaging.exp_id)]
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.long
def test_an_experiment_that_has_lost_its_embedded_server_says_so_and_ends(exp_id, caplog):
    messaging = Messaging.start(exp_id)
    ray.kill(find_actor(f"{exp_id}/server"))
    kill(messaging.interceptor)
    wait_for(lambda: "lost its embedded server" in str(messaging.health()), "the interceptor's failure")
    with pytest.raises(Closed, match="lost its embedded server, because Ray node"):
        messaging.create_group("late", [1])
    messaging.shutdown()
    assert "Traceback" not in caplog.text


@ray.remote(num_cpus=0)
class Stuck:
    """A messager that fails to close, like a group that cannot commit."""

    def close(self):
        raise TransitError("what was fetched last could not be committed")


def test_an_actor_that_fails_to_close_is_reported_in_one_line(monkeypatch, caplog):
    """Ray would print the unread error with its traceback."""
    unhandled = []
    monkeypatch.setattr(ray._private.worker.logger, "error", lambda *args: unhandled.append(args))
    stuck = Stuck.remote()
    leave([stuck])
    assert known_dead(stuck)
    assert [record.message for record in caplog.records] == [
        "an actor could not close without an error: what was fetched last could not be committed"
    ]
    gc.collect()
    assert not unhandled


# -- groups that start together -----------------------------------------------------------------------------------


def unique(*names):
    mark = uuid.uuid4().hex[:8]
    return [f"{name}-{mark}" for name in names]


@pytest.mark.long
def test_if_one_group_cannot_start_none_is_created(messaging, make_group):
    west, east, ann, bob = unique("west", "east", "ann", "bob")
    taken = make_group(messaging)
    a_name, an_agent = {west: [ann], taken.name: [bob]}, {west: [ann], east: taken.agents}
    for agents in (a_name, an_agent, {west: [ann, bob], east: [bob]}):
        with pytest.raises(AlreadyExists):
            messaging.create_groups(agents)
        for name in (west, east):
            with pytest.raises(UnknownName):
                messaging.group(name)
    # It lives, and nobody hosts ann; a killed process hears the channel for a moment more.
    wait_for(lambda: taken.send(taken.agents[0], ann, {}).fate == "undeliverable", "nobody hears the channel")
    groups = messaging.create_groups({west: [ann], east: [bob]})
    assert groups[east].send(bob, ann, {"n": 1})
    for name in groups:
        messaging.remove_group(name)
