"""Questions and orders of a server's owner to the Sentinel."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

import redis
from redis.backoff import NoBackoff
from redis.exceptions import ResponseError
from redis.retry import Retry

from ray_messaging.config import RedisConfig

ANSWER_S: Final = 2.0
INFO_MS: Final = 500  # between its looks at the replicas; by itself it takes ten seconds
_UNSETTLED: Final = frozenset({"s_down", "o_down", "disconnected", "failover_in_progress"})


class Named(NamedTuple):
    """The primary that the Sentinel names; not `settled`: it is away, or another one is about to take its place."""

    host: str
    port: int
    settled: bool

    @property
    def address(self) -> tuple[str, int]:
        """Return its host and port."""
        return self.host, self.port


@contextmanager
def connected(host: str, port: int, password: str | None) -> Iterator["redis.Redis"]:
    """Open one connection, which is never replaced by another: all commands meet the same process."""
    options: dict[str, Any] = {"socket_timeout": ANSWER_S, "socket_connect_timeout": ANSWER_S, "protocol": 2}
    with redis.Redis(
        host, port, password=password, retry=Retry(NoBackoff(), 0), single_connection_client=True, **options
    ) as client:
        yield client


class SentinelClient:
    """Client of one Sentinel, for one of its services; `find` returns the config that leads there.

    All calls raise RedisError, OSError.
    """

    def __init__(self, find: Callable[[], RedisConfig]) -> None:
        self._find = find
        self._config: RedisConfig | None = None

    @contextmanager
    def _connected(self) -> Iterator[tuple["redis.Redis", str]]:
        """Open a connection to the Sentinel; give the name of the service, too."""
        if self._config is None:
            self._config = self._find()
        assert self._config.service is not None
        [(host, port)] = self._config.sentinel_addresses()
        with connected(host, port, self._config.sentinel_password) as client:
            yield client, self._config.service

    def primary(self) -> Named:
        """Return the primary."""
        with self._connected() as (client, service):
            # A Sentinel forgets this when it ends.
            client.execute_command("SENTINEL", "DEBUG", "INFO-PERIOD", INFO_MS)
            state: Any = client.execute_command("SENTINEL MASTER", service)
        return Named(state["ip"], int(state["port"]), not _UNSETTLED & set(state["flags"].split(",")))

    def forget_replicas(self) -> None:
        """Have it forget all replicas but those that are connected to the primary: it must promote no other one."""
        with self._connected() as (client, service):
            client.execute_command("SENTINEL", "RESET", service)

    def fail_over(self) -> bool:
        """Order a failover; return whether one is under way: without a replica in step there is none."""
        with self._connected() as (client, service):
            try:
                client.execute_command("SENTINEL", "FAILOVER", service)
            except ResponseError as error:
                if "NOGOODSLAVE" in str(error) or "No suitable replica" in str(error):
                    return False
                if "INPROG" not in str(error) and "in progress" not in str(error):
                    raise
        return True
