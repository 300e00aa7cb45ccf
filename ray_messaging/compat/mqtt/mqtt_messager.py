"""AgentSociety's earlier Messager, which publishes and subscribes on an MQTT 5 broker, and needs no Redis server."""

import asyncio
import logging
import time
import uuid
from abc import ABCMeta
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, NamedTuple, Self

import aiomqtt
import msgspec
import numpy as np
import ray

from ray_messaging.addressing.channels import AgentId, check_id, check_name
from ray_messaging.common.task_health import end
from ray_messaging.compat.mqtt.mqtt_config import PORT, TIMEOUT_S, MqttConfig, broker_config
from ray_messaging.compat.mqtt.mqtt_connection import AT_ONCE, Connection
from ray_messaging.compat.mqtt.topics import Wanted, check_topic, recipient_of, subscriptions_of
from ray_messaging.compat.msg import Payload
from ray_messaging.config import MessagingConfig
from ray_messaging.default_limits_and_leases import BATCH_ROWS
from ray_messaging.errors import Closed, MessagingError, NotListening
from ray_messaging.interception.verdict_client import ForeignVerdictClient, PassAll, verdict_client_for
from ray_messaging.interception.verdicts import BatchVerdict
from ray_messaging.model.batch import Batch, topic_column
from ray_messaging.model.columns import IdColumn, PayloadColumn, encode_payload
from ray_messaging.model.fates import BLOCKED, PUBLISHED, UNKNOWN
from ray_messaging.receipt import Outcome, Receipt
from ray_messaging.receiving.call_checks import check_timeout

logger = logging.getLogger("ray_messaging.compat.mqtt")


class _Send(NamedTuple):
    """A message that was accepted for sending and has no receipt yet."""

    topic: str
    subtopic: str
    payload: bytes
    from_id: AgentId | None
    to_id: AgentId | None
    accepted_at: float
    receipt: "asyncio.Future[Receipt]"


class _ActorClass(ABCMeta):  # derived from ABCMeta, so that a subclass of Messager may be abstract
    """Metaclass that gives a class `remote` and `options`, as `ray.remote` does. The class can still be called.

    The class itself does not define `remote` and `options`, because they would then be methods of the actor.
    """

    @property
    def remote(cls) -> Callable[..., Any]:
        """Return a function that starts an actor with the class' arguments, and returns its handle."""
        return _on_ray(cls, "remote").remote  # type: ignore[no-any-return]  # Ray's are untyped

    @property
    def options(cls) -> Callable[..., Any]:
        """Return a function that sets Ray's options for an actor; call `.remote(...)` on its result."""
        return _on_ray(cls, "options").options  # type: ignore[no-any-return]  # as above


def _on_ray(cls: type, attribute: str) -> Any:  # noqa: ANN401 - an actor class of Ray's
    if hasattr(cls, "__ray_actor_class__"):
        # Ray has derived this class, and sets its own `remote` in it. Ray would warn about a `remote` that exists.
        raise AttributeError(f"{cls.__name__} has no {attribute!r}")
    return ray.remote(cls)


class Messager(metaclass=_ActorClass):
    """Publisher and subscriber on an MQTT 5 broker, with the methods of AgentSociety's Messager.

    Messages are published with QoS 2, and sessions outlast interruptions. So a message that the broker has acknowledged
    arrives exactly once, and in order with the other messages on its topic, as long as the broker does not lose its
    data and this process lives (see docs/mqtt.md).

    `Messager.remote(...)` starts a messager as a Ray actor. To use a messager in a process, build it, then call
    `connect`, `subscribe`, `start_listening`, and at the end `stop`. `async with` calls `connect` and `stop`.

    Args:
        hostname: The broker's host name, or an MqttConfig (with all other settings, TLS included).
        timeout: Seconds that a send may wait for the broker.
        message_interceptor: `messaging.interceptor`, or any Ray actor with `forward(from_uuid, to_uuid, msg) -> bool`.
        name: A name under which the broker keeps messages while no process uses it. None: messages are kept only during
            interruptions, and `stop` drops them.
        settings: The limits of payloads, inbox, outbox and log list, and the interceptor's timeout.
    """

    def __init__(
        self,
        hostname: str | MqttConfig,
        port: int = PORT,
        username: str | None = None,
        password: str | None = None,
        timeout: float = TIMEOUT_S,
        message_interceptor: object = None,
        *,
        name: str | None = None,
        settings: MessagingConfig | None = None,
    ) -> None:
        self.name = None if name is None else check_name("name", name)
        self.settings = settings = settings or MessagingConfig()
        self._config = broker_config(hostname, port, username, password, timeout)
        self._sender = f"mqtt-{self.name or uuid.uuid4().hex}"
        self._epoch = time.time_ns() // 1000  # a part of message ids; later messagers of this name have higher epochs
        self._number = 0
        self._log: deque[dict[str, Any]] = deque(maxlen=settings.log_list_messages)
        self._inbox: deque[aiomqtt.Message] = deque()
        self._filters: dict[str, None] = {}
        self._listening = self._was_connected = self._warned = False
        self._changing = asyncio.Lock()
        self._out: Connection | None = None
        self._in: Connection | None = None
        self.set_message_interceptor(message_interceptor)

    def __repr__(self) -> str:
        return f"Messager({self._config.server}:{self._config.port}, name={self.name!r})"

    # -- connecting -----------------------------------------------------------------------------------------------

    async def connect(self) -> None:
        """Connect; a second call is harmless. After `disconnect`, the caller must also subscribe and listen again.

        Raises: ConnectionFailed if the first try fails, within 5 s; ServerRefused if the broker refuses the login.
        """
        async with self._changing:
            if self._out is not None:
                return
            self._came, self._closed = asyncio.Event(), asyncio.Event()
            # There is one connection for sending and one for receiving. A full inbox closes the second one, and does
            # not delay sends.
            out = Connection(self._config, f"{self._sender}-out", lasting=False)
            heard = Connection(
                self._config,
                f"{self._sender}-in",
                lasting=self.name is not None,
                on_open=self._subscribe,
                on_message=self._take,
                on_end=self._end_waits,
            )
            await out.open()
            try:
                await heard.open()
            except BaseException:
                await out.close()
                raise
            self._out, self._in, self._was_connected = out, heard, True
            self._outbox: asyncio.Queue[_Send] = asyncio.Queue()  # accepted sends that wait for a verdict of the rules
            self._room = asyncio.Semaphore(self.settings.outbox_messages)
            self._slots = asyncio.Semaphore(AT_ONCE)
            self._publishing: set[asyncio.Task[None]] = set()
            self._sending = asyncio.create_task(self._send_all(out), name="ray_messaging mqtt outbox")

    async def disconnect(self) -> None:
        """Wait for the receipts of all accepted messages, and disconnect; a second call is harmless.

        Messages that have already arrived can still be fetched.
        """
        async with self._changing:
            if self._out is None or self._in is None:
                return
            await self._outbox.join()
            await asyncio.gather(*self._publishing, return_exceptions=True)
            await end(self._sending)
            # Other tasks may have put messages into the outbox since it was empty. Nothing sends them any more.
            left = [self._outbox.get_nowait() for _ in range(self._outbox.qsize())]
            _fail(left, Closed("this messager was disconnected, and this message was not sent", unsent=True))
            out, heard, self._out, self._in = self._out, self._in, None, None
            self._listening = False
            self._filters.clear()
            self._end_waits()
            await heard.close()
            await out.close()
            await self._client.close()

    async def stop(self) -> None:
        """Stop listening and disconnect; a second call is harmless."""
        await self.disconnect()

    async def __aenter__(self) -> Self:
        await self.connect()
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc_value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.stop()

    async def is_connected(self) -> bool:
        """Return whether `connect` was called, and `disconnect` was not.

        The result is also True during an interruption, because the messager connects again. To check the connection,
        use `ping`.
        """
        return self._out is not None

    async def ping(self) -> None:
        """Publish `ping` on the topic `ping`, and wait for the broker's answer.

        Raises: Closed if this messager is not connected; ConnectionFailed or OutcomeUnknown if the broker does not
        answer.
        """
        out = self._connected(Closed)
        await out.wait_up()
        await out.publish("ping", b"ping")

    def _connected(self, kind: type[MessagingError]) -> Connection:
        """Return the connection for sends; raise an error of type `kind` if this messager is not connected."""
        if self._out is None:
            again = " again" if self._was_connected else ""
            raise kind(f"this messager is not connected: `await messager.connect()`{again} first")
        return self._out

    # -- interceptor and log list -----------------------------------------------------------------------------------

    @property
    def message_interceptor(self) -> object:
        """Return the interceptor's handle, or None."""
        return self._interceptor

    def set_message_interceptor(self, message_interceptor: object) -> None:
        """Use another interceptor from the next batch on (None: no interceptor).

        Raises: ConfigError if `message_interceptor` is not the handle of an interceptor.
        """
        timeout_s = self.settings.interceptor_timeout_s
        client = PassAll() if message_interceptor is None else verdict_client_for(message_interceptor, timeout_s)
        if isinstance(client, ForeignVerdictClient):
            client = ForeignVerdictClient(_Texts(message_interceptor), timeout_s)
        self._client, self._interceptor = client, message_interceptor

    def get_log_list(self) -> list[dict[str, Any]]:
        """Return the latest sends as dicts, each with AgentSociety's keys, and then the receipt's keys."""
        return [row | {"payload": msgspec.json.decode(row["payload"])} for row in self._log]

    def clear_log_list(self) -> None:
        """Empty the log list."""
        self._log.clear()

    # -- sending --------------------------------------------------------------------------------------------------

    async def send_message(
        self, topic: str, payload: Payload, from_uuid: AgentId | None = None, to_uuid: AgentId | None = None
    ) -> Receipt:
        """Send one message and return its receipt. `to_uuid` is not needed on an agent's topic.

        The message's fate is `blocked` if a rule blocks it, and otherwise `published`, once the broker has it.
        Raises: Closed if this messager is not connected; InvalidAddress for an invalid topic or id; InvalidPayload or
        PayloadTooLarge for an invalid payload; ConnectionFailed or InterceptorUnavailable if the message was not sent;
        ServerRefused if the broker refuses the message; Fenced if another messager has the name now; OutcomeUnknown if
        the message may still arrive.
        """
        self._connected(Closed)
        checked = check_topic(topic)
        to_id, subtopic = recipient_of(checked, to_uuid)
        from_id = None if from_uuid is None else check_id(from_uuid)
        line = encode_payload(payload, self.settings.payload_bytes)
        async with self._room:
            self._connected(Closed)
            receipt: asyncio.Future[Receipt] = asyncio.get_running_loop().create_future()
            outbox = self._outbox
            receipt.add_done_callback(lambda _: outbox.task_done())
            outbox.put_nowait(_Send(checked, subtopic, line, from_id, to_id, time.time(), receipt))
            return await receipt

    async def _send_all(self, out: Connection) -> None:
        """Get the verdicts on accepted messages, and publish those that pass, in order."""
        while True:
            sends = [await self._outbox.get()]
            while len(sends) < BATCH_ROWS and not self._outbox.empty():
                sends.append(self._outbox.get_nowait())
            try:
                await self._send(out, sends)
            except MessagingError as error:
                _fail(sends, error)
            except BaseException:
                _fail(
                    sends,
                    Closed(
                        "this messager was stopped during this send, and the message may or may not arrive: ask its "
                        "receiver, or send again"
                    ),
                )
                raise

    async def _send(self, out: Connection, sends: list[_Send]) -> None:
        batch = self._batch(sends)
        verdict = await self._judge(batch)
        outcome = Outcome(batch)
        outcome.blocks = verdict.blocked
        for row, send in enumerate(sends):
            if row in verdict.blocked:
                self._settle(send, outcome, row, BLOCKED)
                continue
            payload = verdict.rewritten[row][1] if row in verdict.rewritten else send.payload
            try:
                await out.wait_up()
            except MessagingError as error:
                _fail(sends[row:], error)  # earlier sends are under way, and get receipts or errors of their own
                return
            await self._slots.acquire()
            task = asyncio.create_task(self._publish(out, send, payload, outcome, row))
            self._publishing.add(task)
            task.add_done_callback(self._publishing.discard)

    async def _publish(self, out: Connection, send: _Send, payload: bytes, outcome: Outcome, row: int) -> None:
        try:
            await out.publish(send.topic, payload)
        except MessagingError as error:
            self._settle(send, outcome, row, UNKNOWN)
            _fail([send], error)
        else:
            self._settle(send, outcome, row, PUBLISHED)
        finally:
            self._slots.release()

    def _batch(self, sends: list[_Send]) -> Batch:
        topics = list(dict.fromkeys(send.subtopic for send in sends))
        places = {topic: place for place, topic in enumerate(topics)}
        first, self._number = self._number, self._number + len(sends)
        return Batch(
            sender=self._sender,
            epoch=self._epoch,
            first=first,
            from_ids=IdColumn.of([send.from_id for send in sends]),
            to_ids=IdColumn.of([send.to_id for send in sends]),
            topics=tuple(topics),
            topic=topic_column([places[send.subtopic] for send in sends], len(topics)) if len(topics) > 1 else None,
            lines=PayloadColumn.of([send.payload for send in sends]),
            sent_at=np.array([send.accepted_at for send in sends]),
            rows=len(sends),
        )

    async def _judge(self, batch: Batch) -> BatchVerdict:
        """Return the verdicts on a batch, including those of slow rules.

        Later batches wait, so that the order is kept.
        """
        client, verdict = self._client, BatchVerdict()
        verdict.add(await client.judge(batch))
        while verdict.deferred:
            later = await client.wait(batch)
            left = verdict.deferred & later.deferred
            verdict.add(later)
            verdict.deferred = left
        return verdict

    def _settle(self, send: _Send, outcome: Outcome, row: int, fate: int) -> None:
        """Add a send to the log list. If its fate is known, give the caller its receipt."""
        outcome.codes[row], outcome.done_at = fate, time.time()
        receipt, known = outcome.receipt(row), fate != UNKNOWN
        if known and not send.receipt.done():  # the future of a cancelled caller is done already
            send.receipt.set_result(receipt)
        self._log.append(
            {
                "topic": send.topic,
                "payload": send.payload,
                "from_uuid": _text(send.from_id),
                "to_uuid": _text(send.to_id),
                "start_time": send.accepted_at,
                "consumption": max(0.0, outcome.done_at - send.accepted_at),
                "sent": receipt.sent,
                "fate": receipt.fate if known else None,
                "rule": receipt.rule,
                "reason": receipt.reason if known else None,
                "message_id": receipt.message_id,
            }
        )

    # -- receiving ------------------------------------------------------------------------------------------------

    async def subscribe(self, topics: Wanted | Sequence[Wanted], agents: object) -> None:  # noqa: ARG002 - not used
        """Subscribe to topics or filters (with + or #). A later call adds more of them.

        Args: `topics` is a topic or filter, a pair of a topic or filter and its QoS, or a sequence of these. `agents`
        is not used, because the topics name their agents.
        Raises: NotListening if this messager is not connected; InvalidAddress for an invalid topic or filter;
        ServerRefused for a filter that the broker does not allow.
        """
        self._connected(NotListening)
        wanted = subscriptions_of(topics)
        assert self._in is not None
        await self._in.wait_up()
        await self._in.subscribe(wanted)
        self._filters |= dict.fromkeys(wanted)

    async def _subscribe(self, connection: Connection) -> None:
        """Subscribe again after an interruption, because the broker may have lost the session."""
        await connection.subscribe([*self._filters])

    def _take(self, message: aiomqtt.Message) -> bool:
        """Put a message into the inbox; return whether there is room for more."""
        self._inbox.append(message)
        self._came.set()
        return len(self._inbox) < self.settings.inbox_messages

    async def start_listening(self) -> None:
        """Let `fetch_messages` return messages from now on.

        This method can be called before or after `subscribe`.

        Raises: NotListening if this messager is not connected.
        """
        self._connected(NotListening)
        self._listening = True

    async def receive_messages(self) -> None:
        """Listen as `start_listening` does, and return when the messager disconnects. Run this in a task of its own.

        Raises: NotListening if this messager is not connected; Fenced if another messager has the name now.
        """
        await self.start_listening()
        await self._closed.wait()
        if self._in is not None and self._in.ended is not None:
            raise self._in.ended.with_traceback(None)

    def _end_waits(self) -> None:
        """Wake all calls that wait for messages.

        This is done when this messager disconnects, or when another client has taken over the session.
        """
        self._came.set()
        self._closed.set()

    async def fetch_messages(self, *, timeout: float | None = 0.0) -> list[aiomqtt.Message]:
        """Return the messages that have arrived, in order; wait up to `timeout` seconds (None: for ever) for one.

        After `disconnect`, return the messages that were received before, and then no more. Before `start_listening`,
        return [] if `timeout` is 0.
        Raises: NotListening before `start_listening` if `timeout` is not 0; Fenced, when all messages are fetched, if
        another messager has the name now.
        """
        check_timeout(timeout)
        ended = self._was_connected and self._out is None
        if not self._listening and not ended:
            remedy = (
                "this messager does not listen: `await messager.connect()`, `await messager.start_listening()` and "
                "`await messager.subscribe(...)` first"
            )
            if timeout != 0:
                raise NotListening(remedy)
            # This is logged only once, because AgentSociety's loops begin to fetch before they listen.
            if not self._warned:
                self._warned = True
                logger.warning(remedy)
            return []
        if timeout != 0:
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout):
                    # This is a loop, because another waiting call may fetch the messages before this one wakes up.
                    while not self._inbox and self._in is not None and self._in.ended is None:
                        self._came.clear()
                        await self._came.wait()
        found = [*self._inbox]
        self._inbox.clear()
        if not found and self._in is not None and self._in.ended is not None:
            raise self._in.ended.with_traceback(None)
        if self._in is not None:
            self._in.room.set()
        return found


class _Texts:
    """Handle of an interceptor that expects str ids, such as AgentSociety's interceptor for MQTT."""

    def __init__(self, handle: Any) -> None:  # noqa: ANN401 - a Ray actor handle
        self._handle = handle
        self.forward = self

    def remote(self, from_id: AgentId, to_id: AgentId, msg: str) -> object:
        """Call `forward` of the actor with str ids."""
        return self._handle.forward.remote(str(from_id), str(to_id), msg)


def _text(agent_id: AgentId | None) -> str | None:
    return None if agent_id is None else str(agent_id)


def _fail(sends: list[_Send], error: MessagingError) -> None:
    for send in sends:
        if not send.receipt.done():
            send.receipt.set_exception(error.with_traceback(None))
