"""The Ray actor of an embedded Redis server."""

import asyncio
import os
import sys
import time
from collections.abc import Sequence
from typing import Any, Final

import ray
from ray.util import get_node_ip_address

from ray_messaging.cluster.actors.restarts import restarted
from ray_messaging.cluster.reachability import Address, measure
from ray_messaging.config import RedisConfig
from ray_messaging.embedded.machine import CHOICE, memory_bytes
from ray_messaging.embedded.redis_server import EmbeddedServer, Succession
from ray_messaging.embedded.server_restarts import ServerSupervisor
from ray_messaging.observability.health.findings import Disk, Report

# When the actor's process has ended, the server runs on for this many seconds. Within this time Ray restarts the actor,
# even on a busy machine.
GRACE_S: Final = 20.0


class ServerActor:
    """Ray actor that owns an embedded server. After a restart of the actor it takes the running server over.

    Args:
        name: A secret that this actor and its restarts share. It names a temporary data directory.
        data_dir: The folder in which the data are kept. None: a temporary directory.
        on_its_node: The number of the experiment's servers on this node, which together may fill half of the node's
            memory.
        fsync: Whether data in a `data_dir` are written to the disk each second.
        log_dir: The folder of the event log. If all other processes die, the server's guard, the process that starts
            and stops the server, completes the log from the server's data. None: there is no log.
        program: The server program that the driver has chosen by the variable RAY_MESSAGING_SERVER. None: the usual
            one.
    """

    def __init__(
        self,
        name: str,
        data_dir: str | None = None,
        on_its_node: int = 1,
        fsync: bool = True,  # noqa: FBT001 - by Ray call
        log_dir: str | None = None,
        program: str | None = None,
    ) -> None:
        if program is not None:  # Ray gives actors its own environment, and not the driver's
            os.environ[CHOICE] = program
        # The server's guard also ends when this node's raylet has ended. Without a raylet Ray cannot restart the actor.
        raylet = int(os.environ.get("RAY_RAYLET_PID", os.getppid()))
        again = restarted()
        server = EmbeddedServer(
            get_node_ip_address(),
            data_dir=data_dir,
            fsync=fsync,
            epilogue=() if log_dir is None else (sys.executable, "-m", "ray_messaging.cluster.finishing", log_dir),
            maxmemory_bytes=memory_bytes() // (2 * on_its_node),
            succession=Succession(name, GRACE_S, raylet),
        )
        self._owner = ServerSupervisor(server)
        # If the start fails, `config` raises the error. An error that __init__ raises would lose its type.
        self._owner.start(succeed=again)

    def config(self) -> RedisConfig:
        """Return the server's address and password; raise the server's error if it failed."""
        return self._owner.config()

    def node(self) -> str:
        """Return the id of the Ray node on which this actor runs."""
        return str(ray.get_runtime_context().get_node_id())

    def reached(self, addresses: Sequence[Address]) -> list[float | None]:
        """Return for each address how many milliseconds it took to connect, or None if that failed."""
        return asyncio.run(measure(addresses))

    def stats(self) -> dict[str, Any]:
        """Return a dict about the server: `alive`, `pid`, `data_dir`, `uptime_s`, `restarts` and `last_end`."""
        return self._owner.stats()

    def health(self) -> Report:
        """Return a health report with the free disk space."""
        stats = self._owner.stats()
        reason = stats["last_end"] or "no reason known"
        error = "" if stats["alive"] else f"the embedded server does not run ({reason})"
        disk = None if stats["data_dir"] is None else Disk.of(stats["data_dir"])
        return Report(time.time(), error=error, stats=stats, disk=disk)

    def stop(self, *, erase: bool = False) -> None:
        """Stop the server and delete its temporary data.

        Data in a `data_dir` are deleted only with `erase`, and if no other experiment has data there.
        """
        self._owner.stop(erase=erase)
