"""The Ray shell round the embedded server."""

import os
from typing import Any, Final

from ray.util import get_node_ip_address

from ray_messaging.cluster.actors.health_reports import server_report
from ray_messaging.cluster.actors.restarts import restarted
from ray_messaging.config import ServerConfig
from ray_messaging.embedded.server import EmbeddedServer, Succession
from ray_messaging.embedded.supervisor import ServerSupervisor
from ray_messaging.observability.health.reports import Report

# Ray has a new process within seconds, on a busy machine, too; after a driver's end the data are kept for as long.
GRACE_S: Final = 20.0


class ServerActor:
    """Own the embedded server; a successor that Ray starts takes it over.

    `name` is what only this actor and its successors know: the data directory's.
    """

    def __init__(self, name: str) -> None:
        # A raylet of its own for each node: without it Ray starts nothing there.
        raylet = int(os.environ.get("RAY_RAYLET_PID", os.getppid()))
        succession = Succession(name, GRACE_S, raylet)
        self._supervisor = ServerSupervisor(EmbeddedServer(get_node_ip_address(), succession=succession))
        self._supervisor.start(succeed=restarted())  # an error, raised here, would reach nobody in its own form

    def config(self) -> ServerConfig:
        """Return where the server is, password included; raise why it does not run."""
        return self._supervisor.config()

    def stats(self) -> dict[str, Any]:
        """Return whether the server is alive, its pid, data_dir, uptime_s, restarts and how it last ended."""
        return self._supervisor.stats()

    def health(self) -> Report:
        """Say how it is doing, and how much room its data have."""
        return server_report(self._supervisor.stats())

    def stop(self) -> None:
        """Stop the server and remove its data."""
        self._supervisor.stop()
