"""Configuration of the Sentinel of embedded servers with a replica each."""

from collections.abc import Sequence
from typing import Final, NamedTuple

from ray_messaging.config import RedisConfig
from ray_messaging.embedded.machine import backlog
from ray_messaging.embedded.replication.credentials import Credentials

WATCHER: Final = "watcher"  # the Sentinel's user at the servers
DOWN_AFTER_MS: Final = 2_000  # without an answer; the owner of a server that ends orders the failover at once
FAILOVER_MS: Final = 5_000  # then it tries again
# One Sentinel decides alone: it is on the head node, without which Ray is lost anyway.
CONFIG: Final = """\
bind {sentinel.server}
port {sentinel.port}
requirepass {sentinel.password}
protected-mode yes
tcp-backlog {backlog}
logfile valkey.log
"""
MONITOR: Final = """\
sentinel monitor {service} {host} {port} 1
sentinel auth-user {service} {user}
sentinel auth-pass {service} {password}
sentinel down-after-milliseconds {service} {down_after_ms}
sentinel failover-timeout {service} {failover_ms}
sentinel parallel-syncs {service} 1
"""


class Watched(NamedTuple):
    """A first primary that a Sentinel watches, with its replica, as one service."""

    primary: RedisConfig
    credentials: Credentials

    @staticmethod
    def service(shard: int) -> str:
        """Return the name of a shard's service; a server without others is shard 0."""
        return f"experiment-{shard}"


class SentinelRole:
    """Role of a Sentinel, which keeps what it decided in its configuration file."""

    arguments: tuple[str, ...] = ("--sentinel",)
    keeps_config = True
    may_be_empty = False

    def __init__(self, watched: Sequence[Watched]) -> None:
        self._watched = watched

    def config(self, usual: str, server: RedisConfig, *, fresh: bool) -> str:  # noqa: ARG002 - it keeps no data
        """Return the configuration for its first start."""
        services = [
            MONITOR.format(
                service=Watched.service(shard),
                host=primary.server,
                port=primary.port,
                user=WATCHER,
                password=credentials.watcher,
                down_after_ms=DOWN_AFTER_MS,
                failover_ms=FAILOVER_MS,
            )
            for shard, (primary, credentials) in enumerate(self._watched)
        ]
        return CONFIG.format(sentinel=server, backlog=backlog()) + "".join(services)

    def started(self) -> None:
        """Do nothing."""
