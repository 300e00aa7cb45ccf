"""A link to one MQTT broker: a connection that is made again whenever it is cut."""

import asyncio
import copy
import logging
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from paho.mqtt.subscribeoptions import SubscribeOptions

from ray_messaging.config import MqttConfig
from ray_messaging.errors import Closed, ConnectionFailed, MessagingError, ServerRefused
from ray_messaging.mqtt.connection import reasons
from ray_messaging.mqtt.connection.connection import Connection
from ray_messaging.mqtt.connection.filters import chunks
from ray_messaging.mqtt.connection.packets import Arrival, UserProperties, Will
from ray_messaging.mqtt.connection.session_properties import Session

__all__ = ["Arrival", "MqttLink", "Will"]

logger = logging.getLogger(__name__)

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 2.0
_UNLIMITED = 65535


class MqttLink:
    """Own the connection of one client id.

    `on_arrival` gets each publication, also while `on_connected` runs; it must not raise: that ends the link.
    `on_connected(session_present)` is awaited after each connect, before those go on who wait for one: subscribe and
    publish again there. `on_lost(error)` is called once, when the link has ended for good by itself.
    """

    def __init__(
        self,
        config: MqttConfig,
        client_id: str,
        *,
        session_expiry_s: int = 0,
        receive_maximum: int = _UNLIMITED,
        on_publication: Callable[[Arrival], None],
        on_connected: Callable[[bool], Awaitable[None]],
        on_lost: Callable[[Exception], None] | None = None,
        will: Will | None = None,
        will_delay_s: int = 0,
    ) -> None:
        """Set up; nothing is connected yet.

        `session_expiry_s`: how long the broker keeps subscriptions and what comes for them after the connection has
        ended; 0 ends the session with the connection. `receive_maximum`: arrivals that may be unacknowledged; Mosquitto
        2.0.11 counts from 0 again after each acknowledgement, so that it bounds no more than the first of a flood.
        """
        self.config = config
        self.client_id = client_id
        self.error: MessagingError | None = None
        self._session = Session(client_id, session_expiry_s, receive_maximum, will, will_delay_s)
        self._on_publication = on_publication
        self._on_connected = on_connected
        self._on_lost = on_lost
        self._connection: Connection | None = None
        self._connected = False
        self._paused = False
        self._changed = asyncio.Event()
        self._supervisor: asyncio.Task[None] | None = None

    @property
    def connected(self) -> bool:
        """Tell whether the broker is there, and `on_connected` is through with it."""
        return self._connected and self._connection is not None and not self._connection.closed.done()

    @property
    def maximum_packet(self) -> int | None:
        """Return the bytes of a packet that the broker takes, as far as it says."""
        return self._connection.maximum_packet if self._connection else None

    @property
    def server_receive_maximum(self) -> int:
        """Return how many of our publications the broker takes at a time."""
        return self._connection.receive_maximum if self._connection else _UNLIMITED

    async def connect(self) -> None:
        """Connect for the first time; raise ConnectionFailed within 5 s, or ServerRefused, ConfigError, Closed at once.

        From then on the connection is made again whenever it is cut, until `close`.
        """
        if self.error is not None:
            raise copy.copy(self.error)
        if self._supervisor is not None:
            return
        await self._open()
        self._supervisor = asyncio.create_task(self._supervise(), name=f"ray_messaging mqtt link {self.client_id}")

    async def wait_connected(self, timeout_s: float) -> None:
        """Return once the link is connected; raise ConnectionFailed when it is not in time, or what ended it."""
        try:
            async with asyncio.timeout(timeout_s):
                while not self.connected:
                    if self.error is not None:
                        raise copy.copy(self.error)
                    await self._changed.wait()
        except TimeoutError:
            raise reasons.unreachable(self.config, f"not connected within {timeout_s:g} s") from None

    def publish(
        self,
        topic: str,
        payload: bytes,
        *,
        qos: int = 1,
        retain: bool = False,
        properties: UserProperties = (),
        expiry_s: int | None = None,
    ) -> "asyncio.Future[int]":
        """Publish, in the order of the calls; the future gives the code of PUBACK (at QoS 0: 0 when written).

        The future raises ConnectionFailed when the connection is cut before the answer: nothing is repeated here.
        A future that is cancelled before its turn is not sent. What waits for its turn is not bounded here.
        `expiry_s`: for how long the broker keeps it for whom it cannot reach, or who has yet to subscribe.

        Raises: ConnectionFailed, or what ended the link, at once when there is no connection (there is one while
        `on_connected` runs); InvalidAddress; PayloadTooLarge where the broker has told its limit.
        """
        return self._there().publishing.add(
            topic, payload, qos=qos, retain=retain, properties=properties, expiry_s=expiry_s
        )

    async def subscribe(
        self, filters: Sequence[str], *, qos: int = 1, no_local: bool = False, retain_handling: int = 0
    ) -> None:
        """Subscribe; `retain_handling`: 0 sends what is retained, 1 only for a new subscription, 2 never.

        Raises: InvalidAddress or ServerRefused for the first filter that is refused (those before it stay);
        ConnectionFailed when the connection is cut, or no answer comes within the config's timeout.
        """
        options = SubscribeOptions(qos=qos, noLocal=no_local, retainHandling=retain_handling)
        for chunk in chunks(filters, self.maximum_packet):
            connection = self._there()
            for filter_, code in zip(chunk, await connection.ask_for(chunk, options), strict=False):
                if code.is_failure:
                    raise reasons.not_subscribed(self.config, filter_, code.value, str(code))

    async def unsubscribe(self, filters: Sequence[str]) -> None:
        """Unsubscribe; raise ConnectionFailed as `subscribe` does."""
        for chunk in chunks(filters, self.maximum_packet):
            connection = self._there()
            await connection.ask_no_more(chunk)

    def pause(self) -> None:
        """Stop reading from the broker, over reconnects too, which TCP makes it feel; the connection is kept alive.

        What was read already may still arrive. No PUBACK is read either, so publications do not go on: who must publish
        meanwhile needs a link of its own for that. While `subscribe` or `unsubscribe` waits for its answer all is read.
        """
        self._paused = True
        if self._connection is not None:
            self._connection.tap.pause()

    def resume(self) -> None:
        """Read on."""
        self._paused = False
        if self._connection is not None:
            self._connection.tap.resume()

    async def close(self, *, end_session: bool = False) -> None:
        """Say farewell to the broker (it publishes no will) and let go; closing twice does no harm.

        `end_session`: the broker forgets the session at once, and all that waits in it.
        """
        connection = await self._let_go()
        if connection is not None:
            await connection.close(end_session=end_session)

    async def abort(self) -> None:
        """Let go without a farewell, as a process that dies does: the broker publishes the will."""
        connection = await self._let_go()
        if connection is not None:
            connection.drop(Closed("the link was aborted"))

    async def _let_go(self) -> Connection | None:
        if self.error is None:
            self.error = Closed(f"the link to the MQTT broker at {reasons.where(self.config)} was closed")
        supervisor, self._supervisor = self._supervisor, None
        if supervisor is not None:
            supervisor.cancel()
            await asyncio.wait({supervisor})
        connection, self._connection = self._connection, None
        self._say(connected=False)
        return connection

    async def _open(self) -> None:
        connection = Connection(self.config, self._session, self._on_publication)
        await connection.open()
        if self.error is not None:  # closed meanwhile
            await connection.close(end_session=False)
            raise copy.copy(self.error)
        self._connection = connection
        try:
            await self._welcome(connection)
        except asyncio.CancelledError:
            if self.error is None:  # else `close` has yet to say farewell
                connection.drop(Closed("connecting was given up"))
            raise
        except Exception as error:
            connection.drop(error)
            raise
        if self._paused:  # not before: what `on_connected` asks for must be answered
            connection.tap.pause()
        self._say(connected=True)

    async def _welcome(self, connection: Connection) -> None:
        """Await `on_connected`, unless the connection is cut before: what it waits for may never come then."""
        welcome = asyncio.ensure_future(self._on_connected(connection.session_present))
        either: set[asyncio.Future[Any]] = {welcome, connection.closed}
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not welcome.done():
                welcome.cancel()
                await asyncio.wait({welcome})
        if not welcome.cancelled():
            welcome.result()
        connection.check()

    async def _supervise(self) -> None:
        """Make the connection again whenever it is cut, until that cannot help."""
        try:
            pause_s = _FIRST_PAUSE_S
            while self._connection is not None:
                since = asyncio.get_running_loop().time()
                closed = self._connection.closed
                await asyncio.wait({closed})
                self._say(connected=False)
                # A broker that cuts us as soon as we are there must not be stormed.
                if asyncio.get_running_loop().time() - since > _LONGEST_PAUSE_S:
                    pause_s = _FIRST_PAUSE_S
                pause_s = await self._reconnect(closed.result(), pause_s)
        except Exception as error:  # noqa: BLE001 - whatever it is, all who wait must hear of it
            self._lose(error)

    async def _reconnect(self, error: Exception, pause_s: float) -> float:
        """Try until it succeeds, with growing pauses; return the next pause, raise what no trying again helps."""
        if not _passes(error):
            raise error
        logger.warning("%s; trying again until it is back", error)
        while True:
            # Jitter, so that a broker that comes back is not met by everybody at once.
            await asyncio.sleep(pause_s * (0.5 + random.random()))  # noqa: S311 - no secret
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
            try:
                await self._open()
            except ConnectionFailed as failed:
                if not _passes(failed):
                    raise
                logger.debug("%s", failed)
            else:
                logger.info("the connection to the MQTT broker at %s is back", reasons.where(self.config))
                return pause_s

    def _lose(self, error: Exception) -> None:
        if isinstance(error, MessagingError):
            self.error = error
        else:
            self.error = Closed(f"the link to the MQTT broker ended by a fault of the program: {error!r}")
            self.error.__cause__ = error
        logger.error("the link %s has ended: %s", self.client_id, self.error, exc_info=self.error.__cause__)
        self._say(connected=False)
        if self._on_lost is not None:
            self._on_lost(self.error)

    def _say(self, *, connected: bool) -> None:
        self._connected = connected
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def _there(self) -> Connection:
        if self.error is not None:
            raise copy.copy(self.error)
        if self._connection is None or self._connection.closed.done():
            raise reasons.cut(self.config, "there is no connection now")
        return self._connection


def _passes(error: Exception) -> bool:
    return isinstance(error, ConnectionFailed) and not isinstance(error, ServerRefused)
