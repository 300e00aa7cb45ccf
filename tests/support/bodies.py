"""What further servers have of an experiment: the bodies of large frames of its steps."""

from ray_messaging.addressing.server_keys import Keys
from ray_messaging.config import ShardsConfig
from support.contracts import client_of


def bodies_on_each_primary(config):
    """Return how to reach a cluster that keeps the bodies of all frames but the smallest on each of its primaries."""
    return ShardsConfig.of_cluster(config).model_copy(update={"body_bytes": 64})


def bodies_on(configs):
    """Return how to reach servers of which the first one orders, and the others keep the bodies of larger frames."""
    return ShardsConfig(servers=tuple(configs), body_bytes=64)


async def bodies_of(config, exp_id):
    """Return how many bodies each server has."""
    found = []
    for server in config.servers:
        async with client_of(server) as client:
            keys = [key async for key in client.scan_iter(Keys(exp_id).bodies + ":*", count=1000)]
            found.append(sum([await client.hlen(key) for key in keys]))
    return found


async def lose_bodies(server, exp_id, step):
    """Delete the bodies of a step on one server."""
    async with client_of(server) as client:
        assert await client.delete(Keys(exp_id).bodies_of(step)) == 1


async def keys_on(server, exp_id):
    """Return the keys that a server has of an experiment, and whether each of them has bodies."""
    async with client_of(server) as client:
        found = [key.decode() async for key in client.scan_iter(Keys(exp_id).prefix + "*", count=1000)]
    return {key: key.startswith(Keys(exp_id).bodies) for key in found}
