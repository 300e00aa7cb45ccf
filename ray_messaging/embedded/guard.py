"""Guard of one Valkey server: it starts the server, stops it after the owner's end, and cleans up.

It is a script for `python -S -E -I`. It is never imported, and imports only modules of the standard library that load
fast. The owner is the process that wants the server.

    owner -> stdin   one line of JSON, the order; later `s` to stop the server, or `r` to start a dead one again, with
                     a line of JSON, the configuration
    owner <- stdout  one line of JSON per event: waiting, ready, failed, died; EOF: everything is cleaned up

If an owner ends without an `s`, the server runs on for `grace_s` and waits for a successor, but only while the process
`host_pid` lives, because that process starts successors. If the guard is killed, Valkey is killed with it (PDEATHSIG).
The owner then starts a new guard on the same data. If the owner has died too, the next guard on the machine removes the
temporary directory. If an owner has died, the command `epilogue` in its order runs after its server, and works on the
data that remain.
"""

import errno
import io
import json
import os
import signal
import socket
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if not TYPE_CHECKING:  # in an isolated interpreter, the folder of a script is not on the path
    sys.path.append(str(Path(__file__).parent))
    import data_directory
    from guard_watch import Fsync, GuardWatch, HandedOver, Ordered, Port, Stopped, operating_system
else:
    from ray_messaging.common import operating_system
    from ray_messaging.embedded import data_directory
    from ray_messaging.embedded.guard_watch import Fsync, GuardWatch, HandedOver, Ordered, Port, Stopped

# The guard gives up a server that starts, but neither answers nor uses CPU time for this long. During the start, the
# owner gives the guard up if the guard sends no event for 10 s.
ANSWER_TIMEOUT_S: Final = 8.0
READY_POLL_S: Final = 0.01
# The time limit for an answer on the port, where another program may listen that never answers.
PROBE_TIMEOUT_S: Final = 0.25
STOP_TIMEOUT_S: Final = 5.0  # the time for the last fsync; then the server is killed
# The time limit for the rewrite of the append-only file before a stop. In this time, the server can write half a
# gigabyte. The sum of this limit and STOP_TIMEOUT_S is below 15 s, after which the owner kills the guard.
REWRITE_TIMEOUT_S: Final = 5.0
REWRITE_POLL_S: Final = 0.02
REWRITES: Final = (
    "EVAL \"return tonumber(string.match(redis.call('INFO', 'persistence'), 'aof_rewrite_in_progress:(%d)'))\" 0"
)
# Only replies that the server copies count toward a client's output limit. Replies that it does not copy could fill the
# memory. Older servers copy all replies.
COPY_REPLIES: Final = "CONFIG SET min-string-size-avoid-copy-reply 1073741824"
TRUNCATED: Final = "loaded anyway because aof-load-truncated is enabled"


def send_event(event: str, **facts: object) -> None:
    """Send an event to the owner, if the owner lives."""
    with suppress(OSError):
        os.write(1, json.dumps({"event": event, **facts}).encode() + b"\n")


def busy() -> None:
    """Tell the owner that the guard lives, but is not ready yet."""
    send_event("waiting")


class Valkey:
    """One Valkey process that runs in a data directory."""

    def __init__(self, order: dict[str, Any], path: Path, lock: int) -> None:
        self._order = order
        self._path = path
        config = path / data_directory.CONFIG_NAME
        same = config.exists() and config.read_text() == order["config"]
        if not same:  # a file with the right text is kept, because on a full disk it could not be written again
            config.unlink(missing_ok=True)
            config.write_text(order["config"])  # with the guard's umask, the file gets the mode 0600
        log = path / data_directory.LOG_NAME
        self._log_start = log.stat().st_size if log.exists() else 0
        # Valkey inherits the lock. So the directory stays locked between the guard's death and Valkey's death.
        os.set_inheritable(lock, True)
        guard = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            self._exec(guard)

    def _exec(self, guard: int) -> None:
        """Replace the forked child process by Valkey; never return. `guard` is the process id of the guard."""
        try:
            os.chdir(self._path)  # the paths in the config are relative to this directory, so that they need no quoting
            log = os.open(data_directory.LOG_NAME, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            for source, target in ((os.open(os.devnull, os.O_RDONLY), 0), (log, 1), (log, 2)):
                os.dup2(source, target)
            # The new process group will have Valkey and its child that rewrites the append-only file. A kill of the
            # group reaches both.
            os.setpgid(0, 0)
            operating_system.die_with_parent()
            if os.getppid() == guard:  # otherwise the guard died before die_with_parent()
                environment = self._order["environment"] | os.environ
                command = ["valkey-server", data_directory.CONFIG_NAME]
                os.execve(self._order["binary"], command, environment)  # noqa: S606 - no shell is wanted
        except OSError as error:
            os.write(2, f"cannot run {self._order['binary']}: {error}\n".encode())
        finally:
            os._exit(127)

    def exited(self) -> str | None:
        """Return how the process ended, or None while it runs.

        A process that has ended stays a zombie, so that its process id is not used again.
        """
        how = operating_system.how_ended(self.pid)
        return None if how is None else f"Valkey, process {self.pid}, ended by {how}"

    def log(self) -> str:
        """Return the last lines of this process's log."""
        return data_directory.last_lines(self._path, self._log_start)

    def wait_ready(self, watch: GuardWatch) -> None:
        """Wait until the server answers.

        Raises: CannotStart if the server does not answer; Stopped or HandedOver as `GuardWatch.wait` does.
        """
        worked = -1
        while not self.ask("PING").startswith(b"+OK\r\n+PONG"):
            if self.exited():
                kind = "port" if "Address already in use" in self.log() else "server"
                raise data_directory.CannotStart(kind, "it ended while starting", self.log())
            now, work = time.monotonic(), operating_system.processor_ticks(self.pid) or 0
            if work > worked:  # while the server loads a long append-only file, it works without answering
                worked, deadline = work, now + ANSWER_TIMEOUT_S
                send_event("waiting")
            elif now > deadline:
                raise data_directory.CannotStart("server", f"no answer within {ANSWER_TIMEOUT_S:g} s", self.log())
            watch.wait(READY_POLL_S)

    def ask(self, command: str) -> bytes:
        """Send AUTH and a command, if Valkey listens on the port; return the answers, or b"" if there are none."""
        answer, address = b"", (self._order["host"], self._order["port"])
        if not operating_system.listens(self.pid, address[1]):
            return b""
        with suppress(OSError), socket.create_connection(address, PROBE_TIMEOUT_S) as connection:
            connection.sendall(f"AUTH {self._order['password']}\r\n{command}\r\n".encode())
            while answer.count(b"\n") < 2 and (chunk := connection.recv(256)):
                answer += chunk
        return answer

    def take_fsync(self) -> bool:
        """Tell Valkey to call fsync each second itself from now on; return whether it does."""
        return self.ask("CONFIG SET appendfsync everysec").endswith(b"+OK\r\n+OK\r\n")

    def shrink(self) -> None:
        """Rewrite the append-only file without the history of its values.

        If this takes too long, the old file is kept.
        """
        deadline = time.monotonic() + REWRITE_TIMEOUT_S
        self.ask("BGREWRITEAOF")
        while self.ask(REWRITES).endswith(b":1\r\n") and time.monotonic() < deadline:
            time.sleep(REWRITE_POLL_S)

    def stop(self) -> None:
        """Stop the process and its children, with SIGTERM and then SIGKILL; return when all of them are gone."""
        deadline = time.monotonic() + STOP_TIMEOUT_S
        # SIGCHLD is blocked, because otherwise it could arrive, and be lost, between exited() and the wait.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
        os.kill(self.pid, signal.SIGTERM)
        while not self.exited() and (left_s := deadline - time.monotonic()) > 0:
            operating_system.wait_for_child(left_s)
        with suppress(ProcessLookupError):  # on other systems than Linux, the ended process may be forgotten already
            os.kill(self.pid, signal.SIGKILL)
        with suppress(ProcessLookupError):  # the process died before it had a process group
            os.killpg(self.pid, signal.SIGKILL)
        with suppress(ChildProcessError):  # on other systems than Linux, the process may be forgotten already
            os.waitpid(self.pid, 0)
        # Valkey's child that rewrote the append-only file is now a child of the guard, which is a subreaper.
        with suppress(ChildProcessError):
            while True:
                os.waitpid(-self.pid, 0)
        # SIGCHLD is unblocked again, because the next Valkey process would inherit a blocked signal.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})


def serve(order: dict[str, Any], path: Path, lock: int, port: Port, watch: GuardWatch) -> None:
    """Start the server, and wait until it dies. Tell the owner if the server cannot start, is ready, or has died.

    Raises: Stopped if the server must stop; HandedOver if a successor wants the data. Before this function raises one
    of them, it stops the server.
    """
    try:
        port.open()
        valkey = Valkey(order, path, lock)
    # The port is taken, or memory, disk or processes are used up. This may pass, so the data are kept.
    except OSError as error:
        kind = "port" if error.errno == errno.EADDRINUSE else "server"
        return send_failure(data_directory.CannotStart(kind, f"cannot start Valkey: {error}", ""))
    fsync = None
    try:
        valkey.wait_ready(watch)
        valkey.ask(COPY_REPLIES)
        truncated = TRUNCATED in valkey.log()
        send_event("ready", pid=valkey.pid, guard_pid=os.getpid(), data_dir=str(path), truncated=truncated)
        fsync = Fsync(path / data_directory.APPEND_ONLY_NAME, valkey.take_fsync) if order["fsync"] else None
        while not (end := valkey.exited()):
            watch.wait(None)
        port.reserve()
        send_event("died", reason=end, log=valkey.log())
    except data_directory.CannotStart as error:
        port.reserve()
        send_failure(error)
    except (Stopped, HandedOver) as end:
        data_directory.mark(lock, data_directory.STOPPING)
        if isinstance(end, Ordered) and not order["temporary"]:
            valkey.shrink()
        raise
    finally:
        if fsync is not None:
            fsync.close()
        valkey.stop()


def send_failure(error: data_directory.CannotStart) -> None:
    """Tell the owner why the server has not started."""
    send_event("failed", **dict(zip(("kind", "reason", "log"), error.args, strict=True)))


def read_line() -> Any:  # noqa: ANN401 - what JSON holds
    """Read a line of JSON from the owner; raise Stopped if the owner has ended."""
    # A buffered read would take more than this line from the pipe, such as the next order.
    line = io.FileIO(0, closefd=False).readline()
    if not line.endswith(b"\n"):
        raise Stopped
    return json.loads(line)


def run_epilogue(order: dict[str, Any], umask: int) -> None:
    """Replace the guard process by the command that must run after the server if the server's owner has died."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nothing, stream)
    os.umask(umask)
    os.execve(order["epilogue"][0], order["epilogue"], os.environ | {"PYTHONPATH": order["modules"]})  # noqa: S606 - as above


def guard(owner: int, umask: int) -> None:
    """Carry out the owner's orders, then clean up.

    This function never returns. It ends by an exception.

    Raises: CannotStart if the data directory cannot be used; Stopped or HandedOver after the server has ended.
    """
    watch = GuardWatch(owner)
    order = read_line()
    path, temporary = Path(order["path"]), order["temporary"]
    again = order["take_over"]
    if temporary and not again:
        lock = data_directory.make_temporary(path, busy)
    else:
        timeout_s = order["handover_s"] if again else data_directory.KEPT_TIMEOUT_S
        lock = data_directory.handed_over(path, timeout_s, busy, create=not again)
    if order["brief"]:
        data_directory.mark(lock, data_directory.STOPPING)
    port = Port(order["host"], order["port"])
    try:
        if order["grace_s"]:
            data_directory.expect_successor(path)
        watch.expect_successor(path / data_directory.SUCCESSOR_NAME, order["grace_s"], order["host_pid"])
        while True:
            serve(order, path, lock, port, watch)
            while watch.wait(None) != b"r":  # the data are kept until the owner orders to restart or to stop the server
                pass
            order["config"] = read_line()
    except Stopped as end:  # after any other exception, the data are kept for a successor
        if temporary:
            data_directory.remove(path)
        else:
            # The data are kept, but not this file, which has the password.
            (path / data_directory.CONFIG_NAME).unlink(missing_ok=True)
        if order["epilogue"] and not isinstance(end, Ordered):
            os.close(lock)  # otherwise the epilogue would inherit this lock
            run_epilogue(order, umask)
        raise


def main() -> None:
    """Leave the owner's process tree, then run the guard."""
    owner = os.getppid()
    if os.fork() != 0:
        os._exit(0)  # the guard must be a grandchild of the owner, because Ray kills the children of a dead worker
    os.setsid()
    umask = os.umask(0o077)
    os.chdir("/")
    try:
        operating_system.adopt_orphans()
        with suppress(Stopped, HandedOver):
            guard(owner, umask)
    except data_directory.CannotStart as error:
        send_failure(error)
    except Exception as error:  # noqa: BLE001 - stderr is discarded: the owner reports it
        send_event("failed", kind="server", reason=repr(error), log="")


if __name__ == "__main__":
    main()
