"""A client of an MQTT broker that connects again, with the same session, after an interruption.

It uses the public callbacks of the library paho, in this event loop. aiomqtt, which also uses paho, is not enough. If
the connection is interrupted just when a message is sent, paho sends the message over the next connection, but aiomqtt
cannot say whether it did.
"""

import asyncio
import logging
import socket
import ssl
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Final

import aiomqtt
from paho.mqtt.client import MQTT_ERR_NO_CONN, MQTT_ERR_SUCCESS, Client, ConnectFlags, MQTTMessage, MQTTv5
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode
from paho.mqtt.subscribeoptions import SubscribeOptions

from ray_messaging.common.backoff import MQTT_RECONNECT, Backoff
from ray_messaging.common.task_health import end
from ray_messaging.compat.mqtt.mqtt_config import MqttConfig
from ray_messaging.errors import (
    ConnectionFailed,
    Fenced,
    MessagingError,
    OutcomeUnknown,
    PayloadTooLarge,
    ServerRefused,
)

logger = logging.getLogger(__name__)

CONNECT_S: Final = 5.0
FAREWELL_S: Final = 1.0
MISC_S: Final = 1.0  # seconds between two checks of the keepalive
FOR_EVER_S: Final = 0xFFFFFFFF  # MQTT's number for a session that never expires
# Seconds offline after which the broker drops a session that is not `lasting`.
WHILE_AWAY_S: Final = 86_400
# How many messages a client publishes at most before the broker has acknowledged them. In the other direction the
# brokers' default limits are 20 (Mosquitto) and 32 (EMQX).
AT_ONCE: Final = 20
STEADY_S: Final = 5.0  # if a connection ends after fewer seconds, two clients may be using the same name
_SESSION_TAKEN_OVER: Final = 142
# MQTT's codes for: bad user or password, not authorized, banned, bad authentication method.
_REFUSED: Final = {134, 135, 138, 140}


class Connection:
    """One client of the broker. After an interruption it connects again, with backoff, until `close` is called.

    While the client is not connected, its session stays at the broker, where messages for its subscriptions wait.
    Messages that were being published are published when the client is connected again. With QoS 2 each message arrives
    exactly once.

    Args: `identifier` is the client id to which the session belongs. With `lasting` the session outlasts `close`.
    `on_open` is awaited each time that the client has connected, before anything is published. `on_message` is called
    with each message, and must not block. `on_message` returns whether the inbox has space for more messages. When the
    inbox is full, the client disconnects until `room` is set. `on_end` is called if another client has taken over the
    session. Then `ended` has the error, and this client never connects again.
    """

    def __init__(
        self,
        config: MqttConfig,
        identifier: str,
        *,
        lasting: bool,
        on_open: "Callable[[Connection], Awaitable[None]] | None" = None,
        on_message: Callable[[aiomqtt.Message], bool] | None = None,
        on_end: Callable[[], None] = lambda: None,
    ) -> None:
        self.room, self._up = asyncio.Event(), asyncio.Event()
        self.room.set()
        self.ended: MessagingError | None = None
        self._config, self._lasting, self._identifier = config, lasting, identifier
        self._on_open, self._on_message, self._on_end = on_open, on_message, on_end
        self._loop = asyncio.get_running_loop()
        # For each publication or subscription, by the number that paho gives it: the future for which the caller waits.
        self._acks: dict[int, asyncio.Future[Any]] = {}
        # The packet ids of the last received messages. Older ids are dropped, because MQTT reuses its 65,535 ids.
        self._latest: deque[int] = deque(maxlen=5 * AT_ONCE)
        self._accepted: asyncio.Future[ReasonCode] = self._loop.create_future()
        self._cut: asyncio.Future[ReasonCode] = self._loop.create_future()
        self._opened: asyncio.Future[None] = self._loop.create_future()
        self._moved = False  # whether something was acknowledged or received over the present connection
        self._lasted = self._closing = False  # whether the last try to connect succeeded; whether `close` was called
        self._full = False  # whether this client has closed the last connection because the inbox was full
        self._task: asyncio.Task[None] | None = None
        self._client = client = Client(
            CallbackAPIVersion.VERSION2, client_id=identifier, protocol=MQTTv5, reconnect_on_failure=False
        )
        client.connect_timeout = CONNECT_S
        client.max_inflight_messages_set(AT_ONCE)
        if config.username is not None:
            client.username_pw_set(config.username, config.password)
        if config.ssl:
            tls = ssl.create_default_context(cafile=config.ssl_ca_certs)
            if config.ssl_certfile:
                tls.load_cert_chain(config.ssl_certfile, config.ssl_keyfile)
            client.tls_set_context(tls)
        self._listen_to(client)

    def _listen_to(self, client: Client) -> None:
        """Set paho's callbacks. Paho calls `opened` and `has_more` also in the thread that connects."""
        loop = self._loop
        client.on_connect = self._answered
        client.on_disconnect = lambda _c, _u, _flags, code, _p: _settle(self._cut, code)
        client.on_publish = lambda _c, _u, number, code, _p: self._acknowledged(number, code)
        client.on_subscribe = lambda _c, _u, number, codes, _p: self._acknowledged(number, codes)
        client.on_message = self._come

        def opened(_client: Client, _userdata: object, sock: Any) -> None:  # noqa: ANN401 - a socket, of TLS or not
            loop.call_soon_threadsafe(self._watch, sock)

        def closed(_client: Client, _userdata: object, sock: Any) -> None:  # noqa: ANN401 - a socket, of TLS or not
            loop.remove_reader(sock)
            # The next socket may get the same file descriptor, which the loop must not watch for the old socket.
            loop.remove_writer(sock)

        def has_more(_client: Client, _userdata: object, sock: Any) -> None:  # noqa: ANN401 - a socket, of TLS or not
            loop.call_soon_threadsafe(self._write_soon, sock)

        def has_no_more(_client: Client, _userdata: object, sock: Any) -> None:  # noqa: ANN401 - a socket
            loop.remove_writer(sock)

        client.on_socket_open, client.on_socket_close = opened, closed
        client.on_socket_register_write, client.on_socket_unregister_write = has_more, has_no_more

    async def open(self) -> None:
        """Connect; raise ConnectionFailed if the first try fails, ServerRefused if the broker refuses the login."""
        self._task = asyncio.create_task(self._keep(), name="ray_messaging mqtt connection")
        try:
            await asyncio.shield(self._opened)
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Disconnect."""
        if self._task is None:
            return
        self._closing = True
        if self._up.is_set():
            farewell = Properties(PacketTypes.DISCONNECT)
            farewell.SessionExpiryInterval = FOR_EVER_S if self._lasting else 0
            self._client.disconnect(properties=farewell)
            await asyncio.wait([self._cut], timeout=FAREWELL_S)
        await end(self._task)

    async def wait_up(self) -> None:
        """Wait for the connection.

        Raises: ConnectionFailed if there is no connection in time; Fenced if another client has taken over the session.
        """
        timeout_s = self._config.timeout
        try:
            async with asyncio.timeout(timeout_s):
                await self._up.wait()
        except TimeoutError:
            raise self._away(
                f"there was no connection to the broker at {self._where} for {timeout_s:g} s, so nothing was sent: "
                "check that it runs, and check the network to it"
            ) from None
        if self.ended is not None:
            raise self.ended.with_traceback(None)

    async def publish(self, topic: str, payload: bytes) -> None:
        """Publish with QoS 2, even if the connection is interrupted; return when the broker has the message.

        Raises: OutcomeUnknown if the broker does not answer in time; PayloadTooLarge if the payload is above MQTT's
        limit; ConnectionFailed if nothing could be sent; ServerRefused if the broker refuses the message.
        """
        try:
            info = self._client.publish(topic, payload, qos=2)
        except ValueError:  # paho refuses a payload above MQTT's own limit
            limit = 268_435_455 - len(topic.encode()) - 2
            raise PayloadTooLarge(
                f"this payload has {len(payload):,} bytes, and MQTT carries at most {limit:,}: divide the payload",
                size=len(payload),
                limit=limit,
            ) from None
        # Without a connection, paho stores the message, and sends it over the next connection.
        if info.rc not in {MQTT_ERR_SUCCESS, MQTT_ERR_NO_CONN}:
            raise self._away(
                f"the MQTT library paho did not accept the message (code {info.rc!r}), and nothing "
                "was sent: please report this"
            )
        try:
            async with asyncio.timeout(self._config.timeout):
                code: ReasonCode = await self._answer(info.mid)
        except TimeoutError:
            raise OutcomeUnknown(
                f"the broker at {self._where} did not confirm a message on {topic!r} within "
                f"{self._config.timeout:g} s: the message may still arrive, so ask its receiver before you send again"
            ) from None
        if code.is_failure:
            raise self._refused(f"refused a message on {topic!r} ({code}): check the rights of the user there")

    async def subscribe(self, filters: list[str]) -> None:
        """Subscribe with QoS 2. Retained messages are received only for a new subscription.

        Raises: ServerRefused if the broker refuses a filter; ConnectionFailed if the connection is interrupted, or the
        broker does not answer in time.
        """
        if not filters:
            return
        options = SubscribeOptions(qos=2, retainHandling=SubscribeOptions.RETAIN_SEND_IF_NEW_SUB)
        _, number = self._client.subscribe([(each, options) for each in filters])
        answer = asyncio.ensure_future(self._answer(number or 0))
        try:
            ends: list[asyncio.Future[Any]] = [answer, self._cut]
            await asyncio.wait(ends, timeout=self._config.timeout, return_when=asyncio.FIRST_COMPLETED)
            if not answer.done():
                raise self._away(
                    f"the connection to the broker at {self._where} was cut before the broker had confirmed a "
                    f"subscription, or the broker did not answer within {self._config.timeout:g} s: subscribe again"
                )
            codes: list[ReasonCode] = answer.result()
        finally:
            answer.cancel()
        refused = [repr(name) for name, code in zip(filters, codes, strict=True) if code.is_failure]
        if refused:
            raise self._refused(f"does not let this user subscribe to {', '.join(refused)}: check the user's rights")

    async def _answer(self, number: int) -> Any:  # noqa: ANN401 - a code, or a list of them
        answer = self._acks[number] = self._loop.create_future()
        try:
            return await answer
        finally:
            del self._acks[number]

    def _acknowledged(self, number: int, answer: object) -> None:
        """Pass the broker's answer to the call that waits for it. No call waits for a late answer."""
        self._moved = True
        if number in self._acks:
            _settle(self._acks[number], answer)

    # -- the connection -------------------------------------------------------------------------------------------

    @property
    def _where(self) -> str:
        return f"{self._config.server}:{self._config.port}"

    async def _keep(self) -> None:
        backoff = Backoff(MQTT_RECONNECT)
        while True:
            try:
                why = await self._once(backoff)
            except (OSError, MessagingError) as raised:
                error = self._fenced() if self._taken_over() else raised
                if not self._opened.done():
                    self._opened.set_exception(error if isinstance(error, MessagingError) else self._unreachable(error))
                    return
                why = str(error)
            except Exception as error:
                if not self._opened.done():
                    self._opened.set_exception(error)
                raise
            if self._closing:
                return
            if self._taken_over():
                self.ended = self._fenced()
                self._up.set()  # waiting callers wake up, and get the error
                self._on_end()
                return
            if self._full:  # while this client is not connected, messages wait at the broker
                self._full = False
                await self.room.wait()
                continue
            level = logging.WARNING if self._lasted else logging.INFO
            logger.log(level, "no connection to the broker at %s (%s): connecting again", self._where, why)
            self._lasted = False
            await backoff.sleep()

    async def _once(self, backoff: Backoff) -> str:
        """Connect, and stay connected until the connection is interrupted or the inbox is full; return why it ended."""
        self._accepted, self._cut = self._loop.create_future(), self._loop.create_future()
        session = Properties(PacketTypes.CONNECT)
        session.SessionExpiryInterval = FOR_EVER_S if self._lasting else WHILE_AWAY_S
        try:
            await asyncio.to_thread(
                self._client.connect,
                self._config.server,
                self._config.port,
                self._config.keepalive_s,
                clean_start=False,
                properties=session,
            )
            async with asyncio.timeout(CONNECT_S):
                ends: list[asyncio.Future[Any]] = [self._accepted, self._cut]
                await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            if not self._accepted.done() or self._accepted.result().is_failure:
                raise self._refusal()
            if self._on_open is not None:
                await self._on_open(self)
            self._up.set()
            self._lasted = True
            _settle(self._opened, None)
            return await self._stay(backoff)
        finally:
            self._up.clear()
            if not self._cut.done():
                self._client.disconnect()

    async def _stay(self, backoff: Backoff) -> str:
        """Wait until the connection ends, and return why."""
        began, self._moved = self._loop.time(), False
        while not self._cut.done():
            await asyncio.wait([self._cut], timeout=MISC_S)
            self._client.loop_misc()
        code, steady = self._cut.result(), self._loop.time() - began >= STEADY_S
        # The pauses begin anew only after a connection that was steady or was used. Otherwise two clients with the same
        # name would take the session from each other without any pause.
        if steady or self._moved:
            backoff.reset()
        # Some brokers, such as Mosquitto 2.0.11, do not report that another client has taken the session.
        hint = "" if steady else f", after less than {STEADY_S:g} s; is there another client {self._identifier!r}?"
        return f"{code}{hint}"

    def _taken_over(self) -> bool:
        """Return whether the broker has ended the connection because another client has the session."""
        return self._cut.done() and self._cut.result().value == _SESSION_TAKEN_OVER

    def _fenced(self) -> Fenced:
        return Fenced(
            f"another client has connected to the broker at {self._where} as {self._identifier!r}: messages of this "
            "name go to it now. Close this messager, or give each its own name",
            name=self._identifier,
            epoch=0,
        )

    def _answered(
        self, _client: Client, _userdata: object, flags: ConnectFlags, code: ReasonCode, _properties: object
    ) -> None:
        hears = self._on_message is not None
        if hears and self._opened.done() and not code.is_failure and not flags.session_present:
            logger.warning(
                "the broker at %s has lost the session of %r: messages that came for it meanwhile are lost",
                self._where,
                self._identifier,
            )
        _settle(self._accepted, code)

    def _watch(self, sock: socket.socket) -> None:
        """Make this event loop read from a new socket."""
        if sock.fileno() != -1:  # the socket may be closed already
            # The packets of QoS 2 are small, and must not wait until more data are sent.
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._loop.add_reader(sock, self._read, sock)

    def _write_soon(self, sock: socket.socket) -> None:
        if sock.fileno() != -1 and self._client.want_write():  # the socket may be closed already, or all is written
            self._loop.add_writer(sock, self._client.loop_write)

    def _read(self, sock: Any) -> None:  # noqa: ANN401 - a socket, of TLS or not
        self._client.loop_read()
        # TLS may have decoded more bytes than were read. The event loop does not notice such bytes, so they are read
        # now.
        while getattr(sock, "pending", int)() and self._client.socket() is sock:
            self._client.loop_read()

    def _come(self, _client: Client, _userdata: object, message: MQTTMessage) -> None:
        if message.dup and message.mid in self._latest:
            return  # after a restart, Mosquitto 2.0 sends messages again that it has delivered
        self._latest.append(message.mid)
        self._moved = True
        made = aiomqtt.Message(
            message.topic, bytes(message.payload), message.qos, message.retain, message.mid, message.properties
        )
        if self._on_message is not None and not self._on_message(made):
            self.room.clear()
            self._up.clear()
            self._full = True
            if (sock := self._client.socket()) is not None:
                self._loop.remove_reader(sock)
            self._client.disconnect()

    def _refusal(self) -> MessagingError:
        """Build the error for a connection that the broker has refused, has closed, or has not accepted in time."""
        if not self._accepted.done():
            why = self._cut.result() if self._cut.done() else f"no answer within {CONNECT_S:g} s"
            return self._unreachable(why)
        code = self._accepted.result()
        if code.value in _REFUSED:
            return self._refused(f"refused this user ({code}): check username and password")
        return self._unreachable(code)

    def _unreachable(self, why: object) -> ConnectionFailed:
        return self._away(
            f"cannot connect to the MQTT broker at {self._where} ({why}); is it running, does it speak MQTT 5, and is "
            "the port the right one? Nothing was sent"
        )

    def _refused(self, what: str) -> ServerRefused:
        config = self._config
        return ServerRefused(f"the broker at {self._where} {what}", host=config.server, port=config.port)

    def _away(self, text: str) -> ConnectionFailed:
        """Build the error for a call without a connection. While the inbox is full, the error says that, not `text`."""
        if not self.room.is_set():
            text = (
                "the inbox is full, so this messager is not connected until messages are fetched: await "
                "fetch_messages() first"
            )
        return ConnectionFailed(text, host=self._config.server, port=self._config.port)


def _settle(waiting: "asyncio.Future[Any]", result: object) -> None:
    if not waiting.done():
        waiting.set_result(result)
