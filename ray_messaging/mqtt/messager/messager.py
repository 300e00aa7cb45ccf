"""The messager on MQTT, by the names of AgentSociety's earlier Messager and ours."""

from collections.abc import AsyncIterator, Sequence
from types import TracebackType
from typing import Any, Self

from ray_messaging.addressing.channels import AgentId, check_name
from ray_messaging.compat.msg import Payload
from ray_messaging.config import MessagingConfig, MqttConfig
from ray_messaging.errors import Closed, InvalidAddress
from ray_messaging.message import Outgoing
from ray_messaging.mqtt.messager.actor import ActorClass
from ray_messaging.mqtt.messager.addresses import Addresses, wishes_of
from ray_messaging.mqtt.messager.broker import PORT, TIMEOUT_S, broker_config
from ray_messaging.mqtt.messager.deliveries import Deliveries, Delivery
from ray_messaging.mqtt.messager.session import Session
from ray_messaging.receipt import Receipt, Receipts
from ray_messaging.sending.accumulation.bulk_input import entries_of

Wanted = str | tuple[str, int]


class Messager(metaclass=ActorClass):
    """Publish on topics and fetch what comes by those you subscribe to, over an MQTT broker.

    Args: `hostname` is the broker's, its mqtt:// URL, or an MqttConfig (which says all the rest, and TLS).
    `message_interceptor` is `messaging.interceptor`, or any Ray actor that answers `forward(from_uuid, to_uuid, msg) ->
    bool`. `exp_id` joins a running experiment: its interceptor judges what is sent, its event log has it; without it
    the messager talks on topics of any. With a `name` its mailbox outlives this process, and the next messager of that
    name goes on where it stopped; without one it goes when this messager disconnects.
    `Messager.remote(...)` starts it as a Ray actor. In process, call it, then `connect`, `subscribe`, `start_listening`
    and at the end `stop`; `async with` connects and stops.
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
        self.settings = settings or MessagingConfig()
        config = broker_config(hostname, port, username, password, timeout)
        self._addresses = Addresses(exp_id)
        self._session = Session(config, self._addresses, self.name, self.settings)
        self._session.interceptor = message_interceptor

    def __repr__(self) -> str:
        config = self._session.config
        return f"Messager({config.server}:{config.port}, exp_id={self._addresses.exp_id!r}, name={self.name!r})"

    # -- life -----------------------------------------------------------------------------------------------------

    async def connect(self) -> None:
        """Connect; doing so twice does no harm. After a disconnect, subscribe and start listening again, too.

        Raises: ConnectionFailed within 5 s, ServerRefused at once; with exp_id UnknownName where no such experiment
        runs, and ConfigError outside a Ray cluster.
        """
        await self._session.open()

    async def disconnect(self) -> None:
        """Send what was accepted, commit what was fetched, and leave the broker; doing so twice does no harm.

        What has come by then can still be fetched; a mailbox with a name keeps it for the next messager of that name.
        """
        await self._session.close(commit=True)

    async def stop(self) -> None:
        """Stop listening and disconnect; doing so twice does no harm."""
        await self._session.close(commit=True)

    async def __aenter__(self) -> Self:
        await self.connect()
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc_value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        # Who leaves by an exception has not handled its messages: they come again.
        await self._session.close(commit=exc_type is None)

    async def is_connected(self) -> bool:
        """Tell whether it is connected: from `connect` to `disconnect`, unless the broker turned it away for good.

        A cut does not count, as it reconnects by itself and loses nothing: `ping` tells whether the broker answers.
        """
        return self._session.engine is not None and self._session.error is None

    async def ping(self) -> None:
        """Publish `ping` on the topic `ping`, and wait until the broker has it; raise Closed, ConnectionFailed."""
        await self._session.transport.ping()

    @property
    def message_interceptor(self) -> object:
        """Return the interceptor's handle: the one given, else that of the experiment joined; None: nobody is asked."""
        return self._session.interceptor

    def set_message_interceptor(self, message_interceptor: object) -> None:
        """Have messages judged by another interceptor, from the next batch on (None: the experiment's, or nobody)."""
        self._session.interceptor = message_interceptor

    @property
    def step(self) -> int | None:
        """Return the simulation step that is stamped on what is sent."""
        return self._session.step

    @step.setter
    def step(self, step: int | None) -> None:
        self._session.step = step

    # -- sending --------------------------------------------------------------------------------------------------

    async def send_message(
        self, topic: str, payload: Payload, from_uuid: AgentId | None = None, to_uuid: AgentId | None = None
    ) -> Receipt:
        """Send one message and return its receipt; `to_uuid` need not be said on an agent's topic.

        Raises: Closed, InvalidAddress, InvalidPayload, PayloadTooLarge at once; MailboxFull, InterceptorUnavailable,
        OutcomeUnknown when it could not be brought there.
        """
        engine = self._session.opened(Closed)
        try:
            outbox, message = engine.sending, engine.checks.checked(topic, payload, from_uuid, to_uuid)
        except InvalidAddress as error:
            if to_uuid is not None and error.value is to_uuid:  # the engine speaks of a channel and its to_id
                self._addresses.check_recipient(topic, engine.parse(topic).agent_id, to_uuid)
            raise
        return await outbox.append(*message)

    async def send_messages(self, messages: Sequence[Outgoing]) -> Receipts:
        """Send many messages, the channel of each a topic; one receipt for each, in order. Raises as `send_message`.

        Everything is checked before anything is sent.
        """
        engine = self._session.opened(Closed)
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
        """Wait until everything accepted has its receipt."""
        await self._session.opened(Closed).sending.flush()

    # -- receiving ------------------------------------------------------------------------------------------------

    async def subscribe(self, topics: Wanted | Sequence[Wanted], agents: object) -> None:  # noqa: ARG002 - see below
        """Subscribe to a topic or a filter (with + or #), a pair of one and its QoS, or a sequence of such.

        More can be added later. Args: agents are whom the topics are for; the topics say that themselves, so nothing is
        done with them. Raises: NotListening, InvalidAddress.
        """
        await self._session.subscribe(wishes_of(topics))

    async def start_listening(self) -> None:
        """Let what comes be fetched; before the first `subscribe` or after it. Raises NotListening."""
        self._session.listen()

    async def receive_messages(self) -> None:
        """Listen as `start_listening` does, and return when the messager disconnects: the body of a task."""
        await self._session.listen().wait()

    async def fetch_messages(self, *, limit: int | None = None, timeout: float | None = 0.0) -> Deliveries:
        """Return what has arrived, at most `limit`; wait up to `timeout` seconds (None: for ever) for the first.

        What the last fetch returned is committed now: whoever dies with messages in hand gets them again. After a
        disconnect there is what had come by then, and nothing more. Who asks without waiting before it listens, or has
        subscribed, gets nothing.
        Raises: NotListening, Fenced.
        """
        return await self._session.fetch(limit, timeout)

    async def ack(self) -> None:
        """Commit what was fetched, now."""
        await self._session.ack()

    def __aiter__(self) -> AsyncIterator[Delivery]:
        """Iterate over messages as they come, until the messager disconnects.

        Each is committed when the next one is asked for.
        """
        return self._session.iterate()

    # -- the local log --------------------------------------------------------------------------------------------

    def get_log_list(self) -> list[dict[str, Any]]:
        """Return the latest sends as dicts, the oldest first; they stay when the messager disconnects."""
        return [self._addresses.row(row) for row in self._session.log.rows()]

    def clear_log_list(self) -> None:
        """Forget the local log."""
        self._session.log.clear()

    def stats(self) -> dict[str, Any]:
        """Return counters of this connection; without one, of the local log."""
        engine = self._session.engine
        return {"name": self.name, "log_dropped": self._session.log.dropped} if engine is None else engine.stats()
