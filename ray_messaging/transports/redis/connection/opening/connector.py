"""Maker of connections to one server."""

from functools import cached_property
from typing import Any

from redis.asyncio.connection import AbstractConnection, Connection, SSLConnection, UnixDomainSocketConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from ray_messaging.common.limits import CONNECT_TIMEOUT_S
from ray_messaging.config import RedisConfig
from ray_messaging.transports.redis.connection.opening.local_socket import NearbyConnection
from ray_messaging.transports.redis.connection.opening.sentinels import Sentinels
from ray_messaging.transports.redis.connection.opening.tls import tls_options


def connection_options(config: RedisConfig) -> dict[str, Any]:
    """Return how redis-py is to connect."""
    options: dict[str, Any] = {
        "db": config.db,
        "username": config.username,
        "password": config.password,
        "socket_timeout": config.timeout,
        "socket_connect_timeout": CONNECT_TIMEOUT_S,
        "socket_keepalive": True,
        "retry_on_error": [],
        "protocol": 2,
    }
    if config.server.startswith("/"):
        return options | {"unix_socket_path": config.server}
    return options | {"host": config.server, "port": config.port, "ssl": config.ssl} | tls_options(config)


class Connector:
    """Maker of connections to a server: at the address of its config, or where its Sentinels say that it is."""

    def __init__(self, config: RedisConfig) -> None:
        self._config = config
        self._sentinels = Sentinels(config) if config.sentinels else None
        self.address = (config.server, config.port)  # of the last connection

    @property
    def discovers(self) -> bool:
        """Return whether Sentinels name the server."""
        return self._sentinels is not None

    @property
    def where(self) -> str:
        """Return the server's address, for messages."""
        host, port = self.address
        if not host and self._sentinels is not None:
            return self._sentinels.where
        return host if host.startswith("/") else f"{host}:{port}"

    @cached_property
    def _options(self) -> dict[str, Any]:
        # redis-py's own retry is blind: it repeats what may have had its effect. We own the loop.
        return connection_options(self._config) | {"retry": Retry(NoBackoff(), 0)}

    async def make(self) -> AbstractConnection:
        """Make a connection that is still to be opened; raises redis-py's errors where Sentinels name no server."""
        options = dict(self._options)
        if "unix_socket_path" in options:
            del options["socket_keepalive"]  # of TCP
            return UnixDomainSocketConnection(path=options.pop("unix_socket_path"), **options)
        if self._sentinels is not None:
            self.address = await self._sentinels.primary()
            options["host"], options["port"] = self.address
        if options.pop("ssl"):
            return SSLConnection(**options)
        if self._config.socket_dir is not None:
            return NearbyConnection(socket_dir=self._config.socket_dir, **options)
        return Connection(**options)
