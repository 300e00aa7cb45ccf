"""Servers of an experiment: one embedded server, or several, its shards."""

import asyncio
from collections.abc import Sequence
from typing import Literal

import ray

from ray_messaging.cluster.handles.actor_calls import NAMESPACE
from ray_messaging.cluster.servers.server_names import server_names
from ray_messaging.cluster.spec import InterceptorSpec
from ray_messaging.common.limits import SHARDS
from ray_messaging.config import RedisConfig, ServerConfig
from ray_messaging.errors import Closed, ConfigError
from ray_messaging.transports.sharded.config import ShardsConfig

Shards = int | Literal["per-node"] | None
PER_NODE = "per-node"


def check_shards(shards: object, *, server: ServerConfig | None, data_dir: object, mirror: bool) -> Shards:
    """Return a valid `shards=`; raise ConfigError for another one, and for what needs one server."""
    whole = isinstance(shards, int) and not isinstance(shards, bool) and shards >= 1
    if shards is not None and not whole and shards != PER_NODE:
        raise ConfigError(f"shards={shards!r} is unknown: write a number from 1, or 'per-node'")
    if isinstance(shards, int) and shards > SHARDS:
        raise ConfigError(f"shards={shards} are too many: at most {SHARDS}, a few for each server's machine")
    if shards is None or shards == 1:
        return None
    if server is not None:
        _check_in_cluster(shards, server)
    if mirror:
        raise ConfigError(f"mirror= needs one server, and shards={shards!r} are several: leave out one of the two")
    if shards == PER_NODE and data_dir is not None:
        raise ConfigError(
            "shards='per-node' keeps no data for a later start, whose nodes may be others: leave out data_dir=, or "
            "write a number, shards=3"
        )
    return shards  # type: ignore[return-value]  # checked above


def _check_in_cluster(shards: object, server: ServerConfig) -> None:
    if shards == PER_NODE or not isinstance(server, RedisConfig) or not server.cluster:
        raise ConfigError(
            f"shards={shards!r} are embedded servers, and redis= is one of yours: leave out redis=, or shards=. Those "
            "in a cluster have a number: redis='redis+cluster://host:port,host:port', shards=6"
        )
    if server.shards not in {1, shards}:
        raise ConfigError(f"shards={shards} and redis= with shards={server.shards} do not agree: leave out one of them")


def nodes_of(shards: Shards) -> tuple[str, ...]:
    """Return the Ray node of each embedded server; the first one is this node."""
    here = ray.get_runtime_context().get_node_id()
    if shards != PER_NODE:
        return (here,) * int(shards or 1)
    alive = sorted(node["NodeID"] for node in ray.nodes() if node["Alive"])
    return (here, *(node for node in alive if node != here))


def config_of(servers: Sequence[ServerConfig], spec: InterceptorSpec) -> ServerConfig:
    """Return the config of an experiment with these servers."""
    if len(servers) == 1:
        return servers[0]
    return ShardsConfig.model_validate({"servers": tuple(servers), "nodes": spec.nodes if spec.per_node else ()})


async def embedded_config(spec: InterceptorSpec) -> ServerConfig:
    """Return the config of an experiment's embedded servers, once all of them run; raise Closed where one is lost."""
    names = server_names(spec.exp_id, len(spec.nodes))
    try:
        actors = [ray.get_actor(name, namespace=NAMESPACE) for name in names]
    except ValueError as error:
        if (lost := lost_server(spec)) is not None:
            raise Closed(lost) from error
        raise
    return config_of(await asyncio.gather(*(actor.config.remote() for actor in actors)), spec)


def lost_server(spec: InterceptorSpec) -> str | None:
    """Return which server Ray cannot start again, because its node with its data is gone; None: none."""
    for shard, name in enumerate(server_names(spec.exp_id, len(spec.nodes))):
        try:
            ray.get_actor(name, namespace=NAMESPACE)
        except ValueError:
            which = "its embedded server" if len(spec.nodes) == 1 else f"the embedded server of shard {shard}"
            return (
                f"experiment {spec.exp_id!r} has lost {which} with Ray node {spec.nodes[shard]}: what waited there is "
                "gone. Shut it down, and start it anew; a server of yours with Sentinels, or a cluster, survives that: "
                "redis="
            )
    return None


def config_here(config: ServerConfig) -> ServerConfig:
    """Return a server's config for a group in this process: its mailbox is on the shard of this node, if it has one."""
    if isinstance(config, ShardsConfig) and config.nodes:
        return config.on_node(ray.get_runtime_context().get_node_id())
    return config
