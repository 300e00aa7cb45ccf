"""The Sentinel of embedded servers with a replica each, with its supervisor."""

from collections.abc import Sequence
from typing import Any

from ray_messaging.common.limits import EMBEDDED_CONNECT_S
from ray_messaging.config import RedisConfig
from ray_messaging.embedded.replication.sentinel_role import SentinelRole, Watched
from ray_messaging.embedded.server import EmbeddedServer, Succession
from ray_messaging.embedded.supervisor import ServerSupervisor


class Sentinel:
    """A Sentinel, the only one of its services; it starts again with what it decided whenever it dies.

    Args:
        host: The address to listen on.
        watched: The first primary of each service. Their credentials have one password of the Sentinel.
        succession: Let a successor of the owner take it over.
    """

    def __init__(self, host: str, watched: Sequence[Watched], *, succession: Succession | None = None) -> None:
        role, password = SentinelRole(watched), watched[0].credentials.sentinel
        server = EmbeddedServer(host, succession=succession, password=password, role=role)
        self._credentials = [each.credentials for each in watched]
        self._supervisor = ServerSupervisor(server)

    def start(self, *, succeed: bool) -> None:
        """Start it, or take over a predecessor's."""
        self._supervisor.start(succeed=succeed)

    def config(self) -> RedisConfig:
        """Return the config by which clients find the first service's primary; raise the error of a failure."""
        return self.configs()[0]

    def configs(self) -> tuple[RedisConfig, ...]:
        """Return the config by which clients find the primary of each service; raise the error of a failure."""
        found = self._supervisor.config()
        return tuple(
            RedisConfig(
                sentinels=(f"{found.server}:{found.port}",),
                service=Watched.service(shard),
                password=credentials.clients,
                sentinel_password=credentials.sentinel,
                connect_timeout=EMBEDDED_CONNECT_S,
            )
            for shard, credentials in enumerate(self._credentials)
        )

    def stats(self) -> dict[str, Any]:
        """Return the supervisor's stats."""
        return self._supervisor.stats()

    def stop(self, *, erase: bool = False) -> None:
        """Stop it and forget what it decided."""
        self._supervisor.stop(erase=erase)
