"""A batch that is being sent. It has the state of each row, from the verdict to the receipt."""

import asyncio
import time
from collections import Counter
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ray_messaging.errors import MessagingError, OutcomeUnknown
from ray_messaging.interception.verdicts import BatchVerdict
from ray_messaging.model.batch import Batch
from ray_messaging.model.fates import UNKNOWN
from ray_messaging.model.typed.typed_table import Payloads
from ray_messaging.observability.observer import Observer
from ray_messaging.receipt import Outcome, Receipts, set_receipts
from ray_messaging.sending.pending_batch import PendingBatch

Rows = NDArray[np.intp]


class BatchOwner(Protocol):
    """The owner of an InFlightBatch, whose methods are called when rows of the batch have their fates or errors."""

    def rows_done(self, rows: int, nbytes: int) -> None:
        """Record that `rows` rows, with `nbytes` bytes of payload, have their fate or error."""

    def batch_done(self, batch: "InFlightBatch") -> None:
        """Record that all rows of a batch have their fate or error.

        If `batch.telling` is true, some callers still wait for their receipts, and `callers_told` is called later.
        """

    def callers_told(self) -> None:
        """Record that the last callers of a batch have their receipts.

        This is called only if the callers got their receipts in several groups, and `batch.telling` was true in
        `batch_done`.
        """


class InFlightBatch:
    """A batch that is being sent. It exists until all its rows have a fate or an error.

    A row is open until it gets a fate or an error, which happens only once. `left` is the number of open rows.
    `pending` has the futures of the receipts, the trace, and the hearers of broadcasts. `batch` is the batch as it was
    accepted, which the rules judge. `outgoing` is the batch that is written, with labels and rewritten payloads. If
    rows go to several mailboxes, `placed` has the rows that each mailbox has already, and `copies` has, for each row,
    the number of mailboxes that do not have it yet. `copies` is None if each row goes to one mailbox.

    If `wave` is not 0, callers of single messages get their receipts in groups of at least `wave` callers (the last
    group may be smaller), and other tasks can run between two groups. Until the last group has its receipts, `telling`
    is true.
    """

    __slots__ = (
        "_open",
        "_owner",
        "_told",
        "_wave",
        "_weights",
        "batch",
        "copies",
        "errors",
        "labels",
        "left",
        "outcome",
        "outgoing",
        "pending",
        "placed",
        "rewritten",
        "telling",
    )

    def __init__(self, pending: PendingBatch, batch: Batch, owner: BatchOwner, wave: int = 0) -> None:
        self.batch = self.outgoing = batch
        self.outcome = Outcome(batch)
        self.errors: dict[int, MessagingError] = {}
        self.copies: NDArray[np.intp] | None = None
        self.placed: dict[str, NDArray[np.bool_]] = {}
        self.rewritten: dict[int, tuple[str, bytes]] = {}
        self.labels: dict[str, set[int]] = {}
        self.left = batch.rows
        self.pending = pending
        self.telling = False
        self._owner = owner
        self._wave = wave
        self._open: NDArray[np.bool_] | None = None  # whether each row is open; None: all rows are open, or none is
        self._told = False
        self._weights: RowWeights | None = None

    def row_in_call(self, row: int) -> int | None:
        """Return a row's number in the bulk send that sent it, or None if the row was sent as a single message."""
        for bulk in self.pending.bulks:
            if bulk.low <= row < bulk.high:
                return bulk.call_row + row - bulk.low
        return None

    def is_placed(self, row: int) -> bool:
        """Return whether a mailbox already has a row that goes to several mailboxes."""
        return any(rows[row] for rows in self.placed.values())

    @property
    def open_rows(self) -> Rows:
        """Return the rows that have neither a fate nor an error yet."""
        return np.flatnonzero(self._opened())

    def _opened(self) -> NDArray[np.bool_]:
        if self._open is None:
            self._open = np.full(self.batch.rows, self.left > 0)
        return self._open

    def still_open(self, rows: Rows) -> Rows:
        """Return those of the given rows that are open."""
        return rows[self._opened()[rows]]

    # -- verdicts -------------------------------------------------------------------------------------------------

    def apply(self, verdict: BatchVerdict, rows: Rows | None = None) -> None:
        """Apply the verdicts on some rows (None: all). They replace earlier verdicts.

        If a mailbox has a row already, that row keeps the verdict under which it was written.
        """
        if not (verdict.blocked or verdict.rewritten or verdict.labels) and self.outgoing is self.batch:
            return
        asked, still = None if rows is None else set(rows.tolist()), self._opened()

        def fresh(row: int) -> bool:
            return bool(still[row]) and not self.is_placed(row) and (asked is None or row in asked)

        blocks = self.outcome.blocks
        for row in [row for row in blocks if fresh(row)]:
            del blocks[row]
        blocks.update((row, why) for row, why in verdict.blocked.items() if fresh(row))
        self.rewritten = {row: change for row, change in self.rewritten.items() if not fresh(row)}
        self.rewritten.update((row, change) for row, change in verdict.rewritten.items() if fresh(row))
        for name in dict.fromkeys((*self.labels, *verdict.labels)):
            kept = {row for row in self.labels.get(name, ()) if not fresh(row)}
            self.labels[name] = kept | {row for row in verdict.labels.get(name, ()) if fresh(row)}
        self.outgoing = self.batch.with_payloads({row: line for row, (_, line) in self.rewritten.items()})
        self.outgoing.labels = {
            name: np.array(sorted(found), np.uint32) for name, found in self.labels.items() if found
        }

    # -- fates ----------------------------------------------------------------------------------------------------

    def expect(self, rows: Rows | list[int], copies: int | NDArray[np.intp]) -> None:
        """Record to how many mailboxes each row goes: one number for all rows, or one for each."""
        if self.copies is None:
            if isinstance(copies, int) and copies == 1:
                return
            self.copies = np.ones(self.batch.rows, np.intp)
        self.copies[rows] = copies

    def deliver(self, rows: Rows | None, mailbox: str, fate: int) -> None:
        """Record that a mailbox has some rows (None: all). A row gets the fate when all its mailboxes have the row."""
        if self.copies is None:
            self.settle(rows, fate)
            return
        rows = np.arange(self.batch.rows) if rows is None else rows
        self.placed.setdefault(mailbox, np.zeros(self.batch.rows, np.bool_))[rows] = True
        self.copies[rows] -= 1
        self.settle(rows[self.copies[rows] == 0], fate)

    def settle(self, rows: Rows | None, fate: "int | NDArray[np.uint8]") -> None:
        """Give some rows (None: all) a fate, if they are open."""
        if rows is None and self.left == self.batch.rows:
            self.outcome.settle(None, fate)
            self._open, self.left = None, 0
            self._owner.rows_done(self.batch.rows, 0 if self.batch.lines is None else self.batch.lines.nbytes)
        else:
            rows = np.arange(self.batch.rows) if rows is None else rows
            mine = self._opened()[rows]
            rows = rows[mine]
            self.outcome.settle(rows, fate if isinstance(fate, int) else fate[mine])
            self._close(rows)
        self._tell(rows)

    def fail(self, rows: Rows | None, error: MessagingError) -> None:
        """Give some rows (None: all) an error in place of a fate, if they are open."""
        lost = self.open_rows if rows is None else self.still_open(rows)
        self.errors.update(dict.fromkeys(lost.tolist(), error))
        for row in lost.tolist():
            self.outcome.blocks.pop(row, None)
        self._close(lost)
        self._tell(lost)

    def give_up(self, error: MessagingError) -> MessagingError:
        """Give all open rows an error; return an error for the batch, with the receipts of the rows that have a fate.

        If all rows have a fate, return `error` unchanged.
        """
        self.fail(None, error)
        return self._error_of(0, self.batch.rows) if self.errors else error

    def _close(self, rows: Rows) -> None:
        if len(rows):
            self._opened()[rows] = False
            self.left -= len(rows)
            self._owner.rows_done(len(rows), self._freed(rows))

    def _freed(self, rows: Rows) -> int:
        """Return how many bytes of payload are freed by rows that have just got their fate or error."""
        lines = self.batch.lines
        if lines is None:
            return 0
        if self._weights is None:
            if not self.left:
                return lines.nbytes
            self._weights = RowWeights(lines)
        return self._weights.take(rows) if self.left else self._weights.rest

    # -- receipts -------------------------------------------------------------------------------------------------

    def _tell(self, rows: Rows | None) -> None:
        """Give receipts or errors to the callers of rows (None: of all rows) that have just got their fate or error."""
        pending = self.pending
        # A bulk send gets all its receipts at once, when none of its rows is open.
        if self._told or (self.left and not pending.singles and len(pending.bulks) == 1):
            return
        self.outcome.done_at = time.time()
        all_rows = rows is None or (not self.left and len(rows) == self.batch.rows and not self.errors)
        if all_rows and pending.all_single:
            self._tell_singles(0)
        else:
            self._tell_some(rows)
        if not self.left:
            self._told = True
            self._owner.batch_done(self)

    def _tell_singles(self, first: int) -> None:
        """Set the receipts of the rows from `first` on. Each of these rows was sent alone, and has a fate.

        If `wave` is not 0, set only the receipts of one group. The next group follows after other tasks have run.
        """
        singles = self.pending.singles
        groups = max(1, len(singles) // self._wave) if self._wave else 1
        end = first - (-len(singles) // groups)
        set_receipts(singles[first:end], self.outcome, first)  # type: ignore[arg-type]  # no future is None here
        if end < len(singles):
            self.telling = True
            asyncio.get_running_loop().call_soon(self._tell_singles, end)
        elif self.telling:
            self.telling = False
            self._owner.callers_told()

    def _tell_some(self, rows: Rows | None) -> None:
        codes, singles = self.outcome.codes, self.pending.singles
        some = () if not singles else range(len(singles)) if rows is None else rows.tolist()
        for row in some:
            future = singles[row]
            if future is None or future.done():
                continue
            if row in self.errors:
                future.set_exception(self._error_of(row, row + 1))
            else:
                future.set_result(self.outcome.receipt(row))
        for low, high, bulk, _ in self.pending.bulks:
            unknown = codes.count(UNKNOWN, low, high)
            # A row without a fate has an error or is open. So if this bulk send has more rows without a fate than there
            # are errors, it has an open row. If not, its rows are checked one by one.
            if bulk.done() or unknown > len(self.errors):
                continue
            if unknown and any(codes[row] == UNKNOWN and row not in self.errors for row in range(low, high)):
                continue
            if unknown:
                bulk.set_exception(self._error_of(low, high))
            else:
                bulk.set_result(Receipts([(self.outcome, low, high)]))

    def _error_of(self, low: int, high: int) -> MessagingError:
        """Build the error for the rows from `low` to before `high`.

        It has the receipts of those rows that have a fate, and the ids of the messages in the other rows.
        """
        rows = [row for row in range(low, high) if row in self.errors]
        error = min((self.errors[row] for row in rows), key=lambda found: not isinstance(found, OutcomeUnknown))
        others = [found for found in dict.fromkeys(self.errors[row] for row in rows) if type(found) is not type(error)]
        text = str(error.args[0])
        if isinstance(error, OutcomeUnknown) and others:
            # Not all failed rows have an unknown outcome, so the text also names the first other error.
            text += f". Other messages of this call failed for another reason: {others[0]}"
        facts = {key: value for key, value in vars(error).items() if key not in {"receipts", "message_ids"}}
        made = type(error)(text, **facts)
        codes = self.outcome.codes
        made.receipts = [self.outcome.receipt(row) if codes[row] != UNKNOWN else None for row in range(low, high)]
        made.message_ids = [self.outcome.message_id(row) for row in rows]
        made.__cause__ = error.__cause__
        return made


class RowWeights:
    """Counter of the payload bytes of the rows that have no fate or error yet, the open rows.

    If rows share a payload, its bytes are freed when none of these rows is open.
    """

    __slots__ = ("_index", "_open", "_weights", "rest")

    def __init__(self, lines: Payloads) -> None:
        self.rest = lines.nbytes  # the bytes of the payloads of open rows
        self._index = lines.index
        self._weights = lines.weights
        # For each payload, how many open rows have it.
        self._open = None if lines.index is None else np.bincount(lines.index, minlength=lines.count)

    def take(self, rows: Rows) -> int:
        """Return how many bytes are freed when these rows get their fate or error. Each row may be passed only once."""
        if self._index is None or self._open is None:
            freed = int(self._weights[rows].sum())
        else:
            used, counts = np.unique(self._index[rows], return_counts=True)
            self._open[used] -= counts
            freed = int(self._weights[used[self._open[used] == 0]].sum())
        self.rest -= freed
        return freed


def tell_fates(observer: Observer, outcome: Outcome) -> None:
    """Report the fates of a batch to an observer, and how many messages each rule has blocked."""
    if len(outcome):
        observer.batch_sent(outcome.fates, outcome.consumption(0))
    for rule, messages in Counter(rule for rule, _ in outcome.blocks.values()).items():
        observer.messages_blocked(rule, messages)
