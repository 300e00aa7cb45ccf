"""Where frames are kept: Redis, an MQTT broker, or memory for tests."""

from pydantic import BaseModel, ValidationError

from ray_messaging.config import MessagingConfig, MqttConfig, RedisConfig
from ray_messaging.errors import ConfigError
from ray_messaging.transports.base import Transport
from ray_messaging.transports.memory import MemoryServer, MemoryTransport
from ray_messaging.transports.redis import RedisTransport


def open_transport(server: object, exp_id: str, settings: MessagingConfig) -> Transport:
    """Make the transport for a server: a RedisConfig, an MqttConfig, a URL, or a MemoryServer; raise ConfigError."""
    if isinstance(server, MemoryServer):
        return MemoryTransport(server, exp_id, dead_bytes=settings.dead_bytes)
    if isinstance(server, str):
        server = MqttConfig.from_url(server) if server.startswith("mqtt") else RedisConfig.from_url(server)
    if isinstance(server, MqttConfig):
        return open_mqtt(server, exp_id, settings)
    if isinstance(server, BaseModel):
        return RedisTransport(
            _redis_config(server), exp_id, patience_s=settings.send_timeout_s, dead_bytes=settings.dead_bytes
        )
    raise ConfigError(
        f"{type(server).__name__} says no server: pass a RedisConfig, an MqttConfig, a redis:// or mqtt:// URL or a "
        "MemoryServer"
    )


def redis_of(server: object) -> RedisConfig | None:
    """Return what an experiment's actors connect to; None: an embedded server. Raises ConfigError."""
    if server is None or isinstance(server, RedisConfig):
        return server
    if isinstance(server, MqttConfig) or (isinstance(server, str) and server.startswith("mqtt")):
        raise ConfigError(
            "an experiment's server is Redis or Valkey: pass redis= a RedisConfig or a redis:// URL, or leave it out "
            "for an embedded one. An MQTT broker goes to Messager(MqttConfig(...), exp_id), or ray_messaging.mqtt"
        )
    if isinstance(server, str):
        return RedisConfig.from_url(server)
    if isinstance(server, MemoryServer):
        raise ConfigError(
            "a MemoryServer lives in one process, and an experiment's actors have their own: pass it to "
            "Messager(MemoryServer(), exp_id) in a test; leave redis= out for an embedded server, or give it your own"
        )
    if isinstance(server, BaseModel):
        return _redis_config(server)
    raise ConfigError(
        f"redis={type(server).__name__} says no server: pass a RedisConfig or a redis:// URL, or leave it out for an "
        "embedded server"
    )


def _redis_config(server: BaseModel) -> RedisConfig:
    """Read a config's fields anew: AgentSociety's own does as well, and what was assigned to a field is checked."""
    try:
        known = {name: getattr(server, name) for name in RedisConfig.model_fields if hasattr(server, name)}
        return RedisConfig.model_validate(known)
    except ValidationError as error:  # which shows no values: they may be passwords
        raise ConfigError(f"this {type(server).__name__} says no server: {error}") from None


def open_mqtt(server: MqttConfig, exp_id: str, settings: MessagingConfig, *, log: Transport | None = None) -> Transport:
    """Make the transport for an MQTT broker; `log` is told what the event log should know. Raises ConfigError."""
    try:
        from ray_messaging.mqtt.transport import MqttTransport  # noqa: PLC0415 - an extra
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"MQTT needs the extra: pip install 'ray-messaging[mqtt]' (there is no module {error.name!r})"
        ) from error
    return MqttTransport(server, exp_id, settings, log=log)
