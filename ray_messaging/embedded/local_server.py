"""A server that belongs to this process, for messagers without a cluster."""

import weakref
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from ray_messaging.config import Steps
from ray_messaging.embedded.redis_server import EmbeddedServer
from ray_messaging.transports.backend import RedisBackend
from ray_messaging.transports.step_values import StepSettings

_HOST: Final = "127.0.0.1"


class LocalServer:
    """A Valkey server that belongs to this process. Without a `data_dir`, it begins empty, and writes no files.

    Pass it as the server of a `Messager`, for a test or a simulation without a cluster. The server starts with its
    `with` block or with its first messager, in 0.1 s. The server ends when its `with` block ends, when no variable and
    no messager refers to it any more, or when the process ends, even if the process is killed. Only processes of this
    user on this machine can reach it.

    Args: `steps` has the settings of the steps of the experiments on this server (None: the experiments have no steps).
    `data_dir` is a folder in which the data are kept. The next server with the same folder loads them.
    """

    def __init__(self, steps: Steps | None = None, *, data_dir: str | Path | None = None) -> None:
        self._steps = None if steps is None else StepSettings.of(steps)
        self._data_dir = None if data_dir is None else Path(data_dir).absolute()
        kept = None if self._data_dir is None else str(self._data_dir)
        self._server = EmbeddedServer(_HOST, data_dir=kept, append_only=kept is not None)
        # When this process ends, the server's guard, a separate process, stops the server. So the finalizer need not
        # run at exit. If it did, a forked copy of this process would stop the server at the end of the copy.
        weakref.finalize(self, self._server.stop).atexit = False

    def __enter__(self) -> Self:
        self._server.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def data_dir(self) -> Path | None:
        """Return the folder in which the data are kept, or None if they are in memory only."""
        return self._data_dir

    def stop(self) -> None:
        """Stop the server. Its data are lost, unless they are in a `data_dir`. A second call does nothing."""
        self._server.stop()

    def begin_anew(self, steps: Steps | None = None) -> Self:
        """Delete all data. `steps` is for the experiments that start on the server after this call (None: no steps).

        This is quicker than starting a new server.

        Nobody may use the server during this call. If the server does not run, this call starts it.

        Raises: ServerFailed if the server does not start.
        """
        import redis  # noqa: PLC0415 - for those who use it

        config = self._server.start()
        with redis.Redis(config.server, config.port, password=config.password) as client:
            client.flushall()
        self._steps = None if steps is None else StepSettings.of(steps)
        return self

    def open_backend(self) -> RedisBackend:
        """Start the server unless it runs, and return the object by which this package uses it, a RedisBackend.

        Raises: ServerFailed if the server does not start.
        """
        return RedisBackend(self._server.start(), first_steps=self._steps)
