"""Data directory of an embedded server: its locks, the handover to a successor, and its removal.

The owner is the process that wants the server. It starts a guard, a process that runs a script outside of the package.
The script loads this file too, so this file imports only the standard library. Two file locks (flock) show which
processes are alive. The guard takes the first lock, and Valkey inherits it: as long as one of the two lives, no other
server can start in the directory. The owner takes the second lock, which protects the data even if the guard was
killed.
"""

import fcntl
import os
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

TEMPORARY_PREFIX: Final = "ray_messaging-valkey-"
LOCK_NAME: Final = ".ray_messaging.lock"
OWNER_NAME: Final = ".ray_messaging.owner"
# A file that exists while a new guard waits for the lock of an old one. The file asks an old guard without an owner to
# stop.
SUCCESSOR_NAME: Final = ".ray_messaging.successor"
# A file that exists if a new owner may take over the data when the old owner has died. Its modification time is the
# time at which a sweep first found owner and guard dead, or 0 before that.
AWAITED_NAME: Final = ".ray_messaging.heir"
CONFIG_NAME, LOG_NAME = "valkey.conf", "valkey.log"
APPEND_ONLY_NAME: Final = "appendonlydir"
LOG_LINES: Final = 20
LOCK_TIMEOUT_S: Final = 0.5  # how long to wait for the lock of a killed server, which loses it within milliseconds
# How long a new server waits until an earlier server has left the directory. If a driver was killed, its server ends a
# moment later.
KEPT_TIMEOUT_S: Final = 2.0
PAUSE_S: Final = 0.02
AWAITED_S: Final = 60.0  # how long to keep the data for a new owner: if Ray starts one, it does so within this time
STOPPING: Final = b"stopping"


class CannotStart(Exception):
    """The server cannot start.

    `args` has three texts: what prevents the start ("data_dir", "held" for a data directory that another server uses,
    "port" or "server"), the reason, and the last lines of the server's log.
    """


def take_lock(path: Path, *, create: bool) -> int:
    """Lock a directory; return the file descriptor of the lock.

    Args: with `create`, a lock file is made if there is none.
    Raises: BlockingIOError if another process has the lock; FileNotFoundError if there is no lock file, or if a sweep
    has just removed it.
    """
    name = path / LOCK_NAME
    lock = os.open(name, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | (os.O_CREAT if create else 0), 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # If a sweep removed the lock file before this process had the lock, the name has no file, or another one.
        if not os.path.samestat(os.fstat(lock), name.stat()):
            raise FileNotFoundError(name)
        mark(lock, b"process %d" % os.getpid())
    except OSError:
        os.close(lock)
        raise
    return lock


def mark(lock: int, holder: bytes) -> None:
    """Write into the lock file who holds the lock: a process with its id, or STOPPING for a server that ends soon."""
    # The file is truncated only after the write, because on a full disk only a write into an existing block succeeds.
    os.pwrite(lock, holder, 0)
    os.ftruncate(lock, len(holder))


def lock_as_owner(path: Path) -> int:
    """Protect a directory from `sweep` while the returned file descriptor is open.

    Raises: OSError if that fails.
    """
    owner = os.open(path / OWNER_NAME, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    fcntl.flock(owner, fcntl.LOCK_SH)  # only a sweep takes this lock exclusively, for a moment
    return owner


def has_owner(path: Path) -> bool:
    """Return whether the process that owns the server of a directory lives."""
    try:
        owner = os.open(path / OWNER_NAME, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(owner)
    return False


def expect_successor(path: Path) -> None:
    """Protect a directory from `sweep` until a successor of its owner has had time to start."""
    awaited = path / AWAITED_NAME
    awaited.touch(mode=0o600)
    os.utime(awaited, (0, 0))


def _expects_successor(path: Path) -> bool:
    """Return whether a successor may still start on a directory that this process has locked.

    A successor has AWAITED_S seconds to start. The time begins with the first call for the directory.
    """
    awaited = path / AWAITED_NAME
    if not awaited.exists():
        return False
    seen_at = awaited.stat().st_mtime
    if seen_at == 0:
        os.utime(awaited, (_now(), _now()))
        return True
    return 0 <= _now() - seen_at < AWAITED_S  # after a restart of the machine, the difference is negative


def _now() -> float:
    """Return the seconds since the machine was started. Nobody can set this clock, and all processes share it."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def make_temporary(path: Path, busy: Callable[[], None]) -> int:
    """Remove the directories beside `path` that killed guards have left, then make `path`, and lock it.

    Return the file descriptor of the lock.

    Args: `busy` is called each time that a directory was removed, to show that this process still works.
    """
    sweep(path.parent, busy)
    while True:
        path.mkdir(mode=0o700)
        # If the sweep of another guard removes the directory before this process has the lock, make it again.
        with suppress(FileNotFoundError, BlockingIOError):
            return take_lock(path, create=True)


def handed_over(path: Path, timeout_s: float, busy: Callable[[], None], *, create: bool) -> int:
    """Wait until no other server runs on a directory, then lock it, and return the file descriptor of the lock.

    A server that has lost its owner gives the directory up during this call.

    Args: `create` is true for a user's directory, which may be new, and false for a directory that must already have
    the data of the owner or its predecessor.
    Raises: CannotStart if another server keeps running there, if the directory cannot be used, or if the data are gone.
    """
    deadline = time.monotonic() + timeout_s
    try:
        while True:
            with suppress(BlockingIOError):
                if create:
                    path.mkdir(mode=0o700, parents=True, exist_ok=True)
                return take_lock(path, create=create)
            holder = (path / LOCK_NAME).read_bytes()
            if time.monotonic() > deadline and not (create and holder == STOPPING):
                raise CannotStart("held", f"another server runs on it ({holder.decode()})", "")
            (path / SUCCESSOR_NAME).touch(mode=0o600)  # seeing this file, a guard without an owner stops its server
            busy()
            time.sleep(PAUSE_S)
    except OSError as error:
        raise CannotStart("data_dir", str(error) if create else f"the data are gone: {error}", "") from error
    finally:
        with suppress(OSError):
            (path / SUCCESSOR_NAME).unlink(missing_ok=True)


def sweep(root: Path, busy: Callable[[], None]) -> None:
    """Remove this user's temporary directories that nobody needs any more.

    The guard and the owner of such a directory have died, and no successor of the owner is expected any more.

    Args: `busy` is called each time that a directory was removed, to show that this process still works.
    """
    for path in root.glob(f"{TEMPORARY_PREFIX}*"):
        with suppress(OSError):  # the directory is in use, or was just removed
            if path.lstat().st_uid != os.getuid() or path.is_symlink() or has_owner(path):
                continue
            try:
                lock = take_lock(path, create=False)
            except FileNotFoundError:
                path.rmdir()  # a guard died right after mkdir; rmdir does nothing to a directory with files
            else:
                if not _expects_successor(path):
                    remove(path)
                os.close(lock)
                busy()


def remove(path: Path) -> None:
    """Remove a locked directory.

    The lock file is removed last. So if this process is killed before, a later sweep can continue.
    """
    for child in path.iterdir():
        if child.is_dir() and not child.is_symlink():
            shutil.rmtree(child, ignore_errors=True)
        elif child.name != LOCK_NAME:
            child.unlink()
    (path / LOCK_NAME).unlink()
    path.rmdir()


def erase(path: Path) -> None:
    """Remove a stopped server's files from a user's directory, and also the directory if it is then empty.

    Raises: OSError if a file cannot be removed.
    """
    lock = take_lock(path, create=True)
    try:
        shutil.rmtree(path / APPEND_ONLY_NAME)
        for name in (LOG_NAME, CONFIG_NAME, OWNER_NAME, SUCCESSOR_NAME, AWAITED_NAME, LOCK_NAME):
            (path / name).unlink(missing_ok=True)
        for socket in path.glob("*.sock"):  # these sockets belonged to servers that were killed
            socket.unlink()
        if not any(path.iterdir()):
            path.rmdir()
    finally:
        os.close(lock)


def discard(path: Path) -> None:
    """Remove the data directory of a killed guard, the process that ran the server.

    The server dies with the guard, but may hold the directory's lock for a moment, so this function waits for the lock.
    If the lock does not become free, the directory is left to a later sweep.
    """
    deadline = time.monotonic() + LOCK_TIMEOUT_S
    while True:
        try:
            lock = take_lock(path, create=False)
        except BlockingIOError:
            if time.monotonic() > deadline:
                return
            time.sleep(PAUSE_S)
        except OSError:  # for example, the guard has already removed the directory
            return
        else:
            with suppress(OSError):  # if this fails, a later sweep removes the directory
                remove(path)
            os.close(lock)
            return


def last_lines(path: Path, start: int = 0) -> str:
    """Return the last lines of the server's log, from byte `start` on, or "" if there is no log."""
    with suppress(OSError), (path / LOG_NAME).open("rb") as file:
        file.seek(max(start, file.seek(0, os.SEEK_END) - 8192))
        return "\n".join(file.read().decode(errors="replace").splitlines()[-LOG_LINES:])
    return ""
