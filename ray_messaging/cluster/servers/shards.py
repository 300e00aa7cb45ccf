"""Servers of an experiment: one embedded server, or several, its shards."""

import asyncio
from collections.abc import Sequence
from typing import Literal

import ray

from ray_messaging.cluster.handles.actor_calls import NAMESPACE
from ray_messaging.cluster.spec import InterceptorSpec
from ray_messaging.config import ServerConfig
from ray_messaging.errors import ConfigError
from ray_messaging.transports.sharded.config import ShardsConfig

Shards = int | Literal["per-node"] | None
PER_NODE = "per-node"


def server_names(exp_id: str, count: int) -> list[str]:
    """Return the Ray names of the actors of an experiment's embedded servers."""
    return [f"{exp_id}/server", *(f"{exp_id}/server-{shard}" for shard in range(1, count))]


def check_shards(shards: object, *, server: object, steps: object, data_dir: object, mirror: bool) -> Shards:
    """Return a valid `shards=`; raise ConfigError for another one, and for what needs one server."""
    whole = isinstance(shards, int) and not isinstance(shards, bool) and shards >= 1
    if shards is not None and not whole and shards != PER_NODE:
        raise ConfigError(f"shards={shards!r} is unknown: write a number from 1, or 'per-node'")
    if shards is None or shards == 1:
        return None
    if server is not None:
        raise ConfigError(
            f"shards={shards!r} are embedded servers, and redis= is one of yours: leave out redis=, or shards="
        )
    for name, given in (("steps", steps), ("data_dir", data_dir), ("mirror", mirror or None)):
        if given is not None:
            raise ConfigError(f"{name}= needs one server, and shards={shards!r} are several: leave out one of the two")
    return shards  # type: ignore[return-value]  # checked above


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
    """Return the config of an experiment's embedded servers, once all of them run."""
    names = server_names(spec.exp_id, len(spec.nodes))
    actors = [ray.get_actor(name, namespace=NAMESPACE) for name in names]
    return config_of(await asyncio.gather(*(actor.config.remote() for actor in actors)), spec)


def config_here(config: ServerConfig) -> ServerConfig:
    """Return a server's config for a group in this process: its mailbox is on the shard of this node, if it has one."""
    if isinstance(config, ShardsConfig) and config.nodes:
        return config.on_node(ray.get_runtime_context().get_node_id())
    return config
