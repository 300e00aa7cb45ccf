"""A batch under way: what is known of each row, and who is told when."""

import time
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from ray_messaging.errors import MessagingError
from ray_messaging.frames import Batch
from ray_messaging.receipt import BLOCKED, UNKNOWN, Outcome, Receipt, Receipts
from ray_messaging.sending.parcel import Parcel

Rows = NDArray[np.intp]


class Posting:
    """Follow one batch from its verdicts to its receipts.

    A row is open until it is settled with a fate or failed with an error, once. `placed` names the mailboxes that have
    a row which others still lack; `copies` counts, for the rows of the last cut, how many still lack it (None: no row
    of that cut goes to more than one).
    """

    __slots__ = ("_finished", "_left", "_open", "_parcel", "_told", "batch", "copies", "errors", "outcome", "placed")

    def __init__(self, parcel: Parcel, batch: Batch, finished: Callable[["Posting"], None]) -> None:
        self.batch = batch
        self.outcome = Outcome(batch)
        self.errors: dict[int, MessagingError] = {}
        self.copies: NDArray[np.intp] | None = None
        self.placed: dict[int, set[str]] = {}
        self._parcel = parcel
        self._finished = finished
        self._open = np.ones(len(batch), np.bool_)
        self._left = len(batch)
        self._told = False

    @property
    def open(self) -> bool:
        """Tell whether the fate of some row is not known yet."""
        return self._left > 0

    @property
    def untouched(self) -> bool:
        """Tell whether nothing is known of any row yet."""
        return self._left == len(self.batch) and not self.placed

    @property
    def open_rows(self) -> Rows:
        """Return the rows whose fate is not known yet."""
        return np.flatnonzero(self._open)

    def block(self, blocked: dict[int, tuple[str, str]]) -> None:
        """Take over the verdicts; a row that somebody has already can no longer be blocked."""
        fresh = {row: why for row, why in blocked.items() if self._open[row] and row not in self.placed}
        if fresh:
            self.outcome.blocks.update(fresh)
            self.settle(np.fromiter(fresh, np.intp, len(fresh)), BLOCKED)

    def deliver(self, rows: Rows | None, mailbox: str, fate: int) -> None:
        """Note that a mailbox has some rows (None: all); they are settled when every mailbox of theirs has them."""
        if self.copies is None:
            self.settle(rows, fate)
            return
        rows = np.arange(len(self.batch)) if rows is None else rows
        for row in rows.tolist():
            self.placed.setdefault(row, set()).add(mailbox)
        self.copies[rows] -= 1
        self.settle(rows[self.copies[rows] == 0], fate)

    def settle(self, rows: Rows | None, fate: "int | NDArray[np.uint8]") -> None:
        """Fix the fate of some rows (None: all), those that are still open."""
        if rows is None and self._left == len(self.batch):
            self.outcome.fates[:] = fate
            self._open[:] = False
            self._left = 0
        else:
            rows = np.arange(len(self.batch)) if rows is None else rows
            mine = self._open[rows]
            self.outcome.fates[rows[mine]] = fate if isinstance(fate, int) else fate[mine]
            self._close(rows[mine])
        self._tell()

    def fail(self, rows: Rows | None, error: MessagingError) -> None:
        """Give some rows (None: all), those that are still open, an error instead of a fate."""
        lost = self.open_rows if rows is None else rows[self._open[rows]]
        self.errors.update(dict.fromkeys(lost.tolist(), error))
        self._close(lost)
        self._tell()

    def _close(self, rows: Rows) -> None:
        self._open[rows] = False
        self._left -= len(rows)

    def _tell(self) -> None:
        if self._told:
            return
        self.outcome.done_at = time.time()
        if self._left or self.errors:
            self._tell_some()
        else:
            self._tell_all()
        if not self._left:
            self._told = True
            self._finished(self)

    def _tell_all(self) -> None:
        outcome = self.outcome
        for row, future in enumerate(self._parcel.singles):
            if future is not None and not future.done():
                future.set_result(Receipt(outcome, row))
        for low, high, many in self._parcel.manies:
            if not many.done():
                many.set_result(Receipts([(outcome, low, high)]))

    def _tell_some(self) -> None:
        fates = self.outcome.fates
        for row, future in enumerate(self._parcel.singles):
            if future is None or future.done():
                continue
            if row in self.errors:
                future.set_exception(self._part(row, row + 1))
            elif fates[row] != UNKNOWN:
                future.set_result(Receipt(self.outcome, row))
        for low, high, many in self._parcel.manies:
            unknown = np.flatnonzero(fates[low:high] == UNKNOWN) + low
            if many.done() or any(row not in self.errors for row in unknown.tolist()):
                continue
            if len(unknown):
                many.set_exception(self._part(low, high))
            else:
                many.set_result(Receipts([(self.outcome, low, high)]))

    def _part(self, low: int, high: int) -> MessagingError:
        """Build the error of some rows: what is known of each, and the ids of those it concerns."""
        rows = [row for row in range(low, high) if row in self.errors]
        error = self.errors[rows[0]]
        facts = {key: value for key, value in vars(error).items() if key not in {"receipts", "message_ids"}}
        made = type(error)(error.args[0], **facts)
        fates = self.outcome.fates
        made.receipts = [Receipt(self.outcome, row) if fates[row] != UNKNOWN else None for row in range(low, high)]
        made.message_ids = [self.outcome.message_id(row) for row in rows]
        made.__cause__ = error.__cause__
        return made
