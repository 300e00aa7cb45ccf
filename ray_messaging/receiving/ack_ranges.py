"""Messages as rows of entries in a mailbox. An acknowledgement names such rows."""

from collections.abc import Iterable
from itertools import groupby, pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ray_messaging.addressing.channels import answer_mailbox
from ray_messaging.errors import ConfigError
from ray_messaging.message import Message
from ray_messaging.messages import Messages, Slice, slice_of
from ray_messaging.transports.cursors import AckRange, Cursor, before
from ray_messaging.wire.frames import FOREIGN_SENDER

Acked = Message | Iterable[Message]  # the argument of `ack`; a Messages object is fastest


class Span(NamedTuple):
    """The rows from `low` to before `high` of an entry of a mailbox. The entry has `rows` rows.

    `loan` is the delivery lease under which the rows were fetched, or None.
    """

    entry: str
    low: int
    high: int
    rows: int
    loan: object = None


def spans_of(messages: Acked, mailbox: str) -> list[Span]:
    """Return the rows of messages as spans, each of which has adjacent rows of one mailbox entry.

    A message that a foreign client published is in no mailbox. It has no row, and is not committed.

    Raises: ConfigError for a message that was not fetched from this mailbox.
    """
    return spans_in(slices_of(messages), mailbox)


def spans_in(slices: Iterable[Slice], mailbox: str) -> list[Span]:
    """Return the rows of slices of batches as spans, each of which has adjacent rows of one mailbox entry.

    Raises: ConfigError in the same cases as `spans_of`.
    """
    spans: list[Span] = []
    for batch, low, high, _ in slices:
        origin = batch.origin
        if origin is not None and origin.mailbox == mailbox:
            last = spans[-1] if spans else None
            if last is not None and last.entry == origin.entry and last.high == low and last.loan == origin.loan:
                spans[-1] = last._replace(high=high)
            else:
                spans.append(Span(origin.entry, low, high, batch.rows, origin.loan))
        elif origin is not None and origin.mailbox == answer_mailbox(mailbox):
            continue  # a late answer, which came through the mailbox for answers, needs no acknowledgement
        elif origin is not None or not batch.sender.startswith(FOREIGN_SENDER):
            if origin is None:
                why = "it comes from no fetch, or was pickled without the other messages of its fetch"
            else:
                why = f"{origin.mailbox!r} has fetched it"
            raise ConfigError(
                f"{mailbox!r} cannot acknowledge this message, because {why}: pass the object that the fetch returned, "
                "to the messager or group that made the fetch"
            )
    return spans


def slices_of(messages: Acked) -> list[Slice]:
    """Return messages as slices of batches, as few as possible; raise ConfigError for an object that is no message."""
    if isinstance(messages, Messages):
        return messages.slices
    found: list[Slice] = []
    try:
        for part in map(slice_of, [messages] if isinstance(messages, Message) else messages):
            last = found[-1] if found else None
            if last is not None and last.batch is part.batch and last.high == part.low and last.pattern == part.pattern:
                found[-1] = last._replace(high=part.high)
            else:
                found.append(part)
    except (TypeError, AttributeError):
        raise ConfigError(
            f"an object of type {type(messages).__name__} is no message: pass a Message, a list of Messages, or the "
            "result of a fetch"
        ) from None
    return found


def range_of(span: Span) -> AckRange:
    """Return the rows of a span as a range in the mailbox. A span has adjacent rows of one entry."""
    after = Cursor(span.entry, span.low) if span.low else Cursor(before(span.entry), 0)
    return AckRange(after, Cursor(span.entry, 0 if span.high == span.rows else span.high), span.high - span.low)


def by_loan(spans: Iterable[Span]) -> list[tuple[object, list[Span]]]:
    """Return rows grouped by the delivery lease under which they were fetched."""
    ordered = sorted(spans, key=lambda span: span.loan.number if hasattr(span.loan, "number") else -1)
    loans = groupby(ordered, key=lambda span: span.loan)
    return [(loan, [span._replace(loan=None) for span in found]) for loan, found in loans]


def runs_of(rows: NDArray[np.intp]) -> list[tuple[int, int]]:
    """Return ascending row numbers as intervals: the first row, and the last row + 1."""
    ends = [0, *(np.flatnonzero(np.diff(rows) != 1) + 1).tolist(), len(rows)]
    return [(int(rows[low]), int(rows[high - 1]) + 1) for low, high in pairwise(ends) if low < high]
