"""Choice of the backend by the server's config. A backend is the kind of server that keeps messages and experiments.

Processes that never use a server import this module too. So redis-py is imported in the functions that need it.
"""

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from pydantic import BaseModel, ValidationError

from ray_messaging.config import MessagingConfig, RedisConfig, ServerConfig, ShardsConfig
from ray_messaging.errors import ConfigError
from ray_messaging.transports.dead_letter_store import RedisDeadLetters
from ray_messaging.transports.experiment_store import RedisExperimentStore
from ray_messaging.transports.server_facts import ServerFacts

if TYPE_CHECKING:
    from ray_messaging.transports.step_values import StepSettings
    from ray_messaging.transports.transport import RedisTransport


class RedisStores:
    """Access to the dead letters and the data of one experiment, over the connections of one RedisTransport."""

    def __init__(self, transport: "RedisTransport") -> None:
        self.transport = transport
        self.dead_letters = RedisDeadLetters(transport)
        self.experiment = RedisExperimentStore(transport)


class RedisBackend:
    """Factory for an experiment's transports and stores.

    The experiment's data are on one server, the primary. Large frames are on further servers, if the config has any.

    Args: `first_steps` are settings of steps. If given, each experiment has steps with these settings. The first
    messager that connects sets up the steps.
    """

    def __init__(self, config: RedisConfig | ShardsConfig, *, first_steps: "StepSettings | None" = None) -> None:
        if isinstance(config, RedisConfig) and config.shards > 1:
            config = ShardsConfig.of_cluster(config)
        self._spread = config if isinstance(config, ShardsConfig) else None
        self._servers = config.servers if isinstance(config, ShardsConfig) else (config,)
        self._first_steps = first_steps

    def transport(
        self, exp_id: str, settings: MessagingConfig, *, run: str = "", reset: bool = False
    ) -> "RedisTransport":
        """Make the connection object through which one messager uses the server."""
        from ray_messaging.transports.transport import RedisTransport  # noqa: PLC0415

        made = RedisTransport(
            self._servers[0],
            exp_id,
            patience_s=settings.send_timeout_s,
            dead_bytes=settings.dead_bytes,
            run=run,
            reset=reset,
            wait_replicas=settings.wait_replicas,
            spread=self._spread,
        )
        made.first_steps = self._first_steps
        return made

    def stores(self, exp_id: str, settings: MessagingConfig, *, run: str = "", reset: bool = False) -> RedisStores:
        """Make the stores of an experiment.

        Args: `run` is the id of a call of `Messaging.start`. Once a later start has taken over the experiment, the
        stores refuse all calls, except if `run` is "". With `reset`, the start deletes the existing data, so the format
        of these data does not matter.
        """
        return RedisStores(self.transport(exp_id, settings, run=run, reset=reset))

    def probe(self, exp_id: str | None = None) -> ServerFacts:
        """Return the state of the primary, and of an experiment on it (None: of no experiment).

        The result's `others` has the state of each further server.
        """
        from ray_messaging.transports.server_probe import ask_server  # noqa: PLC0415

        # The servers are asked at the same time, because each one that does not answer takes seconds.
        with ThreadPoolExecutor(len(self._servers)) as threads:
            asked = [
                threads.submit(ask_server, server, None if shard else exp_id, space=exp_id or "", shard=shard)
                for shard, server in enumerate(self._servers)
            ]
        facts, *facts.others = [each.result() for each in asked]
        return facts

    def closed_names(self, exp_id: str) -> list[str]:
        """Return the mailboxes that closed messagers have left for messagers of the same names. This call blocks.

        Raises: ConnectionFailed if the server does not answer; ServerRefused if it refuses the password, user or db.
        """
        from ray_messaging.transports.server_probe import closed_names  # noqa: PLC0415

        return closed_names(self._servers[0], exp_id)


@runtime_checkable
class BackendConfig(Protocol):
    """Config of a server that is neither a RedisConfig nor a ShardsConfig, such as a LocalServer.

    Each process that needs the server calls `open_backend`.
    """

    def open_backend(self) -> RedisBackend:
        """Return a new object that makes the transports and stores by which this process uses the server."""


def backend_of(config: ServerConfig) -> RedisBackend:
    """Make the backend for the server of an experiment (see `experiment_config`)."""
    if isinstance(config, BackendConfig):
        return config.open_backend()
    return RedisBackend(config if isinstance(config, ShardsConfig) else redis_config(config))


def open_transport(server: object, exp_id: str, settings: MessagingConfig) -> "RedisTransport":
    """Make the transport for a server: a config, a URL, or a LocalServer; raise ConfigError for anything else."""
    if isinstance(server, BackendConfig):
        return server.open_backend().transport(exp_id, settings)
    if isinstance(server, str | BaseModel) and (config := experiment_config(server)) is not None:
        return backend_of(config).transport(exp_id, settings)
    refuse_broker(server)
    raise ConfigError(f"{type(server).__name__} is no server: pass a RedisConfig, a redis:// URL or a LocalServer")


def refuse_broker(server: object) -> None:
    """Raise ConfigError for an MQTT broker, which has no scripts, no cursors and no log."""
    if type(server).__name__ == "MqttConfig" or (isinstance(server, str) and server.startswith("mqtt")):
        raise ConfigError(
            "an MQTT broker cannot be the server of an experiment: pass a RedisConfig or a redis:// URL, or start the "
            "experiment without redis= for an embedded server. For an MQTT broker there is AgentSociety's earlier "
            "Messager, ray_messaging.compat.mqtt.Messager"
        )


def experiment_config(server: object) -> ServerConfig | None:
    """Return the config of an experiment's server, given as a config or a URL; None means an embedded server.

    Raises: ConfigError for anything else.
    """
    refuse_broker(server)
    if server is None or isinstance(server, ServerConfig):
        return server
    if isinstance(server, str):
        return RedisConfig.from_url(server)
    if isinstance(server, BaseModel):
        return redis_config(server)
    raise ConfigError(
        f"redis={type(server).__name__} is no server: pass a RedisConfig or a redis:// URL, or leave it out for an "
        "embedded server"
    )


def redis_config(server: BaseModel) -> RedisConfig:
    """Return a checked RedisConfig with the fields of another config, such as AgentSociety's.

    Raises: ConfigError if these fields are invalid.
    """
    try:
        known = {name: getattr(server, name) for name in RedisConfig.model_fields if hasattr(server, name)}
        return RedisConfig.model_validate(known)
    except ValidationError as error:  # pydantic's text does not show the values, some of which may be passwords
        raise ConfigError(f"this {type(server).__name__} is not the config of a server: {error}") from None
