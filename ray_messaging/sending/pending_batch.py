"""A batch that waits to be sent: its messages, to which more can be appended, and the futures of their receipts."""

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
from ray_messaging.model.joining import joined_batches
from ray_messaging.model.message_ids import MessageIdColumn
from ray_messaging.observability.tracing.untraced import UNTRACED, AnySpans
from ray_messaging.receipt import Receipt, Receipts
from ray_messaging.transports.transport_values import Conclusion

if TYPE_CHECKING:
    from ray_messaging.message import Message

# The column `expects_answer` of a batch with a single question. It is built only once, because building it takes as
# long as building the other columns of the extension.
_EXPECTS = np.ones(1, np.bool_)
_EXPECTS.flags.writeable = False


class Questions(NamedTuple):
    """Kind of rows: questions whose answers are sent to `mailbox`.

    `sealed` is called with each batch of questions, once its messages have ids, before the batch is sent. The second
    argument has the futures of the answers to questions that were asked one by one.
    """

    mailbox: str
    sealed: "Callable[[Batch, list[Future[Message]]], None]"


class Replies(NamedTuple):
    """Kind of rows: answers, which are sent to `mailbox`. With `failed`, the answers report failures of handlers."""

    mailbox: str
    failed: bool = False


class ConversationRows(msgspec.Struct, eq=False):
    """The rows of one batch that are all questions or all answers.

    For answers, `in_reply_to` has the ids of their questions. For questions, `answers` has the futures of their
    answers, and `behind` has, for each row, the handlers that wait for the answer.
    """

    kind: Questions | Replies
    in_reply_to: list[str] = msgspec.field(default_factory=list)
    answers: "list[Future[Message]]" = msgspec.field(default_factory=list)
    behind: Behind = msgspec.field(default_factory=dict)

    def extend(self, batch: Batch) -> Batch:
        """Add the columns of questions or answers to a batch, and return it."""
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
    """How many agents of a mailbox hear each sender.

    `hearers` has this number for each sender, at the index that `Reaches.places_of` returns for the sender. `agents` is
    a digest of the mailbox's agents.
    """

    record: MailboxRecord
    agents: bytes
    hearers: NDArray[np.int64]


class Reaches:
    """How many agents of each mailbox hear each sender, for one version of an audience and one subtopic.

    The numbers of a mailbox are computed again only if its record changes. `hearers` has the number of all hearers of
    each sender, with or without a mailbox. `places_of` returns the indices at which senders have their numbers.
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
        """Return how many agents of a mailbox hear each sender of the broadcasts."""
        found = self._found.get(record.mailbox)
        if found is None or found.record is not record:
            agents = record.agents(self._topic)
            hearers = self.edges.toward(agents).counts(self._senders)
            found = self._found[record.mailbox] = Reach(record, agents_digest(agents), hearers)
        return found

    def are_all_in(self, records: Collection[MailboxRecord], from_ids: IdColumn) -> bool:
        """Return whether these mailboxes have all the agents that hear the given senders."""
        there = sum((self.of(record).hearers for record in records), np.zeros(len(self.hearers), np.int64))
        places = self.places_of(from_ids)
        return bool((there[places] >= self.hearers[places]).all())


# A payload larger than this counts as large. A batch of smaller payloads stays below BATCH_BYTES, because its number of
# rows is limited.
LARGE_LINE = BATCH_BYTES // BATCH_ROWS


def caused_by_one(cause: str | None, rows: int) -> Extension | None:
    """Return columns which say that all `rows` messages were sent while the message with the id `cause` was handled.

    Return None if `cause` is None.
    """
    return None if cause is None else Extension(caused_by=MessageIdColumn.of([cause]).take(np.zeros(rows, np.intp)))


class BulkWaiter(NamedTuple):
    """A bulk send's rows in one batch, from `low` to before `high`, and the future of their receipts.

    `call_row` is the number that row `low` has in the bulk send.
    """

    low: int
    high: int
    future: "asyncio.Future[Receipts]"
    call_row: int


def _new_future() -> "asyncio.Future[Receipts]":
    future: asyncio.Future[Receipts] = asyncio.get_running_loop().create_future()
    # asyncio warns about an error that nobody reads, and a cancelled caller reads none. So the error is read here.
    future.add_done_callback(lambda done: done.cancelled() or done.exception())
    return future


# The items of a row in `cells`: from_id, to_id, topic, payload, time, and the future of its receipt (None: the row
# belongs to a bulk send).
ROW_CELLS = 6
_LINE_CELL = 3
_COLUMNS = [slice(cell, None, ROW_CELLS) for cell in range(ROW_CELLS)]


class PendingBatch(msgspec.Struct, eq=False):
    """Messages that will be sent as one batch, and the futures of their receipts.

    Single messages are appended to `cells`, and whole batches are appended to `parts` by `join`. `seal` makes one
    `Batch` of all of them. The items of all single messages are in one list, row after row. So each column is a slice
    of this list, and no row needs an object. The single messages come after all `parts`. `causes` has, for rows in
    `cells`, the ids of the messages that the senders were handling. `counted` is how many items of `cells` were counted
    against the capacity. `nbytes` is the size of the counted payloads, and `large` the size of all large payloads.

    `singles` has, for each row, the future of its receipt if the message was sent alone, and None if it belongs to a
    bulk send. `singles` is empty if no message was sent alone. `bulks` has the futures of bulk sends. With `all_single`
    each row has its own future. `singles`, `bulks` and `all_single` are complete after `seal`. `checked` is the version
    of the schemas by which the payloads were checked (0: not checked). If there are `reaches`, each row is a broadcast
    that no rule judges. `trace` has the batch's spans.
    """

    step: NDArray[np.int64] | int | None = None
    conversation: ConversationRows | None = None  # None if the messages are neither questions nor answers
    parts: list[Batch] = msgspec.field(default_factory=list)
    cells: list[Any] = msgspec.field(default_factory=list)
    causes: dict[int, str] = msgspec.field(default_factory=dict)
    shared: bool = False  # whether some rows of `cells` have the same payload object
    singles: "list[asyncio.Future[Receipt] | None]" = msgspec.field(default_factory=list)
    bulks: list[BulkWaiter] = msgspec.field(default_factory=list)
    all_single: bool = False
    counted: int = 0
    nbytes: int = 0
    large: int = 0
    checked: int = 0
    reaches: Reaches | None = None
    trace: AnySpans = UNTRACED
    _joined: int = 0  # the number of rows of all `parts`

    @classmethod
    def of(
        cls, batch: Batch, conversation: ConversationRows | None = None, reaches: Reaches | None = None
    ) -> "PendingBatch":
        """Return a pending batch that has the messages of one batch."""
        made = cls(batch.step, conversation, reaches=reaches)
        made.join(batch)
        return made

    def __len__(self) -> int:
        return self._joined + len(self.cells) // ROW_CELLS

    def lines(self, cell: int) -> list[bytes]:
        """Return the payloads of single messages, which are collected in the list `cells`, from the item `cell` on."""
        return self.cells[cell + _LINE_CELL :: ROW_CELLS]

    def takes(self, large: int, step: int | None, kind: Questions | Replies | None) -> bool:
        """Return whether this batch may get further messages of a step (None: no step) and of a kind.

        Args: `large` is the total size of the large payloads of these messages. `kind` is None for messages that are
        neither questions nor answers.
        """
        same = self.step == step and (kind is None if self.conversation is None else self.conversation.kind == kind)
        return same and (self.large == 0 or self.large + large <= BATCH_BYTES)

    def append(
        self,
        from_id: AgentId | None,
        to_ids: Sequence[AgentId | None],
        topic: str,
        line: bytes,
        cause: str | None,
        now: float,
    ) -> None:
        """Append one payload for one or more recipients, without a future for each message.

        Args: A recipient of None means that the channel belongs to no agent. `cause` is the id of the message that the
        sender is handling.
        """
        cells = self.cells
        if len(to_ids) > 1:
            self.shared = True
        if cause is not None:
            row = len(cells) // ROW_CELLS
            self.causes |= dict.fromkeys(range(row, row + len(to_ids)), cause)
        for to_id in to_ids:
            cells += (from_id, to_id, topic, line, now, None)
        self.nbytes += len(line) + 1

    def join(self, batch: Batch) -> None:
        """Append all messages of a batch, which `joined_batches` must be able to join with the other messages here."""
        if self.cells:
            self._end_cells()
        if self.singles:
            self.singles += [None] * batch.rows
        self.all_single = False
        self.parts.append(batch)
        self._joined += batch.rows
        self.nbytes += 0 if batch.lines is None else batch.lines.nbytes

    def _end_cells(self) -> None:
        """Turn the single messages, which are collected in the list `cells`, into a batch in the list `parts`."""
        from_ids, to_ids, topics, lines, times, futures = map(self.cells.__getitem__, _COLUMNS)
        rows, table, topic = len(lines), (topics[0],), None
        if topics.count(topics[0]) < rows:
            places = {name: place for place, name in enumerate(dict.fromkeys(topics))}
            table, topic = tuple(places), topic_column([places[name] for name in topics], len(places))
        batch = Batch(
            sender="",
            epoch=0,
            first=0,
            from_ids=IdColumn.of(from_ids),
            to_ids=IdColumn.of(to_ids),
            topics=table,
            topic=topic,
            step=self.step,
            sent_at=times[0] if rows == 1 else np.frombuffer(pack(f"={rows}d", *times), np.float64),
            lines=_once(lines)
            if self.shared
            else PayloadColumn.of(lines, nbytes=-1 if self.parts else self.nbytes or -1),
            rows=rows,
        )
        if self.causes:
            batch.extension = Extension(caused_by=MessageIdColumn.of([*map(self.causes.get, range(rows))]))
            self.causes = {}
        if futures[0] is not None:  # each of these messages was sent alone
            self.all_single = not self.parts
            self.singles = futures if self.all_single else [*(self.singles or [None] * self._joined), *futures]
        self.parts.append(batch)
        self._joined += rows
        self.cells.clear()  # The accumulator has a reference to this list, so it is emptied and not replaced.
        self.counted = 0

    def seal(self, sender: str, epoch: int, first: int) -> Batch:
        """Return all messages as one batch of a sender. Its first message has the number `first`."""
        if self.cells:
            self._end_cells()
        for part in self.parts:  # a transaction gets its step at its end, after its messages were appended
            part.step = self.step
        if len(self.parts) > 1:
            self.parts = [joined_batches(self.parts)]  # joining copies the payloads, so the parts can be dropped
        [batch] = self.parts
        batch.sender, batch.epoch, batch.first, batch.step, batch.frame = sender, epoch, first, self.step, None
        batch.labels, batch.noted = {}, None  # only this process may set these, so what another has set is dropped
        return batch if self.conversation is None else self.conversation.extend(batch)


class TransactionBatch(PendingBatch, eq=False):
    """The messages of a transaction, which are written as a whole or not at all.

    `conclusion` has the changes that the transaction makes to its own mailbox. Without a conclusion the transaction
    writes nothing, and only asks which transactions the server has committed. `future` gets the receipts. `number` is
    the transaction's number, or None until a call with the number is made.
    """

    future: "asyncio.Future[Receipts]" = msgspec.field(default_factory=_new_future)
    conclusion: Conclusion | None = None
    number: int | None = None

    def check_room(self, more_rows: int, more_bytes: int) -> None:
        """Raise an error if the transaction would be too large with this many more rows and bytes.

        Raises: TransactionError for too many messages; PayloadTooLarge for too many bytes.
        """
        rows, nbytes = len(self) + more_rows, self.nbytes + more_bytes
        if rows > BATCH_ROWS:
            raise TransactionError(
                f"a transaction sends at most {BATCH_ROWS:,} messages, but this one would send {rows:,}: fetch fewer "
                "messages at a time, so that each transaction sends less"
            )
        if nbytes > BATCH_BYTES:
            raise PayloadTooLarge(
                f"a transaction sends at most {BATCH_BYTES:,} bytes of payload, but this one would send {nbytes:,}: "
                "fetch fewer messages at a time, or send references to the data",
                size=nbytes,
                limit=BATCH_BYTES,
            )

    def add(self, batches: Sequence[Batch]) -> None:
        """Append the messages of batches, all or none.

        Raises: TransactionError if the transaction would have too many messages; PayloadTooLarge for too many bytes.
        """
        for batch in batches:
            # Payloads of different schemas can be joined only as JSON.
            batch.lines = None if batch.lines is None else batch.lines.json
        self.check_room(
            sum(batch.rows for batch in batches),
            sum(batch.lines.nbytes for batch in batches if batch.lines is not None),
        )
        for batch in batches:
            self.join(batch)

    def fail(self, error: MessagingError) -> None:
        """Raise an error in the caller that waits for the transaction, unless it has an outcome already."""
        if not self.future.done():
            self.future.set_exception(error)


def _once(lines: Sequence[bytes]) -> PayloadColumn:
    """Build a column that stores a bytes object only once if several rows share it."""
    places: dict[int, int] = {}
    index = [places.setdefault(id(line), len(places)) for line in lines]
    found = dict(zip(map(id, lines), lines, strict=True))
    return PayloadColumn.of([found[key] for key in places], np.array(index, np.uint32))
