"""Helpers of the embedded server's tests: its processes, and clients that do not retry."""

import os
import select
import signal
import subprocess
import sys
from contextlib import contextmanager, suppress
from pathlib import Path

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from support.patience import WAIT_S

HOST = "127.0.0.1"
LOCK_NAME = ".ray_messaging.lock"
DEADLINE_S = WAIT_S


def client(config, **changes):
    settings = {"host": config.server, "port": config.port, "password": config.password} | changes
    return redis.Redis(**settings, retry=Retry(NoBackoff(), 0), socket_timeout=5, decode_responses=True)


def guard_of(server):
    return guard_in(server.data_dir)


def guard_in(data_dir):
    return int(Path(data_dir, LOCK_NAME).read_text().removeprefix("process "))


def wait_ended(*pids):
    """Wait for the end of processes that need not be our children; a zombie has ended."""
    for pid in pids:
        with suppress(ProcessLookupError):
            process = os.pidfd_open(pid)
            try:
                assert select.select([process], [], [], WAIT_S)[0], f"process {pid} still runs"
            finally:
                os.close(process)


@contextmanager
def owner(code, *arguments):
    """Run a process that owns a server; yield it, and the words and numbers of its first line."""
    command, pipe = [sys.executable, "-c", code, *map(str, arguments)], subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        try:
            yield process, *(int(word) if word.isdigit() else word for word in process.stdout.readline().split())
        finally:
            process.kill()


def kill(pid):
    os.kill(pid, signal.SIGKILL)
    wait_ended(pid)
