"""Keep an embedded server running: one that dies comes back with its data, port and password."""

import logging
import threading
import time
from typing import Any, Final

from ray_messaging.common.backoff import SERVER_RESTART, SERVER_RESTART_ATTEMPTS, Backoff
from ray_messaging.config import RedisConfig
from ray_messaging.embedded.server import EmbeddedServer
from ray_messaging.errors import ConfigError, ServerFailed

logger = logging.getLogger(__name__)

SETTLED_S: Final = 5.0  # one that has served for so long does not die of what it loads
JOIN_S: Final = 5.0


class ServerSupervisor:
    """Start a server, and start it again whenever it dies; one that dies within seconds again and again is given up."""

    def __init__(self, server: EmbeddedServer) -> None:
        self._server = server
        self._config: RedisConfig | None = None
        self._failure: ConfigError | ServerFailed | None = None
        self._attempts = 0  # in a row
        self._backoff = Backoff(SERVER_RESTART)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="ray_messaging server supervisor", daemon=True)
        self._began_at: float | None = None
        self._restarts = 0
        self._last_end = ""

    def start(self, *, succeed: bool) -> None:
        """Start the server, or take over a predecessor's; `config` tells what became of it."""
        try:
            self._serves(self._server.take_over() if succeed else self._server.start())
        except (ConfigError, ServerFailed) as error:
            self._failure = error
            worth_more = succeed and self._server.data_dir is not None  # what nobody used yet need not come back
            if not worth_more or not self._come_back(str(error)):
                return
        if succeed:
            self._restarts = 1
            logger.error("the embedded server's owner was killed; its successor has taken over server and data")
        self._thread.start()

    def _serves(self, config: RedisConfig) -> None:
        self._config, self._failure, self._began_at = config, None, time.monotonic()

    def config(self) -> RedisConfig:
        """Return where the server is, password included; raise why it does not run."""
        if self._failure is not None:
            raise self._failure.with_traceback(None)
        assert self._config is not None
        return self._config

    def stats(self) -> dict[str, Any]:
        """Return how the server is doing: `uptime_s` since its last start, `restarts` of it, how it last ended."""
        began_at = self._began_at
        return {
            "alive": began_at is not None,
            "pid": self._server.pid,
            "data_dir": self._server.data_dir,
            "uptime_s": 0.0 if began_at is None else time.monotonic() - began_at,
            "restarts": self._restarts,
            "last_end": self._last_end,
        }

    def stop(self) -> None:
        """Stop the server and remove its data."""
        self._stopping.set()
        self._server.stop()
        if self._thread.is_alive():
            self._thread.join(JOIN_S)
        self._server.stop()  # a restart that was under way
        self._began_at = None

    def _keep(self) -> None:
        while self._server.wait() and not self._stopping.is_set():
            if self._began_at is not None and time.monotonic() - self._began_at > SETTLED_S:
                self._attempts = 0
                self._backoff.reset()
            self._began_at, self._last_end = None, self._server.last_end
            text = "the embedded server died: %s; it starts again with its data. Its last words:\n%s"
            logger.error(text, self._last_end, self._server.last_log)
            if not self._come_back(self._last_end):
                return

    def _come_back(self, why: str) -> bool:
        """Start the server again; give up, loudly, after too many attempts."""
        noticed_at = time.monotonic()
        while self._attempts < SERVER_RESTART_ATTEMPTS:
            if self._stopping.wait(self._backoff.next_pause() if self._attempts else 0.0):
                return False
            self._attempts += 1
            try:
                self._serves(self._server.restart())
            except (ConfigError, ServerFailed) as error:
                why = str(error)
                logger.error("the embedded server cannot start again: %s", error)  # noqa: TRY400 - ours say what is wrong
            else:
                if self._stopping.is_set():
                    self._server.stop()  # it may have come after stop() had nothing to stop
                    return False
                self._restarts += 1
                text = "the embedded server serves again, %.2f s after its end was noticed"
                logger.warning(text, time.monotonic() - noticed_at)
                return True
        self._give_up(why)
        return False

    def _give_up(self, why: str) -> None:
        text = f"the embedded server did not stay alive in {self._attempts} attempts and is given up: {why}"
        log = self._server.last_log
        self._failure = ServerFailed(f"{text}\n{log}".rstrip(), log=log)
        self._last_end = text
        logger.critical("%s; its data stay in %s until the experiment ends", text, self._server.data_dir)
