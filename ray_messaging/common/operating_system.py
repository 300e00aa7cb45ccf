"""Functions that use features of Linux, each with a replacement for other systems.

Only Linux is tested. The replacements follow the manuals of POSIX and macOS, and nobody has run them there.

The guard, a script outside the package, loads this file as well, so it imports the standard library only.
"""

import ctypes
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO, Final, NamedTuple

LINUX: Final = sys.platform == "linux"
PROCESSES: Final = Path("/proc")
_MEMORY: Final = "MemAvailable"  # a field of /proc/meminfo
_SET_DEATH_SIGNAL, _SET_SUBREAPER = 1, 36  # These numbers are from linux/prctl.h.
_POLL_S: Final = 0.02
_LISTENS: Final = "0A"  # the state of a listening socket in /proc/net/tcp


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent ends. Outside Linux, do nothing: the process stays alive."""
    if LINUX:
        _prctl(_SET_DEATH_SIGNAL, signal.SIGKILL)


def adopt_orphans() -> None:
    """Become the parent of grandchildren whose parent has ended. Outside Linux, do nothing: init adopts them."""
    if LINUX:
        _prctl(_SET_SUBREAPER, 1)


def _prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, ctypes.c_ulong(value)) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}, {value}) failed")


def pidfd(pid: int) -> int | None:
    """Return a file descriptor that can be read once the process has ended.

    Return None if the process has ended already, if the kernel is too old, and outside Linux.
    """
    if sys.platform == "linux":
        with suppress(OSError):
            return os.pidfd_open(pid)
    return None


def open_pipe() -> tuple[int, int]:
    """Open a pipe that does not block, and that programs started by this process do not inherit."""
    if sys.platform == "linux":
        return os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    ends = os.pipe()
    for end in ends:
        os.set_blocking(end, False)
    return ends


def is_alive(pid: int) -> bool:
    """Return whether a process exists, a zombie included."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # the process exists, and belongs to another user
        pass
    return True


_ended: dict[int, str] = {}  # by pid, how children have ended: `waitpid`, unlike `waitid`, tells this only once


def how_ended(pid: int) -> str | None:
    """Return how a child of this process has ended, or None while it runs.

    On Linux the child stays a zombie, so that its pid is not reused.
    """
    if hasattr(os, "waitid"):
        end = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if end is None:
            return None
        return f"exit code {end.si_status}" if end.si_code == os.CLD_EXITED else signal.Signals(end.si_status).name
    if pid not in _ended:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found == 0:
            return None
        code = os.waitstatus_to_exitcode(status)
        _ended[pid] = f"exit code {code}" if code >= 0 else signal.Signals(-code).name
    return _ended[pid]


def wait_for_child(timeout_s: float) -> None:
    """Wait until a child may have ended, for at most `timeout_s` seconds. The caller must have blocked SIGCHLD."""
    if hasattr(signal, "sigtimedwait"):
        signal.sigtimedwait({signal.SIGCHLD}, timeout_s)
    else:
        time.sleep(min(_POLL_S, timeout_s))


def write_to_disk(file: IO[bytes]) -> None:
    """Have the disk write the data of an open file."""
    if hasattr(os, "fdatasync"):
        os.fdatasync(file)
    else:
        os.fsync(file)


def processor_ticks(pid: int) -> int | None:
    """Return the processor time that a process has used, in user and system mode together, in clock ticks.

    Return None if the system does not say.
    """
    if not LINUX:
        return None
    fields = (PROCESSES / str(pid) / "stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def listens(pid: int, port: int) -> bool:
    """Return whether a process listens on a port of this machine.

    Outside Linux this returns True without a check. If another program has the port, the caller notices this later,
    because the program does not accept the server's password.
    """
    if not LINUX:
        return True
    ours = set()
    with suppress(OSError):  # the process ended meanwhile
        for file in (PROCESSES / str(pid) / "fd").iterdir():
            with suppress(FileNotFoundError):  # the process has closed the file meanwhile
                ours.add(str(file.readlink()))
    for name in ("tcp", "tcp6"):
        with suppress(FileNotFoundError), (PROCESSES / str(pid) / "net" / name).open() as lines:
            next(lines)
            for line in lines:
                _, local, _, state, *_, inode = line.split(maxsplit=10)[:10]
                if state == _LISTENS and int(local.rpartition(":")[2], 16) == port and f"socket:[{inode}]" in ours:
                    return True
    return False


class OwnProcess(NamedTuple):
    """A process of this user: its program with its arguments, and the folder of /proc that describes it."""

    command: list[bytes]
    folder: Path


def own_processes() -> Iterator[OwnProcess]:
    """Yield this user's processes. Outside Linux, yield none."""
    for folder in PROCESSES.glob("[0-9]*"):
        try:
            if folder.stat().st_uid == os.getuid():
                yield OwnProcess((folder / "cmdline").read_bytes().split(b"\0"), folder)
        except OSError:
            continue  # the process has ended


def available_memory() -> int | None:
    """Return the bytes of memory that programs can still take; None if the system does not say."""
    try:
        fields = dict(line.split(":", 1) for line in (PROCESSES / "meminfo").read_text().splitlines())
        return int(fields[_MEMORY].split()[0]) * 1024
    except (OSError, KeyError):
        return None


def longest_backlog(most: int) -> int:
    """Return the longest queue of new connections that the kernel allows for a listening socket, at most `most`."""
    with suppress(OSError, ValueError):
        return min(most, int((PROCESSES / "sys/net/core/somaxconn").read_text()))
    return most


def usable_cores() -> int:
    """Return the number of cores that this process may use."""
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
