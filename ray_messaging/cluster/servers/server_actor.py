"""Ray actor of the embedded server."""

import os
import time
from typing import Any, Final

from ray.util import get_node_ip_address

from ray_messaging.cluster.actors.restarts import restarted
from ray_messaging.config import ServerConfig
from ray_messaging.embedded.server import EmbeddedServer, Succession
from ray_messaging.embedded.supervisor import ServerSupervisor
from ray_messaging.observability.health.reports import Disk, Report

# Ray starts a new process within seconds, even on a busy machine. After a driver's end the data are kept for as long.
GRACE_S: Final = 20.0


class ServerActor:
    """Ray actor that owns the embedded server; after a restart it takes the running server over.

    `name` is a secret of this actor and its restarts: the name of a temporary data directory. Data in `data_dir` stay.
    """

    def __init__(self, name: str, data_dir: str | None = None) -> None:
        # Without this node's raylet Ray cannot restart the actor here.
        raylet = int(os.environ.get("RAY_RAYLET_PID", os.getppid()))
        succession = Succession(name, GRACE_S, raylet)
        server = EmbeddedServer(get_node_ip_address(), data_dir=data_dir, succession=succession)
        self._supervisor = ServerSupervisor(server)
        self._supervisor.start(succeed=restarted())  # an error raised here would lose its type; `config` raises it

    def config(self) -> ServerConfig:
        """Return the server's address and password; raise the error of its failure."""
        return self._supervisor.config()

    def stats(self) -> dict[str, Any]:
        """Return alive, pid, data_dir, uptime_s, restarts and last_end of the server."""
        return self._supervisor.stats()

    def health(self) -> Report:
        """Return a health report with the free disk space."""
        stats = self._supervisor.stats()
        reason = stats["last_end"] or "no reason known"
        error = "" if stats["alive"] else f"the embedded server does not run ({reason})"
        disk = None if stats["data_dir"] is None else Disk.of(stats["data_dir"])
        return Report(time.time(), error=error, stats=stats, disk=disk)

    def stop(self, *, erase: bool = False) -> None:
        """Stop the server; its data go; those in a `data_dir` with `erase`, if no other experiment has any."""
        self._supervisor.stop(erase=erase)
