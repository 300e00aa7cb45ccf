"""The connection for everything but our own mailbox: the directory, signals, publications."""

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, TypeVar

from ray_messaging.config import MqttConfig
from ray_messaging.errors import ConnectionFailed, MessagingError, PayloadTooLarge, ServerRefused
from ray_messaging.mqtt.connection import reasons
from ray_messaging.mqtt.connection.link import MqttLink
from ray_messaging.mqtt.connection.packets import Arrival, SessionOptions, printable
from ray_messaging.mqtt.wire.properties import UserProperties
from ray_messaging.mqtt.wire.topics import Topics

logger = logging.getLogger(__name__)

T = TypeVar("T")

# The broker drops our marker after this. Until then the marker tells a later connection whether the broker has kept
# its retained messages.
_MARKER_EXPIRY_S = 86_400


class ControlHandler(Protocol):
    """Receiver of the control link's events."""

    def on_connecting(self) -> None:
        """Prepare for all retained messages, on each connect."""

    async def on_connected(self, *, kept: bool) -> None:
        """Go on after all retained messages have come; `kept`: the broker had kept those of the last connection."""

    def on_lost(self, error: MessagingError) -> None:
        """Handle the end of the link."""

    def on_message(self, kind: str, name: str, payload: bytes) -> None:
        """Handle a message on one of our own topics, by the topic's kind and name."""


class ControlLink:
    """Link with our own topics: retained messages, markers, dead letters. Calls retry for up to `timeout_s`."""

    def __init__(
        self, config: MqttConfig, topics: Topics, exp_id: str, timeout_s: float, handler: ControlHandler
    ) -> None:
        self.topics = topics
        self.timeout_s = timeout_s
        self.connected_at = 0.0
        self.connections = 0
        self._config = config
        self._handler = handler
        self._client = secrets.token_hex(8)
        self._marker_topic = topics.barrier(self._client)
        self._filters: list[str] = []
        self._barriers: dict[bytes, asyncio.Future[None]] = {}
        self._count = 0
        self._marker = b""  # the marker that we retained over the last connection
        self._found = b""  # the retained marker that the broker has sent over this one
        self.link = MqttLink(config, SessionOptions(f"rm-{exp_id}-control-{self._client}"), self)

    # -- connecting -----------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Disconnect."""
        if self.link.connected:
            self.link.publish(self._marker_topic, b"", retain=True)
        await self.link.close()
        self.on_lost(reasons.cut(self._config, "it was closed"))

    async def on_connected(self, *, session_present: bool) -> None:  # noqa: ARG002 - a LinkHandler's
        """Subscribe, and load all retained messages."""
        self._fail(reasons.cut(self._config, "it was replaced by a new one"))
        self.connections += 1
        self.connected_at = asyncio.get_running_loop().time()
        self._found = b""
        self._handler.on_connecting()
        topics = self.topics
        await self.link.subscribe([self._marker_topic, topics.all_entries, topics.all_owners, *self._filters])
        placed = await self._send_marker(retain=True)
        kept = bool(self._marker) and self._found == self._marker
        self._marker = placed
        await self._handler.on_connected(kept=kept)

    async def place_marker(self) -> None:
        """Retain a new marker: a broker that has it later also has everything that it sent us before.

        A broker that was killed may come back with much older data.
        """
        self._marker = b""
        self._marker = await self._send_marker(retain=True)

    def on_lost(self, error: MessagingError) -> None:
        """Fail all waiting calls."""
        self._fail(error)
        self._handler.on_lost(error)

    def _fail(self, error: MessagingError) -> None:
        barriers, self._barriers = self._barriers, {}
        for barrier in barriers.values():
            if not barrier.done():
                barrier.set_exception(error)
                barrier.exception()  # it may have no waiter left

    async def wait_connected(self) -> None:
        """Wait for the connection; raise ConnectionFailed after the timeout."""
        if not self.link.connected:
            await self.link.wait_connected(self.timeout_s)

    async def retry(self, call: Callable[[], Awaitable[T]]) -> T:
        """Await a call, again after each cut until the timeout."""
        return await self.link.retry(self.timeout_s, call)

    # -- receiving ------------------------------------------------------------------------------------------------

    async def subscribe(self, filters: Sequence[str]) -> None:
        """Subscribe, and again after each reconnect."""
        self._filters += [filter_ for filter_ in filters if filter_ not in self._filters]
        await self.retry(lambda: self.link.subscribe(filters))

    async def unsubscribe(self, filters: Sequence[str]) -> None:
        """Unsubscribe."""
        self._filters = [filter_ for filter_ in self._filters if filter_ not in filters]
        await self.retry(lambda: self.link.unsubscribe(filters))

    def on_arrival(self, arrival: Arrival) -> None:
        """Pass a message to the handler; log an error, because a retained message would end each new link."""
        arrival.acknowledge()
        found = self.topics.kind_of(arrival.topic)
        if found is None:
            return
        if found[0] == "barrier":
            self._on_marker(arrival)
            return
        try:
            self._handler.on_message(*found, arrival.payload)
        except Exception:
            logger.exception("a publication on %.200s is ignored: please report this", arrival.topic)

    def _on_marker(self, arrival: Arrival) -> None:
        if arrival.retain:
            self._found = arrival.payload
        barrier = self._barriers.pop(arrival.payload, None)
        if barrier is not None and not barrier.done():
            barrier.set_result(None)

    async def barrier(self) -> None:
        """Wait until all messages have come that the broker had for us before; raise ConnectionFailed after a cut."""
        await self._send_marker(retain=False)

    async def _send_marker(self, *, retain: bool) -> bytes:
        self._count += 1
        payload = b"%d-%d" % (self.connections, self._count)
        passed = self._barriers[payload] = asyncio.get_running_loop().create_future()
        expiry_s = _MARKER_EXPIRY_S if retain else None
        sent = self.link.publish(self._marker_topic, payload, retain=retain, expiry_s=expiry_s)
        try:
            async with asyncio.timeout(self._config.timeout):
                self._check(self._marker_topic, await sent)
                await passed
        except TimeoutError:
            raise reasons.cut(self._config, f"our marker did not come back in {self._config.timeout:g} s") from None
        finally:
            self._barriers.pop(payload, None)
        return payload

    # -- publishing -----------------------------------------------------------------------------------------------

    def try_publish(self, topic: str, payload: bytes) -> "asyncio.Future[int] | None":
        """Publish a message that is repeated anyway if it gets lost; None: there is no connection."""
        try:
            return self.link.publish(topic, payload)
        except MessagingError:
            return None

    async def retain(self, *messages: tuple[str, bytes], expiry_s: int | None = None) -> None:
        """Publish retained messages and wait until they have come back to us, with retries."""

        async def attempt() -> None:
            publish = self.link.publish
            sent = [(topic, publish(topic, payload, retain=True, expiry_s=expiry_s)) for topic, payload in messages]
            for topic, confirmed in sent:
                self._check(topic, await confirmed)
            await self.barrier()

        await self.retry(attempt)

    async def ping(self) -> None:
        """Publish to nobody and await the answer; raise ConnectionFailed at once without a connection."""
        async with asyncio.timeout(self._config.timeout):
            self._check("ping", await self.link.publish("ping", b"ping"))

    async def bury(self, mailbox: str, entry: str, frame: bytes, reason: str, *, row: int = 0) -> None:
        """Publish a frame as a dead letter; its first `row` rows are handled."""
        properties = (("rm-entry", entry), ("rm-row", str(row)), ("rm-reason", printable(reason)))

        async def attempt() -> None:
            self._check(self.topics.dead(mailbox), await self._bury(mailbox, frame, properties))

        await self.retry(attempt)

    def try_bury(self, mailbox: str, payload: bytes, reason: str) -> None:
        """Publish an invalid payload as a dead letter, without a retry."""
        try:
            self._bury(mailbox, payload, (("rm-reason", printable(reason)),))
        except MessagingError as error:
            logger.warning("a publication for mailbox %s that cannot be read is lost: %s", mailbox, error)

    def _bury(self, mailbox: str, payload: bytes, properties: UserProperties) -> "asyncio.Future[int]":
        topic = self.topics.dead(mailbox)
        try:
            return self.link.publish(topic, payload, properties=properties)
        except PayloadTooLarge as error:  # only with these properties: it came without them
            logger.warning("a dead letter of mailbox %s goes without its %d bytes: %s", mailbox, len(payload), error)
            return self.link.publish(topic, b"", properties=(*properties, ("rm-bytes", str(len(payload)))))

    # -- errors ---------------------------------------------------------------------------------------------------

    def _check(self, topic: str, code: int) -> None:
        if code >= reasons.FAILED:
            raise self.refused(topic, code)

    def refused(self, topic: str, code: int) -> ServerRefused:
        """Return the error for a publication that the broker refused."""
        return reasons.not_published(self._config, topic, code)

    def unconfirmed(self, count: int) -> ConnectionFailed:
        """Return the error for publications that the broker did not confirm in time."""
        return reasons.unconfirmed(self._config, count, self.timeout_s)
