"""The data directory of an embedded server: who holds it, who may take it over, and who sweeps it.

The guard, a script without a package, loads this file, too: the standard library only.

Two locks (flock) tell who lives: the guard's, which Valkey holds, too, and which is exclusive, so that two servers
never run on one directory; and the owner's, which is shared, and protects the data of a guard that was killed.
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
SUCCESSOR_NAME: Final = ".ray_messaging.successor"  # somebody waits for the lock of a guard without an owner
HEIR_NAME: Final = ".ray_messaging.heir"  # a successor may come; modified when it was seen without owner and guard
CONFIG_NAME, LOG_NAME = "valkey.conf", "valkey.log"
LOG_LINES: Final = 20
LOCK_TIMEOUT_S: Final = 0.5  # a killed server lets go of its lock within milliseconds
PAUSE_S: Final = 0.02
HEIR_S: Final = 60.0  # where Ray needs longer for a new process, the experiment has ended
STOPPING: Final = b"stopping"


class CannotStart(Exception):
    """The server cannot start; `args` are kind (data_dir, port or server), reason and last log lines."""


def take_lock(path: Path, *, create: bool) -> int:
    """Lock a directory; raise BlockingIOError if it is locked, FileNotFoundError if it has no (such) lock."""
    name = path / LOCK_NAME
    lock = os.open(name, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | (os.O_CREAT if create else 0), 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not os.path.samestat(os.fstat(lock), name.stat()):  # swept before we had the lock
            raise FileNotFoundError(name)
        mark(lock, b"process %d" % os.getpid())
    except OSError:
        os.close(lock)
        raise
    return lock


def mark(lock: int, holder: bytes) -> None:
    """Write into the lock file who holds it."""
    os.pwrite(lock, holder, 0)  # first: a full disk takes what needs no new block
    os.ftruncate(lock, len(holder))


def own(path: Path) -> int:
    """Keep a directory from being swept for as long as the file that is returned is open; raises OSError."""
    owner = os.open(path / OWNER_NAME, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    fcntl.flock(owner, fcntl.LOCK_SH)  # only who sweeps takes it exclusively, and for an instant
    return owner


def owned(path: Path) -> bool:
    """Say whether the owner of a directory lives."""
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


def expect_heir(path: Path) -> None:
    """Have nobody sweep a directory before a successor of its owner had time to come."""
    heir = path / HEIR_NAME
    heir.touch(mode=0o600)
    os.utime(heir, (0, 0))


def _expects_heir(path: Path) -> bool:
    """Say whether a successor may yet come to a directory, of which this process has the lock."""
    heir = path / HEIR_NAME
    if not heir.exists():
        return False
    seen_at = heir.stat().st_mtime
    if seen_at == 0:
        os.utime(heir)
        return True
    return abs(time.time() - seen_at) < HEIR_S  # a clock may have been set back


def make_temporary(path: Path, busy: Callable[[], None]) -> int:
    """Make a directory and lock it, after sweeping what killed guards left beside it."""
    sweep(path.parent, busy)
    while True:
        path.mkdir(mode=0o700)
        with suppress(FileNotFoundError, BlockingIOError):  # another guard swept it before we had the lock
            return take_lock(path, create=True)


def open_kept(path: Path, busy: Callable[[], None]) -> int:
    """Lock the directory of a user, waiting while a server stops there; raise CannotStart if one runs."""
    deadline = time.monotonic() + LOCK_TIMEOUT_S
    while True:
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            return take_lock(path, create=True)
        except BlockingIOError:
            holder = (path / LOCK_NAME).read_bytes()
        except OSError as error:
            raise CannotStart("data_dir", str(error), "") from error
        if holder == STOPPING:
            busy()
        elif time.monotonic() > deadline:
            raise CannotStart("data_dir", f"another server runs on it, guarded by {holder.decode()}", "")
        time.sleep(PAUSE_S)


def take_over(path: Path, timeout_s: float, busy: Callable[[], None]) -> int:
    """Lock a directory that has data of ours; a guard whose owner is dead is asked for it. Raises CannotStart."""
    deadline = time.monotonic() + timeout_s
    try:
        while True:
            with suppress(BlockingIOError):
                return take_lock(path, create=False)
            if time.monotonic() > deadline:
                holder = (path / LOCK_NAME).read_text()
                raise CannotStart("data_dir", f"another server runs on it, guarded by {holder}", "")
            (path / SUCCESSOR_NAME).touch(mode=0o600)
            busy()
            time.sleep(PAUSE_S)
    except OSError as error:
        raise CannotStart("data_dir", f"the data are gone: {error}", "") from error
    finally:
        (path / SUCCESSOR_NAME).unlink(missing_ok=True)


def sweep(root: Path, busy: Callable[[], None]) -> None:
    """Remove the temporary directories of our user whose guard and owner are dead."""
    for path in root.glob(f"{TEMPORARY_PREFIX}*"):
        with suppress(OSError):  # in use, or just gone
            if path.lstat().st_uid != os.getuid() or path.is_symlink() or owned(path):
                continue
            try:
                lock = take_lock(path, create=False)
            except FileNotFoundError:
                path.rmdir()  # a guard died right after mkdir; refused for all but an empty directory
            else:
                if not _expects_heir(path):
                    remove(path)
                os.close(lock)
                busy()


def remove(path: Path) -> None:
    """Remove a locked directory, its lock last: until then another sweep can finish what we could not."""
    for child in path.iterdir():
        if child.is_dir() and not child.is_symlink():
            shutil.rmtree(child, ignore_errors=True)
        elif child.name != LOCK_NAME:
            child.unlink()
    (path / LOCK_NAME).unlink()
    path.rmdir()


def discard(path: Path) -> None:
    """Remove what a killed guard left of a directory of ours, once the server, which dies with it, has let go."""
    deadline = time.monotonic() + LOCK_TIMEOUT_S
    while True:
        try:
            lock = take_lock(path, create=False)
        except BlockingIOError:
            if time.monotonic() > deadline:
                return
            time.sleep(PAUSE_S)
        except OSError:  # the guard has removed it
            return
        else:
            with suppress(OSError):  # the next sweep does it then
                remove(path)
            os.close(lock)
            return


def last_lines(path: Path, start: int = 0) -> str:
    """Return the last lines that the server of a directory logged, from byte `start` on."""
    with suppress(OSError), (path / LOG_NAME).open("rb") as file:
        file.seek(max(start, file.seek(0, os.SEEK_END) - 8192))
        return "\n".join(file.read().decode(errors="replace").splitlines()[-LOG_LINES:])
    return ""
