"""The message that a handler of `serve` has in hand: what the handler asks, waits behind it."""

from contextvars import ContextVar
from typing import TYPE_CHECKING, NamedTuple

from ray_messaging.addressing.directory import Directory
from ray_messaging.message import Message
from ray_messaging.messages import slice_of
from ray_messaging.model.extension import InHand
from ray_messaging.sending.accumulation.message_checks import CheckedMessage

if TYPE_CHECKING:
    from ray_messaging.conversations.waits import Waits

_LONGEST = 100  # of a chain: of a longer one the last ones travel


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
