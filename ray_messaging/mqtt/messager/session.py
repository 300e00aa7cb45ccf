"""What is between a connect and a disconnect: an engine, and whether anybody listens."""

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, cast

from ray_messaging.config import MessagingConfig, MqttConfig
from ray_messaging.engine import Engine, check_step
from ray_messaging.errors import Closed, MessagingError, NotListening
from ray_messaging.message import Messages
from ray_messaging.mqtt.messager.addresses import Addresses
from ray_messaging.mqtt.messager.deliveries import Deliveries, Delivery
from ray_messaging.mqtt.messager.experiment import NOBODY, join, make_judge
from ray_messaging.sending.local_log import LocalLog
from ray_messaging.transports.backend import open_mqtt

if TYPE_CHECKING:
    from ray_messaging.mqtt.transport import MqttTransport

logger = logging.getLogger(__name__)


class Session:
    """Connect and disconnect as often as wanted; each time with an engine of its own, while the log goes on."""

    def __init__(self, config: MqttConfig, addresses: Addresses, name: str | None, settings: MessagingConfig) -> None:
        self.config = config
        self.addresses = addresses
        self.log = LocalLog(addresses.namespace, settings.log_list_messages, settings.log_list_bytes)
        self.engine: Engine | None = None
        self._name = name
        self._settings = settings
        self._step: int | None = None
        self._interceptor: object = None
        self._joined = NOBODY
        self._changing = asyncio.Lock()
        self._was_open = False
        self._warned = False
        self._listening = False
        self._subscribed = asyncio.Event()
        self._stopped = asyncio.Event()
        self._left = self._nothing

    # -- life -----------------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Connect, unless that is done; raise what `Messager.connect` does."""
        exp_id = self.addresses.exp_id
        async with self._changing:
            if self.engine is not None and self.error is None:
                return
            await self._leave(commit=False)
            self._joined = NOBODY if exp_id is None else await join(exp_id, self._settings)
            engine = Engine(
                open_mqtt(self.config, self.addresses.namespace, self._settings, log=self._joined.log),
                self.interceptor,
                name=self._name,
                settings=self._settings,
                parse=self.addresses.parse,
                make_verdict_client=partial(make_judge, settings=self._settings, exp_id=exp_id),
            )
            engine.log, engine.step = self.log, self._step
            try:
                await engine.open()
            except BaseException:
                await engine.close()
                raise
            self.engine, self._was_open = engine, True
            # Those of the last time may belong to another event loop.
            self._subscribed, self._stopped = asyncio.Event(), asyncio.Event()

    async def close(self, *, commit: bool) -> None:
        """Disconnect; twice does no harm."""
        async with self._changing:
            await self._leave(commit=commit)

    async def _leave(self, *, commit: bool) -> None:
        engine, self.engine = self.engine, None
        if engine is None:
            return
        room = self._settings.inbox_messages - len(self._left)
        if commit and self._name is None and self._listening and self._subscribed.is_set() and room > 0:
            # Its mailbox goes with it: who fetches later still gets what is here.
            with suppress(MessagingError):  # of a mailbox that was lost nothing more can be had
                taken = await engine.receiving.take(room, 0.0)
                engine.receiving.commits.hand(taken.low, taken.high)
                self._left = Deliveries(Messages(engine.exp_id, [*self._left.messages.slices, *taken.slices]))
        self._listening = False
        self._subscribed.set()
        self._stopped.set()
        await engine.close(commit=commit)

    @property
    def transport(self) -> "MqttTransport":
        """Return the transport; raise Closed."""
        return cast("MqttTransport", self.opened(Closed).transport)

    @property
    def error(self) -> Exception | None:
        """Return why the connection ended for good, if it did."""
        return None if self.engine is None else self.transport.error

    def opened(self, kind: type[MessagingError]) -> Engine:
        """Return the engine; raise an error of this kind where there is none."""
        if self.engine is None:
            again = " again" if self._was_open else ""
            raise kind(f"this messager is not connected: `await messager.connect()`{again} first")
        return self.engine

    # -- the interceptor, the step --------------------------------------------------------------------------------

    @property
    def interceptor(self) -> object:
        """Return the interceptor: the one given, else that of the experiment joined; None: nobody is asked."""
        return self._joined.interceptor if self._interceptor is None else self._interceptor

    @interceptor.setter
    def interceptor(self, interceptor: object) -> None:
        before, self._interceptor = self._interceptor, interceptor
        try:
            if self.engine is not None:
                self.engine.interceptor = self.interceptor
            elif interceptor is not None:
                make_judge(interceptor, self._settings, self.addresses.exp_id)
        except BaseException:
            self._interceptor = before
            raise

    @property
    def step(self) -> int | None:
        """Return the simulation step that is stamped on what is sent."""
        return self._step

    @step.setter
    def step(self, step: int | None) -> None:
        self._step = check_step(step)
        if self.engine is not None:
            self.engine.step = self._step

    # -- receiving ------------------------------------------------------------------------------------------------

    async def subscribe(self, topics: Sequence[object]) -> None:
        """Subscribe to topics, filters, and pairs of one and its QoS; raise NotListening, InvalidAddress."""
        engine = self.opened(NotListening)
        await engine.subscribe([self.addresses.wish(topic) for topic in topics])
        self._subscribed.set()

    def listen(self) -> asyncio.Event:
        """Let what comes be fetched; return what is set at the end. Raises NotListening."""
        self.opened(NotListening)
        self._listening = True
        return self._stopped

    def _heard(self) -> Engine:
        engine = self.opened(NotListening)
        if not self._listening:
            raise NotListening("this messager does not listen: `await messager.start_listening()` first")
        return engine

    async def fetch(self, limit: int | None, timeout: float | None) -> Deliveries:
        """Return what has come; wait for the first, and before it for the first subscription."""
        if self._left or (self.engine is None and self._was_open):
            return self._take_left(limit)
        if timeout == 0 and not (self._listening and self._subscribed.is_set()):
            return await self._nothing_yet()
        engine = self._heard()
        now = asyncio.get_running_loop().time
        began = now()
        try:
            async with asyncio.timeout(timeout):
                await self._subscribed.wait()
        except TimeoutError:
            return self._nothing
        try:
            left_s = None if timeout is None else max(0.0, timeout - (now() - began))
            return Deliveries(await engine.receiving.fetch(limit, left_s))
        except Closed:  # meanwhile
            return self._take_left(limit)

    async def _nothing_yet(self) -> Deliveries:
        """Return nothing to who polls too early, as AgentSociety's loops may."""
        self.opened(NotListening)
        await asyncio.sleep(0)  # else a loop that only polls keeps everybody else from running
        if not self._warned:
            self._warned = True
            missing = "start_listening()" if not self._listening else "subscribe(topics, agents)"
            logger.warning("fetch_messages finds nothing before `await messager.%s`; this is said once only", missing)
        return self._nothing

    async def iterate(self) -> AsyncIterator[Delivery]:
        """Hand out message by message, until the end."""
        engine = self._heard()
        while self._left:
            yield self._take_left(1)[0]
        await self._subscribed.wait()
        with suppress(Closed):
            async for message in engine.receiving.iterate():
                yield Delivery(message)

    async def ack(self) -> None:
        """Commit what was handed out."""
        engine = self._heard()
        if self._subscribed.is_set():
            await engine.receiving.ack()

    @property
    def _nothing(self) -> Deliveries:
        return Deliveries(Messages(self.addresses.namespace, []))

    def _take_left(self, limit: int | None) -> Deliveries:
        taken, self._left = self._left.split(len(self._left) if limit is None else max(0, limit))
        return taken
