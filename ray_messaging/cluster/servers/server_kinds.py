"""Kinds of embedded servers that a server's actor may own."""

from dataclasses import dataclass
from typing import Any, Protocol

import ray
from ray.exceptions import RayError
from ray.util import get_node_ip_address

from ray_messaging.cluster.handles.actor_calls import NAMESPACE
from ray_messaging.config import RedisConfig, ServerConfig
from ray_messaging.embedded.machine import memory_bytes
from ray_messaging.embedded.replication.credentials import Credentials
from ray_messaging.embedded.replication.member import Member
from ray_messaging.embedded.replication.sentinel import Sentinel
from ray_messaging.embedded.replication.sentinel_role import Watched
from ray_messaging.embedded.server import EmbeddedServer, Succession
from ray_messaging.embedded.supervisor import ServerSupervisor
from ray_messaging.errors import MessagingError

_ANSWER_S = 10.0  # of the Sentinel's actor


class Owner(Protocol):
    """Starter and restarter of one server process."""

    def start(self, *, succeed: bool) -> None:
        """Start the server, or take over a predecessor's; `config` then returns its address or raises the failure."""

    def config(self) -> ServerConfig:
        """Return the server's address and passwords; raise the error of its failure."""

    def stats(self) -> dict[str, Any]:
        """Return alive, pid, data_dir, uptime_s, restarts and last_end."""

    def stop(self, *, erase: bool = False) -> None:
        """Stop the server and remove its data; those in a `data_dir` with `erase`."""


class ServerKind(Protocol):
    """Description of a server; it makes its owner, in the server's actor."""

    def owner(self, succession: Succession, *, again: bool) -> Owner:
        """Make the owner; `again` says that the actor was there before."""


@dataclass(frozen=True)
class SingleServer:
    """A server without a replica; `on_its_node` are all servers of the experiment there."""

    data_dir: str | None = None
    on_its_node: int = 1

    def owner(self, succession: Succession, *, again: bool) -> Owner:  # noqa: ARG002 - as the protocol says
        """Make the owner."""
        return ServerSupervisor(
            EmbeddedServer(
                get_node_ip_address(),
                data_dir=self.data_dir,
                maxmemory_bytes=_share_of_memory(self.on_its_node),
                succession=succession,
            )
        )


@dataclass(frozen=True)
class ReplicatedServer:
    """The primary or its replica: `founding` is the first primary; `on_a_node` are the most servers on any node."""

    sentinel: str  # the name of its actor
    shard: int
    credentials: Credentials
    founding: bool
    on_a_node: int

    def owner(self, succession: Succession, *, again: bool) -> Member:
        """Make the owner."""
        return Member(
            "first" if self.founding else "second",
            get_node_ip_address(),
            self.credentials,
            self._find_sentinel,
            founding=self.founding and not again,
            succession=succession,
            maxmemory_bytes=_share_of_memory(self.on_a_node),
        )

    def _find_sentinel(self) -> RedisConfig:
        try:
            actor = ray.get_actor(self.sentinel, namespace=NAMESPACE)
            found: Any = ray.get(actor.configs.remote(), timeout=_ANSWER_S)
        except (ValueError, RayError, MessagingError) as error:
            raise ConnectionError(f"the Sentinel's actor does not say where it is: {error}") from error
        return RedisConfig.model_validate(found[self.shard].model_dump())


@dataclass(frozen=True)
class SentinelServer:
    """The Sentinel of all primaries and their replicas."""

    watched: tuple[Watched, ...]

    def owner(self, succession: Succession, *, again: bool) -> Owner:  # noqa: ARG002 - as the protocol says
        """Make the owner."""
        return Sentinel(get_node_ip_address(), self.watched, succession=succession)


def _share_of_memory(servers: int) -> int:
    """Return how much memory one of the servers on a node may fill: together they have half of it."""
    return memory_bytes() // (2 * servers)
