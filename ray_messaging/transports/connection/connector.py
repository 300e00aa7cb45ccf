"""Maker of connections to one server, which may be on this very machine."""

import asyncio
from functools import cached_property
from typing import Any

from redis.asyncio.connection import AbstractConnection, Connection, SSLConnection, UnixDomainSocketConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from ray_messaging.config import RedisConfig
from ray_messaging.transports.connection.cluster import ClusterNodes
from ray_messaging.transports.connection.discovery import Discovery
from ray_messaging.transports.connection.options import connection_options
from ray_messaging.transports.connection.sentinels import Sentinels


class NearbyConnection(Connection):
    """Connect by a unix socket that the server has on its machine; from elsewhere, or in vain, by host and port.

    A hop by it takes a sixth less time than by loopback.
    """

    def __init__(self, *, socket_dir: str, **options: Any) -> None:  # noqa: ANN401 - redis-py's
        super().__init__(**options)
        self._socket = f"{socket_dir}/{self.port}.sock"

    async def _connect(self) -> None:
        # redis-py has one class of connections for each way, and no public place for a choice.
        try:
            async with asyncio.timeout(self.socket_connect_timeout):
                streams = await asyncio.open_unix_connection(self._socket)
        except OSError:  # it is not there, or nobody listens: who is out of reach is told by TCP
            await super()._connect()  # type: ignore[no-untyped-call]  # redis-py has no types here
        else:
            self._reader, self._writer = streams


def discovery_of(config: RedisConfig, home: str) -> Discovery | None:
    """Return the servers that name the primary of keys that begin with `home`; None: it has a fixed address."""
    if config.sentinels:
        return Sentinels(config)
    return ClusterNodes(config, home) if config.cluster else None


class Connector:
    """Maker of connections to a server: at the address of its config, or where Sentinels or cluster nodes say it is."""

    def __init__(self, config: RedisConfig, home: str) -> None:
        self._config = config
        self._discovery = discovery_of(config, home)
        self.address = (config.server, config.port)  # of the last connection

    @property
    def discovers(self) -> bool:
        """Return whether other servers name the server."""
        return self._discovery is not None

    @property
    def where(self) -> str:
        """Return the server's address, for messages."""
        host, port = self.address
        if not host and self._discovery is not None:
            return self._discovery.where
        return host if host.startswith("/") else f"{host}:{port}"

    @cached_property
    def _options(self) -> dict[str, Any]:
        # redis-py's own retry is blind: it repeats what may have had its effect. We own the loop.
        return connection_options(self._config) | {"retry": Retry(NoBackoff(), 0)}

    async def make(self) -> AbstractConnection:
        """Make a connection that is still to be opened; raises redis-py's errors where no server is named."""
        options = dict(self._options)
        if "unix_socket_path" in options:
            del options["socket_keepalive"]  # of TCP
            return UnixDomainSocketConnection(path=options.pop("unix_socket_path"), **options)
        if self._discovery is not None:
            self.address = await self._discovery.primary()
            options["host"], options["port"] = self.address
        if options.pop("ssl"):
            return SSLConnection(**options)
        if self._config.socket_dir is not None:
            return NearbyConnection(socket_dir=self._config.socket_dir, **options)
        return Connection(**options)
