"""The product's own primary, replica and Sentinel, with their owners in this process, for tests."""

import os
import secrets
import signal
from contextlib import ExitStack, suppress

from faults.proxy import Proxy

from ray_messaging.config import RedisConfig
from ray_messaging.embedded.replication.credentials import Credentials
from ray_messaging.embedded.replication.member import Member
from ray_messaging.embedded.replication.seat import USER
from ray_messaging.embedded.replication.sentinel import Sentinel
from ray_messaging.embedded.replication.sentinel_client import SentinelClient, connected
from ray_messaging.embedded.replication.sentinel_role import WATCHER, Watched
from ray_messaging.embedded.supervisor import SETTLED_S
from support.replicated import until
from support.servers import HOST


class Place:
    """A member, with a way of its own to the Sentinel, a proxy, which can be cut."""

    def __init__(self, credentials, *, founding, way=None):
        self.way = way
        self._credentials = credentials
        self.member = Member(
            "first" if founding else "second", HOST, credentials, self._find_sentinel, founding=founding
        )
        self.member.start(succeed=False)
        self.address = HOST, self.member.config().port

    def _find_sentinel(self):
        if self.way is None:
            raise ConnectionError("there is no Sentinel yet")
        return RedisConfig(
            sentinels=[f"{HOST}:{self.way.config.port}"],
            service=Watched.service(0),
            sentinel_password=self._credentials.sentinel,
        )

    @property
    def pid(self):
        return self.member.stats()["pid"]

    def client(self):
        return connected(*self.address, self._credentials.clients)

    def is_replica_in_step(self):
        stats = self.member.stats()
        return stats["alive"] and stats["in_step"] and stats.get("role") == "slave"

    def kill(self):
        """End its process; its owner starts it again."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)


class EmbeddedService:
    """A primary, its replica and their Sentinel; as a context manager it leaves no process behind.

    It can take the place of a ReplicatedService, or of a RedisProcess on a fault's stage.
    """

    def __init__(self):
        self.credentials = Credentials()
        self.places = []
        self.process = None
        self._stack = ExitStack()

    def __enter__(self):
        return self.start()

    def __exit__(self, *_):
        self.kill()

    def start(self):
        with self._stack:
            first = self._enter(Place(self.credentials, founding=True))
            self.sentinel = Sentinel(HOST, [Watched(first.member.config(), self.credentials)])
            self._stack.callback(self.sentinel.stop)
            self.sentinel.start(succeed=False)
            first.way = self._way()
            self._enter(Place(self.credentials, founding=False, way=self._way()))
            self._stack = self._stack.pop_all()
        self.primary = first
        self._asking = SentinelClient(self.sentinel.config)
        self.settle()
        return self

    def _enter(self, place):
        self.places.append(place)
        self._stack.callback(place.member.stop)
        return place

    def _way(self):
        [(host, port)] = self.sentinel.config().sentinel_addresses()
        return self._stack.enter_context(Proxy(RedisConfig(server=host, port=port)))

    @property
    def config(self):
        """Return the config that leads to the primary by the Sentinel."""
        return self.sentinel.config().model_copy(update={"timeout": 10})

    @property
    def replica(self):
        return next(place for place in self.places if place is not self.primary)

    def cut_off(self, place):
        """Cut a server off from the other one, and with its owner from the Sentinel; clients still reach it."""
        place.way.black_hole = True
        with place.client() as client:
            client.execute_command("ACL", "SETUSER", WATCHER, "off")
            client.execute_command("ACL", "SETUSER", USER, "resetpass", f">{secrets.token_hex(8)}")
            for user in (WATCHER, USER):
                client.execute_command("CLIENT", "KILL", "USER", user)

    def failed_over(self):
        """Return when the Sentinel has made another server the primary."""
        old = self.primary.address
        named = until(lambda: (found := self._asking.primary()).address != old and found, "another primary")
        self.primary = next(place for place in self.places if place.address == named.address)

    def join(self, place):
        """Let a server reach the Sentinel again: its owner starts it as a replica."""
        place.way.black_hole = False

    def settle(self):
        """Return when the Sentinel names a primary, and the other server may take its place."""
        until(self._agree, "a primary and a replica in step")

    def rest(self):
        """Return when all have run for so long that their owners do not count another end as one more in a row."""
        owners = self.sentinel, *(place.member for place in self.places)
        until(lambda: all(owner.stats()["uptime_s"] > SETTLED_S for owner in owners), "servers that have run for long")

    def _agree(self):
        named = self._asking.primary()
        self.primary = next(place for place in self.places if place.address == named.address)
        self.process = self.primary
        return named.settled and self.replica.is_replica_in_step()

    def kill(self):
        self._stack.close()
        self.process = None
