"""Messages that foreign Redis clients PUBLISH to our channels. Pub/Sub delivers each at most once."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

import hiredis
from redis.asyncio.connection import AbstractConnection
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoPermissionError, RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

from ray_messaging.addressing.channels import all_agents
from ray_messaging.addressing.server_keys import Keys
from ray_messaging.common.backoff import REDIS_REFUSED, REDIS_RESUBSCRIBE, Backoff
from ray_messaging.common.task_health import TaskHealth, end
from ray_messaging.common.texts import error_in_words
from ray_messaging.errors import Closed, MessagingError, ServerRefused
from ray_messaging.model.agent_sets import ChannelSet
from ray_messaging.transports.connection.link import RedisLink
from ray_messaging.transports.connection.protocol import TakenSocket, connect
from ray_messaging.transports.transport_values import Ingress


class Feed(TakenSocket):
    """Connection that calls `take` with each reply. redis-py connects, and then this class takes over the socket.

    A confirmation of a subscribed channel takes 0.6 us here, and 25 us in redis-py.
    """

    def __init__(self, connection: AbstractConnection, take: Callable[[Any], None]) -> None:
        super().__init__(connection)
        self._take = take
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self.heard_at = self._loop.time()

    @classmethod
    async def open(cls, connection: AbstractConnection, take: Callable[[Any], None]) -> "Feed":
        """Connect within 5 s, and take the socket over from redis-py.

        Raises: redis-py's errors.
        """
        await connect(connection)
        return cls(connection, take)

    def send(self, *commands: Sequence[Any]) -> None:
        """Send commands in one piece, so that the server runs them without another client's command in between."""
        self._transport.write(b"".join(hiredis.pack_command(tuple(command)) for command in commands))

    async def send_command(self, *args: str | bytes) -> None:
        """Send a command. redis-py calls this method of its connections."""
        self.send(args)

    async def ended(self, timeout_s: float) -> None:
        """Wait at most `timeout_s` for the end of the connection. If it has ended, raise the reason."""
        await asyncio.wait([self._ended], timeout=timeout_s)
        if self._ended.done():
            self._ended.result()

    def data_received(self, data: bytes) -> None:
        """Decode the replies in received bytes, and call `take` with each reply."""
        self.heard_at = self._loop.time()
        self._reader.feed(data)
        try:
            while (reply := self._reader.gets()) is not False:
                if isinstance(reply, Exception):
                    self.close(reply)
                    return
                self._take(reply)
        except hiredis.ProtocolError as error:
            self.close(RedisConnectionError(f"the server does not speak Redis's protocol ({error})"))
        except Exception as error:  # noqa: BLE001 - asyncio would only write it to its log
            self.close(error)

    def close(self, why: Exception | None = None) -> None:
        """Close the connection. Calls of `ended` then raise `why`."""
        super().close(why)
        if not self._ended.done():
            self._ended.set_exception(self._lost or RedisConnectionError("closed"))
            self._ended.exception()  # Without this call, asyncio logs that the error was never retrieved.


logger = logging.getLogger(__name__)

# A subscription to very many channels is split into commands of 1,000 channels each, because the server takes 2 ms for
# such a command, and cannot serve other clients in this time. At most two commands at a time wait for their
# confirmations.
_CHUNK = 1_000
# Each subscribed channel costs the server 240 bytes, and blocks the server for 2 us when the subscriber leaves. So a
# messager with more agents than this subscribes to one pattern for all agents, and drops messages to other messagers'
# agents.
WIDE = 30_000
# A broken connection looks the same as a connection without messages. After this much silence a PING is sent. If it
# gets no answer in time, the connection is closed.
_SILENCE_S, _PONG_S = 5.0, 10.0
_NAMED = 8  # an error names at most this many channels


class RedisIngress:
    """Subscriptions to exact channels. Patterns are used only if the user gave one, or for very many channels.

    A subscriber to a pattern for all agents' channels also gets messages for agents that are not its own. The send
    script must not count it as a listener to an agent's channel. So such a subscriber also subscribes to the channel
    `keys.wide`. The script subtracts the number of subscribers of this channel.

    Each mailbox has an "ear", a channel only for its messager. The subscription to the ear shows that the messager is
    connected, so that a busy messager does not lose its mailbox. A message on the ear says that the mailbox is gone.

    In one atomic call, the send script publishes an opening bracket, our own messages and a closing bracket. The
    brackets have a separate channel. So messages between two brackets are our own, and are dropped here. A message that
    matches several of our subscriptions is passed on once.
    """

    def __init__(self, link: RedisLink, keys: Keys, sink: Callable[[Ingress], None], ears: Sequence[str] = ()) -> None:
        self._link = link
        self._brackets = keys.own.encode()
        # The prefix of our channels, and their prefix on the server, which contains the number of our db: Pub/Sub has
        # no dbs.
        self._named, self._here = f"exps:{keys.exp_id}:", keys.channels
        self._marker, self._pattern = keys.wide.encode(), self._there(all_agents(keys.exp_id)).encode()
        self._ears = ears
        self._signals = {self._marker, *(ear.encode() for ear in ears)}
        self._sink = sink
        self._few: dict[str, None] = {}
        self._many: list[ChannelSet] = []
        self._globs: list[bytes] = []
        self._connection: Feed | None = None
        self._at = ("", 0)  # host and port of the connection
        self._task: asyncio.Task[None] | None = None
        self._commands: deque[Iterator[list[str | bytes]]] = deque()
        self._asked = 0  # how many confirmations of sent commands have not arrived
        self._unconfirmed = 0  # `_asked`, plus the number of confirmations for commands that are still to be sent
        self._waiting: list[asyncio.Future[None]] = []
        self._ours = False
        self._first: dict[bytes, bytes] = {}
        self._gone = False  # whether our mailbox was removed
        self._refused: ServerRefused | None = None  # the error if the server refused the last subscription
        self.cuts = 0

    async def subscribe(self, channels: Collection[str], globs: Sequence[str]) -> None:
        """Subscribe to further channels and patterns; return when the server has confirmed all of them."""
        few, many = channels, []
        if isinstance(channels, ChannelSet) and len(channels) - len(channels.plain) > WIDE:
            few, many = channels.plain, [channels]
        fresh = [channel for channel in dict.fromkeys(few) if channel not in self._few]
        self._few.update(dict.fromkeys(fresh))
        self._many += many
        patterns = [glob for glob in dict.fromkeys(self._there(g).encode() for g in globs) if glob not in self._globs]
        self._globs += patterns
        ready = asyncio.get_running_loop().create_future()
        self._waiting.append(ready)
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="ray_messaging ingress")
        elif self._connection is not None and self._connection.is_open:
            self._plan(self._connection, fresh, many, patterns)
            self._confirm()
        await ready

    async def unsubscribe(self, channels: Collection[str]) -> None:
        """Unsubscribe from channels; return when the server has confirmed this. A pattern for all agents is kept."""
        gone = [channel for channel in channels if channel in self._few]
        for channel in gone:
            self._few.pop(channel, None)
        if not gone or self._connection is None or not self._connection.is_open:
            return
        ready = asyncio.get_running_loop().create_future()
        self._waiting.append(ready)
        self._commands.append(_commands("UNSUBSCRIBE", map(self._there, gone)))
        self._unconfirmed += len(gone)
        self._ask()
        await ready

    def follow(self, address: tuple[str, int]) -> None:
        """Subscribe at the new primary, because from now on our messages are published there."""
        if self._connection is not None and self._at != address:
            self._connection.close(RedisConnectionError("another server is the primary now"))

    def loop(self) -> TaskHealth:
        """Return the health of the subscription's task."""
        error = "" if self._refused is None else str(self._refused)
        alive = self._task is not None and not self._task.done()
        return TaskHealth("subscription", alive, busy=False, age_s=0.0, error=error)

    async def close(self) -> None:
        """Unsubscribe from everything, and close the connection."""
        if self._task is not None:
            await end(self._task)
            self._task = None
        self._fail(
            Closed("this messager was closed before the server had confirmed its subscriptions: open another one")
        )

    def _plan(self, connection: Feed, few: Collection[str], many: Sequence[ChannelSet], globs: Sequence[bytes]) -> None:
        self._commands += [_commands("SUBSCRIBE", map(self._there, few)), _commands("PSUBSCRIBE", globs)]
        self._unconfirmed += len(few) + len(globs)
        self._ask()
        if many:
            self._asked += 2
            self._unconfirmed += 2
            connection.send(("SUBSCRIBE", self._marker), ("PSUBSCRIBE", self._pattern))

    def _ask(self) -> None:
        """Send further commands.

        Only a few commands may be unconfirmed at a time, because the server disconnects clients that read too slowly.
        """
        while self._connection is not None and self._commands and self._asked <= _CHUNK:
            command = next(self._commands[0], None)
            if command is None:
                self._commands.popleft()
            else:
                self._asked += len(command) - 1
                self._connection.send(command)

    async def _run(self) -> None:
        heard = True  # False after an interruption, until a connection is open again
        backoff = Backoff(REDIS_REFUSED)
        while True:
            pause_s = REDIS_RESUBSCRIBE.first_s
            try:
                dedicated = await self._link.dedicated()
                self._at = self._link.address
                self._connection = await Feed.open(dedicated, self._take)
                heard = True
                self._ours = False
                self._commands.clear()
                self._asked = self._unconfirmed = 0
                # The brackets are subscribed first. Otherwise our own messages would look like those of a foreign
                # client.
                few = [self._brackets.decode(), *self._ears, *self._few]
                self._plan(self._connection, few, self._many, self._globs)
                await self._watch(self._connection)
            except (RedisError, OSError) as error:
                if self._gone:
                    self._fail(Closed("this messager's mailbox was removed: open a new one"))
                    return
                refused = self._link.translated(error)
                if isinstance(error, NoPermissionError) and "channel" in str(error):
                    refused = self._denied(refused)
                if isinstance(refused, ServerRefused):
                    if self._refused is None:
                        backoff.reset()
                        text = "messages of plain Redis clients do not arrive; the subscription is tried again: %s"
                        logger.error(text, refused)  # noqa: TRY400 - no bug
                    self._refused, pause_s = refused, backoff.next_pause()
                    self._fail(refused)
                self.cuts += 1
                if (over := await self._link.over()) is not None:
                    self._fail(over)
                    return
                logger.log(
                    logging.WARNING if heard and self._refused is None else logging.DEBUG,
                    "the subscription at %s was cut (%s). Messages that plain Redis clients publish before it is "
                    "restored are lost",
                    self._link.where,
                    type(error).__name__,
                )
                heard = False
            except Exception as error:
                logger.exception("messages of plain Redis clients will not arrive")
                self._fail(MessagingError(f"listening failed ({error_in_words(error)}): please report this"))
                return
            finally:
                if self._connection is not None:
                    self._connection.close()
                    self._connection = None
            await asyncio.sleep(pause_s)

    def _denied(self, error: Exception) -> ServerRefused:
        """Build the error for a subscription for which our Redis user lacks a right.

        The server does not say which channel it refuses.
        """
        wide = [self._marker, self._pattern] if self._many else []
        newest = reversed([*map(self._there, self._few), *(each.decode() for each in [*wide, *self._globs])])
        names = [*newest, self._brackets.decode(), *self._ears]
        listed = ", ".join(f"&{name}" for name in names[:_NAMED]) + (", ..." if len(names) > _NAMED else "")
        host, port = self._link.address
        return ServerRefused(f"{error} (the missing right is one of these: {listed})", host=host, port=port)

    async def _watch(self, connection: Feed) -> None:
        """Wait until the connection ends, and raise the reason. If nothing arrives for some seconds, send a PING."""
        now, asked_at = asyncio.get_running_loop().time, 0.0
        while True:
            waits = asked_at > connection.heard_at
            left = (asked_at + _PONG_S if waits else connection.heard_at + _SILENCE_S) - now()
            if left > 0:
                await connection.ended(min(left, _SILENCE_S))
            elif waits:
                raise RedisTimeoutError("no answer to a PING")
            else:
                asked_at = now()
                await connection.send_command("PING")

    def _take(self, reply: Any) -> None:  # noqa: ANN401 - a reply
        kind = reply[0]
        if kind == b"message":
            _, channel, data = reply
            if channel == self._brackets:
                self._ours = data == b"("
            elif channel in self._signals:
                self._gone = self._gone or data == b"gone"
                if self._gone and self._connection is not None:
                    self._connection.close()
            elif not self._ours:
                self._sink(Ingress(self._back(channel.decode(errors="replace")), data, None))
        elif kind == b"pmessage":
            if not self._ours:
                self._take_match(*reply[1:])
        elif kind != b"pong":
            self._asked -= 1
            self._unconfirmed -= 1
            self._ask()
            self._confirm()

    def _take_match(self, pattern: bytes, name: bytes, data: bytes) -> None:
        """Pass on a message that matched a pattern, unless its channel is also subscribed exactly."""
        said = name.decode(errors="replace")
        channel = self._back(said)
        if channel == said and self._is_elsewhere(said):
            return
        if channel in self._few or name == self._brackets or name in self._signals:
            return
        if any(channel in some for some in self._many):
            if pattern == self._pattern:
                self._sink(Ingress(channel, data, None))
        # A message on a channel that several patterns match is passed on only for the first of them.
        elif pattern in self._globs and self._first_of(name, pattern):
            self._sink(Ingress(channel, data, self._back(pattern.decode())))

    def _there(self, name: str) -> str:
        """Return the name that one of our channels or patterns has on the server."""
        return self._here + name.removeprefix(self._named) if name.startswith(self._named) else name

    def _back(self, name: str) -> str:
        """Return our channel or pattern, given its name on the server."""
        return self._named + name.removeprefix(self._here) if name.startswith(self._here) else name

    def _is_elsewhere(self, name: str) -> bool:
        """Return whether a channel belongs to another experiment, which has our experiment's name and is in db 0."""
        return self._here != self._named and name.startswith(self._named)

    def _confirm(self) -> None:
        """Wake the waiting `subscribe` calls if all channels and patterns are confirmed."""
        if not self._unconfirmed:
            self._refused = None
            self._end_waits(lambda ready: ready.set_result(None))

    def _fail(self, error: Exception) -> None:
        self._end_waits(lambda ready: ready.set_exception(error))

    def _end_waits(self, end_one: Callable[[asyncio.Future[None]], None]) -> None:
        waiting, self._waiting = self._waiting, []
        for ready in waiting:
            if not ready.done():
                end_one(ready)

    def _first_of(self, channel: bytes, pattern: bytes) -> bool:
        if len(self._globs) == 1:
            return True
        if len(self._first) > 100_000:  # foreign clients choose the names of channels, so there may be very many
            self._first.clear()
        return self._first.setdefault(channel, pattern) == pattern


def _commands(kind: str, names: Iterable[str | bytes]) -> Iterator[list[str | bytes]]:
    """Yield commands such as SUBSCRIBE (`kind`) for all names, each with at most `_CHUNK` names."""
    left = iter(names)
    while part := list(islice(left, _CHUNK)):
        yield [kind, *part]
