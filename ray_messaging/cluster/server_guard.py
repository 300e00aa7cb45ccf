"""Guard one Valkey server: start it, stop it when its owner goes, leave nothing behind.

A script for `python -S -E -I`, never imported: the standard library only, and of that only what starts fast.

    owner -> stdin   one line of JSON, the order; after it any byte, or EOF, means stop
    owner <- stdout  one line of JSON per event: waiting, ready, failed, died; EOF means that nothing is left

A killed guard takes Valkey along (PDEATHSIG), and leaves a temporary directory for the next guard to sweep.
"""

import ctypes
import fcntl
import io
import json
import os
import secrets
import select
import shutil
import signal
import socket
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

TEMPORARY_PREFIX: Final = "ray_messaging-valkey-"
LOCK_NAME: Final = ".ray_messaging.lock"
CONFIG_NAME, LOG_NAME = "valkey.conf", "valkey.log"
LOG_LINES: Final = 20
ANSWER_TIMEOUT_S: Final = 8.0  # without an answer or any work; below the owner's 10 s
PROBE_TIMEOUT_S: Final = 0.25  # a stranger on the port may never answer
STOP_TIMEOUT_S: Final = 5.0  # for the last fsync; after it SIGKILL
LOCK_TIMEOUT_S: Final = 0.5  # a killed server lets go of its lock within milliseconds
STOPPING: Final = b"stopping"
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36  # of linux/prctl.h


class CannotStart(Exception):
    """The server cannot start; `args` are kind (data_dir, port or server), reason and last log lines."""


class Stopped(Exception):
    """The owner is gone, or wants the server to stop."""


def tell(event: str, **facts: object) -> None:
    """Tell the owner; say nothing when it is gone."""
    with suppress(OSError):
        os.write(1, json.dumps({"event": event, **facts}).encode() + b"\n")


def prctl(option: int, value: int) -> None:
    """Set an attribute of this process; raise OSError."""
    if ctypes.CDLL(None, use_errno=True).prctl(option, ctypes.c_ulong(value)) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}, {value}) failed")


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
        with suppress(OSError):  # no pidfd on this kernel, or dead already: the pipe has to do
            self._poll.register(os.pidfd_open(owner), select.POLLIN)

    def wait(self, timeout_s: float | None) -> None:
        """Wait for the end of a child or the timeout; raise Stopped for the owner and for SIGTERM."""
        for fd, _ in self._poll.poll(None if timeout_s is None else timeout_s * 1000):
            if fd != self._wake or set(os.read(self._wake, 4096)) - {signal.SIGCHLD}:
                raise Stopped


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
    os.ftruncate(lock, 0)
    os.pwrite(lock, holder, 0)


def make_temporary(root: Path) -> tuple[Path, int]:
    """Make a directory and lock it, after sweeping what killed guards left."""
    sweep(root)
    while True:
        path = root / f"{TEMPORARY_PREFIX}{secrets.token_hex(6)}"
        path.mkdir(mode=0o700)
        with suppress(FileNotFoundError, BlockingIOError):  # another guard swept it before we had the lock
            return path, take_lock(path, create=True)


def open_kept(path: Path) -> tuple[Path, int]:
    """Lock the directory of a user, waiting while a server stops there; raise CannotStart if one runs."""
    deadline = time.monotonic() + LOCK_TIMEOUT_S
    while True:
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            return path, take_lock(path, create=True)
        except BlockingIOError:
            holder = (path / LOCK_NAME).read_bytes()
        except OSError as error:
            raise CannotStart("data_dir", str(error), "") from error
        if holder == STOPPING:
            tell("waiting")
        elif time.monotonic() > deadline:
            raise CannotStart("data_dir", f"another server runs on it, guarded by {holder.decode()}", "")
        time.sleep(0.02)


def sweep(root: Path) -> None:
    """Remove the temporary directories of our user whose guard is dead."""
    for path in root.glob(f"{TEMPORARY_PREFIX}*"):
        with suppress(OSError):  # in use, or just gone
            if path.lstat().st_uid != os.getuid() or path.is_symlink():
                continue
            try:
                lock = take_lock(path, create=False)
            except FileNotFoundError:
                path.rmdir()  # a guard died right after mkdir; refused for all but an empty directory
            else:
                remove(path)
                os.close(lock)
                tell("waiting")


def remove(path: Path) -> None:
    """Remove a locked directory, its lock last: until then another sweep can finish what we could not."""
    for child in path.iterdir():
        if child.is_dir() and not child.is_symlink():
            shutil.rmtree(child, ignore_errors=True)
        elif child.name != LOCK_NAME:
            child.unlink()
    (path / LOCK_NAME).unlink()
    path.rmdir()


class Valkey:
    """Run one Valkey process in a data directory."""

    def __init__(self, order: dict[str, Any], path: Path, lock: int) -> None:
        self._order = order
        self._path = path
        (path / CONFIG_NAME).unlink(missing_ok=True)
        (path / CONFIG_NAME).write_text(order["config"])  # mode 0600, by our umask
        log = path / LOG_NAME
        self._log_start = log.stat().st_size if log.exists() else 0
        # Valkey holds the lock, too: it is not free in the moment between the guard's death and Valkey's own.
        os.set_inheritable(lock, True)
        guard = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            self._exec(guard)

    def _exec(self, guard: int) -> None:
        """Become Valkey (in the forked child); never return."""
        try:
            os.chdir(self._path)  # the config names its files relative to it: no path needs quoting
            log = os.open(LOG_NAME, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            for source, target in ((os.open(os.devnull, os.O_RDONLY), 0), (log, 1), (log, 2)):
                os.dup2(source, target)
            os.setpgid(0, 0)  # a child that rewrites the AOF can then be killed with it
            prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() == guard:  # else it died before prctl
                os.execv(self._order["binary"], ["valkey-server", CONFIG_NAME])  # noqa: S606 - no shell is wanted
        except OSError as error:
            os.write(2, f"cannot run {self._order['binary']}: {error}\n".encode())
        finally:
            os._exit(127)

    def exited(self) -> bool:
        """Say whether the process ended; it stays a zombie, so that its pid stays its own."""
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def log(self) -> str:
        """Return the last lines that this process logged."""
        with suppress(OSError), (self._path / LOG_NAME).open("rb") as file:
            file.seek(max(self._log_start, file.seek(0, os.SEEK_END) - 8192))
            return "\n".join(file.read().decode(errors="replace").splitlines()[-LOG_LINES:])
        return ""

    def wait_ready(self, watch: Watch) -> None:
        """Wait until it serves; raise CannotStart, or Stopped."""
        pause_s, worked = 0.001, -1
        while not self._ask().startswith(b"+OK\r\n+PONG"):
            if self.exited():
                kind = "port" if "Address already in use" in self.log() else "server"
                raise CannotStart(kind, "it ended while starting", self.log())
            now, work = time.monotonic(), self._cpu_ticks()
            if work > worked:  # while it loads a long AOF it answers late, or not at all
                worked, deadline = work, now + ANSWER_TIMEOUT_S
                tell("waiting")
            elif now > deadline:
                raise CannotStart("server", f"no answer within {ANSWER_TIMEOUT_S:g} s", self.log())
            watch.wait(pause_s)
            pause_s = min(2 * pause_s, 0.1)

    def _cpu_ticks(self) -> int:
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return int(fields[11]) + int(fields[12])  # user and system time

    def _ask(self) -> bytes:
        """Return the answers to AUTH and PING: only our own server takes the password."""
        answer, address = b"", (self._order["host"], self._order["port"])
        with suppress(OSError), socket.create_connection(address, PROBE_TIMEOUT_S) as connection:
            connection.sendall(f"AUTH {self._order['password']}\r\nPING\r\n".encode())
            while answer.count(b"\n") < 2 and (chunk := connection.recv(256)):
                answer += chunk
        return answer

    def stop(self) -> None:
        """Stop the process gracefully, then by force, and its children; return when all are gone."""
        deadline = time.monotonic() + STOP_TIMEOUT_S
        # Unblocked, it could come between exited() and sigtimedwait().
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
        os.kill(self.pid, signal.SIGTERM)
        while not self.exited() and (left_s := deadline - time.monotonic()) > 0:
            signal.sigtimedwait({signal.SIGCHLD}, left_s)
        os.kill(self.pid, signal.SIGKILL)
        with suppress(ProcessLookupError):  # it died before it had a group
            os.killpg(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        with suppress(ChildProcessError):  # the child that rewrote the AOF is ours now: we are a subreaper
            while True:
                os.waitpid(-self.pid, 0)


def serve(order: dict[str, Any], path: Path, lock: int, watch: Watch) -> None:
    """Run the server until it dies; raise CannotStart, or Stopped."""
    valkey = Valkey(order, path, lock)
    try:
        valkey.wait_ready(watch)
        tell("ready", pid=valkey.pid, guard_pid=os.getpid(), data_dir=str(path))
        while not valkey.exited():
            watch.wait(None)
        tell("died", log=valkey.log())
    finally:
        mark(lock, STOPPING)
        valkey.stop()


def guard(owner: int) -> None:
    """Do what the owner orders, and clean up; raise CannotStart, or Stopped."""
    watch = Watch(owner)
    line = io.FileIO(0, closefd=False).readline()  # unbuffered: a stop that follows stays in the pipe
    if not line.endswith(b"\n"):
        raise Stopped
    order = json.loads(line)
    kept = order["data_dir"]
    path, lock = open_kept(Path(kept)) if kept else make_temporary(Path(order["temporary_root"]))
    try:
        serve(order, path, lock, watch)
    finally:
        if kept:
            (path / CONFIG_NAME).unlink(missing_ok=True)  # it holds the password
        else:
            remove(path)


def main() -> None:
    """Leave the owner's process tree, then guard."""
    owner = os.getppid()
    if os.fork() != 0:
        os._exit(0)  # Ray kills the direct children of a worker that dies: do not be one
    os.setsid()
    os.umask(0o077)
    os.chdir("/")
    try:
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        with suppress(Stopped):
            guard(owner)
    except CannotStart as error:
        tell("failed", **dict(zip(("kind", "reason", "log"), error.args, strict=True)))
    except Exception as error:  # noqa: BLE001 - stderr is nowhere: the owner is the one who can be told
        tell("failed", kind="server", reason=repr(error), log="")


if __name__ == "__main__":
    main()
