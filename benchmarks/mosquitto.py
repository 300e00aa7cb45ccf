"""A Mosquitto of a benchmark's own, on a free port, which ends with it."""

import getpass
import shutil
import socket
import subprocess
import tempfile
import threading
from pathlib import Path
from typing import Self

HOST = "127.0.0.1"
PLACES = "/usr/sbin:/usr/local/sbin:/opt/homebrew/sbin"
# Mosquitto's defaults, but for three: it would drop messages that a subscriber has not taken of its last 1,000, hold
# small packets back until the last one is acknowledged, and give up root's rights to its folder. Each costs the peer.
CONFIG = """\
listener {port} {host}
allow_anonymous true
max_queued_messages 0
max_inflight_messages {in_flight}
set_tcp_nodelay true
persistence true
persistence_location {folder}/
user {user}
log_type error
log_type warning
log_type information
"""
IN_FLIGHT = 20  # Mosquitto's default


class Mosquitto:
    """Run one broker, as a context manager; `in_flight` is how many publications of a client may await their PUBACK."""

    def __init__(self, in_flight: int = IN_FLIGHT) -> None:
        self.host, self.in_flight = HOST, in_flight
        with socket.socket() as probe:
            probe.bind((HOST, 0))
            self.port: int = probe.getsockname()[1]

    def __enter__(self) -> Self:
        binary = shutil.which("mosquitto") or shutil.which("mosquitto", path=PLACES)
        if binary is None:
            raise SystemExit("this benchmark needs Mosquitto, which is not on PATH: apt-get install mosquitto")
        self._folder = tempfile.TemporaryDirectory(prefix="mosquitto-")
        config = Path(self._folder.name) / "mosquitto.conf"
        named = {"host": self.host, "port": self.port, "in_flight": self.in_flight}
        config.write_text(CONFIG.format(**named, folder=self._folder.name, user=getpass.getuser()))
        self._process = subprocess.Popen(
            [binary, "-c", str(config)], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        self._await_start()
        return self

    def _await_start(self) -> None:
        assert self._process.stderr is not None
        seen = []
        for line in self._process.stderr:
            seen.append(line)
            if " running" in line:
                # It would wait for us when the pipe is full.
                threading.Thread(target=self._process.stderr.read, daemon=True).start()
                return
        self._stop()
        raise SystemExit("Mosquitto did not start:\n" + "".join(seen))

    def _stop(self) -> None:
        self._process.terminate()
        self._process.wait()
        self._folder.cleanup()

    def __exit__(self, *_: object) -> None:
        self._stop()
