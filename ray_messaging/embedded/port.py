"""Reservation of an embedded server's port, and the check that the server itself listens on it.

The guard, a script outside the package, loads this file as well, so it imports the standard library only.
"""

import socket
from contextlib import suppress
from pathlib import Path
from typing import Final

LISTENS: Final = "0A"  # in /proc/net/tcp


class Port:
    """Reservation of a port for one server: clients would send the password to any other program that listens there.

    Linux lets two sockets bind one address if both set SO_REUSEADDR and neither listens yet.
    """

    def __init__(self, host: str, port: int) -> None:
        self._host, self._port = host, port
        self._socket: socket.socket | None = None

    def open(self) -> None:
        """Let the server listen; raise OSError where another program does."""
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
        """Let no program listen."""
        if self._socket is not None:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)


def listens(pid: int, port: int) -> bool:
    """Return whether our own process listens on a port of this machine."""
    ours = set()
    with suppress(OSError):  # the process ended meanwhile
        for file in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(FileNotFoundError):  # closed meanwhile
                ours.add(str(file.readlink()))
    for name in ("tcp", "tcp6"):
        with suppress(FileNotFoundError), Path(f"/proc/{pid}/net/{name}").open() as lines:
            next(lines)
            for line in lines:
                _, local, _, state, *_, inode = line.split(maxsplit=10)[:10]
                if state == LISTENS and int(local.rpartition(":")[2], 16) == port and f"socket:[{inode}]" in ours:
                    return True
    return False
