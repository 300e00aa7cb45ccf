"""The connection on which all but our own mailbox goes: the directory, signals, whatever we publish."""

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from ray_messaging.config import MqttConfig
from ray_messaging.errors import ConnectionFailed, MessagingError, PayloadTooLarge, ServerRefused
from ray_messaging.mqtt.connection import reasons
from ray_messaging.mqtt.connection.packets import Arrival, UserProperties, as_reason
from ray_messaging.mqtt.connection.reasons import Reason
from ray_messaging.mqtt.connection.reconnecting import MqttLink
from ray_messaging.mqtt.wire.topics import Topics

logger = logging.getLogger(__name__)

T = TypeVar("T")

# The broker drops our marker after this: it tells later connections whether the broker has kept what it retained.
_MARKER_S = 86_400

Handler = Callable[[str, bytes, bool], None]


class Control:
    """Keep one connection, and what must be said first whenever it is there again.

    `handlers` take what comes, by the kind of its topic: name, payload, and whether it was retained. `began` is called
    on each connect before the broker is asked, `ended` when it has told all (True: it had kept what it retained).
    """

    def __init__(self, config: MqttConfig, topics: Topics, exp_id: str, patience_s: float) -> None:
        self.topics = topics
        self.patience_s = patience_s
        self.connected_at = 0.0
        self.connections = 0
        self.handlers: dict[str, Handler] = {}
        self.began: Callable[[], None] = _nothing
        self.ended: Callable[[bool], Awaitable[None]] = _nothing_more
        self.lost: Callable[[Exception], None] = _ignore
        self._config = config
        self._client = secrets.token_hex(8)
        self._filters: list[str] = []
        self._barriers: dict[bytes, asyncio.Future[None]] = {}
        self._count = 0
        self._marker = b""  # the retained one of the last connection over which the broker told all
        self._found = b""  # and the one that it had now
        self.link = MqttLink(
            config,
            f"rm-{exp_id}-control-{self._client}",
            on_publication=self._arrived,
            on_connected=self._welcome,
            on_lost=self._end,
        )

    # -- life -----------------------------------------------------------------------------------------------------

    async def connect(self) -> None:
        """Connect and learn what the broker retains; raise ConnectionFailed, ServerRefused at once.

        A broker that is not there is told within 5 s; one that falls silent then, within the config's timeout.
        """
        await self.link.connect()

    async def close(self) -> None:
        """Let the connection go."""
        if self.link.connected:
            self.link.publish(self.topics.barrier(self._client), b"", retain=True)
        await self.link.close()
        self._end(reasons.cut(self._config, "it was closed"))

    async def _welcome(self, _session_present: bool) -> None:  # noqa: FBT001 - a link's callback
        self._fail(reasons.cut(self._config, "it was made anew"))
        self.connections += 1
        self.connected_at = asyncio.get_running_loop().time()
        self._found = b""
        self.began()
        marker = self.topics.barrier(self._client)
        await self.link.subscribe([marker, self.topics.all_cards, self.topics.all_owners, *self._filters])
        placed = await self._mark(retain=True)
        kept = bool(self._marker) and self._found == self._marker
        self._marker = placed
        await self.ended(kept)

    async def place_marker(self) -> None:
        """Place our marker anew: a broker that has this one later has all that it told us before.

        One that was killed may come back with what it had long ago.
        """
        self._marker = b""
        self._marker = await self._mark(retain=True)

    def _end(self, error: Exception) -> None:
        self._fail(error)
        self.lost(error)

    def _fail(self, error: Exception) -> None:
        barriers, self._barriers = self._barriers, {}
        for barrier in barriers.values():
            if not barrier.done():
                barrier.set_exception(error)
                barrier.exception()  # nobody may wait for it any more

    # -- listening ------------------------------------------------------------------------------------------------

    async def listen(self, filters: Sequence[str]) -> None:
        """Subscribe, and again after each reconnect."""
        self._filters += [filter_ for filter_ in filters if filter_ not in self._filters]
        await self.insist(lambda: self.link.subscribe(filters))

    async def unlisten(self, filters: Sequence[str]) -> None:
        """Subscribe no more."""
        self._filters = [filter_ for filter_ in self._filters if filter_ not in filters]
        await self.insist(lambda: self.link.unsubscribe(filters))

    def _arrived(self, arrival: Arrival) -> None:
        arrival.acknowledge()
        found = self.topics.kind_of(arrival.topic)
        if found is None:
            return
        kind, name = found
        if kind == "barrier":
            self._pass(arrival)
        elif kind in self.handlers:
            try:
                self.handlers[kind](name, arrival.payload, arrival.retain)
            except Exception:  # anybody may publish here, and what is retained would end each link that comes
                logger.exception("a publication on %.200s is passed over: please report this", arrival.topic)

    def _pass(self, arrival: Arrival) -> None:
        if arrival.retain:
            self._found = arrival.payload
        barrier = self._barriers.pop(arrival.payload, None)
        if barrier is not None and not barrier.done():
            barrier.set_result(None)

    # -- publishing -----------------------------------------------------------------------------------------------

    async def ready(self) -> None:
        """Wait for the connection; raise ConnectionFailed in the end."""
        if not self.link.connected:
            await self.link.wait_connected(self.patience_s)

    async def insist(self, call: Callable[[], Awaitable[T]]) -> T:
        """Call, and call again while the connection is cut."""
        return await insist(self.link, self.patience_s, call)

    async def barrier(self) -> None:
        """Return when all has come that the broker had for us before; raise ConnectionFailed when we are cut."""
        await self._mark(retain=False)

    async def _mark(self, *, retain: bool) -> bytes:
        self._count += 1
        payload = b"%d-%d" % (self.connections, self._count)
        passed = self._barriers[payload] = asyncio.get_running_loop().create_future()
        marker = self.topics.barrier(self._client)
        sent = self.link.publish(marker, payload, retain=retain, expiry_s=_MARKER_S if retain else None)
        try:
            async with asyncio.timeout(self._config.timeout):
                self._check(marker, await sent)
                await passed
        except TimeoutError:
            raise reasons.cut(self._config, f"our marker did not come back in {self._config.timeout:g} s") from None
        finally:
            self._barriers.pop(payload, None)
        return payload

    def _check(self, topic: str, code: int) -> None:
        if code >= reasons.FAILED:
            raise self.refused(topic, code)

    def refused(self, topic: str, code: int) -> ServerRefused:
        """Build the error for a publication that the broker refuses."""
        why = "not authorized" if code == Reason.NOT_AUTHORIZED else "refused"
        return ServerRefused(
            f"the MQTT broker at {reasons.where(self._config)} took no publication on {topic!r} from user "
            f"{self._config.username!r}: {why} (0x{code:02X}); let that user publish and subscribe below "
            "ray_messaging/ and on the topics it uses",
            host=self._config.server,
            port=self._config.port,
        )

    def silent(self, count: int) -> ConnectionFailed:
        """Build the error for publications that the broker did not confirm in time."""
        return ConnectionFailed(
            f"the MQTT broker at {reasons.where(self._config)} did not confirm {count} frames within "
            f"{self.patience_s:g} s: check that it runs",
            host=self._config.server,
            port=self._config.port,
        )

    async def say(self, *retained: tuple[str, bytes], expiry_s: int | None = None) -> None:
        """Publish what the broker is to retain, and return when it has come round; raise ConnectionFailed."""
        publish = self.link.publish
        sent = [(topic, publish(topic, payload, retain=True, expiry_s=expiry_s)) for topic, payload in retained]
        for topic, confirmed in sent:
            self._check(topic, await confirmed)
        await self.barrier()

    async def insist_say(self, *retained: tuple[str, bytes], expiry_s: int | None = None) -> None:
        """Say it, again and again while the connection is cut."""
        await self.insist(lambda: self.say(*retained, expiry_s=expiry_s))

    def signal(self, topic: str, payload: bytes) -> "asyncio.Future[int] | None":
        """Publish what is said again anyway if it gets lost; None: there is no connection."""
        try:
            return self.link.publish(topic, payload)
        except MessagingError:
            return None

    async def ping(self) -> None:
        """Publish to nobody, and wait for the answer; raise ConnectionFailed at once where there is no broker."""
        async with asyncio.timeout(self._config.timeout):
            self._check("ping", await self.link.publish("ping", b"ping"))

    async def bury(self, mailbox: str, entry: str, frame: bytes, reason: str, *, row: int = 0) -> None:
        """Publish a dead letter; its first `row` rows are handled."""
        told = (("rm-entry", entry), ("rm-row", str(row)), ("rm-reason", as_reason(reason)))

        async def attempt() -> None:
            self._check(self.topics.dead(mailbox), await self._bury(mailbox, frame, told))

        await self.insist(attempt)

    def bury_soon(self, mailbox: str, payload: bytes, reason: str) -> None:
        """Publish what is no frame, if that goes now."""
        try:
            self._bury(mailbox, payload, (("rm-reason", as_reason(reason)),))
        except MessagingError as error:
            logger.warning("a publication for mailbox %s that cannot be read is lost: %s", mailbox, error)

    def _bury(self, mailbox: str, payload: bytes, told: UserProperties) -> "asyncio.Future[int]":
        topic = self.topics.dead(mailbox)
        try:
            return self.link.publish(topic, payload, properties=told)
        except PayloadTooLarge as error:  # with what we tell of it; it came without
            logger.warning("a dead letter of mailbox %s goes without its %d bytes: %s", mailbox, len(payload), error)
            return self.link.publish(topic, b"", properties=(*told, ("rm-bytes", str(len(payload)))))

    def publish(
        self, topic: str, payload: bytes, properties: UserProperties = (), expiry_s: int | None = None
    ) -> "asyncio.Future[int]":
        """Publish as the link does."""
        return self.link.publish(topic, payload, properties=properties, expiry_s=expiry_s)


async def insist(link: MqttLink, patience_s: float, call: Callable[[], Awaitable[T]]) -> T:
    """Call, and call again while a link is cut, up to our patience; raise what no trying helps."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + patience_s
    while True:
        await link.wait_connected(max(0.0, deadline - loop.time()))
        try:
            async with asyncio.timeout_at(deadline):
                return await call()
        except TimeoutError:
            raise reasons.cut(link.config, f"no answer within {patience_s:g} s") from None
        except ServerRefused:
            raise
        except ConnectionFailed:
            if loop.time() >= deadline:
                raise


def _nothing() -> None:
    pass


async def _nothing_more(_kept: bool) -> None:  # noqa: FBT001 - a callback
    pass


def _ignore(_error: Exception) -> None:
    pass
