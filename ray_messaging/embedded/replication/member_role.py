"""Configuration of one of two servers, the primary or its replica: the Sentinel says which, at each start."""

import logging
import secrets
import threading
import time
from contextlib import suppress
from typing import Final

from redis.exceptions import RedisError

from ray_messaging.config import RedisConfig
from ray_messaging.embedded.replication.credentials import Credentials
from ray_messaging.embedded.replication.seat import MEMBER, USER, belongs_to, take_seat
from ray_messaging.embedded.replication.sentinel_client import SentinelClient
from ray_messaging.embedded.replication.sentinel_role import WATCHER
from ray_messaging.errors import ServerFailed

logger = logging.getLogger(__name__)

SENTINEL_S: Final = 60.0  # for the Sentinel's answer, and for a failover: the Sentinel may be starting again
NO_REPLICA_S: Final = 3.0  # a Sentinel that has just started, or a busy machine, takes time to see a replica
PAUSE_S: Final = 0.1
ELIGIBLE: Final = 100  # Redis's default of replica-priority; with 0 the Sentinel never chooses a replica
PROMOTION: Final = ("+slaveof", "+replicaof")  # the rights by which the Sentinel promotes a server
# A replica reads a new copy of the data from a file that it has received whole (repl-diskless-load disabled): until
# then it keeps what it has. swapdb would keep it for some seconds more, for twice the memory.
CONFIG: Final = """\
user {member} off resetpass
user {user} off resetpass +ping +psync +replconf
user {watcher} on >{credentials.watcher} &__sentinel__:hello +multi +exec +ping +info +role +publish +subscribe \
+client|setname +client|kill +script|kill +config|rewrite {rights}
masteruser {user}
masterauth {token}
repl-diskless-sync yes
repl-diskless-sync-delay 0
repl-diskless-load disabled
repl-backlog-size 64mb
replica-priority {priority}
"""


class MemberRole:
    """Role of a primary or a replica. An owner has its own, with a password for its seat as a replica.

    Args:
        member: The name of this one of the two.
        sentinel: The Sentinel.
        founding: Its first start makes it the primary: there is no Sentinel yet.
    """

    arguments: tuple[str, ...] = ()
    keeps_config = False
    may_be_empty = True

    def __init__(self, member: str, sentinel: SentinelClient, credentials: Credentials, *, founding: bool) -> None:
        self.token = secrets.token_urlsafe(32)
        self._member = member
        self._sentinel = sentinel
        self._credentials = credentials
        self._founding = founding
        self._stopping = threading.Event()

    def stop(self) -> None:
        """End a wait for the Sentinel, now and later."""
        self._stopping.set()

    def started(self) -> None:
        """Note that a start has succeeded: from then on the Sentinel says who is the primary."""
        self._founding = False

    def config(self, usual: str, server: RedisConfig, *, fresh: bool) -> str:
        """Return the configuration of a primary, or of a replica that must not be promoted yet."""
        primary = None if fresh and self._founding else self._primary((server.server, server.port), fresh=fresh)
        rights = " ".join(PROMOTION) if primary is None else ""
        text = usual + CONFIG.format(
            member=f"{MEMBER}{self._member}",
            user=USER,
            watcher=WATCHER,
            credentials=self._credentials,
            rights=rights,
            token=self.token,
            priority=ELIGIBLE if primary is None else 0,
        )
        if primary is None:
            return text
        with suppress(RedisError, OSError):  # it is away: the keeper takes the seat when there is a primary
            take_seat(primary, self._credentials.clients, self.token, expel=True)
            if fresh:  # under its former address it must not be promoted, nor get the Sentinel's password
                self._sentinel.forget_replicas()
        return f"{text}replicaof {primary[0]} {primary[1]}\n"

    def _primary(self, server: tuple[str, int], *, fresh: bool) -> tuple[str, int] | None:
        """Return the primary for a server that is about to start; None: itself, as no replica can take its place."""
        began, error = time.monotonic(), "a failover takes too long"

        def tried_s() -> float:
            return time.monotonic() - began

        while tried_s() < SENTINEL_S:
            try:
                named = self._sentinel.primary()
                if named.address != server and named.settled:
                    if not belongs_to(named.address, self._credentials.clients, self._member):
                        return named.address
                    self._sentinel.fail_over()  # it is on a node that Ray has given up
                elif named.address == server and fresh:
                    raise ServerFailed("the primary's data are gone, and no replica can take its place", log="")
                elif named.address == server and not self._sentinel.fail_over() and tried_s() > NO_REPLICA_S:
                    logger.error("no replica is in step, so the primary starts again on its own data")
                    return None
            except (RedisError, OSError) as found:
                error = str(found)
            if self._stopping.wait(PAUSE_S):
                break
        raise ServerFailed(f"the Sentinel does not say which server is the primary: {error}", log="")
