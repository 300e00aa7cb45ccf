"""Backend for several Redis or Valkey servers, or for several shards in one cluster."""

from concurrent.futures import ThreadPoolExecutor
from typing import Self

from ray_messaging.config import MessagingConfig, RedisConfig
from ray_messaging.errors import ConfigError
from ray_messaging.transports.redis.backend import RedisBackend, RedisStores
from ray_messaging.transports.server_facts import ServerFacts, merged_kept
from ray_messaging.transports.sharded.config import ShardsConfig
from ray_messaging.transports.sharded.dead_letter_store import ShardedDeadLetters
from ray_messaging.transports.sharded.experiment_store import ShardedExperimentStore
from ray_messaging.transports.sharded.transport import ShardedTransport


class ShardedStores:
    """Stores of one experiment over the connections of one ShardedTransport."""

    def __init__(self, transport: ShardedTransport) -> None:
        shards = [RedisStores(shard) for shard in transport.shards]
        self.transport = transport
        self.dead_letters = ShardedDeadLetters(transport, [shard.dead_letters for shard in shards])
        self.experiment = ShardedExperimentStore([shard.experiment for shard in shards], transport.bodies)


class ShardedBackend:
    """Factory for the stores on several servers."""

    def __init__(self, config: ShardsConfig) -> None:
        self._config = config
        count = len(config.servers)
        self._shards = [RedisBackend(server, shard, count) for shard, server in enumerate(config.servers)]

    @classmethod
    def of_cluster(cls, config: RedisConfig) -> Self:
        """Make the backend for the shards of an experiment in one cluster."""
        return cls(ShardsConfig(servers=(config,) * config.shards))

    def transport(
        self, exp_id: str, settings: MessagingConfig, *, run: str = "", reset: bool = False
    ) -> ShardedTransport:
        """Make the transport of a messager; raise ConfigError."""
        if settings.mirror:
            raise ConfigError("mirror=True needs one server: leave out shards=, or mirror=")
        shards = [shard.transport(exp_id, settings, run=run, reset=reset) for shard in self._shards]
        return ShardedTransport(self._config, shards)

    def stores(self, exp_id: str, settings: MessagingConfig, *, run: str = "", reset: bool = False) -> ShardedStores:
        """Make the stores of an experiment; see `Backend`."""
        return ShardedStores(self.transport(exp_id, settings, run=run, reset=reset))

    def probe(self, exp_id: str | None = None) -> ServerFacts:
        """Ask the control shard for its state, and the others for theirs (see `ServerFacts.others`)."""
        with ThreadPoolExecutor(len(self._shards)) as threads:  # one that is away costs seconds
            found = [*threads.map(lambda shard: shard.probe(exp_id), self._shards)]
        facts: ServerFacts = found[0]
        facts.others = found[1:]
        facts.kept = merged_kept([each.kept for each in found if each.kept is not None])
        return facts

    def closed_names(self, exp_id: str) -> list[str]:
        """Return the mailboxes of closed messagers with a name."""
        return [name for shard in self._shards for name in shard.closed_names(exp_id)]
