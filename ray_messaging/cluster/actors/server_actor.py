"""Ray actor of an embedded server."""

import os
import sys
import time
from typing import Any, Final

import ray
from ray.util import get_node_ip_address

from ray_messaging.cluster.actors.restarts import restarted
from ray_messaging.config import RedisConfig
from ray_messaging.embedded.machine import memory_bytes
from ray_messaging.embedded.server import Durability, EmbeddedServer, Succession
from ray_messaging.embedded.supervisor import ServerSupervisor
from ray_messaging.observability.health.findings import Disk, Report

# Ray starts a new process within seconds, even on a busy machine. After a driver's end the data are kept for as long.
GRACE_S: Final = 20.0


class ServerActor:
    """Ray actor that owns an embedded server; after a restart it takes the running server over.

    Args:
        name: A secret of this actor and its restarts: the name of a temporary data directory.
        data_dir: Where data stay. None: a temporary directory.
        on_its_node: How many servers of the experiment share this node; together they may fill half of its memory.
        durability: That of the server.
        log_dir: The event log to finish from its data after the death of all that could do so. None: none.
    """

    def __init__(
        self,
        name: str,
        data_dir: str | None = None,
        on_its_node: int = 1,
        durability: Durability | None = None,
        log_dir: str | None = None,
    ) -> None:
        # Without this node's raylet Ray cannot restart the actor here.
        raylet = int(os.environ.get("RAY_RAYLET_PID", os.getppid()))
        again = restarted()
        server = EmbeddedServer(
            get_node_ip_address(),
            data_dir=data_dir,
            durability=durability,
            epilogue=() if log_dir is None else (sys.executable, "-m", "ray_messaging.cluster.finishing", log_dir),
            maxmemory_bytes=memory_bytes() // (2 * on_its_node),
            succession=Succession(name, GRACE_S, raylet),
        )
        self._owner = ServerSupervisor(server)
        self._owner.start(succeed=again)  # an error raised here would lose its type; `config` raises it

    def config(self) -> RedisConfig:
        """Return the server's address and password; raise the error of a failure."""
        return self._owner.config()

    def node(self) -> str:
        """Return the Ray node on which it is."""
        return str(ray.get_runtime_context().get_node_id())

    def stats(self) -> dict[str, Any]:
        """Return alive, pid, data_dir, uptime_s, restarts and last_end of the server."""
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
