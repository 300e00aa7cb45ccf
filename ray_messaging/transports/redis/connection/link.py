"""A link to one Redis server: scripts and commands that are repeated while the connection is cut."""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import cache, partial
from importlib.resources import files
from typing import Any, TypeVar

from redis.asyncio.connection import AbstractConnection
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
from ray_messaging.errors import (
    Closed,
    ConfigError,
    ConnectionFailed,
    MailboxFull,
    MessagingError,
    NotReplicated,
    ServerRefused,
)
from ray_messaging.observability.observer import Observer
from ray_messaging.transports.redis.connection.facts import Info, is_replica, number, read_info, refusal
from ray_messaging.transports.redis.connection.opening.connector import Connector
from ray_messaging.transports.redis.connection.opening.sentinels import SentinelsError, UnusableSentinelsError
from ray_messaging.transports.redis.connection.opening.tls import tls_trouble
from ray_messaging.transports.redis.connection.protocol import LargeCommand, ServerBusyError, Wire, reply_error
from ray_messaging.transports.redis.connection.replica_guard import ReplicaGuard, TooFewReplicasError

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
    "take_mailbox": ("raise_number", "raise_format", *_LEASE, "date_change"),
    "take_over_mailbox": ("raise_number", "raise_format", *_LEASE, "date_change", "take_mailbox"),
    "commit": _MOVE,
    "renew_leases": _LEASE,
    "raise_entry_ids": ("entry_order", "id_ceiling"),
    "note_written": ("entry_order",),
    **dict.fromkeys(_DEAD_LETTERS, ("entry_order", "dead_letter_retention")),
    "release_agents": ("mailbox_limit", *_MOVE, "dead_letter_retention", "departure"),
    "give_up_release": ("departure",),
    "rehost_agents": (*_STEPS, "date_change"),
    "requeue": ("mailbox_limit", "entry_order", "dead_letter_retention", "step_box"),
    **dict.fromkeys(("join_steps", "leave_steps", "open_step"), _STEPS),
    "close_step": (*_STEPS, "cover_step"),
    "commit_step": ("step_box", *_STEPS, "write_to_boxes", "cover_step"),
    **dict.fromkeys(("target_steps", "hold_boxes", "read_progress", "declare_senders", "set_wait_for"), _STEPS),
    **dict.fromkeys(("take_group", "renew_driver"), ("raise_number", *_STEPS)),
    "send_to_boxes": ("step_box", "step_is_open", "write_to_boxes"),
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


class RedisLink:
    """Connections to one server. With a `guard`, no reply counts before replicas have all that it may show."""

    def __init__(self, config: RedisConfig, patience_s: float, guard: ReplicaGuard | None = None) -> None:
        self.config = config
        self.guard = guard
        self._over = self._alone if guard is None else self._guarded
        self._connector = Connector(config)
        self.patience_s = patience_s
        # Seconds for a reply, and without any movement of the connection.
        self._reply_s, self._stall_s = min(config.timeout, patience_s), max(_SHORTEST_STALL_S, patience_s / 3)
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
        return self._connector.where

    @property
    def address(self) -> tuple[str, int]:
        """Return the host and port of the last connection."""
        return self._connector.address

    async def connect(self) -> None:
        """Reach the server once; raise ConnectionFailed, ServerRefused or ConfigError, each within 5 s.

        ConfigError: it is too old, a replica, or deletes data when its memory is full; or its Sentinels do not know the
        service. NotReplicated: it has fewer replicas than must have what is acknowledged.
        """
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                async with self._opening:
                    wire = await self._open_shared()
                info = read_info(await self._alone(wire, ("INFO",)))
        except UnusableSentinelsError as error:
            raise ConfigError(str(error)) from error
        except Exception as error:
            await self.close()
            raise self.translated(error) from error
        if (unsuitable := self._unsuitable(info)) is not None:
            await self.close()
            raise unsuitable

    def _unsuitable(self, info: Info) -> MessagingError | None:
        if (why_not := refusal(info, self.config, self.where)) is not None:
            return ConfigError(why_not)
        replicas = number(info, "connected_slaves")
        if self.guard is not None and replicas < self.guard.replicas:
            return self._not_replicated(replicas, "are connected")
        return None

    async def close(self) -> None:
        """Close the shared connection; closing twice does no harm."""
        wire, self._wire = self._wire, None
        if wire is not None:
            wire.close()

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
            self._wire = await self.open_wire()
            if self.observer is not None:
                self.observer.connected(self.where)
        return self._wire

    def _alone(self, wire: Wire, args: Sequence[Any]) -> Awaitable[Any]:
        self._calls += 1
        return wire.call(args, self._reply_s, self._stall_s)

    async def _guarded(self, wire: Wire, args: Sequence[Any]) -> Any:  # noqa: ANN401 - a reply
        assert self.guard is not None
        self._calls += 1
        reply, *rest = await asyncio.gather(*wire.calls([args, *self.guard.behind], self._reply_s, self._stall_s))
        try:
            self.guard.check(rest)
        except TooFewReplicasError as error:  # it may be a primary no more, without knowing it
            wire.close(error)
            raise
        return reply

    async def dedicated(self) -> AbstractConnection:
        """Make a connection of its own, for a subscription; raises redis-py's errors."""
        return await self._connector.make()

    async def open_wire(self) -> Wire:
        """Open a connection, to a primary where Sentinels name the server; raises redis-py's errors."""
        wire = await Wire.open(await self._connector.make())
        if not self._connector.discovers:
            return wire
        done = False
        try:
            info = read_info(await wire.call(("INFO", "replication"), self._reply_s, self._stall_s))
            done = not is_replica(info)
        finally:
            if not done:
                wire.close()
        if not done:
            raise SentinelsError(f"the Sentinels name {self.where}, which is a replica")
        return wire

    def translated(self, error: BaseException) -> Exception:
        """Turn a library's error into ours: refused for good, or out of reach."""
        facts = self._facts()
        if isinstance(error, SentinelsError):
            return ConnectionFailed(str(error), **facts)
        if isinstance(error, TooFewReplicasError):
            return self._not_replicated(error.replicas, "confirmed this in time")
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

    def _facts(self) -> dict[str, Any]:
        host, port = self.address
        return {"host": host, "port": port}

    def _not_replicated(self, replicas: int, what: str) -> NotReplicated:
        assert self.guard is not None
        wanted = self.guard.replicas
        return NotReplicated(
            f"{replicas} of {wanted} replicas of the server at {self.where} {what} (MessagingConfig.wait_replicas is "
            f"{wanted}): start them, look at their logs and at the network between, or lower wait_replicas",
            replicas=replicas,
            wanted=wanted,
            **self._facts(),
        )

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

    async def commands(self, *commands: Sequence[Any]) -> list[Any]:
        """Run commands that may be repeated, one behind the other without a wait; return their replies."""
        return await self.persist(lambda: asyncio.gather(*map(self._once, commands)))

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
