"""Config of an experiment that has several servers."""

from typing import TYPE_CHECKING

from pydantic import ConfigDict, Field

from ray_messaging.common.limits import BODY_BYTES
from ray_messaging.config import RedisConfig, ServerConfig

if TYPE_CHECKING:
    from ray_messaging.transports.sharded.backend import ShardedBackend


class ShardsConfig(ServerConfig):
    """Addresses of the servers of one experiment, its shards; the first one is the control shard."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    servers: tuple[RedisConfig, ...] = Field(min_length=2, description="the servers; their order must never change")
    nodes: tuple[str, ...] = Field((), description="the Ray node of each; empty: all are on one node")
    home: int | None = Field(None, description="the shard of the mailboxes that are made here; None: they go in turn")

    body_bytes: int = Field(
        BODY_BYTES, ge=64, description="frames of steps from this size on go to other shards than the first one, too"
    )

    @property
    def server(self) -> str:  # type: ignore[override]
        """Return the address of the control shard."""
        return self.servers[0].server

    @property
    def port(self) -> int:  # type: ignore[override]
        """Return the port of the control shard."""
        return self.servers[0].port

    @property
    def password(self) -> str | None:  # type: ignore[override]
        """Return the password of the control shard."""
        return self.servers[0].password

    def on_node(self, node: str) -> "ShardsConfig":
        """Return this config for a process on a node: mailboxes that are made there are on its shard, else in turn."""
        return self.model_copy(update={"home": self.nodes.index(node) if node in self.nodes else None})

    def without_passwords(self) -> "ShardsConfig":
        """Return a copy without the passwords."""
        return self.model_copy(update={"servers": tuple(each.without_passwords() for each in self.servers)})

    def open_backend(self) -> "ShardedBackend":
        """Make the backend."""
        from ray_messaging.transports.sharded.backend import ShardedBackend  # noqa: PLC0415 - loads redis-py

        return ShardedBackend(self)
