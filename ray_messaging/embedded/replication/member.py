"""One of two servers, the primary or its replica, with its supervisor and its keeper."""

import time
from collections.abc import Callable
from typing import Any, Final

from ray_messaging.config import RedisConfig
from ray_messaging.embedded.replication.credentials import Credentials
from ray_messaging.embedded.replication.keeper import ReplicaKeeper
from ray_messaging.embedded.replication.member_role import MemberRole
from ray_messaging.embedded.replication.sentinel_client import SentinelClient
from ray_messaging.embedded.server import EmbeddedServer, Succession
from ray_messaging.embedded.supervisor import ServerSupervisor
from ray_messaging.errors import ServerFailed

IN_STEP_S: Final = 60.0  # for the first copy of a primary that has no data yet


class Member:
    """A server that is the primary or the replica, as the Sentinel says; it starts again whenever it dies.

    Args:
        name: Its name; the other one has another name, and a successor the same.
        host: The address to listen on.
        credentials: The passwords, the same for both servers and the Sentinel.
        find_sentinel: Returns the config that leads to the Sentinel; raises OSError.
        founding: It begins as the primary.
        succession: Let a successor of the owner take the server over.
        maxmemory_bytes: Refuse writes above it. None: half of the memory.
    """

    def __init__(
        self,
        name: str,
        host: str,
        credentials: Credentials,
        find_sentinel: Callable[[], RedisConfig],
        *,
        founding: bool,
        succession: Succession | None = None,
        maxmemory_bytes: int | None = None,
    ) -> None:
        self._sentinel = SentinelClient(find_sentinel)
        self._role = MemberRole(name, self._sentinel, credentials, founding=founding)
        self._server = EmbeddedServer(
            host,
            maxmemory_bytes=maxmemory_bytes,
            succession=succession,
            password=credentials.clients,
            role=self._role,
        )
        self._supervisor = ServerSupervisor(self._server)
        self._keeper: ReplicaKeeper | None = None

    def start(self, *, succeed: bool) -> None:
        """Start the server; with `succeed` as the successor of an owner, whose data may be here."""
        self._supervisor.start(succeed=succeed and self._server.is_left, retry=succeed)
        if self._supervisor.failure is None:
            self._keeper = ReplicaKeeper(self.config(), self._sentinel, self._role.token)
            self._keeper.start()

    def config(self) -> RedisConfig:
        """Return the server's own address and password; raise the error of its failure."""
        return self._supervisor.config()

    def wait_in_step(self) -> RedisConfig:
        """Wait until it may take the primary's place, and return its address; raise ServerFailed."""
        config = self.config()
        began = time.monotonic()
        if self._keeper is None or not self._keeper.in_step.wait(IN_STEP_S):
            waited = time.monotonic() - began
            text = f"the replica of the embedded server has no copy of its data after {waited:.0f} s"
            raise ServerFailed(f"{text}: can its node reach the primary's?", log="")
        return config

    def stats(self) -> dict[str, Any]:
        """Return the supervisor's stats, with the server's role, and whether it may take the primary's place."""
        keeper = self._keeper
        state = {} if keeper is None else keeper.state | {"in_step": keeper.in_step.is_set()}
        return self._supervisor.stats() | state

    def stop(self, *, erase: bool = False) -> None:
        """Stop the server and remove its data."""
        self._role.stop()
        if self._keeper is not None:
            self._keeper.stop()
        self._supervisor.stop(erase=erase)
