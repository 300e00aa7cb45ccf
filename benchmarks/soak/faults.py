"""Faults in a running experiment, one after the other."""

import itertools
import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import ray
import redis
from ray.exceptions import RayError
from redis.backoff import NoBackoff
from redis.retry import Retry

from ray_messaging import Messaging

STOP_S = 1.0
PATIENCE_S = 10.0


def pid_of(actor: Any) -> int | None:
    """Return the process id of an actor on this machine; None while it starts again."""
    with suppress(RayError):
        pid: int = ray.get(actor.__ray_call__.remote(lambda _: os.getpid()), timeout=PATIENCE_S)
        return pid
    return None


class Faults(threading.Thread):
    """A thread that causes a fault at intervals, each kind in its turn, and notes its time and kind."""

    def __init__(self, messaging: Messaging, every_s: float) -> None:
        super().__init__(name="faults")
        self.done: list[tuple[float, str]] = []
        self._messaging, self._every_s = messaging, every_s
        self._groups = itertools.cycle(messaging.groups())
        self._enough = threading.Event()
        config = messaging.redis
        self._client = redis.Redis(
            host=config.server, port=config.port, password=config.password, retry=Retry(NoBackoff(), 0)
        )
        self._kinds: dict[str, Callable[[], None]] = {
            "group killed": self._kill_group,
            "server killed": self._kill_server,
            "interceptor killed": self._kill_interceptor,
            "server stood still": self._stop_server,
            "connections cut": self._cut,
            "group stood still": self._stop_group,
        }

    def stop(self) -> None:
        """Break nothing more."""
        self._enough.set()

    def run(self) -> None:
        """Break things until told to stop."""
        for name, fault in itertools.cycle(self._kinds.items()):
            if self._enough.wait(self._every_s):
                return
            self.done.append((time.time(), name))
            try:
                fault()
            except (OSError, redis.RedisError) as error:  # the target has not yet come back from the last fault
                self.done[-1] = (self.done[-1][0], f"{name}: not possible, {type(error).__name__}")

    def server_pid(self) -> int:
        """Return the process id of the embedded server."""
        return int(self._client.info("server")["process_id"])

    def _signal(self, pid: int | None, which: signal.Signals) -> None:
        if pid is None:
            raise ProcessLookupError("it starts again")
        os.kill(pid, which)

    def _still(self, pid: int | None) -> None:
        self._signal(pid, signal.SIGSTOP)
        self._enough.wait(STOP_S)
        self._signal(pid, signal.SIGCONT)

    def _kill_group(self) -> None:
        self._signal(pid_of(next(self._groups).actor), signal.SIGKILL)

    def _stop_group(self) -> None:
        self._still(pid_of(next(self._groups).actor))

    def _kill_interceptor(self) -> None:
        self._signal(pid_of(self._messaging.interceptor), signal.SIGKILL)

    def _kill_server(self) -> None:
        self._signal(self.server_pid(), signal.SIGKILL)

    def _stop_server(self) -> None:
        self._still(self.server_pid())

    def _cut(self) -> None:
        for kind in ("normal", "pubsub"):
            self._client.execute_command("CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes")
