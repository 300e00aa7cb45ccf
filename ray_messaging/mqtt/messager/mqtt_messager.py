"""The messager on MQTT, by the names of AgentSociety's earlier Messager and ours."""

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, cast

from ray_messaging.addressing.channels import AgentId, check_name
from ray_messaging.compat.msg import Payload
from ray_messaging.config import MessagingConfig, MqttConfig
from ray_messaging.engine import Engine, check_step
from ray_messaging.errors import Closed, InvalidAddress, MessagingError, NotListening
from ray_messaging.messages import Messages
from ray_messaging.mqtt.messager.actor import ActorClass
from ray_messaging.mqtt.messager.addresses import Addresses, subscriptions_of
from ray_messaging.mqtt.messager.broker import PORT, TIMEOUT_S, broker_config
from ray_messaging.mqtt.messager.deliveries import Deliveries, Delivery
from ray_messaging.mqtt.messager.experiment import NO_EXPERIMENT, join, verdict_client
from ray_messaging.outgoing import Outgoing
from ray_messaging.receipt import Receipt, Receipts
from ray_messaging.receiving.call_checks import check_timeout
from ray_messaging.sending.accumulation.bulk_input import entries_of
from ray_messaging.sending.local_log import LocalLog
from ray_messaging.transports.backend import open_mqtt

if TYPE_CHECKING:
    from ray_messaging.mqtt.transport import MqttTransport

logger = logging.getLogger(__name__)

Wanted = str | tuple[str, int]


class Messager(metaclass=ActorClass):
    """Publisher and subscriber on an MQTT broker, with the promises of our messager.

    Args: `hostname` is the broker's, its mqtt:// URL, or an MqttConfig (with all other settings, and TLS).
    `message_interceptor` is `messaging.interceptor`, or any Ray actor with `forward(from_uuid, to_uuid, msg) -> bool`.
    `exp_id` joins a running experiment: its interceptor judges the messages, and its event log records them. Without it
    the messager uses the topics of any experiment. With a `name` the mailbox outlives this process, and the next
    messager of that name continues there; without one the mailbox ends at the disconnect.

    `Messager.remote(...)` starts it as a Ray actor. In process, call it, then `connect`, `subscribe`, `start_listening`
    and at the end `stop`; `async with` connects and stops. Each connect makes a new engine; the local log continues.
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
        exp_id: str | None = None,
        name: str | None = None,
        settings: MessagingConfig | None = None,
    ) -> None:
        self.name = None if name is None else check_name("name", name)
        self.settings = settings = settings or MessagingConfig()
        self._config = broker_config(hostname, port, username, password, timeout)
        self._addresses = Addresses(exp_id)
        self._log = LocalLog(self._addresses.namespace, settings.log_list_messages, settings.log_list_bytes)
        self._engine: Engine | None = None
        self._step: int | None = None
        self._interceptor: object = None
        self._joined = NO_EXPERIMENT
        self._changing = asyncio.Lock()
        self._was_connected = False
        self._warned = False
        self._listening = False
        self._subscribed = asyncio.Event()
        self._stopped = asyncio.Event()
        self._left = self._nothing  # messages that were received before the disconnect
        self.set_message_interceptor(message_interceptor)

    def __repr__(self) -> str:
        config = self._config
        return f"Messager({config.server}:{config.port}, exp_id={self._addresses.exp_id!r}, name={self.name!r})"

    # -- connecting -----------------------------------------------------------------------------------------------

    async def connect(self) -> None:
        """Connect; doing so twice does no harm. After a disconnect, subscribe and start listening again, too.

        Raises: ConnectionFailed within 5 s, ServerRefused at once; with exp_id UnknownName if no such experiment runs,
        and ConfigError outside a Ray cluster.
        """
        exp_id = self._addresses.exp_id
        async with self._changing:
            if self._engine is not None and self._transport.error is None:
                return
            await self._leave(commit=False)
            self._joined = NO_EXPERIMENT if exp_id is None else await join(exp_id, self.settings)
            engine = Engine(
                open_mqtt(self._config, self._addresses.namespace, self.settings, log=self._joined.log),
                self.message_interceptor,
                name=self.name,
                settings=self.settings,
                parse=self._addresses.parse,
                make_verdict_client=partial(verdict_client, settings=self.settings, exp_id=exp_id),
            )
            engine.log, engine.step = self._log, self._step
            try:
                await engine.open()
            except BaseException:
                await engine.close()
                raise
            self._engine, self._was_connected = engine, True
            # The former events may belong to another event loop.
            self._subscribed, self._stopped = asyncio.Event(), asyncio.Event()

    async def disconnect(self) -> None:
        """Send all accepted messages, commit the fetched ones, and disconnect; doing so twice does no harm.

        Messages that have come by then can still be fetched; a mailbox with a name keeps them for the next messager of
        that name.
        """
        await self._close(commit=True)

    async def stop(self) -> None:
        """Stop listening and disconnect; doing so twice does no harm."""
        await self._close(commit=True)

    async def __aenter__(self) -> Self:
        await self.connect()
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc_value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        # After an exception the fetched messages are not handled: they come again.
        await self._close(commit=exc_type is None)

    async def _close(self, *, commit: bool) -> None:
        async with self._changing:
            await self._leave(commit=commit)

    async def _leave(self, *, commit: bool) -> None:
        engine, self._engine = self._engine, None
        if engine is None:
            return
        capacity = self.settings.inbox_messages - len(self._left)
        if commit and self.name is None and self._listening and self._subscribed.is_set() and capacity > 0:
            # The mailbox ends here, so its messages are kept for later fetches.
            with suppress(MessagingError):  # the mailbox is lost
                taken = await engine.fetcher.take(capacity, 0.0)
                engine.fetcher.commits.handed_out.append((taken.low, taken.high))
                self._left = Deliveries(Messages(engine.exp_id, [*self._left.messages.slices, *taken.slices]))
        self._listening = False
        self._subscribed.set()
        self._stopped.set()
        await engine.close(commit=commit)

    async def is_connected(self) -> bool:
        """Return whether it is connected: from `connect` to `disconnect`, unless the broker refused it for good.

        A cut does not count, because the messager reconnects and loses nothing. To check the broker, use `ping`.
        """
        return self._engine is not None and self._transport.error is None

    async def ping(self) -> None:
        """Publish `ping` on the topic `ping`, and await the broker's answer; raise Closed, ConnectionFailed."""
        await self._transport.ping()

    def _opened(self, kind: type[MessagingError]) -> Engine:
        """Return the engine; raise an error of this kind without one."""
        if self._engine is None:
            again = " again" if self._was_connected else ""
            raise kind(f"this messager is not connected: `await messager.connect()`{again} first")
        return self._engine

    @property
    def _transport(self) -> "MqttTransport":
        return cast("MqttTransport", self._opened(Closed).transport)

    # -- interceptor and step -------------------------------------------------------------------------------------

    @property
    def message_interceptor(self) -> object:
        """Return the interceptor's handle: the given one, else that of the joined experiment, else None."""
        return self._joined.interceptor if self._interceptor is None else self._interceptor

    def set_message_interceptor(self, message_interceptor: object) -> None:
        """Use another interceptor from the next batch on (None: the experiment's, if any)."""
        before, self._interceptor = self._interceptor, message_interceptor
        try:
            if self._engine is not None:
                self._engine.interceptor = self.message_interceptor
            elif message_interceptor is not None:
                verdict_client(message_interceptor, self.settings, self._addresses.exp_id)
        except BaseException:
            self._interceptor = before
            raise

    @property
    def step(self) -> int | None:
        """Return the simulation step that is stamped on sent messages."""
        return self._step

    @step.setter
    def step(self, step: int | None) -> None:
        self._step = check_step(step)
        if self._engine is not None:
            self._engine.step = self._step

    # -- sending --------------------------------------------------------------------------------------------------

    async def send_message(
        self, topic: str, payload: Payload, from_uuid: AgentId | None = None, to_uuid: AgentId | None = None
    ) -> Receipt:
        """Send one message and return its receipt; `to_uuid` is not needed on an agent's topic.

        Raises: Closed, InvalidAddress, InvalidPayload, PayloadTooLarge at once; MailboxFull, InterceptorUnavailable,
        OutcomeUnknown if it was not delivered.
        """
        engine = self._opened(Closed)
        try:
            outbox, message = engine.sending, engine.checks.checked(topic, payload, from_uuid, to_uuid)
        except InvalidAddress as error:
            if to_uuid is not None and error.value is to_uuid:  # the engine's error names a channel and its to_id
                self._addresses.check_recipient(topic, engine.parse(topic).agent_id, to_uuid)
            raise
        return await outbox.append(*message)

    async def send_messages(self, messages: Sequence[Outgoing]) -> Receipts:
        """Send many messages, the channel of each a topic; one receipt for each, in order. Raises as `send_message`.

        All messages are checked before any is sent.
        """
        engine = self._opened(Closed)
        for message in messages if self._addresses.exp_id is None else ():
            if isinstance(message, Outgoing) and message.channel is None:
                raise InvalidAddress(
                    f"{message!r} names no topic, and this messager no experiment: write "
                    "Outgoing('exps/<exp_id>/agents/<agent id>/<subtopic>', payload), or give the messager an exp_id",
                    value=message,
                )
        return await engine.bulk_sender.send_entries(
            entries_of(messages, engine.checks.address, self.settings.payload_bytes)
        )

    async def flush(self) -> None:
        """Wait until all accepted messages have their receipts."""
        await self._opened(Closed).sending.flush()

    # -- receiving ------------------------------------------------------------------------------------------------

    async def subscribe(self, topics: Wanted | Sequence[Wanted], agents: object) -> None:  # noqa: ARG002 - see below
        """Subscribe to a topic or a filter (with + or #), a pair of one and its QoS, or a sequence of such.

        More can be added later. Args: agents is not used, because the topics name their agents.
        Raises: NotListening, InvalidAddress.
        """
        engine = self._opened(NotListening)
        await engine.subscribe([self._addresses.subscription(topic) for topic in subscriptions_of(topics)])
        self._subscribed.set()

    async def start_listening(self) -> None:
        """Allow fetching; before the first `subscribe` or after it. Raises NotListening."""
        self._opened(NotListening)
        self._listening = True

    async def receive_messages(self) -> None:
        """Listen as `start_listening` does, and return when the messager disconnects: the body of a task."""
        await self.start_listening()
        await self._stopped.wait()

    async def fetch_messages(self, *, limit: int | None = None, timeout: float | None = 0.0) -> Deliveries:
        """Return the messages that have come, at most `limit`; wait up to `timeout` seconds (None: for ever) for one.

        The messages of the last fetch are committed now: if the process dies before, they come again. After a
        disconnect the messages received before it are returned, and nothing more. A fetch without a timeout returns
        nothing before the messager listens and has subscribed.
        Raises: NotListening, Fenced.
        """
        check_timeout(timeout)
        if self._left or (self._engine is None and self._was_connected):
            return self._take_left(limit)
        if timeout == 0 and not (self._listening and self._subscribed.is_set()):
            return await self._nothing_yet()
        engine = self._listening_engine()
        now = asyncio.get_running_loop().time
        began = now()
        try:
            async with asyncio.timeout(timeout):
                await self._subscribed.wait()
        except TimeoutError:
            return self._nothing
        try:
            left_s = None if timeout is None else max(0.0, timeout - (now() - began))
            return Deliveries(await engine.fetcher.fetch(limit, left_s))
        except Closed:  # meanwhile
            return self._take_left(limit)

    async def ack(self) -> None:
        """Commit the fetched messages now."""
        engine = self._listening_engine()
        if self._subscribed.is_set():
            await engine.fetcher.ack()

    async def __aiter__(self) -> AsyncIterator[Delivery]:
        """Iterate over messages as they come, until the messager disconnects.

        Each is committed when the next one is requested.
        """
        engine = self._listening_engine()
        while self._left:
            yield self._take_left(1)[0]
        await self._subscribed.wait()
        with suppress(Closed):
            async for message in engine.fetcher.iterate():
                yield Delivery(message)

    def _listening_engine(self) -> Engine:
        engine = self._opened(NotListening)
        if not self._listening:
            raise NotListening("this messager does not listen: `await messager.start_listening()` first")
        return engine

    async def _nothing_yet(self) -> Deliveries:
        """Return nothing to a caller that polls too early, as AgentSociety's loops may."""
        self._opened(NotListening)
        await asyncio.sleep(0)  # else a loop that only polls blocks all other tasks
        if not self._warned:
            self._warned = True
            missing = "start_listening()" if not self._listening else "subscribe(topics, agents)"
            logger.warning("fetch_messages finds nothing before `await messager.%s`; this is logged once", missing)
        return self._nothing

    @property
    def _nothing(self) -> Deliveries:
        return Deliveries(Messages(self._addresses.namespace, []))

    def _take_left(self, limit: int | None) -> Deliveries:
        taken, self._left = self._left.split(len(self._left) if limit is None else max(0, limit))
        return taken

    # -- the local log --------------------------------------------------------------------------------------------

    def get_log_list(self) -> list[dict[str, Any]]:
        """Return the latest sends as dicts, the oldest first; they stay after a disconnect."""
        return [self._addresses.row(row) for row in self._log.rows()]

    def clear_log_list(self) -> None:
        """Clear the local log."""
        self._log.clear()

    def stats(self) -> dict[str, Any]:
        """Return counters of this connection; without one, of the local log."""
        return {"name": self.name, "log_dropped": self._log.dropped} if self._engine is None else self._engine.stats()
