"""A link to one Redis server: it runs scripts and commands, and repeats them while the connection is interrupted."""

import asyncio
import socket
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from redis.asyncio.connection import AbstractConnection
from redis.exceptions import (
    AskError,
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
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import MovedError as RedisMovedError
from redis.exceptions import TimeoutError as RedisTimeoutError

from ray_messaging.addressing.server_keys import Keys
from ray_messaging.common.backoff import REDIS_RETRY, Backoff
from ray_messaging.config import RedisConfig
from ray_messaging.default_limits_and_leases import CONNECT_TIMEOUT_S
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
from ray_messaging.transports.connection.connection_options import tls_trouble
from ray_messaging.transports.connection.connector import Connector
from ray_messaging.transports.connection.discovery import NoPrimaryError, WrongSettingsError
from ray_messaging.transports.connection.outage import Outage
from ray_messaging.transports.connection.protocol import (
    ClusterLostError,
    MovedError,
    ServerBusyError,
    Wire,
    reply_error,
)
from ray_messaging.transports.connection.replica_guard import ReplicaGuard, TooFewReplicasError
from ray_messaging.transports.connection.rights import right_of
from ray_messaging.transports.connection.scripts import script_hash, script_text
from ray_messaging.transports.server_facts import Info, is_replica, number, read_info, refusal

T = TypeVar("T")
# A function that is called with a new connection, and with a mapping from the key of each stream that will be read over
# this connection to the last entry that was read.
Greet = Callable[[Wire, Mapping[str, str]], Awaitable[None]]

_GLANCE_S = 1.0  # the time between two checks whether the experiment has ended
# A connection over which no byte moves is given up after a third of `patience_s`, so that there is time for another
# connection. But it is given up after this many seconds at the earliest.
_SHORTEST_STALL_S = 1.0
_AS_CLUSTER = (
    "give redis+cluster://host:port,host:port (RedisConfig(cluster=[...])), which finds the node with the keys"
)
# Texts in the error reply to a script if the user of the connection lacks a right.
_NO_RIGHT = ("The user executing the script", "ACL failure in script", "No permissions to access a")
_FATAL = (AuthenticationError, AuthorizationError, NoPermissionError)
_PASSING = (
    RedisConnectionError,
    RedisTimeoutError,
    BusyLoadingError,
    NoScriptError,
    ReadOnlyError,
    OutOfMemoryError,
    OSError,
    EOFError,
    ServerBusyError,
    ClusterDownError,
    AskError,
    TryAgainError,
)

_ANSWERS = (ResponseError, BusyLoadingError)  # error replies of the server: the call had no effect
# The server's disk is full, or the server has fewer replicas than its settings demand.
_FULL = ("MISCONF", "NOREPLICAS")


# What the user can do about errors after which repeating the call may help. The keys are signs in the error's type and
# text. The type is needed because redis-py cuts codes such as LOADING off the text.
_WAITS = {
    ("BusyLoading",): "wait until the server has loaded its data",
    ("ReadOnly",): "it is a replica: give the address of the primary",
    ("AskError", "TryAgain", "ASK ", "TRYAGAIN "): "its cluster is moving keys between nodes: wait until that ends",
    ("ClusterDown", "ClusterLost", "MasterDown", "MASTERDOWN "): "check that all nodes of its cluster run",
    ("BUSY ",): "a client's script blocks it: find that client",
}


def _remedy_of_wait(error: Exception) -> str:
    text = f"{type(error).__name__} {error}"
    found = (remedy for signs, remedy in _WAITS.items() if any(sign in text for sign in signs))
    return next(found, "look at its log, its disk and its replicas")


def _stores_nothing(error: Exception) -> bool:
    """Return whether an error says that the server answers but cannot store: it is full, or has too few replicas."""
    return isinstance(error, OutOfMemoryError | TooFewReplicasError) or str(error).startswith(_FULL)


def _after(first: Callable[[], Awaitable[Any]], attempt: Callable[[], Awaitable[Any]]) -> Callable[[], Awaitable[Any]]:
    """Return a function that awaits `attempt`.

    The first call of this function awaits `first` before that. If the result of `first` is not None, the call returns
    this result, and does not await `attempt`.
    """
    ways = [first]

    async def both() -> Any:  # noqa: ANN401 - a reply
        found = await ways.pop()() if ways else None
        return await attempt() if found is None else found

    return both


class RedisLink:
    """Connections to one server. In a cluster, this is the node that has the keys that begin with `home`.

    With a `guard`, a reply is returned only when replicas have all data that the reply may depend on.
    """

    def __init__(
        self, config: RedisConfig, patience_s: float, guard: ReplicaGuard | None = None, home: str = ""
    ) -> None:
        self.config = config
        self.guard = guard
        self._over = self._alone if guard is None else self._guarded
        self._connector = Connector(config, home)
        self._home = home
        self._clustered = bool(config.cluster)
        self.patience_s = patience_s
        # How many seconds to wait for a reply, and after how many seconds to give up a connection over which no byte is
        # sent or received.
        self._reply_s, self._stall_s = min(config.timeout, patience_s), max(_SHORTEST_STALL_S, patience_s / 3)
        self._closed = False
        self._wire: Wire | None = None
        self._opening = asyncio.Lock()
        # False after the server has refused MULTI or EXEC, for example because our user lacks the right to use them.
        self.transacts = True
        self._known: dict[str, str] = {}  # the hashes of the scripts that were sent to the server, by name
        # A function that is called with each new connection before its first script or blocking read.
        self.greet: Greet | None = None
        self._greeted: Wire | None = None
        self._calls = 0  # the number of calls that were sent over open connections
        self._glanced_at = 0.0
        # A function that is called with the primary's address when another server has become the primary.
        self.moved: Callable[[tuple[str, int]], None] | None = None
        self._found = self._connector.address
        # A function that is called when a call to the server has failed. If the experiment has ended, the function
        # returns the error to raise.
        self.ended: Callable[[], Awaitable[Closed | None]] | None = None
        self.observer: Observer | None = None
        self.who = ""  # the name of the caller, for error texts
        self.outage: Outage | None = None  # set while the messager runs steps: failed calls are repeated for longer

    @property
    def where(self) -> str:
        """Return the server's address for error texts."""
        return self._connector.where

    @property
    def address(self) -> tuple[str, int]:
        """Return the host and port of the last connection."""
        return self._connector.address

    async def connect(self) -> None:
        """Connect to the server.

        Raises: ConnectionFailed at once if the server cannot be used, or after `RedisConfig.connect_timeout` if nothing
        answers. ServerRefused if the server refuses the password, user or db. ConfigError if the server is too old, is
        a replica, is a node of a cluster but was not given as a cluster, or deletes data when its memory is full; or if
        its Sentinels do not know the service, or no node has the experiment's slot. NotReplicated if the server has
        fewer replicas than must confirm calls. Closed if the experiment has ended.
        """
        self._closed = False
        patient_until = time.monotonic() + self.config.connect_timeout
        try:
            while True:
                try:
                    return await self._reach()
                except ConnectionFailed as error:
                    silent = isinstance(error.__cause__, TimeoutError | RedisTimeoutError)
                    if not silent or time.monotonic() >= patient_until:
                        raise
                    self._drop_wire()
        except BaseException:
            await self.close()
            raise

    async def _reach(self) -> None:
        try:
            async with asyncio.timeout(min(CONNECT_TIMEOUT_S, self.config.connect_timeout)):
                async with self._opening:
                    wire = await self._open_shared()
                info = read_info(await self._alone(wire, ("INFO",)))
                primaries = await self._primaries(wire, info)
        except WrongSettingsError as error:
            raise ConfigError(str(error)) from error
        except Exception as error:
            raise await self.over() or self.translated(error) from error
        if (unsuitable := self._unsuitable(info, primaries)) is not None:
            raise unsuitable

    async def _primaries(self, wire: Wire, info: Info) -> int:
        """Return how many primaries the server's cluster has, to find a cluster that the config does not name.

        Return 1 if the config names a cluster, if the server is in no cluster, or if it does not tell the number.

        Raises: redis-py's error if the config names a cluster, and the cluster serves no keys.
        """
        if self._clustered:
            try:
                await self._alone(wire, ("EXISTS", f"{self._home}absent"))
            except (ServerBusyError, MovedError) as error:
                if isinstance(error, ClusterLostError):
                    raise
        elif info.get("cluster_enabled") == "1":
            try:
                return number(read_info(await self._alone(wire, ("CLUSTER", "INFO"))), "cluster_size")
            except ResponseError:  # Servers in a cloud may forbid this command.
                return 1
        return 1

    def _unsuitable(self, info: Info, primaries: int) -> MessagingError | None:
        if primaries > 1:
            return ConfigError(
                f"the server at {self.where} is one of {primaries} primaries of a cluster: {_AS_CLUSTER}"
            )
        if (why_not := refusal(info, self.config, self.where)) is not None:
            return ConfigError(why_not)
        replicas = number(info, "connected_slaves")
        if self.guard is not None and replicas < self.guard.replicas:
            return self._not_replicated(replicas, "are connected")
        return None

    async def close(self) -> None:
        """Close the shared connection, even if it is just being opened. Later calls raise Closed.

        Closing twice is harmless.
        """
        self._closed = True
        self._drop_wire()

    def _drop_wire(self) -> None:
        wire, self._wire = self._wire, None
        if wire is not None:
            wire.close()

    def _once(self, args: Sequence[Any]) -> Awaitable[Any]:
        """Send one command over the shared connection. If it is not open, open it first."""
        wire = self._wire
        return self._opened(args) if wire is None or not wire.is_open else self._over(wire, args)

    async def _opened(self, args: Sequence[Any]) -> Any:  # noqa: ANN401 - a reply
        async with self._opening:
            wire = await self._open_shared()
        return await self._over(wire, args)

    async def _open_shared(self) -> Wire:
        """Return the shared connection, after opening it if it is not open. Only one task at a time may call this."""
        if self._wire is None or not self._wire.is_open:
            self._wire = await self.open_wire()
            if self.observer is not None:
                self.observer.connected(self.where)
        return self._wire

    def _alone(self, wire: Wire, args: Sequence[Any]) -> Awaitable[Any]:
        self._calls += 1
        return wire.call(args, self._reply_s, self._stall_s)

    async def _guarded(self, wire: Wire, args: Sequence[Any]) -> Any:  # noqa: ANN401 - a reply
        [reply] = await self._replies(wire, [args])
        if isinstance(reply, BaseException):
            raise reply
        return reply

    async def _replies(self, wire: Wire, commands: Sequence[Sequence[Any]]) -> list[Any]:
        """Send commands in one piece; return their replies, which may be errors.

        With a guard, also wait until enough replicas have the effect of the commands. The replicas' answer is ignored
        if the last reply is an error, because then the commands have had no effect.

        Raises: TooFewReplicasError if too few replicas have the effect.
        """
        self._calls += 1
        behind = () if self.guard is None else self.guard.behind
        calls = wire.calls([*commands, *behind], self._reply_s, self._stall_s)
        replies = await asyncio.gather(*calls, return_exceptions=True)
        found, rest = replies[: len(commands)], replies[len(commands) :]
        if self.guard is not None and not isinstance(found[-1], BaseException):
            try:
                self.guard.check(rest)
            except TooFewReplicasError as error:  # The server may have ceased to be the primary.
                wire.close(error)
                raise
        return found

    async def dedicated(self) -> AbstractConnection:
        """Make a separate connection for a subscription.

        Raises: redis-py's errors.
        """
        return await self._connector.make()

    async def open_wire(self) -> Wire:
        """Open a connection. If Sentinels or cluster nodes have named the server, check that it is a primary.

        Raises: redis-py's errors; Closed after `close`.
        """
        self._check_open()
        wire = await Wire.open(await self._connector.make())
        try:
            self._check_open()
            if self._connector.discovery is not None:
                self._check_primary(read_info(await wire.call(("INFO", "replication"), self._reply_s, self._stall_s)))
                self._check_open()
        except BaseException:
            wire.close()
            raise
        if self.outage is not None:
            self.outage.over(self.where)
        if self._found != self.address:
            self._found = self.address
            if self.moved is not None:
                self.moved(self.address)
        return wire

    def _check_open(self) -> None:
        """Raise Closed if this link is closed, because a late call would open a connection that nobody closes."""
        if self._closed:
            raise Closed(
                f"the connection to the server at {self.where} is closed: open the messager or the experiment again",
                unsent=True,
            )

    def _check_primary(self, info: Info) -> None:
        if is_replica(info):
            raise NoPrimaryError(
                f"the server at {self.where} was named as the primary, but is a replica: wait until the failover ends"
            )

    def translated(self, error: BaseException, *, last: bool = False) -> Exception:
        """Turn an error of redis-py into one of ray_messaging, such as ServerRefused or ConnectionFailed.

        Args: `last` is whether the call will not be repeated.
        """
        facts = self._facts()
        if isinstance(error, NoPrimaryError):
            return ConnectionFailed(str(error), **facts)
        if isinstance(error, TooFewReplicasError):
            return self._not_replicated(error.replicas, "confirmed the call in time")
        if isinstance(error, OutOfMemoryError):
            return MailboxFull(
                f"the memory of the server at {self.where} is full, so it accepts no messages: fetch the messages "
                "that wait, or raise the server's maxmemory. None of these messages was sent",
                mailbox="",
            )
        if isinstance(error, _FATAL) or (isinstance(error, ResponseError) and not self._passes(error)):
            return ServerRefused(
                f"the server at {self.where} refused this client: {error}; {self._remedy(error)}", **facts
            )
        if isinstance(error, _ANSWERS):
            return ConnectionFailed(
                f"the server at {self.where} answers, but accepts no writes now: {error}; {_remedy_of_wait(error)}",
                **facts,
            )
        if isinstance(error, (*_PASSING, RedisError)):
            # If a step makes the call, TLS is not the cause, because the step's group has reached the server with the
            # same TLS settings before.
            tls = tls_trouble(error, self.config) if self.outage is None else None
            why = tls or f"{str(error).rstrip('.') or 'no answer in time'}; {self._look_at()}"
            return ConnectionFailed(f"cannot reach the server at {self.where}{self._from(last=last)}: {why}", **facts)
        return error if isinstance(error, Exception) else RuntimeError(str(error))

    def _gave_up(self, error: BaseException, *, taken: bool) -> Exception:
        """Build the error of a call that will not be repeated.

        Args: `taken` is whether an earlier attempt, which got no answer, may have had its effect.
        """
        if taken and isinstance(error, OutOfMemoryError):
            return ConnectionFailed(
                f"the memory of the server at {self.where} is full, and an earlier attempt of this call had no answer: "
                "the server may have carried it out. Fetch the messages that wait, or raise the server's maxmemory",
                **self._facts(),
            )
        return self.translated(error, last=True)

    def _from(self, *, last: bool) -> str:
        """Return a part of an error text: the group, this machine, and how long a step tried to reach the server.

        Args: `last` is whether the call will not be repeated.
        """
        if not self.who:
            return ""
        kind = "" if self.outage is None else "group "
        who = f" from {kind}{self.who} on host {socket.gethostname()}"
        if self.outage is None or not last:
            return who
        return f" for {self.outage.timeout_s:g} s (MessagingConfig.cut_timeout_s){who}"

    def _look_at(self) -> str:
        if self.outage is None:
            right = "the path of its socket is" if self.where.startswith("/") else "host and port are"
            return f"check that it runs and that {right} right"
        return (
            "check that it runs, and check the network between the two machines, then start again with "
            "on_existing='resume': all committed steps are kept"
        )

    def _passes(self, error: BaseException) -> bool:
        """Return whether repeating a call may help after this error.

        Some errors of redis-py have no class of their own, and are recognized by their text. In a cluster, the repeated
        call goes to the node that has the keys by then.
        """
        if isinstance(error, MovedError | RedisMovedError):
            return self._clustered
        return isinstance(error, _PASSING) or (
            isinstance(error, ResponseError) and isinstance(reply_error(str(error)), ServerBusyError)
        )

    def _remedy(self, error: Exception) -> str:
        if isinstance(error, MovedError | RedisMovedError):
            return f"it is a node of a cluster: {_AS_CLUSTER}"
        if isinstance(error, NoPermissionError) or any(sign in str(error) for sign in _NO_RIGHT):
            right = right_of(error)
            which = "a right" if right is None else f"the right {right}"
            more = (
                "; the command `ray-messaging doctor`, or ACL LOG on the server, shows which" if right is None else ""
            )
            return (
                f"the user of this client lacks {which}: docs/security.md lists the rights that ray_messaging "
                f"needs{more}"
            )
        if "WRONGTYPE" in str(error):
            return (
                "another program has written a key of this experiment: give each program an exp_id or a db of its own"
            )
        return f"check user name, password, db (now {self.config.db}), and the user's rights"

    def _facts(self) -> dict[str, Any]:
        host, port = self.address
        return {"host": host, "port": port}

    def _not_replicated(self, replicas: int, what: str) -> NotReplicated:
        assert self.guard is not None
        wanted = self.guard.replicas
        return NotReplicated(
            f"{replicas} of {wanted} replicas of the server at {self.where} {what} (MessagingConfig.wait_replicas is "
            f"{wanted}): start the replicas, look at their logs and at the network to them, or lower wait_replicas",
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
        first: Callable[[], Awaitable[Any]] | None = None,
    ) -> Awaitable[Any]:
        """Run one of our scripts. It is repeated with the same arguments while the connection is interrupted.

        Args: `cut` is called after each attempt with an unknown outcome. `first` is awaited once before the script; if
        its result is not None, this result is returned, and the script is not run.
        """
        attempt = partial(self._run, name, keys, args)
        return self.persist(attempt if first is None else _after(first, attempt), cut)

    def _run(self, name: str, keys: Sequence[str], args: Sequence[Any]) -> Awaitable[Any]:
        command, wire = self.script_command(name, keys, args), self._wire
        if wire is not None and wire is self._greeted and wire.is_open:
            return self._over(wire, command)
        return self._greeting(command)

    def script_command(self, name: str, keys: Sequence[str], args: Sequence[Any]) -> Sequence[Any]:
        """Return the Redis command that runs one of our scripts."""
        script = self._known.get(name)
        how = b"EVALSHA"
        if script is None:
            which = {"cluster": self._clustered, "db": self.config.db}
            # From now on EVALSHA is used. If the text of the script never reaches the server, EVALSHA fails, and the
            # text is sent again.
            self._known[name] = script_hash(name, **which)
            how, script = b"EVAL", script_text(name, **which)
        return (how, script, len(keys), *keys, *args)

    async def transaction(self, commands: Sequence[Sequence[Any]]) -> list[Any] | None:
        """Run commands in one MULTI/EXEC transaction, once, over the open connection.

        Return the replies to the commands, which may be errors. Return None if nothing was done, because there is no
        open connection or the server refused the transaction. Then `transacts` says whether later transactions may
        succeed.

        Raises: redis-py's error if the outcome is unknown.
        """
        wire = self._wire
        if wire is None or wire is not self._greeted or not wire.is_open:
            return None
        begun, *_, found = await self._replies(wire, [("MULTI",), *commands, ("EXEC",)])
        if isinstance(found, list):
            if any(isinstance(reply, NoScriptError) for reply in found):
                self._known.clear()
            return found
        if not isinstance(found, _ANSWERS):
            raise found
        # The server refused one of the commands. The caller then calls a script, which raises the error.
        aborted = str(found).startswith("EXECABORT")
        if not aborted:
            wire.close(found)  # on this connection, the transaction may not have ended
        for error in (begun, found):
            refused = isinstance(error, ResponseError) and not self._passes(error)
            if refused and ("NOPERM" in str(error) or not str(error).startswith("EXECABORT")):
                self.transacts = False
        return None

    async def _greeting(self, command: Sequence[Any]) -> Any:  # noqa: ANN401 - a reply
        async with self._opening:
            wire = await self._open_shared()
            if wire is not self._greeted and self.greet is not None:
                await self.greet(wire, {})
            self._greeted = wire
        return await self._over(wire, command)

    async def command(self, *args: Any) -> Any:  # noqa: ANN401 - a command and its reply
        """Run one command, and repeat it while the connection is interrupted; return its reply in the form of RESP2."""
        return await self.persist(lambda: self._once(args))

    async def commands(self, *commands: Sequence[Any]) -> list[Any]:
        """Run commands in a pipeline, and repeat them while the connection is interrupted; return their replies."""
        return await self.persist(lambda: asyncio.gather(*map(self._once, commands)))

    async def persist(self, attempt: Callable[[], Awaitable[T]], cut: Callable[[], None] | None = None) -> T:
        """Make a call, and repeat it while the connection is interrupted, for at most `patience_s` seconds.

        A call of a simulation's step is repeated for longer while the server cannot be reached, but not while the
        server is full or lacks replicas.

        Args: `attempt` makes the call. `cut` is called after each attempt with an unknown outcome.
        Raises: ServerRefused at once; Closed if the experiment has ended; ConnectionFailed if the server cannot be
        reached or accepts no writes; MailboxFull if the server's memory is full; NotReplicated if too few replicas
        confirm the call.
        """
        # The loop times at which two time limits begin. `began[False]` is the beginning of this call, for a server that
        # cannot be reached. `began[True]` is the time of a step's first error by a server that is full, or lacks
        # replicas.
        began, calls = {False: asyncio.get_running_loop().time()}, self._calls
        backoff: Backoff | None = None  # the pauses between attempts; made late, because most commands succeed at once
        forgotten = False  # whether the current attempt repeats, without a pause, one that lacked the script
        taken = False  # whether an attempt without an answer may have had its effect
        while True:
            try:
                return await attempt()
            except (*_PASSING, ResponseError) as error:
                if isinstance(error, _FATAL) or not self._passes(error):
                    raise self.translated(error) from error
                if isinstance(error, NoScriptError):
                    self._known.clear()  # the next attempt sends the script's text again
                    forgotten = not forgotten
                    if forgotten:  # repeat the call without a pause, but only once in a row
                        continue
                forgotten = False
                if not isinstance(error, _ANSWERS):
                    taken = True
                    if cut is not None:
                        cut()
                if (over := await self.over()) is not None:
                    over.unsent = self._calls == calls
                    raise over from error
                backoff = backoff or Backoff(REDIS_RETRY)
                full = self.outage is not None and _stores_nothing(error)
                since = began.setdefault(full, asyncio.get_running_loop().time())
                backoff.deadline = since + self._patience_s_for(full=full)
                if backoff.exhausted:
                    raise self._gave_up(error, taken=taken) from error
                self._tell_retry(error)
            await backoff.sleep()

    def _patience_s_for(self, *, full: bool) -> float:
        """Return for how many seconds a failed call is repeated.

        While the messager runs steps, calls to a server that cannot be reached are repeated for longer.

        Args: `full` is whether the server can be reached, but stores nothing: it is full, or has too few replicas.
        """
        return self.patience_s if self.outage is None or full else self.outage.timeout_s

    def _tell_retry(self, error: Exception) -> None:
        if self.observer is not None:
            self.observer.retried(self.where, error)
        if self.outage is not None and not isinstance(error, (*_ANSWERS, TooFewReplicasError)):
            self.outage.failed(self.where, error)

    async def over(self) -> Closed | None:
        """Return the error of an ended experiment, or None if it is not known to have ended.

        The experiment's state is read at most once a second.
        """
        now = asyncio.get_running_loop().time()
        if self.ended is None or now < self._glanced_at + _GLANCE_S:
            return None
        self._glanced_at = now
        over = await self.ended()
        if over is not None:
            self._glanced_at = 0.0  # with this value, the next calls also read the state, and get the error
        return over


def link_of(config: RedisConfig, keys: Keys, patience_s: float, wait_replicas: int) -> RedisLink:
    """Make the link to a server that has keys of an experiment. `wait_replicas` replicas must confirm each call."""
    guard = None
    if wait_replicas:
        marker = script_text("write_mark", cluster=bool(config.cluster))
        guard = ReplicaGuard(wait_replicas, marker=marker, key=keys.mark, patience_s=patience_s)
    return RedisLink(config, patience_s, guard, keys.prefix)
