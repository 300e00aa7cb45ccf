"""One MQTT 5 connection, from CONNECT to its end."""

import asyncio
import ssl
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import paho.mqtt.client as paho
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode
from paho.mqtt.subscribeoptions import SubscribeOptions

from ray_messaging.common.limits import CONNECT_TIMEOUT_S
from ray_messaging.config import MqttConfig
from ray_messaging.errors import Closed
from ray_messaging.mqtt.connection import reasons
from ray_messaging.mqtt.connection.packets import UNLIMITED, Arrival, SessionOptions
from ray_messaging.mqtt.connection.paho_client import PahoClient
from ray_messaging.mqtt.connection.publisher import Publisher
from ray_messaging.mqtt.connection.sockets import BufferedSocket, ReadGate, open_socket

_MAX_TICK_S = 1.0
_MAX_PROBE_INTERVAL_S = 5.0
_CLOSE_TIMEOUT_S = 1.0


class Connection:
    """Connection that is not reused after its end; `closed` gives the error that ended it.

    paho runs on the event loop: it reads, writes and keeps the connection alive only when called from here.
    """

    def __init__(self, config: MqttConfig, options: SessionOptions, on_arrival: Callable[[Arrival], None]) -> None:
        self.config = config
        self.session_present = False
        self.maximum_packet: int | None = None
        self._loop = asyncio.get_running_loop()
        self.closed: asyncio.Future[Exception] = self._loop.create_future()
        self._accepted: asyncio.Future[None] = self._loop.create_future()  # CONNACK has come
        self._options = options
        self._client = self._make_client()
        self.publisher = Publisher(self._client, config)
        self._client.on_puback = self.publisher.confirm
        self.reading = ReadGate(self._readable)
        self._on_arrival = on_arrival
        self._answers: dict[int | None, asyncio.Future[list[ReasonCode]]] = {}  # SUBACK and UNSUBACK, by packet id
        self._socket: BufferedSocket | None = None
        self._fileno = -1
        self._probed_at = 0.0
        self._awaits_write = False
        self._tick: asyncio.TimerHandle | None = None

    def _make_client(self) -> PahoClient:
        client = PahoClient(self._options.client_id)
        client.on_connect = self._on_connect
        client.on_disconnect = self._on_disconnect
        client.on_subscribe = client.on_unsubscribe = self._on_answer
        client.on_message = self._on_message
        client.on_socket_open = self._on_socket_open
        client.on_socket_close = self._on_socket_close
        client.on_socket_register_write = self._on_write_wanted
        if self.config.username is not None:
            client.username_pw_set(self.config.username, self.config.password)
        if self._options.will is not None:
            client.will_set(self._options.will, qos=1, retain=True, properties=self._options.will_properties())
        return client

    async def open(self) -> None:
        """Connect and wait for CONNACK; raise ConnectionFailed within 5 s, ServerRefused or ConfigError at once."""
        config = self.config
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                self._socket = BufferedSocket(await open_socket(config))
                self._client.start(
                    self._socket,
                    config.server,
                    config.port,
                    config.keepalive_s,
                    self._options.connect_properties(),
                    clean_start=not self._options.expiry_s,
                )
                await _first(self._accepted, self.closed)
        except (OSError, UnicodeError) as error:  # includes TimeoutError
            failed = reasons.not_opened(config, error)
            self.drop(failed)
            raise failed from error
        except BaseException:
            self.drop(Closed("the connection attempt was cancelled"))
            raise
        if self.closed.done():
            self.drop(self.closed.result())
        self.check()

    def check(self) -> None:
        """Raise the error that ended the connection, if it has ended."""
        if self.closed.done():
            raise self.closed.result()

    async def subscribe(self, filters: Sequence[str], options: SubscribeOptions) -> list[ReasonCode]:
        """Subscribe; return a code per filter; raise ConnectionFailed without an answer, or if the connection ends."""
        return await self._answer(self._client.subscribe([(filter_, options) for filter_ in filters])[1])

    async def unsubscribe(self, filters: Sequence[str]) -> None:
        """Unsubscribe; raise as `subscribe`."""
        await self._answer(self._client.unsubscribe(list(filters))[1])

    async def _answer(self, packet_id: int | None) -> list[ReasonCode]:
        answer: asyncio.Future[list[ReasonCode]] = self._loop.create_future()
        self._answers[packet_id] = answer
        try:
            with self.reading.awaiting():
                async with asyncio.timeout(self.config.timeout):
                    await _first(answer, self.closed)
            if not answer.done():
                self.check()
            return answer.result()
        except TimeoutError:
            raise reasons.cut(self.config, f"no answer in {self.config.timeout:g} s") from None
        finally:
            self._answers.pop(packet_id, None)

    def drop(self, error: Exception) -> None:
        """Close without DISCONNECT; must not be called from a callback of paho."""
        self._end(error)
        self._client.close_socket()
        if self._socket is not None:
            self._socket.held_open = False
            self._socket.close()

    async def close(self, *, end_session: bool) -> None:
        """Send DISCONNECT, so that no will is published, and close."""
        try:
            if self._socket is not None and not self.closed.done():
                self.publisher.fail(Closed("the link was closed before the broker had confirmed"))
                self._socket.held_open = True
                self._client.disconnect(properties=self._options.disconnect_properties(end_session=end_session))
                await asyncio.wait({self.closed}, timeout=_CLOSE_TIMEOUT_S)  # the broker may have stopped reading
                await self._socket.linger(_CLOSE_TIMEOUT_S)
        finally:
            self.drop(Closed("the link was closed"))

    def _end(self, error: Exception) -> None:
        if self._tick is not None:
            self._tick.cancel()
        if not self.closed.done():
            self.closed.set_result(error)
        self.publisher.fail(self.closed.result())

    # -- callbacks of paho, all on the event loop -----------------------------------------------------------------

    def _on_connect(
        self, _client: object, _data: object, flags: paho.ConnectFlags, code: ReasonCode, properties: Properties | None
    ) -> None:
        if self._accepted.done():
            return
        if code.is_failure:
            self._end(reasons.refused(self.config, code.value, str(code)))
        elif getattr(properties, "MaximumQoS", 1) == 0:
            self._end(reasons.refused(self.config, reasons.Reason.QOS_NOT_SUPPORTED, "it takes nothing but QoS 0"))
        else:
            self.session_present = flags.session_present
            self.maximum_packet = getattr(properties, "MaximumPacketSize", None)
            self._accepted.set_result(None)
            self.publisher.start(getattr(properties, "ReceiveMaximum", UNLIMITED), self.maximum_packet)
            self._keep_alive()

    def _on_disconnect(
        self, _client: object, _data: object, flags: paho.DisconnectFlags, code: ReasonCode, _properties: object
    ) -> None:
        text = str(code)
        if flags.is_disconnect_packet_from_server:
            self._end(reasons.disconnected(self.config, self._options.client_id, code.value, text))
        elif self._accepted.done():
            self._end(reasons.cut(self.config, text))
        else:
            self._end(reasons.unanswered(self.config))

    def _on_answer(
        self, _client: object, _data: object, packet_id: int, codes: list[ReasonCode], _properties: object
    ) -> None:
        answer = self._answers.get(packet_id)
        if answer is not None and not answer.done():
            answer.set_result(codes)

    def _on_message(self, _client: object, _data: object, message: paho.MQTTMessage) -> None:
        arrival = Arrival(
            message.topic,
            bytes(message.payload),
            tuple(getattr(message.properties, "UserProperty", ())),
            qos=message.qos,
            retain=message.retain,
            duplicate=message.dup,
            puback=partial(self._client.ack, message.mid, message.qos),
            over=self.closed.done,
        )
        try:
            self._on_arrival(arrival)
        except Exception as error:
            # Unhandled, it would come again over the next connection. So this ends the link, not only the connection.
            self._end(error)
            raise

    def _on_socket_open(self, _client: object, _data: object, _sock: object) -> None:
        assert self._socket is not None
        self._fileno = self._socket.fileno()
        self.reading.start(self._fileno)

    def _on_socket_close(self, _client: object, _data: object, _sock: object) -> None:
        self.reading.stop()
        self._loop.remove_writer(self._fileno)

    def _on_write_wanted(self, _client: object, _data: object, _sock: object) -> None:
        # One write at the end of this turn of the event loop, for all its publications.
        self._loop.call_soon(self._writable)

    # -- reading, writing, keep-alive -----------------------------------------------------------------------------

    def _readable(self) -> None:
        assert self._socket is not None
        try:
            while self.reading.open and not self.closed.done():
                self._client.loop_read()
                if not self._socket.pending():
                    return
        except Exception as error:  # noqa: BLE001 - any error ends the connection
            self._drop_after(error)

    def _writable(self) -> None:
        if self.closed.done():
            return
        assert self._socket is not None
        try:
            self._socket.flush()
            self._client.loop_write()
        except (BlockingIOError, ssl.SSLWantWriteError, ssl.SSLWantReadError):
            pass  # the kernel's buffer is full: see below
        except Exception as error:  # noqa: BLE001 - as above
            self._drop_after(error)
        if self.closed.done():
            return
        blocked = self._socket.unsent or self._client.want_write()
        if blocked != self._awaits_write:
            self._awaits_write = blocked
            if blocked:
                self._loop.add_writer(self._fileno, self._writable)
            else:
                self._loop.remove_writer(self._fileno)

    def _keep_alive(self) -> None:
        try:
            if not self.reading.open:
                self._probe_unread()
            self._client.loop_misc()
        except Exception as error:  # noqa: BLE001 - as above
            self._drop_after(error)
        if not self.closed.done():
            self._tick = self._loop.call_later(min(_MAX_TICK_S, self._client.keepalive / 4), self._keep_alive)

    def _probe_unread(self) -> None:
        """Check without reading that the broker is alive; raise ConnectionError if it is not."""
        if self.reading.hung_up():
            raise ConnectionError("the broker has closed the connection")
        # A broker that died behind unread data cannot close, but its host resets the connection when we write.
        now = time.monotonic()
        if now - self._probed_at >= min(_MAX_PROBE_INTERVAL_S, self._client.keepalive / 4):
            self._probed_at = now
            self._client.probe()
        self._client.expect_no_answer()

    def _drop_after(self, error: Exception) -> None:
        self.drop(reasons.cut(self.config, f"{type(error).__name__}: {error}"))


async def _first(*futures: asyncio.Future[Any]) -> None:
    await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)
