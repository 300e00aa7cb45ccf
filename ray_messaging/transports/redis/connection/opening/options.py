"""Options for connections of redis-py."""

from typing import Any

from ray_messaging.common.limits import CONNECT_TIMEOUT_S
from ray_messaging.config import RedisConfig
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
