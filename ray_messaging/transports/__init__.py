"""Where frames are kept: Redis, or memory for tests."""

from ray_messaging.config import MessagingConfig, RedisConfig
from ray_messaging.errors import ConfigError
from ray_messaging.transports.base import Transport
from ray_messaging.transports.memory import MemoryServer, MemoryTransport
from ray_messaging.transports.redis import RedisTransport

Server = RedisConfig | MemoryServer | str


def open_transport(server: object, exp_id: str, settings: MessagingConfig) -> Transport:
    """Make the transport for a server: a RedisConfig, its URL, or a MemoryServer; raise ConfigError."""
    if isinstance(server, MemoryServer):
        return MemoryTransport(server, exp_id)
    if isinstance(server, str):
        server = RedisConfig.from_url(server)
    if isinstance(server, RedisConfig):
        return RedisTransport(server, exp_id, patience_s=settings.send_timeout_s)
    raise ConfigError(f"{type(server).__name__} says no server: pass a RedisConfig, a redis:// URL or a MemoryServer")
