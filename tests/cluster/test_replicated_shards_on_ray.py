"""Several embedded servers with a replica each: primaries are killed, and nodes lost."""

import json
import os
import signal
import sys
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import ray
from faults.node_loss import ACCOUNT
from faults.ray_support import a_town
from faults.ray_traffic import traffic_in
from support.cluster import PATIENCE_S, control, drain, numbers, pid_of, run_apart, stopped, wait_for
from support.replicas_on_ray import actor_of, fail_over, in_step, names_of, stats_of, troubles

from ray_messaging import Messaging, MessagingConfig, Steps
from ray_messaging.addressing.channels import Keys
from ray_messaging.cluster.handles.actor_calls import named_actors
from ray_messaging.cluster.health_check import check_health
from ray_messaging.embedded.machine import memory_bytes
from ray_messaging.transports.redis.server_probe import client_of

pytestmark = pytest.mark.usefixtures("ray_cluster")

SHARDS = range(3)
SETTINGS = MessagingConfig(send_timeout_s=PATIENCE_S)
RING = {f"group-{number}": [number] for number in range(6)}  # two on each shard
RING_OF_TOWN = ((1, 11), (12, 21), (22, 2), (3, 4), (13, 14), (23, 24))


@pytest.fixture
def exp_id():
    return f"replicated-{uuid.uuid4().hex[:8]}"


def send_on(groups, first, count=5):
    """Have each group of the ring send to the next one; return the fates by sender."""
    rows = [{"n": first + at} for at in range(count)]
    return {
        agent: set(group.send_columns([agent] * count, [(agent + 1) % 6] * count, rows).fates.tolist())
        for agent, group in enumerate(groups)
    }


@pytest.mark.long
def test_three_shards_with_a_replica_each(exp_id, tmp_path, caplog):
    with Messaging.start(exp_id, shards=3, replicas=1, settings=SETTINGS, log_dir=tmp_path / "log") as messaging:
        assert "saves from a killed process, not from a lost machine" in caplog.text
        assert messaging._connection.experiment.settings.wait_replicas == 1
        services = messaging.redis.servers
        assert len({server.service for server in services}) == len({server.password for server in services}) == 3
        assert len({(server.sentinels, server.sentinel_password) for server in services}) == 1
        assert not any(word in repr(messaging.redis) for server in services for word in passwords(server))
        groups = [*messaging.create_groups(RING).values()]
        assert send_on(groups, 0) == {agent: {"delivered"} for agent in range(6)}

        found = [str(finding) for finding in messaging.health().findings]
        for shard in SHARDS:
            assert any(f"shard {shard}: server replicas" in finding and "bytes behind" in finding for finding in found)
        for what in ("server's actor (sentinel)", "server's actor (replica)", "server's actor of shard 2 (replica)"):
            assert any(f"{what}: answers" in finding for finding in found), (what, found)

        # A rule counts on all shards once its call has returned, and after the failover of each.
        control(messaging, "add_to_black_set", [(0, None)])
        fates = {0: {"blocked"}} | {agent: {"delivered"} for agent in range(1, 6)}
        assert send_on(groups, 5) == fates
        for shard in SHARDS:
            primary, replica = in_step(messaging, shard)
            os.kill(stats_of(messaging, primary)["pid"], signal.SIGKILL)
            assert send_on(groups, 10 + 5 * shard) == fates
            assert in_step(messaging, shard) == (replica, primary)
        for agent, group in enumerate(groups):
            wanted = range(5) if agent == 1 else range(25)
            assert numbers(drain(group, len(wanted))) == [*wanted]
        assert messaging.log.balance().sends == 6 * 25
        limits = []
        for server in services:
            with client_of(server, Keys(exp_id)) as client:
                limits.append(client.info("memory")["maxmemory"])
        assert memory_bytes() // 5 < sum(limits) <= memory_bytes() // 4  # a replica has as much
        folders = [stats_of(messaging, name)["data_dir"] for shard in SHARDS for name in names_of(shard)]
        assert len(set(folders)) == 6
    assert not any(Path(folder).exists() for folder in folders)
    assert not named_actors(f"{exp_id}/")


def passwords(server):
    return server.password, server.sentinel_password


@pytest.mark.long
def test_health_finds_all_servers_by_the_sentinel_and_names_the_shard_whose_replica_is_away(exp_id):
    with Messaging.start(exp_id, shards=2, replicas=1, settings=SETTINGS) as messaging:
        in_step(messaging, 1)
        # Its owner stands still, so nobody starts it again.
        owner, pid = pid_of(actor_of(messaging, "-1/replica")), stats_of(messaging, "-1/replica")["pid"]
        with stopped(owner), stopped(pid_of(messaging.interceptor)):
            os.kill(pid, signal.SIGKILL)

            def found():
                return [str(problem) for problem in check_health(exp_id, None, {}).problems if "away" in str(problem)]

            [problem] = wait_for(found, "the finding")
            assert "shard 1: server replicas" in problem
        wait_for(lambda: not troubles(messaging), "the replica's return", 2 * PATIENCE_S)


@pytest.mark.long
def test_each_primary_is_killed_under_traffic(tmp_path):
    with a_town(names=("west", "east", "south"), shards=3, replicas=1, send_timeout_s=2 * PATIENCE_S) as town:
        with traffic_in(town, tmp_path, RING_OF_TOWN) as traffic:
            for _ in range(2):
                for shard in SHARDS:
                    fail_over(town.messaging, shard)
                    traffic.goes_on()
        account = traffic.account()
    assert account.flaws == {}, account
    assert account.acknowledged


TEXT = "word " * 5_000  # its frames go to all shards


def narrator(me, inbox):
    me.state["heard"] = [(message.from_id, message.payload["n"], len(message.payload["text"])) for message in inbox]
    for shift in (1, 2):
        me.send((me.id + shift) % 12, {"n": me.step, "text": TEXT}, deliver_at=me.step + shift)


def told(messaging, model):
    """Run the model; return states, fates and digests."""
    result = messaging.run(model, agents=12, groups=3, until=30)
    assert result.digests == {step: messaging.log.digest(step).hex() for step in range(30)}
    return result.states, result.fates, result.digests


@pytest.mark.long
def test_a_run_in_steps_gives_what_it_gives_on_one_server_when_each_primary_is_killed(exp_id, tmp_path):
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    try:
        steps = Steps(seed=7, digest=True)
        with Messaging.start(f"{exp_id}-1", steps=steps, log_dir=tmp_path / "one") as messaging:
            wanted = told(messaging, narrator)
        replicated = {"shards": 2, "replicas": 1, "settings": SETTINGS}
        with (
            Messaging.start(exp_id, steps=steps, log_dir=tmp_path / "log", **replicated) as messaging,
            ThreadPoolExecutor(1) as threads,
        ):
            running = threads.submit(told, messaging, narrator)
            for step, shard in ((2, 0), (6, 1), (10, 0)):
                messaging.steps.wait(step, timeout=2 * PATIENCE_S)
                fail_over(messaging, shard)
            assert running.result(timeout=5 * PATIENCE_S) == wanted
    finally:
        ray.cloudpickle.unregister_pickle_by_value(sys.modules[__name__])


@pytest.mark.long
@pytest.mark.parametrize("nodes", [2, 4])
def test_a_node_is_lost(nodes, tmp_path):
    """Run in a process of its own: its cluster has several nodes, and loses one."""
    run_apart("-m", "faults.shard_node_loss", str(nodes), str(tmp_path))
    assert json.loads((tmp_path / ACCOUNT).read_text())["acknowledged"]
