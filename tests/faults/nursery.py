"""A process from which workers are forked: importing takes them a second, forking a hundredth of that.

The nursery has one thread and no other work, so that its children begin clean. It ends with its parent process, and
does not wait for its children: the caller watches them by pidfd.
"""

import atexit
import json
import os
import select
import signal
import socket
import subprocess
import sys
import traceback
from contextlib import suppress
from functools import cache
from pathlib import Path

_STREAMS = 3


class Child:
    """A forked process, by the part of subprocess.Popen's face that workers use."""

    def __init__(self, pid, stdin, stdout, stderr):
        self.pid = pid
        self.stdin, self.stdout, self.stderr = os.fdopen(stdin, "w"), os.fdopen(stdout), os.fdopen(stderr)
        try:
            self._pidfd = os.pidfd_open(pid)
        except ProcessLookupError:  # it is gone already
            self._pidfd = None

    def poll(self):
        """Return None while it lives."""
        return None if self._pidfd is not None and not select.select([self._pidfd], [], [], 0)[0] else 0

    def kill(self):
        if self._pidfd is not None:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def wait(self):
        if self._pidfd is not None:
            select.select([self._pidfd], [], [])
            os.close(self._pidfd)
            self._pidfd = None


class Nursery:
    """Start workers; each gets a config file and three pipes."""

    def __init__(self):
        ours, theirs = socket.socketpair()
        tests = str(Path(__file__).parent.parent)
        self._socket = ours
        self._process = subprocess.Popen(
            [sys.executable, "-m", "faults.nursery", str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            cwd=tests,
            env=os.environ | {"PYTHONPATH": os.pathsep.join([os.environ.get("PYTHONPATH", ""), tests])},
        )
        theirs.close()

    def fork(self, config):
        """Run a worker by a config file."""
        pipes = [os.pipe() for _ in range(_STREAMS)]
        inner = [pipes[0][0], pipes[1][1], pipes[2][1]]
        socket.send_fds(self._socket, [json.dumps(str(config)).encode()], inner)
        pid = int(self._socket.recv(64))
        for end in inner:
            os.close(end)
        return Child(pid, pipes[0][1], pipes[1][0], pipes[2][0])

    def close(self):
        self._socket.close()
        self._process.wait()


@cache
def nursery():
    """Return the one of this process; it is closed at its end."""
    made = Nursery()
    atexit.register(made.close)
    return made


def _live(run, config):
    """Be a worker, and never return."""
    code = 1
    try:
        run(config)
        code = 0
    except BaseException:  # noqa: BLE001 - nobody else can tell of it
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def serve(number):
    from faults import workload

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel buries the dead
    asked = socket.socket(fileno=number)
    while True:
        request, streams, _, _ = socket.recv_fds(asked, 4096, _STREAMS)
        if not request:
            return
        pid = os.fork()
        if pid == 0:
            asked.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for place, stream in enumerate(streams):
                os.dup2(stream, place)
                os.close(stream)
            _live(workload.run, json.loads(request))
        asked.send(str(pid).encode())
        for stream in streams:
            os.close(stream)


if __name__ == "__main__":
    serve(int(sys.argv[1]))
