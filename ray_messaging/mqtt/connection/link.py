"""A link to one MQTT broker: a connection that reconnects whenever it is cut."""

import asyncio
import copy
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, Protocol, TypeVar

from paho.mqtt.subscribeoptions import SubscribeOptions

from ray_messaging.common.backoff import MQTT_RECONNECT, Backoff
from ray_messaging.config import MqttConfig
from ray_messaging.errors import Closed, ConnectionFailed, MessagingError, ServerRefused
from ray_messaging.mqtt.connection import reasons
from ray_messaging.mqtt.connection.connection import Connection
from ray_messaging.mqtt.connection.packets import Arrival, SessionOptions
from ray_messaging.mqtt.wire.properties import UserProperties
from ray_messaging.observability.observer import Observer

logger = logging.getLogger(__name__)

T = TypeVar("T")

_FILTERS_PER_PACKET = 200
_BYTES_PER_PACKET = 64 * 1024
_FILTER_BYTES, _HEAD_BYTES = 3, 8  # overhead per filter and per packet


class LinkHandler(Protocol):
    """Receiver of a link's events."""

    def on_arrival(self, arrival: Arrival) -> None:
        """Handle a publication, also while `on_connected` runs; an error raised here ends the link."""

    async def on_connected(self, *, session_present: bool) -> None:
        """Subscribe and publish again after each connect; `wait_connected` returns when this is done."""

    def on_lost(self, error: MessagingError) -> None:
        """Handle the end of the link by itself; called once."""


class MqttLink:
    """Lasting connection of one client id. Nothing is connected before `connect`.

    `options.expiry_s` is how long the broker keeps subscriptions and their messages after the connection has ended.
    `options.receive_maximum` bounds unacknowledged arrivals; Mosquitto 2.0.11 counts from 0 after each acknowledgement,
    so there it bounds only the start of a flood.
    """

    def __init__(self, config: MqttConfig, options: SessionOptions, handler: LinkHandler) -> None:
        self.config = config
        self.error: MessagingError | None = None
        self.observer: Observer | None = None
        self._options = options
        self._handler = handler
        self._connection: Connection | None = None
        self._connected = False
        self._paused = False
        self._changed = asyncio.Event()
        self._supervisor: asyncio.Task[None] | None = None

    @property
    def connected(self) -> bool:
        """Return whether the link is connected and `on_connected` is done."""
        return self._connected and self._connection is not None and not self._connection.closed.done()

    @property
    def maximum_packet(self) -> int | None:
        """Return the broker's limit on the bytes of a packet, if it has announced one."""
        return self._connection.maximum_packet if self._connection else None

    async def connect(self) -> None:
        """Connect for the first time, and reconnect from then on until `close`.

        Raises: ConnectionFailed within 5 s; ServerRefused, ConfigError, Closed at once.
        """
        if self.error is not None:
            raise copy.copy(self.error)
        if self._supervisor is not None:
            return
        await self._open()
        name = f"ray_messaging mqtt link {self._options.client_id}"
        self._supervisor = asyncio.create_task(self._supervise(), name=name)

    async def wait_connected(self, timeout_s: float) -> None:
        """Wait for the connection; raise ConnectionFailed after the timeout, or the error that ended the link."""
        try:
            async with asyncio.timeout(timeout_s):
                while not self.connected:
                    if self.error is not None:
                        raise copy.copy(self.error)
                    await self._changed.wait()
        except TimeoutError:
            raise reasons.unreachable(self.config, f"not connected within {timeout_s:g} s") from None

    async def retry(self, timeout_s: float, call: Callable[[], Awaitable[T]]) -> T:
        """Await a call, again after each cut until the timeout; raise errors that a retry cannot help."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        while True:
            await self.wait_connected(max(0.0, deadline - loop.time()))
            try:
                async with asyncio.timeout_at(deadline):
                    return await call()
            except TimeoutError:
                raise reasons.cut(self.config, f"no answer within {timeout_s:g} s") from None
            except ServerRefused:
                raise
            except ConnectionFailed:
                if loop.time() >= deadline:
                    raise

    def publish(
        self,
        topic: str,
        payload: bytes,
        *,
        retain: bool = False,
        properties: UserProperties = (),
        expiry_s: int | None = None,
    ) -> "asyncio.Future[int]":
        """Publish at QoS 1, in the order of the calls; the future gives the code of PUBACK.

        The future raises ConnectionFailed if the connection is cut before the answer: nothing is repeated here.
        A waiting publication is not sent if its future is cancelled. The number of waiting ones is not bounded.
        `expiry_s` is how long the broker keeps the message for subscribers that it cannot reach yet.

        Raises: ConnectionFailed or the link's final error at once without a connection (there is one while
        `on_connected` runs); PayloadTooLarge if the broker has announced its limit.
        """
        return self._current().publisher.add(topic, payload, retain=retain, properties=properties, expiry_s=expiry_s)

    async def subscribe(self, filters: Sequence[str], *, retain_handling: int = 0) -> None:
        """Subscribe at QoS 1; `retain_handling`: 0 sends retained messages, 1 only for a new subscription, 2 never.

        Raises: InvalidAddress or ServerRefused for the first refused filter (those before it stay subscribed);
        ConnectionFailed if the connection is cut, or without an answer within the config's timeout.
        """
        options = SubscribeOptions(qos=1, retainHandling=retain_handling)
        for packet in _packets(filters, self.maximum_packet):
            for filter_, code in zip(packet, await self._current().subscribe(packet, options), strict=False):
                if code.is_failure:
                    raise reasons.not_subscribed(self.config, filter_, code.value, str(code))

    async def unsubscribe(self, filters: Sequence[str]) -> None:
        """Unsubscribe; raise ConnectionFailed as `subscribe` does."""
        for packet in _packets(filters, self.maximum_packet):
            await self._current().unsubscribe(packet)

    def pause(self, *, paused: bool = True) -> None:
        """Stop reading from the broker, also after a reconnect; TCP slows the broker down. The link stays alive.

        Buffered messages may still arrive. PUBACKs are not read either: to publish meanwhile, use another link. While
        `subscribe` or `unsubscribe` awaits its answer, everything is read.
        """
        self._paused = paused
        if self._connection is not None:
            self._connection.reading.pause(paused=paused)

    def resume(self) -> None:
        """Resume reading."""
        self.pause(paused=False)

    async def close(self, *, end_session: bool = False) -> None:
        """Disconnect cleanly (no will is published); closing twice does no harm.

        With `end_session` the broker drops the session at once, with all messages that wait in it.
        """
        connection = await self._detach()
        if connection is not None:
            await connection.close(end_session=end_session)

    async def abort(self) -> None:
        """Disconnect as a dying process does: the broker publishes the will."""
        connection = await self._detach()
        if connection is not None:
            connection.drop(Closed("the link was aborted"))

    async def _detach(self) -> Connection | None:
        if self.error is None:
            self.error = Closed(f"the link to the MQTT broker at {reasons.where(self.config)} was closed")
        supervisor, self._supervisor = self._supervisor, None
        if supervisor is not None:
            supervisor.cancel()
            await asyncio.wait({supervisor})
        connection, self._connection = self._connection, None
        self._set_connected(connected=False)
        return connection

    async def _open(self) -> None:
        connection = Connection(self.config, self._options, self._handler.on_arrival)
        await connection.open()
        if self.error is not None:  # closed meanwhile
            await connection.close(end_session=False)
            raise copy.copy(self.error)
        self._connection = connection
        try:
            await self._prepare(connection)
        except asyncio.CancelledError:
            if self.error is None:  # else `close` still sends DISCONNECT
                connection.drop(Closed("the connection attempt was cancelled"))
            raise
        except Exception as error:
            connection.drop(error)
            raise
        if self._paused:  # only now, because `on_connected` awaits answers
            connection.reading.pause(paused=True)
        self._set_connected(connected=True)
        if self.observer is not None:
            self.observer.connected(reasons.where(self.config))

    async def _prepare(self, connection: Connection) -> None:
        """Await `on_connected`, unless the connection is cut before: it may never return then."""
        prepared = asyncio.ensure_future(self._handler.on_connected(session_present=connection.session_present))
        either: set[asyncio.Future[Any]] = {prepared, connection.closed}
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not prepared.done():
                prepared.cancel()
                await asyncio.wait({prepared})
        if not prepared.cancelled():
            prepared.result()
        connection.check()

    async def _supervise(self) -> None:
        """Reconnect after each cut, until an error that a reconnect cannot help."""
        backoff, now = Backoff(MQTT_RECONNECT), asyncio.get_running_loop().time
        try:
            while self._connection is not None:
                since = now()
                closed = self._connection.closed
                await asyncio.wait({closed})
                self._set_connected(connected=False)
                # A broker that cuts each new connection at once must not be flooded with attempts.
                if now() - since > MQTT_RECONNECT.longest_s:
                    backoff.reset()
                await self._reconnect(closed.result(), backoff)
        except Exception as error:  # noqa: BLE001 - all waiting calls must get the error
            self._lose(error)

    async def _reconnect(self, error: Exception, backoff: Backoff) -> None:
        """Try until it succeeds; raise an error that is not temporary."""
        if not _is_temporary(error):
            raise error
        logger.warning("%s; trying again until it is back", error)
        while True:
            if self.observer is not None:
                self.observer.retried(reasons.where(self.config), error)
            await backoff.sleep()
            try:
                await self._open()
            except ConnectionFailed as failed:
                if not _is_temporary(failed):
                    raise
                logger.debug("%s", failed)
                error = failed
            else:
                logger.info("the connection to the MQTT broker at %s is back", reasons.where(self.config))
                return

    def _lose(self, error: Exception) -> None:
        if isinstance(error, MessagingError):
            self.error = error
        else:
            self.error = Closed(f"the link to the MQTT broker ended by a fault of the program: {error!r}")
            self.error.__cause__ = error
        logger.error("the link %s has ended: %s", self._options.client_id, self.error, exc_info=self.error.__cause__)
        self._set_connected(connected=False)
        self._handler.on_lost(self.error)

    def _set_connected(self, *, connected: bool) -> None:
        self._connected = connected
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def _current(self) -> Connection:
        if self.error is not None:
            raise copy.copy(self.error)
        if self._connection is None or self._connection.closed.done():
            raise reasons.cut(self.config, "there is no connection now")
        return self._connection


def _is_temporary(error: Exception) -> bool:
    return isinstance(error, ConnectionFailed) and not isinstance(error, ServerRefused)


def _packets(filters: Sequence[str], maximum_packet: int | None) -> Iterator[list[str]]:
    """Yield the filters of each packet, within the broker's limit."""
    limit = min(_BYTES_PER_PACKET, maximum_packet or _BYTES_PER_PACKET) - _HEAD_BYTES
    packet: list[str] = []
    size = 0
    for filter_ in filters:
        cost = _FILTER_BYTES + len(filter_.encode())
        if packet and (len(packet) == _FILTERS_PER_PACKET or size + cost > limit):
            yield packet
            packet, size = [], 0
        packet.append(filter_)
        size += cost
    if packet:
        yield packet
