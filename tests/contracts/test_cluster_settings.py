"""A cluster as the server: how it is found, and settings that cannot work, each with its remedy."""

import asyncio

import pytest
from support.contracts import refused
from support.replicated import until
from support.server_side import closed_names, examined, findings_of_server, kept_in_mailboxes, keys_of
from support.servers import HOST, PASSWORD, free_port
from support.slots import ClusterService, owner_of, raw, slot_of

from ray_messaging import Messager, RedisConfig
from ray_messaging.errors import ConfigError, ConnectionFailed, ServerRefused


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """Start a cluster of two primaries, one with a replica."""
    with ClusterService(tmp_path_factory.mktemp("small"), primaries=2, replicas=1) as service:
        yield service


def seeds(*servers):
    return RedisConfig(cluster=[f"{HOST}:{server.config.port}" for server in servers], password=PASSWORD)


async def test_any_node_is_enough_also_a_replica_and_one_that_is_gone_does_not_matter(small, opener, exp_id):
    small.serve(exp_id)
    replica = small.replicas[0]
    config = seeds(replica)
    messager = await opener(config, name="b", host=[2])
    assert (await messager.send_message(messager.get_agent_chat_channel(2), {"n": 1}, from_id=1)).fate == "delivered"
    assert [message.payload["n"] for message in await messager.fetch_messages(timeout=30)] == [1]
    assert owner_of(config, keys_of(exp_id)) == (HOST, small.primary.config.port)
    gone = config.model_copy(update={"cluster": (f"{HOST}:{free_port()}", *config.cluster)})
    assert (await (await opener(gone)).send_message(messager.get_agent_chat_channel(2), {"n": 2}, from_id=1)).fate


async def test_a_node_as_if_it_were_a_server_on_its_own(small, exp_id):
    for server in small.servers:
        said = str(await refused(server.config, exp_id, ConfigError))
        assert "primaries of a cluster: give redis+cluster://" in said
    (finding,) = [each for each in await findings_of_server(small.servers[0].config) if each.what == "server role"]
    assert "redis+cluster://" in finding.remedy


async def test_a_server_on_its_own_as_if_it_were_a_node(valkey_config, exp_id):
    config = RedisConfig(cluster=[f"{HOST}:{valkey_config.port}"], password=valkey_config.password)
    said = str(await refused(config, exp_id, ConfigError))
    assert f"{HOST}:{valkey_config.port} is not a node of a cluster" in said
    assert "pass server= and port= (redis://)" in said


async def test_nodes_out_of_reach_and_a_wrong_password(small, exp_id):
    ports = free_port(), free_port()
    said = str(await refused(RedisConfig(cluster=[f"{HOST}:{port}" for port in ports]), exp_id, ConnectionFailed))
    assert "no node of the cluster can be reached" in said
    assert all(f"{HOST}:{port}" in said for port in ports)
    said = str(await refused(small.config.model_copy(update={"password": "no"}), exp_id, ServerRefused))
    assert "set username and password" in said


async def test_a_slot_that_no_node_has(tmp_path, exp_id):
    with ClusterService(tmp_path, primaries=1, replicas=0) as service, service.servers[0].client() as client:
        client.execute_command("CLUSTER DELSLOTS", slot_of(exp_id))
        said = str(await refused(service.config, exp_id, ConfigError))
        assert f"has slot {slot_of(exp_id)}, where this experiment's keys belong: give it to a primary" in said
        # By default a cluster then serves no other slot, either.
        other = next(f"{exp_id}-{n}" for n in range(99) if slot_of(f"{exp_id}-{n}") != slot_of(exp_id))
        assert "CLUSTERDOWN" in str(await refused(service.config, other, ConnectionFailed))
        client.config_set("cluster-require-full-coverage", "no")
        until(lambda: b"cluster_state:ok" in raw(client, "CLUSTER INFO"), "a cluster that serves the other slots")
        async with Messager(service.config, other):
            pass


# -- shards -----------------------------------------------------------------------------------------------------------


def in_shards(service, shards):
    return service.config.model_copy(update={"shards": shards})


@pytest.mark.parametrize(("first", "then"), [(3, 1), (1, 3), (3, 6)])
async def test_another_number_of_shards_is_refused(small, opener, exp_id, first, then):
    await opener(in_shards(small, first), name="b", host=[2])
    said = str(await refused(in_shards(small, then), exp_id, ConfigError))
    assert f"write shards={first}" in said
    assert f"has shards={then}," in said
    messager = await opener(in_shards(small, first), name="c")
    assert (await messager.send_message(messager.get_agent_chat_channel(2), {"n": 1}, from_id=1)).fate == "delivered"


@pytest.mark.parametrize("shards", [1, 3])
async def test_probe_and_doctor_ask_the_nodes_of_all_shards(small, opener, exp_id, shards):
    config = in_shards(small, shards)
    for agent in range(3):
        messager = await opener(config, name=f"group-{agent}", host=[agent])
        await messager.send_message(messager.get_agent_chat_channel(agent), {"n": 1}, from_id=1)
    assert {*await kept_in_mailboxes(config, exp_id)} == {"group-0", "group-1", "group-2"}
    assert "server role" not in {each.what for each in await findings_of_server(config) if each.level != "ok"}
    assert await closed_names(config, exp_id) == []
    health = await asyncio.to_thread(examined, config)
    assert {finding.what: finding.text for finding in health.findings if finding.level == "critical"} == {}
    for server in small.servers:
        with server.client() as client:
            assert not list(client.scan_iter("rm:{doctor-*", count=1000))
