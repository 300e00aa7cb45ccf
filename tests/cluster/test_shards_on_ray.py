"""Several embedded servers for one experiment: three on a node, and one on each of two nodes."""

import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import pytest
import ray
from support.cluster import PATIENCE_S, control, drain, numbered, numbers, wait_for

from ray_messaging import Messaging, MessagingConfig, RedisConfig, Steps, rules
from ray_messaging.errors import ConfigError, ServerFailed, UnknownName

pytestmark = pytest.mark.usefixtures("ray_cluster")

RING = {f"group-{number}": range(number * 10, number * 10 + 10) for number in range(6)}


@pytest.fixture
def exp_id():
    return f"shards-{uuid.uuid4().hex[:8]}"


def send_on(messaging, count=30):
    """Have each group of the ring send to the next one; return the receipts' fates."""
    fates = []
    for number in range(6):
        group, following = messaging.group(f"group-{number}"), RING[f"group-{(number + 1) % 6}"]
        rows = range(count)
        receipts = group.send_columns(
            [RING[group.name][row % 10] for row in rows], [following[row % 10] for row in rows], numbered(count)
        )
        fates += receipts.fates.tolist()
    return fates


def test_one_experiment_on_three_servers(exp_id, tmp_path):
    settings = MessagingConfig(lease_s=5)
    with Messaging.start(exp_id, shards=3, log_dir=tmp_path / "log", settings=settings) as messaging:
        servers = messaging.redis.servers
        assert len({server.port for server in servers}) == 3
        assert all(server.password not in repr(messaging.redis) for server in servers)
        groups = messaging.create_groups(RING)
        assert set(send_on(messaging)) == {"delivered"}
        assert set(messaging.stats()["waiting"].values()) == {30}
        for group in groups.values():
            assert numbers(drain(group, 30)) == [*range(30)]
        assert messaging.log.balance().sends == 180
        assert {row["mailbox"] for row in messaging.log.query().to_pylist()} == set(RING)
        found = [str(finding) for finding in messaging.health().findings]
        for shard in range(3):
            assert any(f"shard {shard}: server: Valkey" in finding for finding in found)
        assert [finding for finding in found if "server's actor of shard 2: answers" in finding]
        assert 'mailbox_messages{experiment="' in messaging.metrics_text()

        # A rule counts on all shards once its call has returned.
        control(messaging, "add_to_black_set", [(agent, None) for agent in RING["group-0"]])
        assert send_on(messaging, 10).count("blocked") == 10

        # A group that goes leaves letters, and comes back where it was.
        messaging.remove_group("group-1")
        with pytest.raises(UnknownName):
            messaging.group("group-1")
        assert send_on_to(messaging, "group-2", "group-1") == {"undeliverable"}
        again = messaging.create_group("group-1", RING["group-1"])
        assert send_on_to(messaging, "group-2", "group-1") == {"delivered"}
        assert numbers(drain(again, 10)) == [*range(10)]

        # A user's client in this process is a messager as any other.
        assert Messaging.connect(exp_id).group("group-3").name == "group-3"
        for group in messaging.groups():
            drain(group, 0)
        assert messaging.log.balance().duplicates == 0


def send_on_to(messaging, sender, hearer):
    group = messaging.group(sender)
    return set(group.send_columns(list(RING[sender]), list(RING[hearer]), numbered(10)).fates.tolist())


@pytest.mark.long
@pytest.mark.parametrize("victim", ["server", "server-1", "server-2"])
def test_a_shard_that_is_killed_comes_back_with_its_data(exp_id, victim, tmp_path):
    with Messaging.start(exp_id, shards=3, log_dir=tmp_path / "log") as messaging:
        groups = messaging.create_groups(RING)
        send_on(messaging, 10)
        actor = ray.get_actor(f"{exp_id}/{victim}", namespace="ray_messaging")
        for round_ in range(1, 4):
            pid = ray.get(actor.stats.remote())["pid"]
            os.kill(pid, signal.SIGKILL)
            assert set(send_on(messaging, 10)) == {"delivered"}
            wait_for(lambda pid=pid: ray.get(actor.stats.remote())["pid"] != pid, "the server's restart")
            assert ray.get(actor.stats.remote())["restarts"] == round_
        for group in groups.values():
            assert numbers(drain(group, 40)) == [*range(10)] * 4
        balance = messaging.log.balance()
        assert (balance.sends, balance.fates["delivered"], balance.duplicates) == (240, 240, 0)
        control(messaging, "add_to_black_set", [(0, None)])
        assert send_on(messaging, 10).count("blocked") == 1


@pytest.mark.long
def test_questions_audiences_and_schemas_cross_shards(exp_id):
    with Messaging.start(exp_id, shards=3, rules=[rules.BlackList([(1, 13)])]) as messaging:
        one, two, three = messaging.create_groups({"one": range(10), "two": range(10, 20), "three": [20]}).values()
        audience = messaging.create_audience("all", members=[*range(20)])
        receipts = one.broadcast_columns([0], audience, [{"content": "to all"}])
        assert set(receipts.fates.tolist()) == {"delivered"}
        assert len(drain(two, 10)) == 10
        content = {"properties": {"content": {"type": "string"}}, "required": ["content"]}
        messaging.schema("agent-chat", {"type": "object"} | content)
        with pytest.raises(TypeError, match="content"):
            three.send_columns([20], [10], [{"text": "no content"}])
        asked = one.ask_columns([1, 1], [12, 13], [{"content": "?"}] * 2, timeout=PATIENCE_S)
        with two.fetch(timeout=PATIENCE_S) as questions:
            two.reply_columns(questions, [{"content": "!"}])
        assert [answer.payload for answer in asked] == [{"content": "!"}]
        assert len(asked.blocked) == 1


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"shards": 0}, ["shards=0", "'per-node'"]),
        ({"shards": -3}, ["shards=-3"]),
        ({"shards": True}, ["shards=True"]),
        ({"shards": 2.0}, ["shards=2.0"]),
        ({"shards": "per-nod"}, ["'per-nod'", "'per-node'"]),
        ({"shards": 3, "redis": RedisConfig(server="127.0.0.1")}, ["leave out redis="]),
        ({"shards": 3, "steps": Steps()}, ["steps=", "one server"]),
        ({"shards": "per-node", "mirror": True}, ["mirror=", "one server"]),
        ({"shards": 3, "data_dir": "/tmp/data"}, ["data_dir=", "one server"]),
    ],
    ids=lambda given: " ".join(given) if isinstance(given, dict) else "",
)
def test_bad_shards_are_refused(exp_id, given, words):
    with pytest.raises(ConfigError) as caught:
        Messaging.start(exp_id, **given)
    for word in words:
        assert word in str(caught.value)
    with pytest.raises(UnknownName):
        Messaging.connect(exp_id)


def test_one_shard_is_an_experiment_with_one_server(exp_id):
    with Messaging.start(exp_id, shards=1) as messaging:
        assert isinstance(messaging.redis, RedisConfig)


@pytest.mark.long
def test_a_shard_that_does_not_start_ends_the_start(exp_id, monkeypatch):
    from ray_messaging.cluster import lifecycle

    class Broken(lifecycle.ServerActor):
        def config(self):
            raise ServerFailed("no binary on this node")

    real, made = lifecycle.remote, []

    def remote(actor_class, options):
        made.append(options["name"])
        return real(Broken if options["name"].endswith("server-1") else actor_class, options)

    monkeypatch.setattr(lifecycle, "remote", remote)
    with pytest.raises(ServerFailed, match="no binary"):
        Messaging.start(exp_id, shards=2)
    monkeypatch.undo()
    assert made == [f"{exp_id}/server", f"{exp_id}/server-1", f"{exp_id}/interceptor"]
    with Messaging.start(exp_id, shards=2) as messaging:  # nothing is left of it
        assert len(messaging.redis.servers) == 2


TWO_NODES = """
import ray, redis
from ray.cluster_utils import Cluster
from ray_messaging import Messaging
from support.cluster import drain

cluster = Cluster(
    initialize_head=True, head_node_args={"num_cpus": 2, "resources": {"left": 1}, "include_dashboard": False}
)
there = cluster.add_node(num_cpus=2, resources={"right": 1})
ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")


def frames(messaging):
    found = []
    for server in messaging.redis.servers:
        with redis.Redis(server.server, server.port, password=server.password) as client:
            keys = [key for key in client.scan_iter("*:mailbox:*", count=1000) if b":mailbox::log" not in key]
            found.append(sum(client.xlen(key) for key in keys))
    return found


with Messaging.start("apart", shards="per-node") as messaging:
    assert messaging.redis.nodes[1] == there.node_id, messaging.redis.nodes
    left, right = {"resources": {"left": 0.1}}, {"resources": {"right": 0.1}}
    west, west_too = (messaging.create_group(n, a, actor_options=left) for n, a in [("w", [1]), ("w2", [2])])
    east, east_too = (messaging.create_group(n, a, actor_options=right) for n, a in [("e", [3]), ("e2", [4])])
    for n in range(50):
        east.send_columns([3], [4], [{"n": n}])
    assert frames(messaging) == [0, 50], frames(messaging)
    for n in range(20):
        west.send_columns([1], [2], [{"n": n}])
    assert frames(messaging) == [20, 50], frames(messaging)
    west.send_columns([1], [4], [{"n": 50}])
    assert frames(messaging) == [20, 51], frames(messaging)
    assert [m.payload["n"] for m in drain(east_too, 51)] == [*range(51)]
    assert [m.payload["n"] for m in drain(west_too, 20)] == [*range(20)]
    where = lambda self: ray.get_runtime_context().get_node_id()
    for node, name in zip(messaging.redis.nodes, ["server", "server-1"]):
        actor = ray.get_actor("apart/" + name, namespace="ray_messaging")
        assert ray.get(actor.__ray_call__.remote(where)) == node

    # A node that comes later has no server: its groups' mailboxes are on the first one.
    cluster.add_node(num_cpus=1, resources={"late": 1})
    cluster.wait_for_nodes()
    late = messaging.create_group("late", [5], actor_options={"resources": {"late": 0.1}})
    west.send_columns([1], [5], [{"n": 0}])
    assert len(drain(late, 1)) == 1
    print("done")
ray.shutdown()
cluster.shutdown()
"""


@pytest.mark.long
def test_with_a_shard_on_each_node_traffic_within_a_node_stays_there():
    path = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", TWO_NODES],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.stdout.endswith("done\n"), done.stderr
