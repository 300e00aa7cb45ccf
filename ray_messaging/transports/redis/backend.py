"""Backend for Redis and Valkey."""

from ray_messaging.config import MessagingConfig, RedisConfig
from ray_messaging.transports.redis.dead_letter_store import RedisDeadLetters
from ray_messaging.transports.redis.experiment_store import RedisExperimentStore
from ray_messaging.transports.redis.server_probe import ask_server, closed_names
from ray_messaging.transports.redis.transport import RedisTransport
from ray_messaging.transports.server_facts import ServerFacts


class RedisStores:
    """Stores of one experiment over the connections of one RedisTransport."""

    def __init__(self, transport: RedisTransport) -> None:
        self.transport = transport
        self.dead_letters = RedisDeadLetters(transport)
        self.experiment = RedisExperimentStore(transport)


class RedisBackend:
    """Factory for the stores on one Redis or Valkey server, or for those of one of several shards."""

    def __init__(self, config: RedisConfig, shard: int = 0, shards: int = 1) -> None:
        self._config = config
        self._shard = shard
        self._shards = shards

    def transport(
        self, exp_id: str, settings: MessagingConfig, *, run: str = "", reset: bool = False
    ) -> RedisTransport:
        """Make the transport of a messager."""
        return RedisTransport(
            self._config,
            exp_id,
            patience_s=settings.send_timeout_s,
            dead_bytes=settings.dead_bytes,
            run=run,
            reset=reset,
            wait_replicas=settings.wait_replicas,
            shard=self._shard,
            shards=self._shards,
        )

    def stores(self, exp_id: str, settings: MessagingConfig, *, run: str = "", reset: bool = False) -> RedisStores:
        """Make the stores of an experiment; see `Backend`."""
        return RedisStores(self.transport(exp_id, settings, run=run, reset=reset))

    def probe(self, exp_id: str | None = None) -> ServerFacts:
        """Ask the server for its state, and for that of an experiment."""
        return ask_server(self._config, exp_id, shard=self._shard)

    def closed_names(self, exp_id: str) -> list[str]:
        """Return the mailboxes of closed messagers with a name."""
        return closed_names(self._config, exp_id, self._shard)
