"""An embedded server with a replica: the primary is killed, the replica, the Sentinel, their actors, a node."""

import json
import os
import signal
import uuid
from pathlib import Path

import pytest
import ray
import redis
from faults.node_loss import ACCOUNT
from redis.backoff import NoBackoff
from redis.retry import Retry
from support.cluster import PATIENCE_S, drain, kill, numbered, numbers, run_apart, wait_for
from support.replicas_on_ray import actor_of, in_step, roles, stats_of, troubles

from ray_messaging import Messaging, MessagingConfig, MqttConfig, NotReplicated, RedisConfig, rules
from ray_messaging.errors import ConfigError, UnknownName

pytestmark = pytest.mark.usefixtures("ray_cluster")

SETTINGS = MessagingConfig(send_timeout_s=PATIENCE_S)


@pytest.fixture
def exp_id():
    return f"replicas-{uuid.uuid4().hex[:8]}"


def test_the_primary_is_killed_and_its_replica_takes_its_place(exp_id, tmp_path, caplog):
    listed = [rules.BlackList([(4, 2)])]
    with Messaging.start(exp_id, replicas=1, settings=SETTINGS, log_dir=tmp_path / "log", rules=listed) as messaging:
        assert "saves from a killed process, not from a lost machine" in caplog.text
        assert messaging._connection.experiment.settings.wait_replicas == 1
        west, east = messaging.create_groups({"west": [1, 4], "east": [2]}).values()
        assert in_step(messaging) == ("", "/replica")
        [shown] = [finding for finding in messaging.health().findings if finding.what == "server replicas"]
        assert shown.level == "ok"
        assert "bytes behind" in str(shown)
        for at in range(2):
            primary, replica = in_step(messaging)
            os.kill(stats_of(messaging, primary)["pid"], signal.SIGKILL)
            receipts = west.send_columns([1, 4] * 5, [2] * 10, numbered(10))
            assert receipts.fates.tolist() == ["delivered", "blocked"] * 5, at
            assert in_step(messaging) == (replica, primary)
        assert numbers(drain(east, 10)) == [0, 2, 4, 6, 8] * 2
        assert messaging.log.balance().sends == 20


@pytest.mark.long
def test_without_its_replica_the_primary_acknowledges_nothing_and_health_says_so(exp_id):
    settings = MessagingConfig(send_timeout_s=2)
    with Messaging.start(exp_id, replicas=1, settings=settings) as messaging:
        west, east = messaging.create_groups({"west": [1], "east": [2]}).values()
        in_step(messaging)
        pid = stats_of(messaging, "/replica")["pid"]
        os.kill(pid, signal.SIGSTOP)
        try:
            with pytest.raises(NotReplicated):
                west.send(1, 2, {"n": 0})
        finally:
            os.kill(pid, signal.SIGKILL)
        wait_for(lambda: stats_of(messaging, "/replica")["restarts"] == 1, "the replica's return")
        in_step(messaging)
        assert west.send(1, 2, {"n": 1}).fate == "delivered"
        assert numbers(drain(east, 1))[-1] == 1


@pytest.mark.long
def test_a_replica_that_is_away_is_a_critical_finding(exp_id):
    with Messaging.start(exp_id, replicas=1, settings=SETTINGS) as messaging:
        in_step(messaging)
        # Its owner stands still, so nobody starts it again.
        owner = ray.get(actor_of(messaging, "/replica").__ray_call__.remote(lambda self: os.getpid()))
        pid = stats_of(messaging, "/replica")["pid"]
        os.kill(owner, signal.SIGSTOP)
        try:
            os.kill(pid, signal.SIGKILL)
            wait_for(lambda: troubles(messaging), "the finding")
            [finding] = troubles(messaging)
            assert finding.level == "critical"
            assert "its replica is away" in str(finding)
        finally:
            os.kill(owner, signal.SIGCONT)
        in_step(messaging)


@pytest.mark.long
@pytest.mark.parametrize("victim", ["", "/replica", "/sentinel"])
def test_an_owner_that_is_killed_comes_back_and_nothing_is_lost(exp_id, victim):
    with Messaging.start(exp_id, replicas=1, settings=SETTINGS) as messaging:
        west, east = messaging.create_groups({"west": [1], "east": [2]}).values()
        in_step(messaging)
        assert west.send(1, 2, {"n": 0}).fate == "delivered"
        before = stats_of(messaging, victim)["pid"]
        kill(actor_of(messaging, victim))
        wait_for(lambda: stats_of(messaging, victim)["pid"] not in {None, before}, "the server's return")
        assert west.send(1, 2, {"n": 1}).fate == "delivered"
        in_step(messaging)
        os.kill(stats_of(messaging, roles(messaging)[0])["pid"], signal.SIGKILL)  # all of it works as before
        assert west.send(1, 2, {"n": 2}).fate == "delivered"
        assert numbers(drain(east, 3)) == [0, 1, 2]


@pytest.mark.long
def test_a_sentinel_that_is_killed_keeps_what_it_decided(exp_id):
    with Messaging.start(exp_id, replicas=1, settings=SETTINGS) as messaging:
        west, east = messaging.create_groups({"west": [1], "east": [2]}).values()
        for number in range(3):
            primary, replica = in_step(messaging)
            os.kill(stats_of(messaging, primary)["pid"], signal.SIGKILL)
            wait_for(lambda replica=replica: roles(messaging)[0] == replica, "the failover")
            in_step(messaging)
            os.kill(stats_of(messaging, "/sentinel")["pid"], signal.SIGKILL)
            assert west.send(1, 2, {"n": number}).fate == "delivered"
            assert in_step(messaging)[0] == replica
        assert numbers(drain(east, 3)) == [0, 1, 2]


@pytest.mark.long
def test_both_servers_are_killed_at_once_and_the_primary_comes_back_on_its_data(exp_id):
    with Messaging.start(exp_id, replicas=1, settings=SETTINGS) as messaging:
        west, east = messaging.create_groups({"west": [1], "east": [2]}).values()
        in_step(messaging)
        assert west.send(1, 2, {"n": 0}).fate == "delivered"
        for name in ("", "/replica"):
            os.kill(stats_of(messaging, name)["pid"], signal.SIGKILL)
        assert west.send(1, 2, {"n": 1}).fate == "delivered"
        assert numbers(drain(east, 2)) == [0, 1]


def is_refused(host, port, **options):
    # redis-py takes a wrong password for a lost connection: it would try for seconds.
    with (
        redis.Redis(host, port, retry=Retry(NoBackoff(), 0), **options) as client,
        pytest.raises(redis.AuthenticationError),
    ):
        client.ping()
    return True


def test_servers_and_sentinel_take_nobody_without_their_passwords_and_a_number_that_the_user_gave_stays(exp_id):
    with Messaging.start(exp_id, replicas=1, settings=MessagingConfig(wait_replicas=0)) as messaging:
        assert messaging._connection.experiment.settings.wait_replicas == 0
        config = messaging.redis
        assert config.password not in repr(messaging)
        assert config.sentinel_password not in repr(config)
        [(host, port)] = config.sentinel_addresses()
        members = [ray.get(actor_of(messaging, name).config.remote()) for name in ("", "/replica")]
        places = [(host, port), *((each.server, each.port) for each in members)]
        assert all(is_refused(*place) for place in places)
        assert is_refused(host, port, password=config.password)
        secrets_in = [Path(stats_of(messaging, name)["data_dir"]) for name in ("", "/replica", "/sentinel")]
        for folder in secrets_in:
            assert folder.stat().st_mode & 0o077 == 0
            assert (folder / "valkey.conf").stat().st_mode & 0o077 == 0
    assert not any(folder.exists() for folder in secrets_in)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"replicas": 2}, ["replicas=2", "0, or 1"]),
        ({"replicas": -1}, ["replicas=-1"]),
        ({"replicas": True}, ["replicas=True"]),
        ({"replicas": 1.0}, ["replicas=1.0"]),
        ({"replicas": "one"}, ["replicas='one'"]),
        ({"replicas": None}, ["replicas=None"]),
        ({"replicas": 1, "redis": RedisConfig(server="127.0.0.1")}, ["leave out redis=", "sentinels="]),
        ({"replicas": 1, "redis": MqttConfig(server="127.0.0.1")}, ["leave out redis="]),
        ({"replicas": 1, "redis": "mqtt://127.0.0.1"}, ["leave out redis="]),
        ({"replicas": 1, "data_dir": "/tmp/data"}, ["leave out data_dir="]),
        ({"replicas": 1, "shards": 3, "data_dir": "/tmp/data"}, ["data_dir=", "leave out"]),
        ({"replicas": 1, "shards": 3, "redis": RedisConfig(server="127.0.0.1")}, ["leave out redis="]),
        ({"replicas": 1, "shards": 3, "settings": MessagingConfig(wait_replicas=2)}, ["lower wait_replicas"]),
        ({"replicas": 1, "settings": MessagingConfig(wait_replicas=2)}, ["wait_replicas=2", "lower wait_replicas"]),
        ({"settings": MessagingConfig(wait_replicas=1)}, ["wait_replicas=1", "pass replicas=1"]),
        ({"shards": 2, "settings": MessagingConfig(wait_replicas=1)}, ["wait_replicas=1", "pass replicas=1"]),
    ],
    ids=str,
)
def test_replicas_that_cannot_be_are_refused(exp_id, given, words):
    with pytest.raises(ConfigError) as caught:
        Messaging.start(exp_id, **given)
    for word in words:
        assert word in str(caught.value)
    with pytest.raises(UnknownName):
        Messaging.connect(exp_id)


@pytest.mark.long
@pytest.mark.parametrize("lost", ["primary", "replica"])
def test_a_node_is_lost(lost, tmp_path):
    """Run in a process of its own: its cluster has two nodes, and loses one."""
    run_apart("-m", "faults.replica_node_loss", lost, str(tmp_path))
    assert json.loads((tmp_path / ACCOUNT).read_text())["acknowledged"]
