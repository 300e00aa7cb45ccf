"""The message that a handler of `serve` has in hand: what waits behind it, and what is told of its failure."""

import asyncio
import logging
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

from ray_messaging.addressing.directory import Directory
from ray_messaging.common.task_health import end
from ray_messaging.engine import Engine
from ray_messaging.errors import MessagingError
from ray_messaging.message import Message
from ray_messaging.messages import slice_of
from ray_messaging.model.extension import InHand
from ray_messaging.sending.message_checks import CheckedMessage
from ray_messaging.wire.notes import Ask, ServiceNote, Slot, encode_service_note

logger = logging.getLogger(__name__)

_MOST_TEXT = 1000  # characters of an error's text: it may quote what it could not read
_LONGEST = 100  # of a chain: of a longer one the last ones travel
_STUCK_S = 0.2  # most answers are there before: only of what lasts longer others are told


class HandlerFailure(NamedTuple):
    """The error of a handler: the name of its type, its text, and how often the handler was tried."""

    error: str
    text: str
    attempts: int = 1

    @classmethod
    def of(cls, error: BaseException, attempts: int = 1) -> "HandlerFailure":
        """Build from an error; its text is cut, and half an emoji is quoted, so that it can travel."""
        try:
            text = str(error)[:_MOST_TEXT]
        except Exception as broken:  # noqa: BLE001 - the text is the user's own code
            text = f"its text cannot be made: {type(broken).__name__}"
        return cls(type(error).__name__, text.encode(errors="backslashreplace").decode(), attempts)

    @property
    def reason(self) -> str:
        """Return why the message is a dead letter."""
        times = f" {self.attempts} times" if self.attempts > 1 else ""
        return f"its handler failed{times}: {self.told}"

    @property
    def told(self) -> str:
        """Return the error in one line."""
        return f"{self.error}: {self.text}" if self.text else self.error

    @property
    def payload(self) -> dict[str, Any]:
        """Return what the asker gets in place of an answer."""
        return {"error": self.error, "text": self.text}


class Asker(NamedTuple):
    """A handler that asks: its service, with how many handlers at most, and the chain that ends with the handler."""

    service: str
    slots: int
    chain: tuple[InHand, ...]


class Handling:
    """A message in the hand of a handler, until that has ended.

    Args: `waits` has the handlers of this process that wait; None: the group's actor has.
    """

    __slots__ = ("_message", "_service", "_slots", "over", "waits")

    def __init__(self, message: Message, service: str, slots: int, waits: "Waits | None") -> None:
        self.over = False
        self.waits = waits
        self._message = message
        self._service, self._slots = service, slots

    def asker(self) -> Asker | None:
        """Return the handler as one that asks; None for a message that no mailbox has."""
        batch, row, *_ = slice_of(self._message)
        if batch.origin is None:
            return None
        behind = () if batch.extension is None else batch.extension.behind.get(row, ())
        mine = InHand(
            batch.origin.mailbox, self._message.id, self._message.to_id, 0 if self.waits is None else self._slots
        )
        return Asker(self._service, self._slots, (*behind, mine)[-_LONGEST:])


HANDLING: ContextVar[Handling | None] = ContextVar("ray_messaging handling", default=None)


def handling_here() -> Handling | None:
    """Return the message in the hand of the handler that runs here, or that has started this task."""
    found = HANDLING.get()
    return None if found is None or found.over else found


def asker_here() -> Asker | None:
    """Return the handler that runs here, as one that asks."""
    found = handling_here()
    return None if found is None else found.asker()


def circle_of(chain: tuple[InHand, ...], asked: CheckedMessage, directory: Directory) -> tuple[InHand, ...]:
    """Return the part of a chain that waits for a question which its last handler asks, and for which that waits.

    It is () where a handler is free for the question, or may be: as long as the chain has not all of the service.
    """
    for mailbox in directory.mailboxes_of(asked.to_id, asked.topic):
        mine = [at for at, each in enumerate(chain) if each.mailbox == mailbox and each.slots]
        if mine and len(mine) >= chain[mine[0]].slots:
            return chain[mine[0] :]
    return ()


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
            note, subscription = encode_service_note(self._note()), self._engine.subscription
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
