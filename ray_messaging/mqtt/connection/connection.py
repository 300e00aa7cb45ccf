"""One MQTT 5 connection: aiomqtt's client, with what it hides made visible."""

import asyncio
import ssl
import time
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, TypeVar, cast

import aiomqtt
import paho.mqtt.client as paho
from paho.mqtt.enums import MQTTErrorCode
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode
from paho.mqtt.subscribeoptions import SubscribeOptions

from ray_messaging.common.limits import CONNECT_TIMEOUT_S
from ray_messaging.config import MqttConfig
from ray_messaging.errors import Closed
from ray_messaging.mqtt.connection import reasons
from ray_messaging.mqtt.connection.flow_control import FlowControl
from ray_messaging.mqtt.connection.packets import Arrival
from ray_messaging.mqtt.connection.publishing import Publishing
from ray_messaging.mqtt.connection.session_properties import Session
from ray_messaging.mqtt.connection.sockets import BufferedSocket, open_socket

T = TypeVar("T")

_UNLIMITED = 65535
_MID_BYTES = 2
_LONGEST_TICK_S = 1.0
_LONGEST_DEAFNESS_S = 5.0
_FAREWELL_S = 1.0


class Connection(aiomqtt.Client):
    """Be one connection, from CONNECT until it is cut; nothing of it survives.

    aiomqtt acknowledges what it has not handed out yet, drops or hoards where its queue is full, and shows neither the
    codes of PUBACK and DISCONNECT nor what CONNACK says; its `publish` costs an event and a timer each, its writing two
    wake-ups. So this class takes paho's callbacks into its own hands (hence aiomqtt below 3); what is left to aiomqtt
    is the set-up of paho, SUBSCRIBE and UNSUBSCRIBE. `closed` gives the error that has ended the connection.
    """

    def __init__(self, config: MqttConfig, session: Session, on_arrival: Callable[[Arrival], None]) -> None:
        super().__init__(
            config.server,
            config.port,
            username=config.username,
            password=config.password,
            identifier=session.client_id,
            protocol=aiomqtt.ProtocolVersion.V5,
            will=session.last_will(),
            timeout=config.timeout,
            keepalive=config.keepalive_s,
            clean_start=not session.expiry_s,
            properties=session.wishes(),
        )
        self._client.disable_logger()  # what it logs as an error it also raises, or it ends the connection
        self._client.manual_ack_set(True)
        self._client._handle_pubackcomp = self._on_puback  # type: ignore[method-assign, assignment]
        self.config = config
        self.session = session
        self.session_present = False
        self.receive_maximum = _UNLIMITED
        self.maximum_packet: int | None = None
        self.closed: asyncio.Future[Exception] = self._loop.create_future()
        self.publishing = Publishing(self._client, config)
        self.tap = FlowControl(self._readable)
        self._on_arrival = on_arrival
        self._socket: BufferedSocket | None = None
        self._fileno = -1
        self._felt_at = 0.0
        self._awaits_room = False
        self._tick: asyncio.TimerHandle | None = None

    async def open(self) -> None:
        """Connect and wait for CONNACK; raise ConnectionFailed within 5 s, ServerRefused or ConfigError at once."""
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                self._socket = socket = BufferedSocket(await open_socket(self.config))
                # paho would block, and wait for longer than we may.
                self._client._create_socket = lambda: socket  # type: ignore[method-assign]
                self._client_connect()
                await _first(self._connected, self.closed)
        except (OSError, UnicodeError) as error:  # a TimeoutError among them
            failed = reasons.not_opened(self.config, error)
            self.drop(failed)
            raise failed from error
        except BaseException:
            self.drop(Closed("the connection was given up while it was made"))
            raise
        if self.closed.done():
            self.drop(self.closed.result())
        self.check()

    def check(self) -> None:
        """Raise what has ended the connection, if anything has."""
        if self.closed.done():
            raise self.closed.result()

    async def ask_for(self, filters: Sequence[str], options: SubscribeOptions) -> list[ReasonCode]:
        """Subscribe; return a code for each filter; raise ConnectionFailed without an answer, or what cut us."""
        codes = await self._answered(self.subscribe([(filter_, options) for filter_ in filters]))
        return cast("list[ReasonCode]", codes)  # MQTT 3 would give integers

    async def ask_no_more(self, filters: Sequence[str]) -> None:
        """Unsubscribe; raise as `ask_for`."""
        await self._answered(self.unsubscribe(list(filters)))

    async def _answered(self, call: Coroutine[Any, Any, T]) -> T:
        asking = asyncio.ensure_future(call)
        try:
            with self.tap.awaiting():
                await _first(asking, self.closed)
            if not asking.done():
                self.check()
            return asking.result()
        except aiomqtt.MqttError as error:
            raise reasons.cut(self.config, f"no answer in {self.config.timeout:g} s ({error})") from error
        finally:
            asking.cancel()

    def drop(self, error: Exception) -> None:
        """Cut the connection without a farewell; never call it from within a callback of paho."""
        self._end(error)
        self._client._sock_close()
        if self._socket is not None:
            self._socket.held_open = False
            self._socket.close()

    async def close(self, *, end_session: bool) -> None:
        """Say farewell, so that no will is published, and cut the connection."""
        try:
            if self._socket is not None and not self.closed.done():
                self.publishing.fail(Closed("the link was closed before the broker had confirmed"))
                self._socket.held_open = True
                self._client.disconnect(properties=self.session.farewell(end_session=end_session))
                await asyncio.wait({self.closed}, timeout=_FAREWELL_S)  # a broker may take no more bytes
                await self._socket.linger(_FAREWELL_S)
        finally:
            self.drop(Closed("the link was closed"))

    def _end(self, error: Exception) -> None:
        if self._tick is not None:
            self._tick.cancel()
        if not self.closed.done():
            self.closed.set_result(error)
        self.publishing.fail(self.closed.result())

    # paho's callbacks: all run on the event loop, as does all of paho here

    def _on_connect(
        self,
        _client: paho.Client,
        _userdata: object,
        flags: paho.ConnectFlags,
        reason_code: ReasonCode,
        properties: Properties | None = None,
    ) -> None:
        if self._connected.done():
            return
        if reason_code.is_failure:
            self._end(reasons.refused(self.config, reason_code.value, str(reason_code)))
        elif getattr(properties, "MaximumQoS", 1) == 0:
            self._end(reasons.refused(self.config, reasons.Reason.QOS_NOT_SUPPORTED, "it takes nothing but QoS 0"))
        else:
            self.session_present = flags.session_present
            self.receive_maximum = getattr(properties, "ReceiveMaximum", _UNLIMITED)
            self.maximum_packet = getattr(properties, "MaximumPacketSize", None)
            self._connected.set_result(None)
            self.publishing.start(self.receive_maximum, self.maximum_packet)
            self._keep_alive()

    def _on_disconnect(
        self,
        _client: paho.Client,
        _userdata: object,
        flags: paho.DisconnectFlags,
        reason_code: ReasonCode,
        _properties: Properties | None = None,
    ) -> None:
        text = str(reason_code)
        if flags.is_disconnect_packet_from_server:
            self._end(reasons.disconnected(self.config, self.session.client_id, reason_code.value, text))
        elif self._connected.done():
            self._end(reasons.cut(self.config, text))
        else:
            self._end(reasons.unanswered(self.config))

    def _on_publish(
        self, _client: paho.Client, _userdata: object, mid: int, _reason_code: ReasonCode, _properties: Properties
    ) -> None:
        self.publishing.confirm(mid, reasons.Reason.SUCCESS)  # QoS 0: it is written

    def _on_puback(self, _command: str) -> MQTTErrorCode:
        packet = self._client._in_packet["packet"]
        if len(packet) < _MID_BYTES:
            return MQTTErrorCode.MQTT_ERR_PROTOCOL
        code = packet[_MID_BYTES] if len(packet) > _MID_BYTES else reasons.Reason.SUCCESS
        self.publishing.confirm(int.from_bytes(packet[:_MID_BYTES], "big"), code)
        return MQTTErrorCode.MQTT_ERR_SUCCESS

    def _on_message(self, _client: paho.Client, _userdata: object, message: paho.MQTTMessage) -> None:
        arrival = Arrival(
            message.topic,
            bytes(message.payload),
            tuple(getattr(message.properties, "UserProperty", ())),
            qos=message.qos,
            retain=message.retain,
            duplicate=message.dup,
            acknowledge=partial(self._client.ack, message.mid, message.qos),
            over=self.closed.done,
        )
        try:
            self._on_arrival(arrival)
        except Exception as error:
            # Nobody has it, and it would come again over the next connection: this ends the link, not an outage.
            self._end(error)
            raise

    def _on_socket_open(self, _client: paho.Client, _userdata: object, _sock: object) -> None:
        assert self._socket is not None
        self._fileno = self._socket.fileno()
        self.tap.begin(self._fileno)

    def _on_socket_close(self, _client: paho.Client, _userdata: object, _sock: object) -> None:
        self.tap.end()
        self._loop.remove_writer(self._fileno)

    def _on_socket_register_write(self, _client: paho.Client, _userdata: object, _sock: object) -> None:
        # What one turn of the event loop publishes is written at its end.
        self._loop.call_soon(self._writable)

    def _on_socket_unregister_write(self, _client: paho.Client, _userdata: object, _sock: object) -> None:
        """Leave it to `_writable`, which also knows what the socket holds back."""

    def _readable(self) -> None:
        assert self._socket is not None
        try:
            while self.tap.open and not self.closed.done():
                self._client.loop_read()
                if not self._socket.pending():
                    return
        except Exception as error:  # noqa: BLE001 - whatever it is, it has ended the connection
            self.drop(reasons.cut(self.config, f"{type(error).__name__}: {error}"))

    def _writable(self) -> None:
        if self.closed.done():
            return
        assert self._socket is not None
        try:
            self._socket.flush()
            self._client.loop_write()
        except (BlockingIOError, ssl.SSLWantWriteError, ssl.SSLWantReadError):
            pass  # no room: below
        except Exception as error:  # noqa: BLE001 - as above
            self.drop(reasons.cut(self.config, f"{type(error).__name__}: {error}"))
        if self.closed.done():
            return
        blocked = self._socket.unsent or self._client.want_write()
        if blocked != self._awaits_room:
            self._awaits_room = blocked
            if blocked:
                self._loop.add_writer(self._fileno, self._writable)
            else:
                self._loop.remove_writer(self._fileno)

    def _keep_alive(self) -> None:
        try:
            if not self.tap.open:
                self._feel()
            self._client.loop_misc()
        except Exception as error:  # noqa: BLE001 - as above
            self.drop(reasons.cut(self.config, f"{type(error).__name__}: {error}"))
        if not self.closed.done():
            self._tick = self._loop.call_later(min(_LONGEST_TICK_S, self._client.keepalive / 4), self._keep_alive)

    def _feel(self) -> None:
        """Find out without reading whether the broker is there; raise ConnectionError where it is not."""
        if self.tap.hung_up():
            raise ConnectionError("the broker has hung up")
        # One that died behind what we do not read cannot hang up, but its host resets what is written to it.
        now = time.monotonic()
        if now - self._felt_at >= min(_LONGEST_DEAFNESS_S, self._client.keepalive / 4):
            self._felt_at = now
            self._client._send_pingreq()
        self._client._ping_t = 0.0  # the answer lies unread
        self._client._last_bytes_received = now


async def _first(*futures: asyncio.Future[Any]) -> None:
    await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)
