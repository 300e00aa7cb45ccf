"""Servers that would lose messages are refused at the start, with the remedy."""

import pytest
from support.server_side import findings_of_server

from ray_messaging import Messager, RedisConfig
from ray_messaging.errors import ConfigError, ServerRefused


@pytest.fixture
def client(redis_process):
    with redis_process.client() as client:
        yield client


async def opens(config, exp_id):
    async with Messager(config, exp_id):
        pass


async def test_an_evicting_server_is_refused_unless_that_is_allowed(redis_process, client, exp_id):
    config = redis_process.config
    client.config_set("maxmemory-policy", "volatile-ttl")
    await opens(config, exp_id)  # without a limit nothing is evicted
    client.config_set("maxmemory", "100mb")
    with pytest.raises(ConfigError, match="CONFIG SET maxmemory-policy noeviction") as caught:
        await opens(config, exp_id)
    assert all(said in str(caught.value) for said in ("volatile-ttl", "allow_eviction=True"))
    assert not isinstance(caught.value, ServerRefused)
    await opens(config.model_copy(update={"allow_eviction": True}), exp_id)
    await opens(f"redis://:{config.password}@{config.server}:{config.port}?allow_eviction=1", exp_id)
    with pytest.raises(ConfigError, match="allow_eviction=1"):
        RedisConfig.from_url("redis://host?allow_eviction=perhaps")
    client.config_set("maxmemory-policy", "noeviction")
    await opens(config, exp_id)


async def test_a_replica_is_refused_with_its_primarys_address(redis_process, client, exp_id):
    client.execute_command("REPLICAOF", "primary.example", "7")
    with pytest.raises(ConfigError, match=r"replica.*primary\.example:7"):
        await opens(redis_process.config, exp_id)
    found = {finding.what: finding.level for finding in await findings_of_server(redis_process.config)}
    assert found["server role"] == "critical"
    client.execute_command("REPLICAOF", "NO", "ONE")
    await opens(redis_process.config, exp_id)
