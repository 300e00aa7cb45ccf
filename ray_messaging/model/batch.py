"""The class `Batch`: messages of one sender as columns."""

from copy import copy
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from ray_messaging.model.columns import IdColumn
from ray_messaging.model.extension import UNRESOLVED, Extension, Fold
from ray_messaging.model.message_ids import MessageIdColumn
from ray_messaging.model.typed.typed_table import Payloads
from ray_messaging.model.typed.typed_values import column_of, part_of

_SHORT = 2**16
_ROW_BYTES = 24  # the bytes of a row besides its payload: two ids, an ordinal, the number of its payload
CONTEXT_BYTES = 25  # a W3C traceparent in binary: the trace id has 16 bytes, the span id 8, the flags 1


class Origin(NamedTuple):
    """Where a batch was read: the mailbox and the entry in it.

    `loan` is the delivery lease, with which a caller in another process holds the messages for a limited time, or None.
    """

    mailbox: str
    entry: str
    loan: object = None


class TracePoint(NamedTuple):
    """The span that sent a batch, the time when the batch's next span begins, and the span that fetched it.

    Each span is given by its context, `CONTEXT_BYTES` bytes. Before the batch is fetched, `fetched` is empty. `since`
    is in unix seconds.
    """

    sent: bytes
    since: float
    fetched: bytes = b""


TopicColumn = NDArray[np.uint16] | NDArray[np.uint32]


def topic_column(places: ArrayLike, topics: int) -> TopicColumn:
    """Return the index of each message's topic as uint16, or as uint32 if there are too many topics for uint16."""
    return np.asarray(places, np.uint16) if topics <= _SHORT else np.asarray(places, np.uint32)


class Attempt(NamedTuple):
    """The identity of one attempt of a group to run a step.

    If an attempt fails, another one follows, which compares as greater.
    """

    group: str
    step: int
    number: int


class Batch(msgspec.Struct, eq=False, kw_only=True):
    """N messages of one sender as columns.

    Message i has the number `first + numbers[i]`. `numbers` is uint32; if it is None, the number is `first + i`. The
    topic is `topics[topic[i]]`; if `topic` is None, all messages have the only topic. The step (int64) and the time
    (float64, unix seconds) are columns, or one value for all messages. The payload is `lines[i]`, unless the batch has
    only ids. `labels` maps a label to its rows (uint32, ascending). `noted` are the rows that the event log takes from
    a log note (see `wire.notes`) instead of this batch. `rows` is n, as an attribute, because a call of `len` is slow.
    """

    sender: str
    epoch: int
    first: int
    from_ids: IdColumn
    to_ids: IdColumn
    topics: tuple[str, ...]
    topic: TopicColumn | None = None
    numbers: NDArray[np.uint32] | None = None
    step: NDArray[np.int64] | int | None = None
    sent_at: NDArray[np.float64] | float = 0.0
    lines: Payloads | None = None
    labels: dict[str, NDArray[np.uint32]] = {}
    noted: NDArray[np.uint32] | None = None
    frame: bytes | None = None  # the encoded batch; None: it was built or changed in this process
    rows: int
    origin: Origin | None = None  # None: the batch was not read from a mailbox
    extension: Extension | None = None  # None: the messages belong to no step, question or audience
    replied: set[int] | None = None  # the rows of questions that this process has answered
    trace: TracePoint | None = None  # None: the batch is not traced; most batches are not

    def __repr__(self) -> str:
        # Payloads are left out, because this text may be logged.
        return f"Batch({self.rows:,} messages of {self.sender!r})"

    def __len__(self) -> int:
        return self.rows

    @property
    def fold(self) -> Fold | None:
        """Return how rows represent several pairs of sender and hearer; None if each row is one message."""
        return None if self.extension is None else self.extension.fold

    @property
    def unspread(self) -> bool:
        """Return whether the messages are broadcasts to an audience whose version is not looked up yet."""
        audience = None if self.extension is None else self.extension.audience
        return audience is not None and audience.version == UNRESOLVED

    @property
    def messages(self) -> int:
        """Return the number of messages.

        A row that represents several pairs of sender and hearer counts as that many messages.
        """
        fold = self.fold
        return self.rows if fold is None else fold.pairs

    @property
    def nbytes(self) -> int:
        """Return about how many bytes of memory the rows take."""
        return _ROW_BYTES * self.rows + (0 if self.lines is None else self.lines.nbytes)

    def message_id(self, row: int) -> str:
        """Return the id of one message.

        The id of a message of a step consists of the step, the message's ordinal in the step, and from_id. The id of
        another message consists of the sender, the epoch (a number that is higher for each later owner of the sender's
        name), and the message's number.
        """
        ordinal = self.ordinal
        if ordinal is not None:
            step = self.step[row] if isinstance(self.step, np.ndarray) else self.step
            return f"{step}-{ordinal[row]}-{self.from_ids[row]}"
        number = row if self.numbers is None else int(self.numbers[row])
        return f"{self.sender}-{self.epoch}-{self.first + number}"

    def message_ids(self, rows: NDArray[np.intp]) -> MessageIdColumn:
        """Return the ids of the messages in some rows."""
        if self.ordinal is not None:
            return MessageIdColumn.of([self.message_id(row) for row in rows.tolist()])
        numbers = rows if self.numbers is None else self.numbers[rows]
        return MessageIdColumn(self.first + numbers.astype(np.int64), (f"{self.sender}-{self.epoch}-",))

    @property
    def ordinal(self) -> NDArray[np.uint32] | None:
        """Return the ordinal of each message among its sender's messages in the step; None outside of steps."""
        return None if self.extension is None or self.step is None else self.extension.ordinal

    @property
    def attempt(self) -> Attempt | None:
        """Return which attempt at a step sent the messages, or None outside of steps.

        A step that fails is attempted again.
        """
        if self.extension is None or self.extension.attempt == 0 or self.step is None:
            return None
        step = int(self.step[0]) if isinstance(self.step, np.ndarray) else self.step
        return Attempt(self.sender, step, self.extension.attempt)

    def sent_time(self, row: int) -> float:
        """Return the time when a message was accepted, in unix seconds."""
        return float(self.sent_at[row]) if isinstance(self.sent_at, np.ndarray) else self.sent_at

    def topic_of(self, row: int) -> str:
        """Return the topic of one message."""
        return self.topics[0 if self.topic is None else self.topic[row]]

    def labels_of(self, row: int) -> tuple[str, ...]:
        """Return the labels of one message, sorted, because their order in the batch depends on its other messages."""
        return tuple(sorted(name for name, rows in self.labels.items() if row in rows)) if self.labels else ()

    def column(self, name: str) -> NDArray[Any]:
        """Return the values of one field of all payloads; for a typed column of numbers, the column's own array.

        Raises: InvalidColumns if a payload lacks the field `name`; InvalidPayload if the batch has only ids.
        """
        return column_of([part_of(self.lines)], name)

    def with_payloads(self, changed: dict[int, bytes]) -> "Batch":
        """Return a copy of the batch in which the rows in `changed` have the payloads in `changed`."""
        made = copy(self)
        made.frame = None
        if changed and self.lines is not None:
            made.lines = self.lines.replaced(changed, len(self))
        return made

    def take(self, rows: NDArray[np.intp]) -> "Batch":
        """Return a batch of some rows, in the given order. Messages keep their numbers."""
        return Batch(
            sender=self.sender,
            epoch=self.epoch,
            first=self.first,
            from_ids=self.from_ids.take(rows),
            rows=len(rows),
            to_ids=self.to_ids.take(rows),
            topics=self.topics,
            topic=None if self.topic is None else self.topic[rows],
            numbers=rows.astype(np.uint32) if self.numbers is None else self.numbers[rows],
            step=self.step[rows] if isinstance(self.step, np.ndarray) else self.step,
            sent_at=self.sent_at[rows] if isinstance(self.sent_at, np.ndarray) else self.sent_at,
            lines=None if self.lines is None else self.lines.take(rows),
            labels={name: kept for name, found in self.labels.items() if len(kept := _places(rows, found))},
            noted=None if self.noted is None else _places(rows, self.noted),
            extension=None if self.extension is None else self.extension.take(rows),
            trace=self.trace,
        )


def _places(rows: NDArray[np.intp], wanted: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Return the positions in `rows` at which the wanted rows stand."""
    return np.flatnonzero(np.isin(rows, wanted)).astype(np.uint32)
