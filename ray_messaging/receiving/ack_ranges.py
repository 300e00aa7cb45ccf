"""What whoever acknowledges names: messages, and the rows of a mailbox that they are."""

from collections.abc import Iterable
from itertools import groupby
from typing import NamedTuple

from ray_messaging.errors import ConfigError
from ray_messaging.message import Message, Messages, Slice
from ray_messaging.transports.base import AckRange, Cursor
from ray_messaging.transports.ranges import before
from ray_messaging.wire.frames import FOREIGN_SENDER

Acked = Message | Iterable[Message]  # what `ack` takes; a Messages is quickest


class Span(NamedTuple):
    """Rows of one entry, `low` to `high`, of `rows` that it has; `loan` is the one by which they were fetched."""

    entry: str
    low: int
    high: int
    rows: int
    loan: object = None


def spans_of(messages: Acked, mailbox: str) -> list[Span]:
    """Return which rows messages are; raise ConfigError for what was not fetched from this mailbox.

    What foreign clients published past the mailbox has no rows: nobody commits it.
    """
    return spans_in(_slices(messages), mailbox)


def spans_in(slices: Iterable[Slice], mailbox: str) -> list[Span]:
    """Return which rows slices are, as `spans_of`."""
    spans: list[Span] = []
    for batch, low, high, _ in slices:
        origin = batch.origin
        if origin is not None and origin.mailbox == mailbox:
            last = spans[-1] if spans else None
            if last is not None and last.entry == origin.entry and last.high == low and last.loan == origin.loan:
                spans[-1] = last._replace(high=high)
            else:
                spans.append(Span(origin.entry, low, high, batch.rows, origin.loan))
        elif origin is not None or not batch.sender.startswith(FOREIGN_SENDER):
            where = "in parts, by pickle" if origin is None else f"from {origin.mailbox!r}"
            raise ConfigError(
                f"a message that was not fetched here, but came {where}, cannot be acknowledged by {mailbox!r}: "
                "acknowledge what its fetch returned"
            )
    return spans


def _slices(messages: Acked) -> Iterable[Slice]:
    if isinstance(messages, Messages):
        return messages.slices
    found = [messages] if isinstance(messages, Message) else messages
    try:
        return [Slice(one._batch, one._row, one._row + 1) for one in found]
    except (TypeError, AttributeError):
        raise ConfigError(
            f"ack takes a Message, some of them, or what a fetch returned, not {type(messages).__name__}"
        ) from None


def range_of(span: Span) -> AckRange:
    """Return rows as a range of the mailbox."""
    after = Cursor(span.entry, span.low) if span.low else Cursor(before(span.entry), 0)
    return AckRange(after, Cursor(span.entry, 0 if span.high == span.rows else span.high), span.high - span.low)


def by_loan(spans: Iterable[Span]) -> list[tuple[object, list[Span]]]:
    """Return the loans that rows were fetched by, and the rows of each."""
    ordered = sorted(spans, key=lambda span: span.loan.number if hasattr(span.loan, "number") else -1)
    loans = groupby(ordered, key=lambda span: span.loan)
    return [(loan, [span._replace(loan=None) for span in found]) for loan, found in loans]
