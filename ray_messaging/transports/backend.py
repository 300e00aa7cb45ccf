"""Choice of the backend: the kind of server, by its config, that keeps messages and experiments."""

from typing import Protocol, runtime_checkable

from pydantic import BaseModel, ValidationError

from ray_messaging.config import MessagingConfig, RedisConfig, ServerConfig, ShardsConfig
from ray_messaging.errors import ConfigError
from ray_messaging.transports.dead_letter_store import DeadLetterStore
from ray_messaging.transports.experiment_store import ExperimentStore
from ray_messaging.transports.log_store import LoggedTransport
from ray_messaging.transports.server_facts import ServerFacts
from ray_messaging.transports.transport import Transport


class ExperimentStores(Protocol):
    """Stores of one experiment over one set of connections: those of the transport, which connects and closes them."""

    @property
    def transport(self) -> LoggedTransport:
        """Mailboxes, and the streams that the event log reads."""

    @property
    def dead_letters(self) -> DeadLetterStore:
        """Dead letters."""

    @property
    def experiment(self) -> ExperimentStore:
        """Run, interceptor epoch and rule state."""


class Backend(Protocol):
    """Factory for the stores on one server that can keep experiments."""

    def transport(self, exp_id: str, settings: MessagingConfig) -> Transport:
        """Make the transport of a messager."""

    def stores(self, exp_id: str, settings: MessagingConfig, *, run: str = "", reset: bool = False) -> ExperimentStores:
        """Make the stores of an experiment.

        Args: `run` is the start of it that must hold it ("": any). With `reset` it deletes what is there, so that the
        format of that does not matter.
        """

    def probe(self, exp_id: str | None = None) -> ServerFacts:
        """Ask the server for its state, and for that of an experiment. Blocks; an error is in the answer."""

    def closed_names(self, exp_id: str) -> list[str]:
        """Return the mailboxes of closed messagers with a name. Blocks. Raises ConnectionFailed, ServerRefused."""


@runtime_checkable
class BackendConfig(Protocol):
    """Config of a server of another kind than ours: it brings its backend along, also to other processes."""

    def open_backend(self) -> Backend:
        """Make the backend."""


def backend_of(config: ServerConfig) -> Backend:
    """Make the backend for the server of an experiment (see `experiment_config`)."""
    if isinstance(config, BackendConfig):
        return config.open_backend()
    from ray_messaging.transports.redis.backend import RedisBackend  # noqa: PLC0415 - loads redis-py

    return RedisBackend(config if isinstance(config, ShardsConfig) else redis_config(config))


def open_transport(server: object, exp_id: str, settings: MessagingConfig) -> Transport:
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
