"""The thread of the guard that has a server's append-only file written to the disk.

A part of the guard, a script outside the package: it imports the standard library only.
"""

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

FSYNC_S: Final = 1.0  # between two


class Fsync:
    """A thread that makes the disk write the files of a folder each second.

    Valkey's own `appendfsync everysec` answers before it writes while an fsync is under way: a kill would lose
    confirmed messages. With `no` it writes first, and only this is left. Where an fsync fails, Valkey does it itself
    from then on, because it refuses messages as long as the disk does not write.

    Args: `hand_over` gives the work to Valkey; it returns whether Valkey has taken it.
    """

    def __init__(self, folder: Path, hand_over: Callable[[], bool]) -> None:
        self._folder = folder
        self._hand_over = hand_over
        self._written: dict[str, tuple[int, int]] = {}  # size and time of change of each file
        self._over = threading.Event()
        # A disk that hangs holds up this thread only.
        threading.Thread(target=self._run, name="fsync", daemon=True).start()

    def close(self) -> None:
        """End the thread after its fsync, without a wait for it."""
        self._over.set()

    def _run(self) -> None:
        failed = False
        while not self._over.wait(FSYNC_S):
            with suppress(OSError):  # it is tried again
                if failed and self._hand_over():
                    return
                failed = True
                self._write()
                failed = False

    def _write(self) -> None:
        for path in self._folder.glob("*.incr.aof"):
            with suppress(FileNotFoundError), path.open("rb") as file:  # a rewrite may remove it
                found = os.fstat(file.fileno())
                now = found.st_size, found.st_mtime_ns
                if self._written.get(path.name) != now:
                    os.fdatasync(file)
                    self._written[path.name] = now
