"""Keeper of a server with a replica: it follows the primary, and may be promoted once it has all of its data."""

import logging
import threading
from typing import Any, Final

import redis
from redis.exceptions import RedisError

from ray_messaging.config import RedisConfig
from ray_messaging.embedded.replication.member_role import ELIGIBLE, PROMOTION
from ray_messaging.embedded.replication.seat import take_seat
from ray_messaging.embedded.replication.sentinel_client import Named, SentinelClient, connected
from ray_messaging.embedded.replication.sentinel_role import WATCHER

logger = logging.getLogger(__name__)

PERIOD_S: Final = 0.25
_ESTRANGED: Final = 4  # looks at which the Sentinel names another primary, before ours is no longer one


class ReplicaKeeper:
    """Thread that looks at one server four times a second, for as long as its owner lives.

    A server process may be promoted once it is in step with the primary, as replica-priority and the rights of the
    Sentinel's user say. It stays so when it loses the primary: nothing is acknowledged that it does not have.
    """

    def __init__(self, server: RedisConfig, sentinel: SentinelClient, token: str) -> None:
        self._server = server
        self._sentinel = sentinel
        self._token = token
        self._run = ""
        self._estranged = 0
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="ray_messaging replica keeper", daemon=True)
        self.in_step = threading.Event()
        self.state: dict[str, Any] = {}
        self._trouble = ""

    def start(self) -> None:
        """Start looking."""
        self._thread.start()

    def stop(self) -> None:
        """Stop looking; return when the thread has ended."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    def _keep(self) -> None:
        while not self._stopping.wait(PERIOD_S):
            try:
                with connected(self._server.server, self._server.port, self._server.password) as client:
                    self._look(client)
            except (RedisError, OSError) as error:  # its supervisor sees to a dead server, and Ray to a dead Sentinel
                self._note(f"a server with a replica, or its Sentinel, is not there now: {error}")
            except Exception as error:  # noqa: BLE001 - it is logged, and the server must not be left alone for it
                self._note(f"a server with a replica cannot be looked after: {error!r}", error)
            else:
                self._trouble = ""

    def _note(self, trouble: str, error: Exception | None = None) -> None:
        """Log a trouble, once for as long as it lasts."""
        if trouble != self._trouble:
            logger.log(logging.INFO if error is None else logging.ERROR, trouble, exc_info=error)
        self._trouble = trouble

    def _look(self, client: "redis.Redis") -> None:
        info: Any = client.info("server", "replication")
        primary = info["role"] == "master"
        if info["run_id"] != self._run:
            self._run = info["run_id"]
            (self.in_step.set if primary else self.in_step.clear)()
        self.state = {name: info[name] for name in ("role", "master_link_status") if name in info}
        named = self._sentinel.primary()
        if named.address == (self._server.server, self._server.port):
            self._estranged = 0
        elif not primary:
            self._keep_replica(client, info, named)
        elif named.settled and _is_primary(named, self._server):
            # For a moment of a failover ours is the primary already, and the Sentinel does not say so yet.
            self._estranged += 1
            if self._estranged > _ESTRANGED:
                self._follow(client, named)

    def _keep_replica(self, client: "redis.Redis", info: dict[str, Any], named: Named) -> None:
        followed = info["master_host"], int(info["master_port"])
        if followed != named.address:
            if named.settled:
                self._follow(client, named)
        elif info["master_link_status"] == "up" and not info["master_sync_in_progress"]:
            if not self.in_step.is_set():
                client.execute_command("ACL", "SETUSER", WATCHER, *PROMOTION)
                client.config_set("replica-priority", ELIGIBLE)
                self.in_step.set()
                logger.info("the replica of the embedded server is in step, and may take its place")
        elif named.settled and not take_seat(named.address, self._server.password or "", self._token, expel=False):
            self._withdraw(client)  # another replica may confirm what this one does not have

    def _follow(self, client: "redis.Redis", named: Named) -> None:
        """Make the server a replica of the named one, which must not be promoted yet."""
        self._estranged = 0
        self._withdraw(client)
        take_seat(named.address, self._server.password or "", self._token, expel=False)
        client.execute_command("REPLICAOF", named.host, named.port)
        logger.warning("the embedded server at port %d follows the primary at %s:%d", self._server.port, *named.address)

    def _withdraw(self, client: "redis.Redis") -> None:
        """Have nobody promote the server."""
        self.in_step.clear()
        client.config_set("replica-priority", 0)
        client.execute_command("ACL", "SETUSER", WATCHER, *(right.replace("+", "-") for right in PROMOTION))


def _is_primary(named: Named, server: RedisConfig) -> bool:
    with connected(named.host, named.port, server.password) as client:
        info: Any = client.info("replication")
    return bool(info["role"] == "master")
