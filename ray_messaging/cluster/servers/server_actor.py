"""Ray actor of an embedded server."""

import os
import time
from typing import Any, Final

import ray

from ray_messaging.cluster.actors.restarts import restarted
from ray_messaging.cluster.servers.server_kinds import Owner, ServerKind
from ray_messaging.config import RedisConfig, ServerConfig
from ray_messaging.embedded.replication.member import Member
from ray_messaging.embedded.replication.sentinel import Sentinel
from ray_messaging.embedded.server import Succession
from ray_messaging.observability.health.reports import Disk, Report

# Ray starts a new process within seconds, even on a busy machine. After a driver's end the data are kept for as long.
GRACE_S: Final = 20.0


class ServerActor:
    """Ray actor that owns an embedded server; after a restart it takes the running server over.

    `name` is a secret of this actor and its restarts: the name of a temporary data directory. Data in a `data_dir`
    stay.
    """

    def __init__(self, name: str, kind: ServerKind) -> None:
        # Without this node's raylet Ray cannot restart the actor here.
        raylet = int(os.environ.get("RAY_RAYLET_PID", os.getppid()))
        again = restarted()
        self._owner: Owner = kind.owner(Succession(name, GRACE_S, raylet), again=again)
        self._owner.start(succeed=again)  # an error raised here would lose its type; `config` raises it

    def config(self) -> ServerConfig:
        """Return the server's address and password, of a Sentinel its first service's; raise the error of a failure."""
        return self._owner.config()

    def configs(self) -> tuple[RedisConfig, ...]:
        """Return the config of each service of a Sentinel; raise the error of a failure."""
        assert isinstance(self._owner, Sentinel)
        return self._owner.configs()

    def node(self) -> str:
        """Return the Ray node on which it is."""
        return str(ray.get_runtime_context().get_node_id())

    def wait_in_step(self) -> None:
        """Wait until a replica may take the primary's place; raise ServerFailed."""
        assert isinstance(self._owner, Member)
        self._owner.wait_in_step()

    def stats(self) -> dict[str, Any]:
        """Return alive, pid, data_dir, uptime_s, restarts and last_end of the server, and its role beside a replica."""
        return self._owner.stats()

    def health(self) -> Report:
        """Return a health report with the free disk space."""
        stats = self._owner.stats()
        reason = stats["last_end"] or "no reason known"
        error = "" if stats["alive"] else f"the embedded server does not run ({reason})"
        disk = None if stats["data_dir"] is None else Disk.of(stats["data_dir"])
        return Report(time.time(), error=error, stats=stats, disk=disk)

    def stop(self, *, erase: bool = False) -> None:
        """Stop the server; its data go; those in a `data_dir` with `erase`, if no other experiment has any."""
        self._owner.stop(erase=erase)
