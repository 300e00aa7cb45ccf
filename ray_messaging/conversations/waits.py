"""The handlers of one mailbox that wait for answers, and the note by which others learn of it."""

import asyncio
import logging
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager

from ray_messaging.common.task_health import end
from ray_messaging.conversations.handling import Asker
from ray_messaging.engine import Engine
from ray_messaging.errors import MessagingError
from ray_messaging.wire.service_notes import Ask, ServiceNote, Slot, encode_note

logger = logging.getLogger(__name__)

_STUCK_S = 0.2  # most answers are there before: only of what lasts longer others are told


class _Service:
    """The handlers of one service that wait: their questions, by the message in hand."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.asks: dict[str, list[Ask]] = {}


class Waits:
    """The handlers that wait for answers, by service.

    While every handler of a mailbox waits, it handles no other message: then a note on the server says for what.
    `others_handle` tells whether a service which is none of some may have a message in hand.
    """

    def __init__(self, engine: Engine) -> None:
        self.others_handle: Callable[[Collection[str]], bool] = lambda _: False
        self.ended = ""  # why the service has ended, while nobody serves
        self._engine = engine
        self._services: dict[str, _Service] = {}
        self._written = b""
        self._changed = asyncio.Event()
        self._writing = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None

    @contextmanager
    def waiting(self, asker: Asker, ask: Ask) -> Iterator[None]:
        """Count a handler among those that wait, for one question."""
        message = asker.chain[-1].message
        service = self._services.setdefault(asker.service, _Service(asker.slots))
        service.asks.setdefault(message, []).append(ask)
        self._note_change()
        try:
            yield
        finally:
            left = service.asks[message]
            left.remove(ask)
            if not left:
                del service.asks[message]
            if not service.asks and self._services.get(asker.service) is service:
                del self._services[asker.service]
            self._note_change()

    def _note_change(self) -> None:
        self._changed.set()
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._keep(), name="ray_messaging waiting handlers")

    def _note(self) -> ServiceNote:
        services = self._services
        stuck = services and all(len(each.asks) >= each.slots for each in services.values())
        if not stuck or self.others_handle(services):
            return ServiceNote(self.ended)
        slots = [Slot(message, tuple(asks)) for each in services.values() for message, asks in each.asks.items()]
        return ServiceNote(self.ended, tuple(slots))

    async def _keep(self) -> None:
        """Keep the note as it should be, while handlers wait."""
        while self._services or self._written:
            await self._changed.wait()
            await asyncio.sleep(_STUCK_S)
            self._changed.clear()
            try:
                await self.write()
            except MessagingError as error:  # the next change tries again
                logger.info("the note on the service of %s could not be written: %s", self._engine.name, error)
            if not self._services:
                return

    async def write(self, *, anew: bool = False) -> None:
        """Write the note as it is now, where the server may have another one; `anew`: it surely may."""
        async with self._writing:
            note, subscription = encode_note(self._note()), self._engine.subscription
            if (note != self._written or anew) and subscription is not None and subscription.epoch is not None:
                await self._engine.transport.set_service(self._engine.name, subscription.epoch, note)
                self._written = note

    async def close(self) -> None:
        """Keep the note no more; one that says that handlers wait is taken away."""
        if self._task is not None:
            await end(self._task)
        self._services = {}
        if self._written and not self._engine.closed:
            try:
                await self.write()
            except MessagingError as error:
                logger.info("the note on the service of %s stays: %s", self._engine.name, error)
