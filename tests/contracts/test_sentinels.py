"""Sentinels: settings that cannot work, each with its remedy; test_failover.py asks for a failover."""

import pytest
from support.contracts import refused
from support.probing import place_of
from support.replicated import SERVICE, ReplicatedService
from support.servers import HOST, free_port

from ray_messaging import RedisConfig
from ray_messaging.errors import ConfigError, ConnectionFailed


@pytest.fixture(scope="module")
def lone(tmp_path_factory):
    """Start a primary and one Sentinel."""
    with ReplicatedService(tmp_path_factory.mktemp("lone"), binary="valkey", replicas=0, sentinels=1) as service:
        yield service


async def test_a_service_that_the_sentinels_do_not_know(lone, exp_id):
    error = await refused(lone.config.model_copy(update={"service": "city"}), exp_id, ConfigError)
    assert f"knows no service 'city' (it knows '{SERVICE}')" in str(error)


async def test_a_server_in_place_of_a_sentinel(lone, exp_id):
    address = f"{HOST}:{lone.primary.config.port}"
    await refused(RedisConfig(sentinels=[address], service=SERVICE, sentinel_password="x"), exp_id, ConfigError)
    with lone.primary.client() as client:
        password = client.connection_pool.connection_kwargs["password"]
    error = await refused(
        RedisConfig(sentinels=[address], service=SERVICE, sentinel_password=password), exp_id, ConfigError
    )
    assert f"{address} is not a Sentinel" in str(error)


async def test_a_sentinel_in_place_of_a_server(lone, exp_id):
    error = await refused(RedisConfig(server=HOST, port=lone.sentinels[0].port), exp_id, ConfigError)
    assert "is a Sentinel, which keeps no data" in str(error)


async def test_sentinels_out_of_reach(exp_id):
    ports = free_port(), free_port()
    config = RedisConfig(sentinels=[f"{HOST}:{port}" for port in ports], service=SERVICE)
    error = await refused(config, exp_id, ConnectionFailed)
    assert not isinstance(error, ConfigError)
    assert "no Sentinel of service 'town' can be reached" in str(error)
    assert all(f"{HOST}:{port}" in str(error) for port in ports)


async def test_one_sentinel_of_two_is_enough_and_the_probe_asks_them_too(lone, opener):
    gone = f"{HOST}:{free_port()}"
    config = lone.config.model_copy(update={"sentinels": (gone, *lone.config.sentinels)})
    messager = await opener(config, name="b", host=[2])
    assert (await messager.send_message(messager.get_agent_chat_channel(2), {"n": 1}, from_id=1)).fate == "delivered"
    assert await place_of(config) == f"service 'town' of the Sentinels at {gone}, {config.sentinels[1]}"
