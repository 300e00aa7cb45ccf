"""Client of the guard process. It runs in the owner of an embedded server, and sends orders to the guard."""

import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Final

START_TIMEOUT_S: Final = 10.0
STOP_TIMEOUT_S: Final = 15.0  # the guard gives Valkey up to 10 s to stop, and then removes the data
GUARD: Final = Path(__file__).with_name("guard.py")


class GuardClient:
    """A guard process and the pipes to it. Any thread may call `event`.

    `gone` is True once `event` has returned that the guard has ended.
    """

    def __init__(self) -> None:
        self._process = subprocess.Popen(  # noqa: S603 - our own file
            [sys.executable, "-S", "-E", "-I", str(GUARD)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
        )
        assert self._process.stdin and self._process.stdout  # noqa: PT018 - pipes, as asked for
        self._orders: IO[bytes] = self._process.stdin
        self._events: IO[bytes] = self._process.stdout
        os.set_blocking(self._events.fileno(), False)
        self._buffer = b""
        self._lock = threading.Lock()
        self.gone = False

    def start(self, order: dict[str, Any]) -> dict[str, Any]:
        """Order the guard to start a server; return its reply, an event "ready" or "failed"."""
        answer = self._ask(json.dumps(order).encode() + b"\n")
        if answer["event"] == "ready":
            self._process.wait()  # `_process` has forked the guard, and ends now
        return answer

    def restart(self, config: str) -> dict[str, Any]:
        """Make the guard start a dead server again; return the outcome, an event "ready" or "failed"."""
        return self._ask(b"r" + json.dumps(config).encode() + b"\n")

    def _ask(self, words: bytes) -> dict[str, Any]:
        with suppress(OSError, ValueError):  # the guard is dead, or `stop` has closed the pipe
            self._orders.write(words)
        reason = f"no sign of life within {START_TIMEOUT_S:g} s"
        while event := self.event(START_TIMEOUT_S):
            if event["event"] in {"ready", "failed"}:
                return event
            if event["event"] == "gone":
                reason = "its guard process died"
                break
        return {"event": "failed", "kind": "server", "reason": reason, "log": ""}

    def event(self, timeout_s: float | None) -> dict[str, Any] | None:
        """Return the next event, or None after the timeout.

        Once the guard has ended, the next event is always {"event": "gone"}.
        """
        while True:
            with self._lock:
                if event := self._read():
                    return event
                events = os.dup(self._events.fileno())  # a copy, because `stop` may close the original during the wait
            try:
                poll = select.poll()
                poll.register(events, select.POLLIN)
                if not poll.poll(None if timeout_s is None else timeout_s * 1000):
                    return None
            finally:
                os.close(events)

    def _read(self) -> dict[str, Any] | None:
        while b"\n" not in self._buffer:
            chunk = b"" if self._events.closed else self._events.read(65536)
            if chunk is None:
                return None
            if not chunk:
                self.gone = True
                return {"event": "gone"}
            self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\n")
        event: dict[str, Any] = json.loads(line)
        return event

    def stop(self, guard_pid: int | None) -> None:
        """Make the guard stop the server and clean up, and wait until this is done.

        If this takes longer than STOP_TIMEOUT_S, kill the guard.
        """
        with suppress(OSError, ValueError):
            self._orders.write(b"s")  # to close the pipe is not enough: a child of this process may hold it open
        self._orders.close()
        # `_process` forks the guard and then ends by itself. The kill has an effect only before the fork.
        self._process.kill()
        self._process.wait()
        deadline = time.monotonic() + STOP_TIMEOUT_S
        while event := self.event(max(0.0, deadline - time.monotonic())):
            if event["event"] == "gone":
                break
        else:
            # The guard's pipe is still open, so the guard still lives, and no other process can have its id.
            if guard_pid is not None:
                os.kill(guard_pid, signal.SIGKILL)
        with self._lock:
            self._events.close()
