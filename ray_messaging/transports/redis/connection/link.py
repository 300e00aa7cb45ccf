"""A link to one Redis server: scripts and commands that are repeated while the connection is cut."""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import cache, partial
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

from ray_messaging.common.backoff import REDIS_RETRY, Backoff
from ray_messaging.common.limits import CONNECT_TIMEOUT_S
from ray_messaging.config import RedisConfig
from ray_messaging.errors import Closed, ConfigError, ConnectionFailed, MailboxFull, ServerRefused
from ray_messaging.observability.observer import Observer
from ray_messaging.transports.redis.connection.facts import read_info, refusal
from ray_messaging.transports.redis.connection.local_socket import NearbyConnection
from ray_messaging.transports.redis.connection.protocol import LargeCommand, ServerBusyError, Wire, reply_error
from ray_messaging.transports.redis.connection.tls import tls_options, tls_trouble

T = TypeVar("T")
# Called with a connection, and the streams (their keys) that are read over it, each with the last entry that was read.
Greet = Callable[[Wire, Mapping[str, str]], Awaitable[None]]

_GLANCE_S = 1.0  # between two questions whether the experiment has ended
# Patience must be enough for another connection, where one has died without a word.
_SHORTEST_STALL_S = 1.0
# Replies of a script whose user lacks a right.
_NO_RIGHT = ("The user executing the script", "ACL failure in script", "No permissions to access a")
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

_ANSWERS = (ResponseError, BusyLoadingError)  # the server said no, and did nothing


def _passes(error: BaseException) -> bool:
    """Return whether a repetition may help; redis-py, which connects and subscribes, has no class for some of these."""
    return isinstance(error, _PASSING) or (
        isinstance(error, ResponseError) and isinstance(reply_error(str(error)), ServerBusyError)
    )


# Snippets that come before a script, by its name; both lie in the folders of `lua`.
_MOVE = ("entry_order", "move_cursor")
_LEASE = ("id_ceiling", "renew_lease")
_STEPS = ("id_ceiling", "step_is_open", "step_barrier")
_DEAD_LETTERS = ("load_directory", "end_leases", "remove_mailbox", "reject_frame", "drop_letters")
_SHARED: dict[str, tuple[str, ...]] = {
    "send": ("mailbox_limit", "send_one_frame", *_MOVE, "step_box"),
    "conclude_transaction": ("mailbox_limit", *_MOVE, "step_box", "send"),
    "take_sender_epoch": ("raise_number",),
    "claim_experiment": ("raise_format",),
    "take_mailbox": ("raise_number", "raise_format", *_LEASE),
    "take_over_mailbox": ("raise_number", "raise_format", *_LEASE, "take_mailbox"),
    "commit": _MOVE,
    "renew_leases": _LEASE,
    "raise_entry_ids": ("entry_order", "id_ceiling"),
    "note_written": ("entry_order",),
    **dict.fromkeys(_DEAD_LETTERS, ("entry_order", "dead_letter_retention")),
    "requeue": ("mailbox_limit", "entry_order", "dead_letter_retention", "step_box"),
    **dict.fromkeys(("join_steps", "leave_steps", "open_step", "close_step"), _STEPS),
    **dict.fromkeys(("target_steps", "hold_boxes", "read_progress", "declare_senders"), _STEPS),
    **dict.fromkeys(("take_group", "renew_driver"), ("raise_number", *_STEPS)),
    "send_to_boxes": ("step_box", "step_is_open"),
    "remember_calls": ("step_is_open",),
}


@cache
def lua_files() -> dict[str, str]:
    """Return the text of each Lua file by its name, which is unique across the folders."""
    folders = (files("ray_messaging.transports.redis") / "lua").iterdir()
    return {file.name.removesuffix(".lua"): file.read_text() for folder in folders for file in folder.iterdir()}


@cache
def script_text(name: str) -> str:
    """Return a script, with its snippets before it and the flags of all on its first line."""
    parts = [lua_files()[part] for part in (*_SHARED.get(name, ()), name)]
    flags = [line for part in parts for line in part.splitlines() if line.startswith("#!")]
    return "\n".join([*flags, *("\n".join(part.splitlines()[part.startswith("#!") :]) for part in parts)])


@cache
def script_hash(name: str) -> str:
    """Return the name that the server gives a script of ours."""
    return hashlib.sha1(script_text(name).encode(), usedforsecurity=False).hexdigest()


def connection_options(config: RedisConfig) -> dict[str, Any]:
    """Return how redis-py is to connect."""
    options: dict[str, Any] = {
        "db": config.db,
        "username": config.username,
        "password": config.password,
        "socket_timeout": config.timeout,
        "socket_connect_timeout": CONNECT_TIMEOUT_S,
        "socket_keepalive": True,
        "retry_on_error": [],
        "protocol": 2,
    }
    if config.server.startswith("/"):
        return options | {"unix_socket_path": config.server}
    return options | {"host": config.server, "port": config.port, "ssl": config.ssl} | tls_options(config)


class RedisLink:
    """Connections to one server."""

    def __init__(self, config: RedisConfig, patience_s: float) -> None:
        self.config = config
        self.patience_s = patience_s
        # Seconds for a reply, and without any movement of the connection.
        self._reply_s, self._stall_s = min(config.timeout, patience_s), max(_SHORTEST_STALL_S, patience_s / 3)
        self._client: aioredis.Redis | None = None
        self._wire: Wire | None = None
        self._opening = asyncio.Lock()
        self._known: set[str] = set()  # scripts that the server should have
        # Is called with each new connection before a script, or a blocking read, goes over it.
        self.greet: Greet | None = None
        self._greeted: Wire | None = None
        self._calls = 0  # that went over an open connection
        self._glanced_at = 0.0
        # Asked while the server is out of reach: whether it stays so, as the experiment has ended.
        self.ended: Callable[[], Awaitable[Closed | None]] | None = None
        self.observer: Observer | None = None

    @property
    def where(self) -> str:
        """Return the server's address, for messages."""
        server = self.config.server
        return server if server.startswith("/") else f"{server}:{self.config.port}"

    @property
    def client(self) -> aioredis.Redis:
        """Return redis-py's client; made on first use, in the loop that uses it."""
        if self._client is None:
            # redis-py's own retry is blind: it repeats what may have had its effect. We own the loop.
            options = connection_options(self.config) | {"retry": Retry(NoBackoff(), 0), "max_connections": 64}
            self._client = aioredis.Redis(**options)
            if self.config.socket_dir is not None:
                pool = self._client.connection_pool
                pool.connection_class = NearbyConnection
                pool.connection_kwargs["socket_dir"] = self.config.socket_dir
        return self._client

    async def connect(self) -> None:
        """Reach the server once; raise ConnectionFailed, ServerRefused or ConfigError, each within 5 s.

        ConfigError: it is too old, a replica, or deletes data when its memory is full.
        """
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                info = read_info(await self._once(("INFO",)))
        except Exception as error:
            await self.close()
            raise self.translated(error) from error
        why_not = refusal(info, self.config, self.where)
        if why_not is not None:
            await self.close()
            raise ConfigError(why_not)

    async def close(self) -> None:
        """Close the connections; closing twice does no harm."""
        wire, self._wire = self._wire, None
        if wire is not None:
            wire.close()
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    def _once(self, args: Sequence[Any]) -> Awaitable[Any]:
        """Send one command over the connection that all share, which is opened where there is none."""
        wire = self._wire
        return self._opened(args) if wire is None or not wire.is_open else self._over(wire, args)

    async def _opened(self, args: Sequence[Any]) -> Any:  # noqa: ANN401 - a reply
        async with self._opening:
            wire = await self._open_shared()
        return await self._over(wire, args)

    async def _open_shared(self) -> Wire:
        """Return the shared connection; open it where there is none, which only one task may do at a time."""
        if self._wire is None or not self._wire.is_open:
            self._wire = await Wire.open(self.dedicated())
            if self.observer is not None:
                self.observer.connected(self.where)
        return self._wire

    def _over(self, wire: Wire, args: Sequence[Any]) -> Awaitable[Any]:
        self._calls += 1
        return wire.call(args, self._reply_s, self._stall_s)

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
            how = (
                "its user lacks a right: docs/security.md lists the rights we need, ACL LOG on the server names this"
                if isinstance(error, NoPermissionError) or any(sign in str(error) for sign in _NO_RIGHT)
                else f"check user name, password, db (now {self.config.db}), the user's rights, and that this is no "
                "node of a cluster of several"
            )
            return ServerRefused(f"the server at {self.where} refused us: {error}; {how}", **facts)
        if isinstance(error, _ANSWERS):
            return ConnectionFailed(
                f"the server at {self.where} answers, but takes nothing now: {error}; look at its log, its disk and "
                "its replicas",
                **facts,
            )
        if isinstance(error, (*_PASSING, RedisError)):
            why = tls_trouble(error, self.config) or (
                f"{str(error) or 'no answer in time'}; check that it runs and that host and port are right"
            )
            return ConnectionFailed(f"cannot reach the server at {self.where}: {why}", **facts)
        return error if isinstance(error, Exception) else RuntimeError(str(error))

    def script(
        self,
        name: str,
        keys: Sequence[str],
        args: Sequence[Any],
        cut: Callable[[], None] | None = None,
        large: Sequence[int] = (),
    ) -> Awaitable[Any]:
        """Run a script of ours; it is repeated, with the same arguments, while the connection is cut.

        `cut` is called for each attempt with an unknown outcome; `large` are the places of large bytes in
        the arguments.
        """
        return self.persist(partial(self._run, name, keys, args, large), cut)

    def _run(self, name: str, keys: Sequence[str], args: Sequence[Any], large: Sequence[int]) -> Awaitable[Any]:
        if name in self._known:
            how, script = b"EVALSHA", script_hash(name)
        else:
            self._known.add(name)  # if this never gets there, the hash is refused
            how, script = b"EVAL", script_text(name)
        command: Sequence[Any] = (how, script, len(keys), *keys, *args)
        if large:
            before = len(command) - len(args)
            command = LargeCommand(command, [before + place for place in large])
        wire = self._wire
        if wire is not None and wire is self._greeted and wire.is_open:
            return self._over(wire, command)
        return self._greeting(command)

    async def _greeting(self, command: Sequence[Any]) -> Any:  # noqa: ANN401 - a reply
        async with self._opening:
            wire = await self._open_shared()
            if wire is not self._greeted and self.greet is not None:
                await self.greet(wire, {})
            self._greeted = wire
        return await self._over(wire, command)

    async def command(self, *args: Any) -> Any:  # noqa: ANN401 - a command and its reply
        """Run one command that may be repeated; replies come as RESP2 gives them."""
        return await self.persist(lambda: self._once(args))

    async def persist(self, attempt: Callable[[], Awaitable[T]], cut: Callable[[], None] | None = None) -> T:
        """Repeat an attempt while the connection is cut, up to `patience_s`.

        Raises: ServerRefused at once, Closed once the experiment has ended, ConnectionFailed, MailboxFull.
        """
        deadline, calls = asyncio.get_running_loop().time() + self.patience_s, self._calls
        backoff: Backoff | None = None  # most commands succeed at once
        while True:
            try:
                return await attempt()
            except NoScriptError:  # it was restarted, and did nothing: the next attempt brings the script along
                self._known.clear()
                continue
            except _FATAL as error:
                raise self.translated(error) from error
            except (*_PASSING, ResponseError) as error:
                if not _passes(error):
                    raise self.translated(error) from error
                if cut is not None and not isinstance(error, _ANSWERS):
                    cut()
                if (over := await self.over()) is not None:
                    over.unsent = self._calls == calls
                    raise over from error
                backoff = backoff or Backoff(REDIS_RETRY, deadline=deadline)
                if backoff.exhausted:
                    raise self.translated(error) from error
                if self.observer is not None:
                    self.observer.retried(self.where, error)
            await backoff.sleep()

    async def over(self) -> Closed | None:
        """Return the error of an ended experiment, if it is known; the question is asked once a second at most."""
        now = asyncio.get_running_loop().time()
        if self.ended is None or now < self._glanced_at + _GLANCE_S:
            return None
        self._glanced_at = now
        over = await self.ended()
        if over is not None:
            self._glanced_at = 0.0  # the others are to hear of it, too
        return over
