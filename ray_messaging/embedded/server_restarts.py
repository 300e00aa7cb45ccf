"""Supervisor that restarts an embedded server with the same data, port and password when it has died."""

import logging
import threading
import time
from typing import Any, Final

from ray_messaging.common.backoff import SERVER_RESTART, SERVER_RESTART_ATTEMPTS, Backoff
from ray_messaging.config import RedisConfig
from ray_messaging.embedded.redis_server import EmbeddedServer
from ray_messaging.errors import ConfigError, ServerFailed

logger = logging.getLogger(__name__)

# If a server dies after it has run for longer than this, the data that it loaded are not the cause, so `_attempts` is
# set to 0.
SETTLED_S: Final = 5.0
JOIN_S: Final = 5.0


class ServerSupervisor:
    """Supervisor of one server. A thread restarts the server when the server has died.

    The supervisor gives up after several restarts in succession that failed, or after which the server died in seconds.
    """

    def __init__(self, server: EmbeddedServer) -> None:
        self._server = server
        self._config: RedisConfig | None = None
        self.failure: ConfigError | ServerFailed | None = None
        self._attempts = 0  # how many restarts were tried since the server last ran for longer than SETTLED_S
        self._backoff = Backoff(SERVER_RESTART)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="ray_messaging server supervisor", daemon=True)
        self._began_at: float | None = None
        self._restarts = 0
        self._last_end = ""

    def start(self, *, succeed: bool) -> None:
        """Start the server. If that fails, `config` raises the failure.

        Args: with `succeed`, take over the server of a previous owner.
        """
        try:
            self._serves(self._server.take_over() if succeed else self._server.start())
        except (ConfigError, ServerFailed) as error:
            self.failure = error
            # Only a server that is taken over has data that a restart may bring back. `data_dir` is None if its
            # temporary directory is gone.
            again = succeed and self._server.data_dir is not None
            if not again or not self._restart(str(error)):
                return
        if succeed:
            self._restarts = 1
            logger.error("the embedded server's owner was killed; a successor has taken over its server and data")
        self._thread.start()

    def _serves(self, config: RedisConfig) -> None:
        self._config, self.failure, self._began_at = config, None, time.monotonic()

    def config(self) -> RedisConfig:
        """Return the server's address and password.

        If the first start failed, or the supervisor has given up, raise the server's last failure.
        """
        if self.failure is not None:
            raise self.failure.with_traceback(None)
        assert self._config is not None
        return self._config

    def stats(self) -> dict[str, Any]:
        """Return a dict about the server.

        Its keys are `alive`, `pid`, `data_dir`, `uptime_s` (the time since the last start), `restarts` (how many there
        were) and `last_end` (how the server ended when it died last, or why the supervisor has given up; "": neither).
        """
        began_at = self._began_at
        return {
            "alive": began_at is not None,
            "pid": self._server.pid,
            "data_dir": self._server.data_dir,
            "uptime_s": 0.0 if began_at is None else time.monotonic() - began_at,
            "restarts": self._restarts,
            "last_end": self._last_end,
        }

    def stop(self, *, erase: bool = False) -> None:
        """Stop the server and remove its temporary data.

        With `erase`, also remove its files in a `data_dir`, unless the server stores any keys.
        """
        self._stopping.set()
        self._server.stop(erase=erase)
        if self._thread.is_alive():
            self._thread.join(JOIN_S)
        self._server.stop()  # a restart may have been in progress
        self._began_at = None

    def _keep(self) -> None:
        while self._server.wait() and not self._stopping.is_set():
            if self._began_at is not None and time.monotonic() - self._began_at > SETTLED_S:
                self._attempts = 0
                self._backoff.reset()
            self._began_at, self._last_end = None, self._server.last_end
            text = "the embedded server died: %s; it starts again with its data. The end of its log:\n%s"
            logger.error(text, self._last_end, self._server.last_log)
            if not self._restart(self._last_end):
                return

    def _restart(self, reason: str) -> bool:
        """Restart the server, with pauses between attempts; return True when it runs.

        Return False if `stop` was called. After too many attempts, log a critical error and return False.
        """
        noticed_at = time.monotonic()
        while self._attempts < SERVER_RESTART_ATTEMPTS:
            if self._stopping.wait(self._backoff.next_pause() if self._attempts else 0.0):
                return False
            self._attempts += 1
            try:
                self._serves(self._server.restart())
            except (ConfigError, ServerFailed) as error:
                reason = str(error)
                logger.error("the embedded server cannot start again: %s", error)  # noqa: TRY400 - ours say what is wrong
            else:
                if self._stopping.is_set():
                    self._server.stop()  # the server has started after `stop` had found no server to stop
                    return False
                self._restarts += 1
                text = "the embedded server runs again, %.2f s after its end was noticed"
                logger.warning(text, time.monotonic() - noticed_at)
                return True
        text = f"the embedded server did not stay alive in {self._attempts} attempts and is given up: {reason}"
        log = self._server.last_log
        self.failure = ServerFailed(f"{text}\n{log}".rstrip(), log=log)
        self._last_end = text
        logger.critical("%s; its data stay in %s until the experiment ends", text, self._server.data_dir)
        return False
