"""Helpers of the embedded server's tests: its processes, and clients that do not retry."""

import os
import select
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from ray_messaging.config import RedisConfig
from ray_messaging.embedded.server import EmbeddedServer
from support.patience import WAIT_S

HOST = "127.0.0.1"
LOCK_NAME = ".ray_messaging.lock"
DEADLINE_S = WAIT_S


@contextmanager
def client(config: RedisConfig, **changes) -> Iterator[redis.Redis]:
    settings = {"host": config.server, "port": config.port, "password": config.password, **changes}
    with redis.Redis(**settings, retry=Retry(NoBackoff(), 0), socket_timeout=5, decode_responses=True) as connected:
        yield connected


def guard_of(server: EmbeddedServer) -> int:
    return guard_in(server.data_dir or "")


def guard_in(data_dir: str | Path) -> int:
    return int(Path(data_dir, LOCK_NAME).read_text().removeprefix("process "))


def wait_ended(pid: int) -> None:
    """Wait for the end of a process that need not be our child; a zombie has ended."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        assert poll.poll(DEADLINE_S * 1000), f"process {pid} still runs"
    finally:
        os.close(fd)


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    wait_ended(pid)


def wait_until(condition: Callable[[], bool], timeout_s: float = DEADLINE_S) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        select.select([], [], [], 0.005)
