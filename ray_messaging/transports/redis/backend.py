"""Backend for Redis and Valkey."""

from concurrent.futures import ThreadPoolExecutor

from ray_messaging.config import MessagingConfig, RedisConfig, ShardsConfig
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
    """Factory for the stores on a primary, and for the bodies of steps on further servers."""

    def __init__(self, config: RedisConfig | ShardsConfig) -> None:
        if isinstance(config, RedisConfig) and config.shards > 1:
            config = ShardsConfig.of_cluster(config)
        self._spread = config if isinstance(config, ShardsConfig) else None
        self._servers = config.servers if isinstance(config, ShardsConfig) else (config,)

    def transport(
        self, exp_id: str, settings: MessagingConfig, *, run: str = "", reset: bool = False
    ) -> RedisTransport:
        """Make the transport of a messager."""
        return RedisTransport(
            self._servers[0],
            exp_id,
            patience_s=settings.send_timeout_s,
            dead_bytes=settings.dead_bytes,
            run=run,
            reset=reset,
            wait_replicas=settings.wait_replicas,
            spread=self._spread,
        )

    def stores(self, exp_id: str, settings: MessagingConfig, *, run: str = "", reset: bool = False) -> RedisStores:
        """Make the stores of an experiment.

        Args: `run` is the start of it that must hold it ("": any). With `reset` it deletes what is there, so that the
        format of that does not matter.
        """
        return RedisStores(self.transport(exp_id, settings, run=run, reset=reset))

    def probe(self, exp_id: str | None = None) -> ServerFacts:
        """Ask the primary for its state, and that of an experiment, and further servers for theirs (see `others`)."""
        with ThreadPoolExecutor(len(self._servers)) as threads:  # one that is away costs seconds
            asked = [
                threads.submit(ask_server, server, None if shard else exp_id, space=exp_id or "", shard=shard)
                for shard, server in enumerate(self._servers)
            ]
        facts, *facts.others = [each.result() for each in asked]
        return facts

    def closed_names(self, exp_id: str) -> list[str]:
        """Return the mailboxes of closed messagers with a name. Blocks. Raises ConnectionFailed, ServerRefused."""
        return closed_names(self._servers[0], exp_id)
