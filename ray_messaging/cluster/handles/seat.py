"""Seats: people act for agents on web pages. The pages' web server runs in a process of its own."""

import html
import threading
import time
from contextlib import suppress
from typing import Final
from urllib.parse import quote, urlsplit

from ray_messaging.addressing.channels import AgentId
from ray_messaging.cluster.handles.connection import ExperimentConnection
from ray_messaging.cluster.inspector_process import Inspector
from ray_messaging.errors import ConfigError, MessagingError

_PORT_S: Final = 10.0  # seconds to retry a taken port: the web server of a killed run frees its port after a moment
_PAUSE_S: Final = 0.5

Address = tuple[str, int, tuple[str, ...]]


class Seat:
    """The place of a person who acts for an agent. `url` is the person's link: whoever has it can act for the agent."""

    def __init__(self, connection: ExperimentConnection, agent: AgentId, pages: str, token: str) -> None:
        self.agent = agent
        self.url = seat_url(pages, agent, token)
        self._connection = connection

    def wait_until_ready(self, timeout: float = 600.0) -> bool:
        """Wait until the person has agreed to the text of consent and is ready, at most `timeout` seconds.

        Returns: whether the person is ready.
        """
        interceptor = self._connection.interceptor
        ready: bool = self._connection.ask(interceptor.wait_for_seat.remote(self.agent, timeout))
        return ready

    def __repr__(self) -> str:
        return f"Seat({self.agent!r}, {self.url})"

    def _repr_html_(self) -> str:
        url = html.escape(self.url)
        return f'<p>Seat of agent {html.escape(repr(self.agent))}: <a href="{url}" target="_blank">{url}</a></p>'


def seat_url(pages: str, agent: AgentId, token: str) -> str:
    """Return the link by which a person acts for `agent`. Args: `pages` is the URL of the web server."""
    return f"{pages}seat/{quote(str(agent), safe='')}?token={token}"


class SeatPages:
    """The web server of an experiment's seats, in a process of its own, which is started again if it dies."""

    def __init__(self, connection: ExperimentConnection, address: Address) -> None:
        host, port, allowed = self._address = address
        self._connection = connection
        self._closed = threading.Event()
        self._changing = threading.Lock()
        names = [part for name in allowed for part in ("--allow-host", name)]
        self._options = ["--seats", "--host", host, *names]
        self._pages = self._start(port, time.monotonic() + _PORT_S)
        self.url = self._pages.url
        self._port = urlsplit(self.url).port or port
        threading.Thread(target=self._keep, name="ray_messaging seats", daemon=True).start()

    def _start(self, port: int, deadline: float) -> Inspector:
        while True:
            try:
                return Inspector(self._connection.exp_id, [*self._options, "--port", str(port)])
            except ConfigError as error:
                if "port" not in str(error) or time.monotonic() > deadline:
                    raise
            time.sleep(_PAUSE_S)

    def check(self, address: Address) -> None:
        """Raise ConfigError if the server of the seats has another address."""
        if address != self._address:
            host, port, allowed = self._address
            raise ConfigError(
                f"the seats of {self._connection.exp_id!r} share one web server, which has host={host!r}, port={port} "
                f"and allow_host={list(allowed)!r}: pass these for each seat"
            )

    def _keep(self) -> None:
        """Start the web server's process again whenever it ends, until `close` is called."""
        while not self._closed.is_set():
            self._pages.wait()
            while not self._closed.wait(_PAUSE_S):
                with suppress(MessagingError, OSError):
                    started = self._start(self._port, time.monotonic())
                    with self._changing:
                        self._pages = started
                        if self._closed.is_set():
                            started.close()
                    break

    def close(self) -> None:
        """Tell the pages that the experiment is over, and end the server."""
        self._closed.set()
        with suppress(MessagingError):
            self._connection.ask(self._connection.interceptor.end_seats.remote())
        with self._changing:
            self._pages.close()
