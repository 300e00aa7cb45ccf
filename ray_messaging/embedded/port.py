"""The port of an embedded server: kept for it while it is down, and known to be its own once it serves.

The guard, a script without a package, loads this file, too: the standard library only.
"""

import socket
from contextlib import suppress
from pathlib import Path
from typing import Final

LISTENS: Final = "0A"  # in /proc/net/tcp


class Port:
    """Keep a port from everybody but the server that it is lent to: its clients would tell others the password.

    Linux lets two sockets have one address if both say so, and neither listens already.
    """

    def __init__(self, host: str, port: int) -> None:
        self._host, self._port = host, port
        self._socket: socket.socket | None = None

    def lend(self) -> None:
        """Let a server listen here; raise OSError where somebody else does."""
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

    def keep(self) -> None:
        """Let nobody listen here."""
        if self._socket is not None:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)


def listens(pid: int, port: int) -> bool:
    """Say whether a process of ours, and no stranger, is who listens on a port of this machine."""
    ours = set()
    with suppress(OSError):  # it ends just now
        for file in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(FileNotFoundError):  # closed just now
                ours.add(str(file.readlink()))
    for name in ("tcp", "tcp6"):
        with suppress(FileNotFoundError), Path(f"/proc/{pid}/net/{name}").open() as lines:
            next(lines)
            for line in lines:
                _, local, _, state, *_, inode = line.split(maxsplit=10)[:10]
                if state == LISTENS and int(local.rpartition(":")[2], 16) == port and f"socket:[{inode}]" in ours:
                    return True
    return False
