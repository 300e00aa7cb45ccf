"""What the guard watches: its owner, a successor, the server's end, its port, and its files on the disk.

It is loaded by the guard, a script outside of the package, so it imports only the standard library.
"""

import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

if not TYPE_CHECKING:  # the guard is a script of an isolated interpreter, which cannot find the package
    sys.path.append(str(Path(__file__).parents[1] / "common"))
    import operating_system
else:
    from ray_messaging.common import operating_system

GRACE_PAUSE_S: Final = 0.05  # how long to wait between two checks whether a successor has come, in seconds
FSYNC_S: Final = 1.0  # the time between two calls of fsync, in seconds


class Stopped(Exception):
    """The server must stop: its owner has ended and no successor has come, or the guard has got a signal to end."""


class Ordered(Stopped):
    """The server must stop, because its owner has ordered it."""


class HandedOver(Exception):
    """The server must stop, because a successor of its owner wants the data directory."""


class GuardWatch:
    """A wait for whatever the guard must react to: its owner's orders or end, signals, ended children, a successor."""

    def __init__(self, owner: int) -> None:
        self._wake, wake = operating_system.open_pipe()
        # A Ray worker may have blocked signals, and its children inherit this. So all signals are unblocked.
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda *_: None)
        self._poll = select.poll()
        self._poll.register(self._wake, select.POLLIN)
        self._poll.register(0, select.POLLIN)
        # The pipe alone would not show that the owner has died, because a child of the owner may hold the pipe open.
        self._owner = operating_system.pidfd(owner)
        if self._owner is not None:  # if the kernel is old, or the owner has died already, only the pipe is watched
            self._poll.register(self._owner, select.POLLIN)
        self._host: int | None = None
        self._grace_s = 0.0
        self._deadline: float | None = None
        self._successor: Path | None = None

    def expect_successor(self, path: Path, grace_s: float, host_pid: int) -> None:
        """Make `wait` wait for a successor if the owner dies. The successor shows itself by making the file `path`.

        Stop waiting after `grace_s` seconds, or when the process `host_pid` has ended.
        """
        self._host = operating_system.pidfd(host_pid)
        self._grace_s = grace_s if self._host is not None else 0.0
        self._successor = path

    def wait(self, timeout_s: float | None) -> bytes:
        """Wait for a child's end, an order of the owner, or the timeout. Return the order, or b"" if there is none.

        Raises: Stopped at a signal such as SIGTERM, or if the owner has ended and a successor can no longer come;
        Ordered if the owner orders to stop; HandedOver if a successor has come.
        """
        if self._deadline is not None:
            timeout_s = min(GRACE_PAUSE_S, GRACE_PAUSE_S if timeout_s is None else timeout_s)
        ready = {fd for fd, _ in self._poll.poll(None if timeout_s is None else timeout_s * 1000)}
        if self._host in ready or (self._wake in ready and set(os.read(self._wake, 4096)) - {signal.SIGCHLD}):
            raise Stopped
        order = os.read(0, 1) if 0 in ready else b""
        if order == b"s":
            raise Ordered
        if self._deadline is None:
            if not order and ready & {0, self._owner}:
                if not self._grace_s or self._host is None:
                    raise Stopped
                self._deadline = time.monotonic() + self._grace_s
                self._poll.unregister(0)
                if self._owner is not None:
                    self._poll.unregister(self._owner)
                self._poll.register(self._host, select.POLLIN)
        elif time.monotonic() > self._deadline:
            raise Stopped
        elif self._successor is not None and self._successor.exists():
            raise HandedOver
        return order


class Port:
    """Reservation of a port for one server, because clients send their password to any program that listens there.

    In Linux, two sockets can bind one address if both set SO_REUSEADDR and neither listens yet. So this class binds a
    socket that never listens.
    """

    def __init__(self, host: str, port: int) -> None:
        self._host, self._port = host, port
        self._socket: socket.socket | None = None

    def open(self) -> None:
        """Allow the server to listen on the port; raise OSError if another program uses the port."""
        if self._socket is None:
            family, kind, protocol, _, address = socket.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)[0]
            taken = socket.socket(family, kind, protocol)
            try:
                taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                taken.bind(address)
            except OSError:
                taken.close()
                raise
            self._socket = taken
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)

    def reserve(self) -> None:
        """Keep the port reserved after the server has ended, so that no other program can listen on it."""
        if self._socket is not None:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)


class Fsync:
    """A thread that calls fsync each second for Valkey's append-only files in a folder.

    With `appendfsync everysec`, Valkey calls fsync itself. During an fsync it may confirm messages before it writes
    them to the file, so a kill would lose these messages. With `appendfsync no`, Valkey always writes before it
    confirms, and this thread calls fsync. If an fsync fails, this thread sets `appendfsync everysec`, because Valkey
    then refuses messages while the disk does not write.

    Args: `hand_over` tells Valkey to call fsync itself, and returns whether it does.
    """

    def __init__(self, folder: Path, hand_over: Callable[[], bool]) -> None:
        self._folder = folder
        self._hand_over = hand_over
        self._written: dict[str, tuple[int, int]] = {}  # for each file, its size and the time of its last change
        self._over = threading.Event()
        # A disk that hangs stops only this thread.
        threading.Thread(target=self._run, name="fsync", daemon=True).start()

    def close(self) -> None:
        """End the thread after its present fsync, without waiting for it."""
        self._over.set()

    def _run(self) -> None:
        failed = False
        while not self._over.wait(FSYNC_S):
            with suppress(OSError):  # if an fsync fails, `failed` stays True, and the next round hands over to Valkey
                if failed and self._hand_over():
                    return
                failed = True
                self._write()
                failed = False

    def _write(self) -> None:
        for path in self._folder.glob("*.incr.aof"):
            # The server may remove the file when it rewrites its data.
            with suppress(FileNotFoundError), path.open("rb") as file:
                found = os.fstat(file.fileno())
                now = found.st_size, found.st_mtime_ns
                if self._written.get(path.name) != now:
                    operating_system.write_to_disk(file)
                    self._written[path.name] = now
