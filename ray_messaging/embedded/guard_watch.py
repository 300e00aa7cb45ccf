"""What the guard of an embedded server waits for: its owner, a successor, the end of a child, signals.

A part of the guard, a script without a package: the standard library only.
"""

import os
import select
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

if not TYPE_CHECKING:
    from data_directory import SUCCESSOR_NAME
else:
    from ray_messaging.embedded.data_directory import SUCCESSOR_NAME

GRACE_PAUSE_S: Final = 0.05  # between looks for a successor


class Stopped(Exception):
    """The owner is gone for good, or wants the server to stop."""


class HandedOver(Exception):
    """A successor of the owner wants the data directory."""


class Watch:
    """Wait for whatever the guard must act on: the owner, signals, the end of a child."""

    def __init__(self, owner: int) -> None:
        self._wake, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        # A Ray worker's thread may have blocked signals, and masks are inherited.
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda *_: None)
        self._poll = select.poll()
        self._poll.register(self._wake, select.POLLIN)
        self._poll.register(0, select.POLLIN)
        # A child that the owner forked holds a copy of the pipe's end, and would hide the owner's death.
        self._owner = self._watched(owner)
        if self._owner is not None:  # else: no pidfd on this kernel, or dead already: the pipe has to do
            self._poll.register(self._owner, select.POLLIN)
        self._host: int | None = None
        self._grace_s = 0.0
        self._deadline: float | None = None
        self._successor: Path | None = None

    @staticmethod
    def _watched(pid: int) -> int | None:
        with suppress(OSError):
            return os.pidfd_open(pid)
        return None

    def expect_successor(self, path: Path, grace_s: float, host_pid: int) -> None:
        """Give an owner that vanishes `grace_s` to come back to the data at `path`, while process `host_pid` lives."""
        self._host = self._watched(host_pid)
        self._grace_s = grace_s if self._host is not None else 0.0
        self._successor = path / SUCCESSOR_NAME

    def wait(self, timeout_s: float | None) -> bytes:
        """Wait for the end of a child, a word of the owner, which is returned, or the timeout.

        Raises Stopped for the end of the owner or its grace, and for SIGTERM; HandedOver.
        """
        if self._deadline is not None:
            timeout_s = min(GRACE_PAUSE_S, GRACE_PAUSE_S if timeout_s is None else timeout_s)
        ready = {fd for fd, _ in self._poll.poll(None if timeout_s is None else timeout_s * 1000)}
        if self._host in ready or (self._wake in ready and set(os.read(self._wake, 4096)) - {signal.SIGCHLD}):
            raise Stopped
        word = os.read(0, 1) if 0 in ready else b""
        if word == b"s":
            raise Stopped
        if self._deadline is None:
            if not word and ready & {0, self._owner}:
                self._begin_grace()
        elif time.monotonic() > self._deadline:
            raise Stopped
        elif self._successor is not None and self._successor.exists():
            raise HandedOver
        return word

    def _begin_grace(self) -> None:
        if not self._grace_s or self._host is None:
            raise Stopped
        self._deadline = time.monotonic() + self._grace_s
        self._poll.unregister(0)
        if self._owner is not None:
            self._poll.unregister(self._owner)
        self._poll.register(self._host, select.POLLIN)
