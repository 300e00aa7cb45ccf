"""Batches that wait to be sent: their rows, and the futures of their receipts."""

import asyncio
from asyncio import Future
from collections.abc import Callable, Collection, Sequence
from struct import pack
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from ray_messaging.addressing.channels import AgentId
from ray_messaging.addressing.directory import MailboxRecord
from ray_messaging.audiences.edges import Edges
from ray_messaging.audiences.folding import agents_digest
from ray_messaging.default_limits_and_leases import BATCH_BYTES, BATCH_ROWS
from ray_messaging.errors import MessagingError, PayloadTooLarge, TransactionError
from ray_messaging.model.batch import Batch, topic_column
from ray_messaging.model.columns import IdColumn, PayloadColumn
from ray_messaging.model.extension import Behind, Extension
from ray_messaging.model.message_ids import MessageIdColumn
from ray_messaging.observability.tracing.untraced import UNTRACED, AnySpans
from ray_messaging.receipt import Receipt, Receipts
from ray_messaging.transports.transport_values import Conclusion

if TYPE_CHECKING:
    from ray_messaging.message import Message

# The column of a single question, because to build it each time would double the time for the extension.
_EXPECTS = np.ones(1, np.bool_)
_EXPECTS.flags.writeable = False


class Questions(NamedTuple):
    """Kind of rows: questions whose answers are sent to `mailbox`.

    `sealed` is called with each batch of questions, once its messages have their ids, and before the batch is sent. Its
    second argument has the futures of the answers, for questions that were asked one by one.
    """

    mailbox: str
    sealed: "Callable[[Batch, list[Future[Message]]], None]"


class Replies(NamedTuple):
    """Kind of rows: answers for the mailbox that asked. `failed` says that they report a handler's failure."""

    mailbox: str
    failed: bool = False


class ConversationRows(msgspec.Struct, eq=False):
    """The rows of one batch that are all questions or all answers.

    For answers, `in_reply_to` has the ids of their questions. For questions, `answers` has the futures of their
    answers. `behind` has, by row, the handlers that wait for the answer to a question.
    """

    kind: Questions | Replies
    in_reply_to: list[str] = msgspec.field(default_factory=list)
    answers: "list[Future[Message]]" = msgspec.field(default_factory=list)
    behind: Behind = msgspec.field(default_factory=dict)

    def extend(self, batch: Batch) -> Batch:
        """Add the columns of questions or answers to a sealed batch, and return it."""
        if isinstance(self.kind, Replies):
            replies = MessageIdColumn.of(self.in_reply_to)
            batch.extension = Extension(in_reply_to=replies, reply_mailbox=self.kind.mailbox, failed=self.kind.failed)
        else:
            expects = _EXPECTS if batch.rows == 1 else np.ones(batch.rows, np.bool_)
            causes = None if batch.extension is None else batch.extension.caused_by
            batch.extension = Extension(
                expects_answer=expects, reply_mailbox=self.kind.mailbox, behind=self.behind, caused_by=causes
            )
            self.kind.sealed(batch, self.answers)
        return batch


class Reach(NamedTuple):
    """How many agents of a mailbox hear each sender, by the sender's place. `agents` is the digest of these agents."""

    record: MailboxRecord
    agents: bytes
    hearers: NDArray[np.int64]


class Reaches:
    """For one version of an audience and one subtopic, how many agents in each mailbox hear each sender.

    The numbers are computed once for each mailbox's record. `hearers` has the number of all hearers of each sender,
    `places_of` returns the places of senders.
    """

    def __init__(
        self, edges: Edges, senders: IdColumn, places_of: Callable[[IdColumn], NDArray[np.int64]], topic: str
    ) -> None:
        self.edges = edges
        self.places_of = places_of
        self.hearers = edges.counts(senders)
        self._senders = senders
        self._topic = topic
        self._found: dict[str, Reach] = {}

    def of(self, record: MailboxRecord) -> Reach:
        """Return how many agents of a mailbox hear each sender."""
        found = self._found.get(record.mailbox)
        if found is None or found.record is not record:
            agents = record.agents(self._topic)
            hearers = self.edges.toward(agents).counts(self._senders)
            found = self._found[record.mailbox] = Reach(record, agents_digest(agents), hearers)
        return found

    def are_all_in(self, records: Collection[MailboxRecord], from_ids: IdColumn) -> bool:
        """Return whether every hearer of some senders is in one of these mailboxes."""
        there = sum((self.of(record).hearers for record in records), np.zeros(len(self.hearers), np.int64))
        places = self.places_of(from_ids)
        return bool((there[places] >= self.hearers[places]).all())


LARGE_LINE = BATCH_BYTES // BATCH_ROWS


class Entry(NamedTuple):
    """One payload for one or more recipients. A recipient of None means that the channel is not an agent's.

    `cause` is the id of the message that the sender was handling.
    """

    from_id: AgentId | None
    to_ids: list[AgentId | None]
    topic: str
    line: bytes
    cause: str | None = None


def caused_by_one(cause: str | None, rows: int) -> Extension | None:
    """Return the extension of rows that were sent while message `cause` was handled; None without a cause."""
    return None if cause is None else Extension(caused_by=MessageIdColumn.of([cause]).take(np.zeros(rows, np.intp)))


class BulkWaiter(NamedTuple):
    """The future of a bulk send with rows `low` to `high`; `call_row` is the first row's number in the bulk send."""

    low: int
    high: int
    future: "asyncio.Future[Receipts]"
    call_row: int | None = None


def _new_future() -> "asyncio.Future[Receipts]":
    future: asyncio.Future[Receipts] = asyncio.get_running_loop().create_future()
    # A caller that was cancelled does not read the error, so it is marked as seen here.
    future.add_done_callback(lambda done: done.cancelled() or done.exception())
    return future


class PendingBatch(msgspec.Struct, eq=False):
    """Rows that will be sent as one batch, and the futures of their receipts.

    `singles` has a future for each message that was sent alone, and None for a row of a bulk send; it is empty if no
    message was sent alone. `bulks` has the futures of bulk sends. With `all_single` each row has its own future.
    `checked` is the version of the schemas by which the payloads were checked (0: not checked). `call_row` is the
    number of the first row in the call that sends the batch (None: the messages are from several calls). With `reaches`
    each row is a broadcast that no rule judges. `trace` has the batch's spans.
    """

    step: int | None = None
    singles: "Sequence[asyncio.Future[Receipt] | None]" = ()
    bulks: list[BulkWaiter] = msgspec.field(default_factory=list)
    all_single: bool = False
    checked: int = 0
    call_row: int | None = None
    reaches: Reaches | None = None
    trace: AnySpans = UNTRACED

    def __len__(self) -> int:
        raise NotImplementedError

    def seal(self, sender: str, epoch: int, first: int) -> Batch:
        """Build the batch, whose first message gets the number `first`."""
        raise NotImplementedError


# The cells of a row: from_id, to_id, topic, payload, time, and the future of its receipt (None: the row belongs to a
# bulk send).
ROW_CELLS = 6
_LINE_CELL = 3
_COLUMNS = [slice(cell, None, ROW_CELLS) for cell in range(ROW_CELLS)]


class RowBatch(PendingBatch, eq=False):
    """A pending batch to which messages are appended one by one.

    The cells of all rows are in one list, row after row, so that slices of the list are the columns, and no row needs
    an object. `causes` has, by row, the ids of the messages that the senders were handling. `counted` is how many cells
    have been counted against the capacity, `nbytes` the size of these cells' payloads, `large` the size of all large
    payloads.
    """

    all_single: bool = True
    cells: list[Any] = msgspec.field(default_factory=list)
    counted: int = 0
    nbytes: int = 0
    large: int = 0
    shared: bool = False  # True: some rows have the same payload object
    conversation: ConversationRows | None = None  # None: plain messages
    causes: dict[int, str] = msgspec.field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.cells) // ROW_CELLS

    def lines(self, cell: int) -> list[bytes]:
        """Return the payloads of the rows from a cell on."""
        return self.cells[cell + _LINE_CELL :: ROW_CELLS]

    def takes(self, large: int, step: int | None, kind: Questions | Replies | None) -> bool:
        """Return whether rows of a step and kind (None: plain) fit in, with `large` more bytes of large payloads."""
        same = self.step == step and (kind is None if self.conversation is None else self.conversation.kind == kind)
        return same and (self.large == 0 or self.large + large <= BATCH_BYTES)

    def extend(self, entry: Entry, now: float) -> None:
        """Append a payload for its recipients, as part of a bulk send."""
        from_id, to_ids, topic, line, cause = entry
        self.all_single = False
        self.shared |= len(to_ids) > 1
        if cause is not None:
            self.causes |= dict.fromkeys(range(len(self), len(self) + len(to_ids)), cause)
        for to_id in to_ids:
            self.cells += (from_id, to_id, topic, line, now, None)

    def seal(self, sender: str, epoch: int, first: int) -> Batch:
        """Build the batch; its first message gets the number `first`."""
        from_ids, to_ids, topics, lines, times, self.singles = map(self.cells.__getitem__, _COLUMNS)
        table, topic = (topics[0],), None
        if topics.count(topics[0]) < len(topics):
            places = {name: place for place, name in enumerate(dict.fromkeys(topics))}
            table, topic = tuple(places), topic_column([places[name] for name in topics], len(places))
        batch = Batch(
            sender=sender,
            epoch=epoch,
            first=first,
            from_ids=IdColumn.of(from_ids),
            to_ids=IdColumn.of(to_ids),
            topics=table,
            topic=topic,
            step=self.step,
            sent_at=times[0] if len(times) == 1 else np.frombuffer(pack(f"={len(times)}d", *times), np.float64),
            lines=once(lines) if self.shared else PayloadColumn.of(lines, nbytes=self.nbytes or -1),
            rows=len(lines),
        )
        if self.causes:
            batch.extension = Extension(caused_by=MessageIdColumn.of([*map(self.causes.get, range(batch.rows))]))
        return batch if self.conversation is None else self.conversation.extend(batch)


class TransactionBatch(RowBatch, eq=False):
    """The messages of a transaction, which are written together or not at all, and the transaction's conclusion.

    Without a conclusion the transaction writes nothing, and only asks which transactions the server has committed.
    `future` gets the receipts. `number` is the transaction's number, or None as long as no call with it was made.
    """

    future: "asyncio.Future[Receipts]" = msgspec.field(default_factory=_new_future)
    conclusion: Conclusion | None = None
    number: int | None = None

    def add(self, entries: Sequence[Entry], now: float) -> None:
        """Queue payloads for their recipients.

        Raises: TransactionError if there would be too many messages, PayloadTooLarge if there would be too many bytes;
        then no payload is queued.
        """
        rows = len(self) + sum(len(entry.to_ids) for entry in entries)
        nbytes = self.nbytes + sum(len(line) + 1 for line in {id(entry.line): entry.line for entry in entries}.values())
        if rows > BATCH_ROWS:
            raise TransactionError(
                f"a transaction sends at most {BATCH_ROWS:,} messages, this one would send {rows:,}: fetch fewer at a "
                "time, so that each transaction sends less"
            )
        if nbytes > BATCH_BYTES:
            raise PayloadTooLarge(
                f"a transaction sends at most {BATCH_BYTES:,} bytes of payload, this one would send {nbytes:,}: fetch "
                "fewer messages at a time, or send references to the data",
                size=nbytes,
                limit=BATCH_BYTES,
            )
        self.shared |= len({id(entry.line) for entry in entries}) < len(entries)
        for entry in entries:
            self.extend(entry, now)
        self.nbytes = nbytes

    def fail(self, error: MessagingError) -> None:
        """Fail the transaction with an error."""
        if not self.future.done():
            self.future.set_exception(error)


def once(lines: Sequence[bytes]) -> PayloadColumn:
    """Build a column that has each payload object once, however many rows share it."""
    places: dict[int, int] = {}
    index = [places.setdefault(id(line), len(places)) for line in lines]
    found = dict(zip(map(id, lines), lines, strict=True))
    return PayloadColumn.of([found[key] for key in places], np.array(index, np.uint32))


class EncodedBatch(PendingBatch, eq=False, kw_only=True):
    """A pending batch whose columns were built before, in this process or another process."""

    batch: Batch
    conversation: ConversationRows | None = None

    @property
    def nbytes(self) -> int:
        """Return the size of the payloads."""
        return 0 if self.batch.lines is None else self.batch.lines.nbytes

    def __len__(self) -> int:
        return len(self.batch)

    def seal(self, sender: str, epoch: int, first: int) -> Batch:
        """Set our name and numbers in the batch, and return it."""
        batch = self.batch
        batch.sender, batch.epoch, batch.first, batch.frame = sender, epoch, first, None
        batch.labels, batch.noted = {}, None  # only rules, and this process, may set these fields
        return batch if self.conversation is None else self.conversation.extend(batch)
