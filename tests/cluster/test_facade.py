"""`Messaging` on a running Ray: handles in tasks and actors, new and removed groups, changing rules."""

import pickle

import pytest
import ray
import redis
from support.cluster import Society, drain, kill_and_wait, numbered, numbers, run_apart, wait_for
from support.servers import find_binary

from ray_messaging import Messaging, rules
from ray_messaging.errors import AlreadyExists, Closed, UnknownName


def test_start_connect_and_shutdown(ray_cluster, exp_id):
    with Messaging.start(exp_id, rules=[rules.MaxLength(20)], mirror=True) as messaging:
        assert messaging.exp_id == exp_id
        assert repr(messaging) == f"Messaging({exp_id!r})"
        group = messaging.create_group("all", ["ann", "bob", 3])
        assert group.agents == ["ann", "bob", 3]
        found = Messaging.connect(exp_id)
        assert [
            receipt.fate
            for receipt in found.group("all").send_columns(
                "ann", [3, 3], [{"content": "short"}, {"content": "too long"}]
            )
        ] == ["delivered", "blocked"]
        found.shutdown()  # it only disconnects
        assert found.stats()["judged"] == 2
        with redis.Redis(found.redis.server, found.redis.port, password=found.redis.password) as client:
            listener = client.pubsub()
            listener.psubscribe(f"exps:{exp_id}:*")
            wait_for(lambda: listener.get_message(timeout=1), "the subscription")
            group.send("bob", "ann", {"content": "hi"})
            mirrored = wait_for(lambda: listener.get_message(timeout=1), "the mirrored message")
            assert mirrored["channel"] == f"exps:{exp_id}:agents:ann:agent-chat".encode()
            listener.close()
        interceptor = messaging.interceptor
    messaging.shutdown()
    assert ray.is_initialized()  # it was not ours to stop
    with pytest.raises(UnknownName):
        Messaging.connect(exp_id)
    with pytest.raises(ray.exceptions.ActorDiedError):
        ray.get(interceptor.ready.remote())
    with pytest.raises(Closed, match="group 'all' of experiment"):
        group.fetch_messages()
    with pytest.raises(Closed, match="shut down"):
        group.send("ann", "bob", {})


def test_the_driver_chooses_the_program_of_the_embedded_server(ray_cluster, exp_id, monkeypatch):
    monkeypatch.setenv("RAY_MESSAGING_SERVER", find_binary("redis-server"))  # Ray's processes do not have the variable
    with Messaging.start(exp_id) as messaging:
        config = messaging.redis
        with redis.Redis(config.server, config.port, password=config.password) as client:
            assert "valkey_version" not in client.info("server")
        group = messaging.create_group("all", [1, 2])
        assert group.send(1, 2, {"content": "hi"}).fate == "delivered"


async def test_the_agents_and_their_groups(messaging, pair):
    before = messaging.agents()
    async with await messaging.open_messager("own", [-9, "listed"]):
        agents = messaging.agents()
    one, two = pair
    assert {agents[agent] for agent in one.agents} == {one.name}
    for connected in (messaging, Messaging.connect(messaging.exp_id)):
        assert {one.name, two.name} <= {group.name for group in connected.groups()}
        assert connected.group(one.name).name == connected.group_of(str(one.agents[1])).name == one.name
        assert connected.group_of(two.agents[0]).name == two.name
    assert dict(agents) == dict(before) | {-9: "own", "listed": "own"}
    assert (len(agents), agents.get(-8), -9 in agents, agents["listed"]) == (len(before) + 2, None, True, "own")
    assert repr(agents) == f"HostedAgents({len(agents)} agents in {len(before.by_group) + 1} groups)"
    for listed in (before, agents):  # numbers only, and with names
        table = listed.to_pandas()
        assert dict(zip(table.agent, table.group, strict=True)) == dict(listed)
    messaging.remove_messager("own")
    assert dict(messaging.agents()) == dict(before)


@pytest.mark.long
def test_a_group_keeps_its_experiment_alive(ray_cluster, exp_id):
    def make():
        return Messaging.start(exp_id).create_group("all", [1, 2])

    group = make()
    assert group.send(1, 2, {"n": 1})
    assert numbers(drain(group, 1)) == [1]
    group._keep.close(erase=False)


CONNECT = """
import sys

import pytest
import ray

from ray_messaging import Messaging
from ray_messaging.errors import UnknownName

with pytest.raises(UnknownName):
    Messaging.connect("no-" + sys.argv[1])
assert not ray.is_initialized()  # the right name may be in another cluster
print(Messaging.connect(sys.argv[1]).group(sys.argv[2]).send(*[int(sys.argv[3])] * 2, {"n": 0}).fate)
"""


def test_another_program_connects_without_ray_init(messaging, pair):
    west, _ = pair
    assert run_apart("-c", CONNECT, messaging.exp_id, west.name, str(west.agents[0])) == "delivered\n"
    drain(west, 1)


def test_a_removed_group_is_gone_and_its_name_is_free(messaging):
    group = messaging.create_group("fleeting", ["mayfly", "moth"])
    elsewhere = pickle.loads(pickle.dumps(group))
    assert group.send("mayfly", "moth", {"n": 1})
    messaging.remove_group("fleeting")
    for handle in (group, elsewhere):
        with pytest.raises(Closed, match=r"group 'fleeting' of experiment .* Nothing was sent") as caught:
            handle.send("moth", "mayfly", {"n": 1})
        assert caught.value.unsent
    with pytest.raises(Closed, match="group 'fleeting'"):
        group.fetch_messages()
    with pytest.raises(UnknownName):
        messaging.group("fleeting")
    assert "fleeting" not in messaging.stats()["waiting"]
    again = messaging.create_group("fleeting", ["moth"])
    assert len(again.fetch_messages(timeout=0.2)) == 0  # what was unread went to the dead letters
    assert again.send("moth", "mayfly", {}).fate == "undeliverable"
    messaging.remove_group("fleeting")


def test_handles_travel_into_tasks_and_actors(messaging, pair):
    west, east = pair

    @ray.remote(num_cpus=0)
    def send(messaging, group, to_id):
        connected = Messaging.connect(messaging.exp_id).group(group.name)
        assert pickle.loads(pickle.dumps(group)).agents == connected.agents
        messaging.group(group.name).send(group.agents[0], to_id, {"n": 1})
        return group.send(group.agents[0], to_id, {"n": 2})

    @ray.remote(num_cpus=0)
    class Receiver:
        def __init__(self, messaging, group):
            self.group, self.made = group, messaging.create_group("made-elsewhere", [-1, -2])

        def receive(self, count):
            return drain(self.group, count)

    receiver = Receiver.remote(messaging, east)
    receipt = ray.get(send.remote(messaging, west, east.agents[0]))
    assert receipt.fate == "delivered"
    found = ray.get(receiver.receive.remote(2))
    assert numbers(found) == [1, 2]
    assert found[1].id == receipt.message_id
    assert messaging.group("made-elsewhere").send(-1, -2, {"n": 3})
    assert numbers(drain(messaging.group("made-elsewhere"), 1)) == [3]
    messaging.remove_group("made-elsewhere")
    ray.kill(receiver)


def test_stats(messaging, pair):
    west, east = pair
    west.send_columns([west.agents[0]] * 3, [east.agents[0]] * 3, numbered(3))
    stats = messaging.stats()
    assert stats["exp_id"] == messaging.exp_id
    assert stats["waiting"][east.name] == 3
    wait_for(lambda: messaging.stats()["judged"] >= 3)  # what passes at the sender is reported a little later
    assert stats["lane_connections"] >= 1
    assert west.stats()["interceptor"] == "lane"
    assert west.stats()["name"] == west.name
    east.fetch_messages(timeout=60)
    assert east.stats()["lent"] == 3
    east.ack()
    assert east.stats()["lent"] == 0


# -- a group inside your own actor --------------------------------------------------------------------------------


@pytest.mark.long
def test_a_group_can_be_opened_in_an_own_actor(messaging, pair):
    west, _ = pair
    society = Society.remote(messaging, "society", ["carl", "dora"])
    rival = Society.remote(messaging, "society", ["eve"])
    try:
        assert ray.get(society.open.remote()) == "lane"
        assert messaging.stats()["waiting"]["society"] == 0
        assert west.send(west.agents[0], "carl", {"n": 1})
        assert ray.get(society.send.remote("carl", west.agents[0], {"n": 2}))
        assert numbers(ray.get(society.receive.remote(1))) == [1]
        assert numbers(drain(west, 1)) == [2]
        with pytest.raises(UnknownName, match="by open_messager in an actor of yours"):
            messaging.group("society")
        with pytest.raises(AlreadyExists, match="belongs to") as caught:
            ray.get(rival.open.remote())
        assert (caught.value.cause.kind, caught.value.cause.value) == ("group", "society")
        # Killed and started again by Ray, the same actor goes on in its mailbox.
        assert west.send(west.agents[0], "dora", {"n": 3})
        kill_and_wait(society)
        assert ray.get(society.open.remote()) == "lane"
        assert west.send(west.agents[0], "carl", {"n": 4})
        # It had fetched 1, but not committed it.
        assert numbers(ray.get(society.receive.remote(3))) == [1, 3, 4]
        ray.get(society.close.remote())
        # A name that nobody holds any more is free.
        with pytest.raises(AlreadyExists, match="'carl' is in group 'society' already"):
            ray.get(Society.remote(messaging, "another", ["carl"]).open.remote())
        assert ray.get(rival.open.remote()) == "lane"
        ray.get(rival.close.remote())
    finally:
        ray.kill(society)
        ray.kill(rival)
