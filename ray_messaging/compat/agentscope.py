"""AgentScope 2's message bus on a Redis server: `create_app(message_bus=RayMessageBus())`.

AgentScope's own Redis bus deletes an item as soon as a program has drained it from its queue, so the item is lost if
the program dies. Here drained items stay on the server until the bus that drained them drains the queue again, calls
`queue_done`, has lived for another `hold_s` seconds, or is closed. If the bus dies before that, the next drainer gets
the items. A bus lives as long as it is connected, or renews its lease. A call that is repeated because its answer was
lost has its effect only once.

On an experiment, each item that is pushed, appended or published is a message to the agent `{name}/queue/<key>`,
`{name}/log/<key>` or `{name}/topic/<key>`. The messages to queues and logs come into a mailbox that all buses share.
The first bus that reads a message there moves it to its queue or log.
"""

import asyncio
import json
import logging
import math
import re
import secrets
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from itertools import groupby, islice, repeat
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, Self, cast

from ray_messaging.addressing.channels import agent_channel, check_name, mark_of_db
from ray_messaging.addressing.server_keys import Keys
from ray_messaging.common.task_health import end
from ray_messaging.compat.versions import needs, warn_unless_tested
from ray_messaging.config import MessagingConfig
from ray_messaging.embedded.local_server import LocalServer
from ray_messaging.errors import Closed, FrameError, InvalidAddress, InvalidPayload, MessagingError, PayloadTooLarge
from ray_messaging.messager import Messager
from ray_messaging.messages import Messages, Slice
from ray_messaging.model.fates import BLOCKED, FATES
from ray_messaging.outgoing import Outgoing
from ray_messaging.transports.backend import open_transport
from ray_messaging.transports.cursors import following
from ray_messaging.transports.ingress import RedisIngress
from ray_messaging.transports.transport_values import Ingress
from ray_messaging.wire.frames import decode

with needs("AgentScope", "'ray-messaging[agentscope]'"):
    from agentscope.app.message_bus import MessageBus  # type: ignore[import-not-found,unused-ignore]

if TYPE_CHECKING:
    from ray_messaging.receipt import Receipt
    from ray_messaging.transports.connection.link import RedisLink
    from ray_messaging.transports.transport import RedisTransport

TESTED: Final = "2.0.11"

logger = logging.getLogger(__name__)

_LEASE_S, _BEAT_S = 3.0, 1.0
_LOCK_GLANCE_S = 0.5  # seconds between two checks of a lock whose owner may have died; a release is announced at once
_WRITES = 1000  # when a call to the server has this many entries, no further write joins it
_FRAMES = 32  # at most this many frames are read from the mailbox at once
_KINDS = {"q": "queue", "l": "log"}
# The subtopic of a bus's items. It may contain two numbers: the milliseconds for which the queue or log stays, and how
# many entries a log keeps (0: no limit).
_PUSH = re.compile(r"push(?:,(\d+),(\d+))?")
_json = json.JSONEncoder(ensure_ascii=False).encode

# A write to a queue or log: the future for the entries' ids, the kind ("q" or "l"), the key, the milliseconds for which
# the queue or log stays, how many entries a log keeps (0: no limit, for both numbers), and the payloads or their texts.
_Write = tuple["asyncio.Future[list[str]]", str, str, int, int, list[Any]]


class ItemBlocked(MessagingError, PermissionError):
    """A `rule` of the experiment blocked an item that was to be pushed, appended or published to a `key`.

    `reason` says why.
    """

    key: str
    rule: str | None
    reason: str | None


class RayMessageBus(MessageBus):  # type: ignore[misc,unused-ignore]  # without AgentScope, mypy knows no class
    """AgentScope's MessageBus on Redis or Valkey, by default on a server of its own that it starts.

    Args:
        server: A server that several processes share: a `RedisConfig`, such as `messaging.redis`, or its URL, or a
            `LocalServer`. None: a new, empty server that ends with this process. Or an experiment, a `Messaging`: its
            rules judge each item that is pushed, appended or published, and its log has the item.
        name: The name of the bus. Buses with the same name on a server, or in an experiment, share queues, logs and
            locks.
        hold_s: If the bus that drained an item still lives after this many seconds, the item is treated as handled.
    """

    def __init__(self, server: object = None, name: str = "agentscope", *, hold_s: float = 30.0) -> None:
        warn_unless_tested("agentscope", TESTED, "bus")
        self.name = check_name("name", name)
        # The bus keeps a reference, because the server ends with the last reference to it.
        self._server = LocalServer() if server is None else server
        # An experiment is recognised by an attribute. A check with `isinstance` would import Ray, also in programs that
        # have no experiment.
        self._messaging = cast("Any", server) if hasattr(server, "interceptor") else None
        self._exp_id, part = name, ""
        if self._messaging is not None:
            self._server, self._exp_id, part = self._messaging.redis, self._messaging.exp_id, f"{name}:"
        self._hold_s = hold_s
        db = getattr(self._server, "db", 0)
        self._keys = Keys(self._exp_id, db=db)
        self._prefix, self._ears = f"{self._keys.prefix}bus:{part}", f"{self._keys.ears}bus:{part}"
        # When a script on the server publishes this package's own messages, it publishes a bracket, a message on the
        # channel `own`, before and after them. Receivers drop what comes between two brackets. But the bus needs these
        # messages. So its `own` is a channel on which no brackets are published.
        self._keys.own = f"{self._prefix}own{mark_of_db(db)}"
        self._link: RedisLink | None = None
        self._messager: Messager | None = None

    async def __aenter__(self) -> Self:
        """Connect; raise ConnectionFailed if the server does not answer, ServerRefused if it refuses the login."""
        settings = MessagingConfig(strict_senders=False)
        self._transport: RedisTransport = open_transport(self._server, self._exp_id, settings)
        link = self._transport.link
        await link.connect()
        self._link = link
        self._owner = secrets.token_hex(8)
        self._number = 0
        self._turn = asyncio.Lock()
        self._waiting: deque[_Write] = deque()
        self._sender = f"{self.name}/{self._owner}"
        self._writer: asyncio.Task[None] | None = None
        # For each queue: the first items' ids of the batches that this bus got in its last drain, and the drain's time.
        self._held: dict[str, tuple[list[bytes], float]] = {}
        self._locks: dict[str, tuple[str, int]] = {}  # the locks to renew, by token: (key, milliseconds to live)
        self._claims: dict[str, str] = {}  # by key, the tokens of locks from `try_lock`
        self._listeners: dict[str, list[asyncio.Queue[bytes | None]]] = {}
        self._unlocked = asyncio.Event()  # set when a lock is released, and then replaced by a new event
        self._ingress = RedisIngress(link, self._keys, self._hear, [self._ears + self._owner])
        self._beating = asyncio.create_task(self._keep_beating(), name="ray_messaging agentscope bus")
        try:
            await self._beat()
            await self._ingress.subscribe([self._ears + "unlocked"], [])
            if self._messaging is not None:
                await self._join(self._messaging, settings)
        except BaseException:
            with suppress(MessagingError):
                await self.__aexit__(BaseException)
            raise
        return self

    async def aclose(self) -> None:
        """Disconnect, unless this bus is closed already. All drained items are then treated as handled."""
        await self.__aexit__(None)

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Disconnect. After an exception, other buses get the drained items, which may not have been handled."""
        link = self._link
        if link is None:
            return
        if self._writer is not None:
            await asyncio.gather(self._writer, return_exceptions=True)
        await end(self._beating)
        try:
            if kind is None:
                await self._settle(time.monotonic())
            for key, token in self._claims.items():
                await self._run("bus_unlock", key, token)
            if self._messager is not None:
                await self._messager.close()
            mine = ("owner:{}", "put:{}", "said:{}:write", "said:{}:ask")
            await link.command("DEL", *(self._prefix + key.format(self._owner) for key in mine))
        finally:
            self._link = None
            for listener in [each for some in self._listeners.values() for each in some]:
                listener.put_nowait(None)
            await self._ingress.close()
            await link.close()

    async def _join(self, messaging: Any, settings: MessagingConfig) -> None:  # noqa: ANN401 - a Messaging
        """Open a sender. If the buses with this name have no mailbox in the experiment yet, create it first."""
        mine = [f"exps:{self._exp_id}:agents:{self.name}/{kind}/*" for kind in _KINDS.values()]
        async with (
            self.acquire_lock("mailbox"),
            Messager(self._server, self._exp_id, None, name=self.name, settings=settings) as reader,
        ):
            await reader.subscribe_and_start_listening(mine)
        self._messager = Messager(self._server, self._exp_id, messaging.interceptor, settings=settings)
        await self._messager.init()

    # -- calls of the server --------------------------------------------------------------------------------------

    def _open(self) -> "RedisLink":
        if self._link is None:
            raise Closed("this bus is not open: write `async with RayMessageBus() as bus:`", unsent=True)
        return self._link

    async def _run(self, script: str, *args: object, number: int = 0) -> Any:  # noqa: ANN401 - a reply
        return await self._open().script(script, [self._prefix], [self._owner, number, self._ears, *args])

    async def _ask(self, script: str, *args: object) -> Any:  # noqa: ANN401 - a reply
        """Run a script on the server, and return its answer.

        The server stores the answer until this bus makes its next call, so that a retry gets the same answer.
        """
        self._open()
        async with self._turn:
            self._number += 1
            return await self._run(script, *args, number=self._number)

    def _write(
        self, kind: str, key: str, payloads: Sequence[dict[str, Any]], ttl_secs: int | None, most: int = 0
    ) -> asyncio.Future[list[str]]:
        """Append entries to a queue or log; return a future for their ids.

        Entries that come while a call to the server is under way share the next call.
        """
        self._open()
        items = [*payloads] if self._messager is not None else [_json(payload).encode() for payload in payloads]
        written: asyncio.Future[list[str]] = asyncio.get_running_loop().create_future()
        self._waiting.append((written, kind, key, _ms(ttl_secs), most, items))
        if self._writer is None:
            self._writer = asyncio.create_task(self._write_waiting())
        return written

    async def _write_waiting(self) -> None:
        try:
            while self._waiting:
                batch, rows = [self._waiting.popleft()], 0
                while self._waiting and (rows := rows + len(batch[-1][-1])) < _WRITES:
                    batch.append(self._waiting.popleft())
                write = self._append if self._messager is None else self._send
                try:
                    found = iter(await write(batch))
                except Exception as error:  # noqa: BLE001 - those who wait raise it
                    found = repeat(error)
                for written, *_, items in batch:
                    mine = [*islice(found, len(items))]
                    if written.done():
                        continue
                    if failed := [each for each in mine if isinstance(each, Exception)]:
                        written.set_exception(failed[0])
                    else:
                        written.set_result([cast("bytes", each).decode() for each in mine])
        finally:
            self._writer = None

    async def _append(self, batch: "list[_Write]") -> list[bytes]:
        """Append the texts of a batch of writes to their queues and logs, and return the texts' ids."""
        self._number += 1
        args: list[Any] = []
        for where, alike in groupby(batch, itemgetter(slice(1, 5))):
            texts = [text for *_, some in alike for text in some]
            args += [*where, len(texts), *texts]
        return await self._run("bus_write", *args, number=self._number)  # type: ignore[no-any-return]  # a reply

    async def _keep_beating(self) -> None:
        while True:
            await asyncio.sleep(_BEAT_S)
            try:
                await self._beat()
                if self._messager is not None:
                    await self._take()  # a bus may have died before it moved the items that it had sent
                await self._settle(time.monotonic() - self._hold_s)
            except MessagingError as error:
                logger.warning("bus %s could not renew its lease: %s", self.name, error)

    async def _beat(self) -> None:
        locks = [part for token, held in self._locks.items() for part in (token, *held)]
        for lost in await self._run("bus_beat", int(_LEASE_S * 1000), *locks):
            if (held := self._locks.pop(lost.decode(), None)) is not None:
                logger.error("bus %s has lost lock %r, and another bus may have it now", self.name, held[0])

    async def _settle(self, before: float) -> None:
        """Tell the server that this bus has handled all items that it drained before the time `before`."""
        for key in [*self._held]:
            await self._drain(key, 0, before)

    # -- items as messages of an experiment -----------------------------------------------------------------------

    async def _send(self, batch: "list[_Write]") -> list[bytes | Exception]:
        """Send payloads as messages to the mailbox, and move them to their queues and logs.

        Returns: for each payload its id, or the error because of which the payload is in no queue or log.
        """
        messager = cast("Messager", self._messager)
        outgoing = []
        try:
            for _, kind, key, ttl, most, items in batch:
                agent, how = f"{self.name}/{_KINDS[kind]}/{key}", f"push,{ttl},{most}" if ttl or most else "push"
                outgoing += [Outgoing.to_agent(agent, item, self._sender, how) for item in items]
            receipts = await messager.send_messages(outgoing)
        # One of the messages is invalid, so none was sent. Each write is now sent alone.
        except (InvalidAddress, InvalidPayload, PayloadTooLarge) as error:
            if len(batch) == 1:
                return [error] * len(batch[0][-1])
            return [each for write in batch for each in await self._send([write])]
        await self._take()
        places, sent = f"{self._prefix}put:{self._owner}", [receipt.message_id for receipt in receipts]
        found = [] if not sent else await self._open().command("HMGET", places, *sent)
        if any(found):
            await self._open().command("HDEL", places, *sent)
        keys = [key for _, _, key, *_, items in batch for _ in items]
        return [place or self._refusal(receipt, key) for place, receipt, key in zip(found, receipts, keys, strict=True)]

    async def _take(self) -> None:
        """Move the messages in the mailbox to their queues and logs."""
        state, stream = self._keys.state(self.name), self._keys.stream(self.name)
        while True:
            born, at = [
                (each or b"0-0").decode() for each in await self._open().command("HMGET", state, "born", "entry")
            ]
            frames = await self._open().command("XRANGE", f"{stream}:{born}", f"({at}", "+", "COUNT", _FRAMES)
            if not frames:  # there are no more messages, or the mailbox is gone
                return
            items = [part for entry, (_, frame) in frames for part in await self._items(entry.decode(), frame)]
            last, nbytes = frames[-1][0].decode(), sum(len(frame) for _, (_, frame) in frames)
            args = [at, last, following(last), stream, len(items) // 7, nbytes, *items]
            await self._open().script("bus_take", [self._prefix, state], [self._owner, 0, self._ears, *args])

    async def _items(self, entry: str, frame: bytes) -> list[Any]:
        """Return the items of an encoded batch from the mailbox, as arguments of the server's script `bus_take`.

        A batch that cannot be read becomes a dead letter.
        """
        try:
            batch = decode(frame)
        except FrameError as error:
            await self._transport.bury(self.name, entry, frame, str(error))
            return []
        messages, items = Messages(self._exp_id, [Slice(batch, 0, batch.rows)]), list[Any]()
        for message, text in zip(messages, messages.data, strict=True):
            _, kind, key = str(message.to_id).split("/", 2)
            bus, _, pusher = str(message.from_id).rpartition("/")
            of_bus = _PUSH.fullmatch(str(message.subtopic)) if bus == self.name else None
            how = (0, 0, "") if of_bus is None else (*of_bus.groups("0"), pusher)
            items += [kind[0], key, *how, message.id, text]
        return items

    def _refusal(self, receipt: "Receipt", key: str) -> MessagingError:
        """Return the error for an item that a rule has blocked, or that was lost because the mailbox is gone."""
        if receipt.fate != FATES[BLOCKED]:
            return MessagingError(f"the mailbox {self.name!r} of this bus is gone: open the bus again ({receipt})")
        why = f"rule {receipt.rule} blocked an item for {key!r}: {receipt.reason}"
        return ItemBlocked(why, key=key, rule=receipt.rule, reason=receipt.reason)

    # -- queues and logs ------------------------------------------------------------------------------------------

    async def queue_push(self, key: str, payload: dict[str, Any], *, ttl_secs: int | None = None) -> str:
        """Append a payload to a queue, and return the payload's id."""
        return (await self._write("q", key, [payload], ttl_secs))[0]

    async def queue_push_all(
        self, key: str, payloads: Iterable[dict[str, Any]], *, ttl_secs: int | None = None
    ) -> list[str]:
        """Append many payloads to a queue, in their order, and return their ids."""
        listed = [*payloads]
        parts = [listed[start : start + _WRITES] for start in range(0, len(listed), _WRITES)]
        written = await asyncio.gather(*[self._write("q", key, part, ttl_secs) for part in parts])
        return [entry for entries in written for entry in entries]

    async def queue_drain(self, key: str, max_count: int = 100) -> list[tuple[str, dict[str, Any]]]:
        """Return the oldest items of a queue, each as (id, payload).

        Items that this bus drained from the queue in earlier calls are treated as handled from now on.
        """
        return [(entry.decode(), json.loads(text)) for entry, text in await self._drain(key, max_count)]

    async def _drain(self, key: str, most: int, before: float = math.inf) -> list[tuple[bytes, bytes]]:
        """Return the oldest items of a queue, each as (id, text), at most `most`.

        Also tell the server that the items of the last drain are handled.

        If this bus has drained the queue after the time `before`, do nothing, and return [].
        """
        self._open()
        async with self._turn:
            done, at = self._held.get(key, ([], 0.0))
            if at > before:
                return []
            # If this call fails or is cancelled, this bus does not know which items the server has handed out to it. No
            # other bus would get these items while this bus lives. So the time is set to -inf, and the next `_settle`
            # makes this call for 0 items. Then the server hands out the items again, to any bus.
            self._held[key] = done, -math.inf
            firsts, found = await self._run("bus_drain", key, most, *done)
            self._held.pop(key, None)
            if firsts:
                self._held[key] = firsts, time.monotonic()
        return found  # type: ignore[no-any-return]  # a reply

    async def queue_done(self, key: str, *entry_ids: str) -> None:
        """Tell the server that some drained items are handled, so that no other bus gets them if this bus dies."""
        await self._open().command("XDEL", f"{self._prefix}q:{key}", *entry_ids)

    async def queue_delete(self, key: str) -> None:
        """Delete a queue with all its items."""
        self._held.pop(key, None)
        await self._open().command("DEL", f"{self._prefix}q:{key}", f"{self._prefix}taken:{key}")

    async def log_append(
        self, key: str, payload: dict[str, Any], *, ttl_secs: int | None = None, max_len: int | None = None
    ) -> str:
        """Append a payload to a log, and return the payload's id.

        Only the last `max_len` entries of the log are kept (None: all entries).
        """
        return (await self._write("l", key, [payload], ttl_secs, max_len or 0))[0]

    async def log_read(
        self, key: str, since: str | None = None, max_count: int = 100
    ) -> list[tuple[str, dict[str, Any]]]:
        """Return a log's entries after the id `since` (None: from the first entry on), each as (id, payload)."""
        start = "-" if since is None else f"({since}"
        found = await self._open().command("XRANGE", f"{self._prefix}l:{key}", start, "+", "COUNT", max_count)
        return [(entry.decode(), json.loads(fields[1])) for entry, fields in found or ()]

    async def log_trim(self, key: str, before_id: str | None = None) -> None:
        """Delete a log's entries before an id, or (None) the whole log."""
        log = f"{self._prefix}l:{key}"
        await self._open().command(*(("DEL", log) if before_id is None else ("XTRIM", log, "MINID", before_id)))

    # -- signals --------------------------------------------------------------------------------------------------

    async def publish(self, key: str, payload: dict[str, Any]) -> None:
        """Send a payload to the current subscribers of a key."""
        if self._messager is None:
            await self._open().command("PUBLISH", self._channel(key), _json(payload))
            return
        receipt = await self._messager.send_message(self._channel(key), payload, self._sender)
        if receipt.fate == FATES[BLOCKED]:
            raise self._refusal(receipt, key)

    def _channel(self, key: str) -> str:
        return agent_channel(self._exp_id, f"{self.name}/topic/{key}", "publish")

    async def subscribe(
        self, key: str, *, on_ready: Callable[[], None] | None = None
    ) -> AsyncGenerator[dict[str, Any], None]:
        """Yield the payloads that are published to a key from now on.

        `on_ready` is called when the subscription has begun.
        """
        self._open()
        channel, heard = self._channel(key), asyncio.Queue[bytes | None]()
        self._listeners.setdefault(channel, []).append(heard)
        try:
            await self._ingress.subscribe([channel], [])
            if on_ready is not None:
                on_ready()
            while (data := await heard.get()) is not None:
                yield json.loads(data)
        finally:
            self._listeners[channel].remove(heard)
            if not self._listeners[channel]:
                del self._listeners[channel]
            if channel not in self._listeners and self._link is not None:
                await self._ingress.unsubscribe([channel])

    def _hear(self, said: Ingress) -> None:
        if said.channel == self._ears + "unlocked":
            self._unlocked.set()
            self._unlocked = asyncio.Event()
        for listener in self._listeners.get(said.channel, ()):
            listener.put_nowait(said.data)

    # -- locks ----------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def acquire_lock(self, key: str, *, ttl_secs: int = 600) -> AsyncGenerator[int, None]:
        """Wait for a lock, and yield its fencing number, which is higher than the numbers of all earlier owners.

        If the owner dies, the lock becomes free. If the server cannot notice that, because the owner's machine is gone,
        the lock becomes free after `ttl_secs` seconds.
        """
        token, ttl = secrets.token_hex(8), _ms(ttl_secs)
        try:
            unlocked = self._unlocked
            while not (number := await self._run("bus_lock", key, token, ttl)):
                with suppress(TimeoutError):
                    async with asyncio.timeout(_LOCK_GLANCE_S):
                        await unlocked.wait()
                unlocked = self._unlocked
            self._locks[token] = key, ttl
            yield number
        finally:
            self._locks.pop(token, None)
            await asyncio.shield(self._run("bus_unlock", key, token))

    async def is_locked(self, key: str) -> bool:
        """Return whether a living bus has the lock."""
        return await self.fencing_number(key) > 0

    async def fencing_number(self, key: str) -> int:
        """Return the fencing number of a lock's owner, or 0 if the lock is free."""
        return int(await self._run("bus_lock_number", key))

    async def try_lock(self, key: str, *, ttl_secs: int = 600) -> bool:
        """Take a lock if it is free; return whether it was free.

        The bus has the lock until `unlock`, or until the bus ends, but at most for `ttl_secs` seconds.
        """
        token = secrets.token_hex(8)
        if free := bool(await self._run("bus_lock", key, token, _ms(ttl_secs))):
            self._claims[key] = token
        return free

    async def unlock(self, key: str) -> None:
        """Release a lock that this bus has taken by `try_lock`. A lock of another bus is not released."""
        if (token := self._claims.pop(key, None)) is not None:
            await self._run("bus_unlock", key, token)

    # -- registries -----------------------------------------------------------------------------------------------

    async def registry_set(self, namespace: str, field: str, value: str, *, ttl_secs: int | None = None) -> None:
        """Set a field of a registry, a dict on the server that all buses of one name share.

        The registry, with all of its fields, is deleted `ttl_secs` seconds from now, unless a later call with
        `ttl_secs` sets another time. With None, the time that an earlier call has set stays.
        """
        registry = f"{self._prefix}r:{namespace}"
        expire = [] if ttl_secs is None else [("PEXPIRE", registry, _ms(ttl_secs))]
        await self._open().commands(("HSET", registry, field, value), *expire)

    async def registry_set_if(
        self, namespace: str, field: str, value: str, *, expected: str, ttl_secs: int | None = None
    ) -> bool:
        """Set a field of a registry if the field has the expected value; return whether it had that value."""
        return bool(await self._ask("bus_set_if", namespace, field, value, expected, _ms(ttl_secs)))

    async def registry_pop(self, namespace: str, field: str) -> str | None:
        """Remove a field of a registry, and return its value. Of several callers, only one gets the value."""
        found = await self._ask("bus_pop", namespace, field)
        return None if found is None else found.decode()

    async def registry_del(self, namespace: str, field: str) -> None:
        """Remove a field of a registry."""
        await self._open().command("HDEL", f"{self._prefix}r:{namespace}", field)

    async def registry_exists(self, namespace: str, field: str) -> bool:
        """Return whether a registry has a field."""
        return bool(await self._open().command("HEXISTS", f"{self._prefix}r:{namespace}", field))

    async def registry_getall(self, namespace: str) -> dict[str, str]:
        """Return all fields of a registry, as a dict from the field's name to its value."""
        found = [each.decode() for each in await self._open().command("HGETALL", f"{self._prefix}r:{namespace}")]
        return dict(zip(found[::2], found[1::2], strict=True))

    async def registry_get(self, namespace: str, field: str) -> str | None:
        """Return the value of a registry's field, or None if the registry has no such field."""
        found = await self._open().command("HGET", f"{self._prefix}r:{namespace}", field)
        return None if found is None else found.decode()

    async def registry_drop(self, namespace: str) -> None:
        """Delete a registry."""
        await self._open().command("DEL", f"{self._prefix}r:{namespace}")


def _ms(seconds: float | None) -> int:
    return 0 if seconds is None else int(seconds * 1000)
