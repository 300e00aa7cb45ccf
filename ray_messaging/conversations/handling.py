"""The messages that handlers of `serve` are handling, which handlers wait, and how askers learn of failures."""

import asyncio
import logging
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from ray_messaging.addressing.directory import Directory
from ray_messaging.common.task_health import end
from ray_messaging.errors import MessagingError
from ray_messaging.message import Handled, Message, handled_here
from ray_messaging.messager_engine import Engine
from ray_messaging.messages import slice_of
from ray_messaging.model.extension import InHand
from ray_messaging.sending.message_checks import CheckedMessage
from ray_messaging.wire.notes import Ask, ServiceNote, Slot, encode_service_note

logger = logging.getLogger(__name__)

# An error's text is cut to this many characters, because it may quote all the data that could not be read.
_MOST_TEXT = 1000
_LONGEST = 100  # a question carries at most this many messages, the last ones of its chain (see `Asker`)
# Seconds until handlers that wait are noted on the server. Most answers arrive sooner, and then no note is written.
_STUCK_S = 0.2


class HandlerFailure(NamedTuple):
    """The error of a handler: the name of its type, its text, and how often the handler was tried."""

    error: str
    text: str
    attempts: int = 1

    @classmethod
    def of(cls, error: BaseException, attempts: int = 1) -> "HandlerFailure":
        """Build the failure from an error.

        The error's text is cut, and lone surrogates are escaped, so that the text can be sent.
        """
        try:
            text = str(error)[:_MOST_TEXT]
        except Exception as broken:  # noqa: BLE001 - str() runs the user's own code
            text = f"its text is unknown, because str() of it raised {type(broken).__name__}"
        return cls(type(error).__name__, text.encode(errors="backslashreplace").decode(), attempts)

    @property
    def reason(self) -> str:
        """Return the reason why the message becomes a dead letter."""
        times = f" {self.attempts} times" if self.attempts > 1 else ""
        return f"its handler failed{times}: {self.told}"

    @property
    def told(self) -> str:
        """Return the error's class and text, as people read it."""
        return f"{self.error}: {self.text}" if self.text else self.error

    @property
    def payload(self) -> dict[str, Any]:
        """Return the payload that the asker gets instead of an answer: the error's type name and its text."""
        return {"error": self.error, "text": self.text}


class Asker(NamedTuple):
    """A handler that asks a question.

    The handler belongs to `service`, which runs at most `slots` handlers at the same time. `chain` has the messages
    whose handlers wait for the answer. The handler of each message has asked the next message in the chain as a
    question. The last message is the one that this handler handles.
    """

    service: str
    slots: int
    chain: tuple[InHand, ...]


class Handling(Handled):
    """A message that a handler of `serve` is handling, until the handler has ended.

    Args: `waits` records which handlers of this process wait for answers. It is None if this process does not keep this
    record, because the group's actor keeps it.
    """

    __slots__ = ("_service", "_slots", "waits")

    def __init__(self, message: Message, service: str, slots: int, waits: "Waits | None") -> None:
        super().__init__(message)
        self.waits = waits
        self._service, self._slots = service, slots

    def asker(self) -> Asker | None:
        """Return this handler as an Asker, or None if the handler's message came from no mailbox."""
        batch, row, *_ = slice_of(self.message)
        if batch.origin is None:
            return None
        behind = () if batch.extension is None else batch.extension.behind.get(row, ())
        mine = InHand(
            batch.origin.mailbox, self.message.id, self.message.to_id, 0 if self.waits is None else self._slots
        )
        return Asker(self._service, self._slots, (*behind, mine)[-_LONGEST:])


def handling_here() -> Handling | None:
    """Return the message whose handler runs this code, or has started this task; None if there is no such handler."""
    found = handled_here()
    while found is not None and not isinstance(found, Handling):
        found = found.outer
    return None if found is None or found.over else found


def asker_here() -> Asker | None:
    """Return the handler that runs this code, as an Asker.

    Return None if no handler runs this code, or if the handler's message came from no mailbox.
    """
    found = handling_here()
    return None if found is None else found.asker()


def circle_of(chain: tuple[InHand, ...], asked: CheckedMessage, directory: Directory) -> tuple[InHand, ...]:
    """Return the handlers of `chain` that would wait for each other for ever if a question were sent; () if none would.

    The handlers in `chain` wait, each for the next one, and the last one asks the question `asked`. If all handlers of
    a mailbox that would get the question are in the chain, the mailbox can never handle the question. Then the result
    is the chain from the first handler of this mailbox on.
    """
    for mailbox in directory.routing.mailboxes_of(asked.to_id, asked.topic):
        mine = [at for at, each in enumerate(chain) if each.mailbox == mailbox and each.slots]
        if mine and len(mine) >= chain[mine[0]].slots:
            return chain[mine[0] :]
    return ()


class Waits:
    """Record of which handlers of a mailbox wait for answers.

    While all handlers of a mailbox wait, the mailbox handles no other message. Then a note on the server lists the
    questions for whose answers they wait. `others_handle` is a function that takes the names of services, and returns
    whether another service of the mailbox may be handling a message.
    """

    def __init__(self, engine: Engine) -> None:
        self.others_handle: Callable[[Collection[str]], bool] = lambda _: False
        self.ended = ""  # why the last service has ended; "" if no service has ended, or a new service runs
        self._engine = engine
        # By the id of a question: the handler that waits for its answer.
        self._waiting: dict[str, tuple[Asker, Ask]] = {}
        self._written = b""
        self._changed = asyncio.Event()
        self._writing = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None

    @contextmanager
    def waiting(self, asker: Asker, ask: Ask) -> Iterator[None]:
        """In the `with` block, count a handler as waiting for the answer to a question."""
        self._waiting[ask.question] = asker, ask
        self._note_change()
        try:
            yield
        finally:
            self._waiting.pop(ask.question, None)  # after `close` the question is no longer here
            self._note_change()

    def _note_change(self) -> None:
        self._changed.set()
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._keep(), name="ray_messaging waiting handlers")

    def _note(self) -> ServiceNote:
        slots = {asker.service: asker.slots for asker, _ in self._waiting.values()}
        # By service, then by the id of the message that a handler handles: the questions that the handler has asked.
        asks: dict[str, dict[str, list[Ask]]] = {service: {} for service in slots}
        for asker, ask in self._waiting.values():
            asks[asker.service].setdefault(asker.chain[-1].message, []).append(ask)
        stuck = slots and all(len(asks[service]) >= most for service, most in slots.items())
        if not stuck or self.others_handle(slots):
            return ServiceNote(self.ended)
        in_hand = [Slot(message, tuple(found)) for each in asks.values() for message, found in each.items()]
        return ServiceNote(self.ended, tuple(in_hand))

    async def _keep(self) -> None:
        """Update the server's note on what handlers wait for, as long as some handler waits."""
        while self._waiting or self._written:
            await self._changed.wait()
            await asyncio.sleep(_STUCK_S)
            self._changed.clear()
            try:
                await self.write()
            except MessagingError as error:  # the next change writes the note again
                logger.info("the note on the service of %s could not be written: %s", self._engine.name, error)
            if not self._waiting:
                return

    async def write(self, *, anew: bool = False) -> None:
        """Write the note about waiting handlers to the server if the note has changed, or if `anew` is true."""
        async with self._writing:
            note, subscription = encode_service_note(self._note()), self._engine.subscription
            if (note != self._written or anew) and subscription is not None and subscription.epoch is not None:
                await self._engine.transport.set_service(self._engine.name, subscription.epoch, note)
                self._written = note

    async def close(self) -> None:
        """Stop recording which handlers wait for answers. If a note on the server says that they wait, remove it."""
        if self._task is not None:
            await end(self._task)
        self._waiting = {}
        if self._written and not self._engine.closed:
            try:
                await self.write()
            except MessagingError as error:
                logger.info("the note on the service of %s could not be removed: %s", self._engine.name, error)
