"""A link to one Redis server: scripts and commands that are repeated while the connection is cut."""

import asyncio
import random
import re
from collections.abc import Awaitable, Callable, Sequence
from functools import cache
from importlib.resources import files
from typing import Any, TypeVar

import redis.asyncio as aioredis
from redis.asyncio.connection import AbstractConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import (
    AuthenticationError,
    AuthorizationError,
    BusyLoadingError,
    ClusterDownError,
    NoPermissionError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    ResponseError,
    TryAgainError,
)
from redis.exceptions import (
    ConnectionError as RedisConnectionError,
)
from redis.exceptions import (
    TimeoutError as RedisTimeoutError,
)

from ray_messaging.config import CONNECT_TIMEOUT_S, RedisConfig
from ray_messaging.errors import ConfigError, ConnectionFailed, MailboxFull, ServerRefused
from ray_messaging.transports.redis.wire import ServerBusyError, Wire, reply_error

T = TypeVar("T")

OLDEST_SERVER = (7, 0)  # scripts with flags: trimming must go on while the server's memory is full
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.01, 0.5
_FATAL = (AuthenticationError, AuthorizationError, NoPermissionError)
_PASSING = (
    RedisConnectionError,
    RedisTimeoutError,
    BusyLoadingError,
    ReadOnlyError,
    OutOfMemoryError,
    OSError,
    EOFError,
    ServerBusyError,
    ClusterDownError,
    TryAgainError,
)


def _passes(error: BaseException) -> bool:
    """Tell whether to ask again may help; redis-py, which connects and subscribes, has no class for some of these."""
    return isinstance(error, _PASSING) or (
        isinstance(error, ResponseError) and isinstance(reply_error(str(error)), ServerBusyError)
    )


@cache
def script_text(name: str) -> str:
    """Read a Lua script of ours; what two share comes before them."""
    folder = files("ray_messaging.transports.redis") / "lua"
    shared = {"directory": "bury", "remove": "bury", "commit": "order", "logged": "order", "retake": "listen"}.get(name)
    parts = [(folder / f"{part}.lua").read_text() for part in (shared, name) if part]
    flags = [line for part in parts for line in part.splitlines() if line.startswith("#!")]
    return "\n".join([*flags, *("\n".join(part.splitlines()[part.startswith("#!") :]) for part in parts)])


class RedisLink:
    """Own the connections to one server."""

    def __init__(self, config: RedisConfig, patience_s: float) -> None:
        self.config = config
        self.patience_s = patience_s
        self._client: aioredis.Redis | None = None
        self._wire: Wire | None = None
        self._opening = asyncio.Lock()
        self._shas: dict[str, bytes] = {}

    @property
    def where(self) -> str:
        """Name the server in messages."""
        server = self.config.server
        return server if server.startswith("/") else f"{server}:{self.config.port}"

    @property
    def client(self) -> aioredis.Redis:
        """Return redis-py's client; made on first use, in the loop that uses it."""
        if self._client is None:
            config = self.config
            options: dict[str, Any] = {
                "db": config.db,
                "username": config.username,
                "password": config.password,
                "socket_timeout": config.timeout,
                "socket_connect_timeout": CONNECT_TIMEOUT_S,
                "socket_keepalive": True,
                # redis-py's own retry is blind: it repeats what may have had its effect. We own the loop.
                "retry": Retry(NoBackoff(), 0),
                "retry_on_error": [],
                "protocol": 2,
                "max_connections": 64,
            }
            if config.server.startswith("/"):
                options["unix_socket_path"] = config.server
            else:
                options |= {"host": config.server, "port": config.port, "ssl": config.ssl}
                if config.ssl:
                    options["ssl_ca_certs"] = config.ssl_ca_certs
            self._client = aioredis.Redis(**options)
        return self._client

    async def connect(self) -> None:
        """Reach the server once; raise ConnectionFailed, ServerRefused or ConfigError, each within 5 s."""
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                info = await self._once(("INFO", "server"))
        except Exception as error:
            await self.close()
            raise self.translated(error) from error
        found = re.search(rb"redis_version:(\d+)\.(\d+)", info)
        if found is None or (int(found[1]), int(found[2])) < OLDEST_SERVER:
            await self.close()
            version = "of an unknown version" if found is None else found[0].decode()
            raise ConfigError(f"the server at {self.where} is {version}: install Redis 7.0, Valkey 7.2 or newer")

    async def close(self) -> None:
        """Let the connections go; closing twice does no harm."""
        wire, self._wire = self._wire, None
        if wire is not None:
            wire.close()
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    async def _once(self, args: Sequence[Any]) -> Any:  # noqa: ANN401 - a reply
        """Send one command over the connection that all share, which is opened where there is none."""
        wire = self._wire
        if wire is None or not wire.is_open:
            async with self._opening:
                if self._wire is None or not self._wire.is_open:
                    self._wire = await Wire.open(self.dedicated())
                wire = self._wire
        return await wire.call(args, min(self.config.timeout, self.patience_s))

    def dedicated(self) -> AbstractConnection:
        """Make a connection of its own, for a blocking read or a subscription."""
        connection: AbstractConnection = self.client.connection_pool.make_connection()
        return connection

    def translated(self, error: BaseException) -> Exception:
        """Turn a library's error into ours: refused for good, or out of reach."""
        facts = {"host": self.config.server, "port": self.config.port}
        if isinstance(error, OutOfMemoryError):
            return MailboxFull(
                f"the memory of the server at {self.where} is full, so it takes no messages: fetch what waits, or "
                "raise its maxmemory (nothing of these messages was sent)",
                mailbox="",
            )
        if isinstance(error, _FATAL) or (isinstance(error, ResponseError) and not _passes(error)):
            return ServerRefused(
                f"the server at {self.where} refused us: {error}; check user name, password, db "
                f"(now {self.config.db}), the user's rights, and that this is no node of a cluster of several",
                **facts,
            )
        if isinstance(error, (*_PASSING, RedisError)):
            why = str(error) or "no answer in time"
            return ConnectionFailed(
                f"cannot reach the server at {self.where}: {why}; check that it runs and that host and port are right",
                **facts,
            )
        return error if isinstance(error, Exception) else RuntimeError(str(error))

    async def script(
        self, name: str, keys: Sequence[str], args: Sequence[Any], cut: Callable[[], None] | None = None
    ) -> Any:  # noqa: ANN401 - a reply
        """Run a script of ours; it is repeated, with the same arguments, while the connection is cut.

        `cut` is called for each attempt of which nobody knows what became.
        """

        async def run() -> Any:  # noqa: ANN401 - a reply
            sha = self._shas.get(name)
            if sha is None:
                sha = self._shas[name] = await self._once(("SCRIPT", "LOAD", script_text(name)))
            try:
                return await self._once((b"EVALSHA", sha, len(keys), *keys, *args))
            except NoScriptError:
                del self._shas[name]
                return await self._once((b"EVAL", script_text(name), len(keys), *keys, *args))

        return await self.persist(run, cut)

    async def command(self, *args: Any) -> Any:  # noqa: ANN401 - a command and its reply
        """Run one command that may be repeated; replies come as RESP2 gives them."""
        return await self.persist(lambda: self._once(args))

    async def persist(self, attempt: Callable[[], Awaitable[T]], cut: Callable[[], None] | None = None) -> T:
        """Repeat what a cut connection broke, up to `patience_s`.

        Raises: ServerRefused at once, ConnectionFailed, MailboxFull.
        """
        deadline = asyncio.get_running_loop().time() + self.patience_s
        pause = _FIRST_PAUSE_S
        while True:
            try:
                return await attempt()
            except _FATAL as error:
                raise self.translated(error) from error
            except (*_PASSING, ResponseError) as error:
                if not _passes(error):
                    raise self.translated(error) from error
                if cut is not None and not isinstance(error, ResponseError | BusyLoadingError | ReadOnlyError):
                    cut()
                if asyncio.get_running_loop().time() + pause > deadline:
                    raise self.translated(error) from error
            # Jitter, so that a server that comes back is not met by everybody at once.
            await asyncio.sleep(pause * (0.5 + random.random()))  # noqa: S311 - no secret
            pause = min(2 * pause, _LONGEST_PAUSE_S)
