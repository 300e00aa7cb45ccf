"""Choice of the backend: the kind of server, by its config, that keeps messages and experiments."""

from typing import TYPE_CHECKING, Protocol, runtime_checkable

from pydantic import BaseModel, ValidationError

from ray_messaging.config import MessagingConfig, RedisConfig, ServerConfig, ShardsConfig
from ray_messaging.errors import ConfigError

if TYPE_CHECKING:
    from ray_messaging.transports.redis.backend import RedisBackend
    from ray_messaging.transports.redis.transport import RedisTransport


@runtime_checkable
class BackendConfig(Protocol):
    """Config of a server of another kind than ours: it brings its backend along, also to other processes."""

    def open_backend(self) -> "RedisBackend":
        """Make the backend."""


def backend_of(config: ServerConfig) -> "RedisBackend":
    """Make the backend for the server of an experiment (see `experiment_config`)."""
    if isinstance(config, BackendConfig):
        return config.open_backend()
    from ray_messaging.transports.redis.backend import RedisBackend  # noqa: PLC0415 - loads redis-py

    return RedisBackend(config if isinstance(config, ShardsConfig) else redis_config(config))


def open_transport(server: object, exp_id: str, settings: MessagingConfig) -> "RedisTransport":
    """Make the transport for a server: a config, a URL, or a LocalServer; raise ConfigError."""
    refuse_broker(server)
    if isinstance(server, BackendConfig):
        return server.open_backend().transport(exp_id, settings)
    if isinstance(server, str):
        server = RedisConfig.from_url(server)
    if isinstance(server, ServerConfig):
        return backend_of(server).transport(exp_id, settings)
    if isinstance(server, BaseModel):
        return backend_of(redis_config(server)).transport(exp_id, settings)
    raise ConfigError(f"{type(server).__name__} says no server: pass a RedisConfig, a redis:// URL or a LocalServer")


def refuse_broker(server: object) -> None:
    """Raise ConfigError for an MQTT broker, which has no scripts, no cursors and no log."""
    if type(server).__name__ == "MqttConfig" or (isinstance(server, str) and server.startswith("mqtt")):
        raise ConfigError(
            "a messager needs Redis or Valkey: pass a RedisConfig or a redis:// URL, or start an experiment without "
            "redis= for an embedded server. For an MQTT broker there is AgentSociety's earlier Messager, "
            "ray_messaging.compat.mqtt.Messager"
        )


def experiment_config(server: object) -> ServerConfig | None:
    """Return the config of an experiment's server; None: an embedded one. Raises ConfigError."""
    refuse_broker(server)
    if server is None or isinstance(server, ServerConfig):
        return server
    if isinstance(server, str):
        return RedisConfig.from_url(server)
    if isinstance(server, BaseModel):
        return redis_config(server)
    raise ConfigError(
        f"redis={type(server).__name__} says no server: pass a RedisConfig or a redis:// URL, or leave it out for an "
        "embedded server"
    )


def redis_config(server: BaseModel) -> RedisConfig:
    """Return a checked RedisConfig with the fields of another config, as AgentSociety's own."""
    try:
        known = {name: getattr(server, name) for name in RedisConfig.model_fields if hasattr(server, name)}
        return RedisConfig.model_validate(known)
    except ValidationError as error:  # it shows no values: they may be passwords
        raise ConfigError(f"this {type(server).__name__} says no server: {error}") from None
