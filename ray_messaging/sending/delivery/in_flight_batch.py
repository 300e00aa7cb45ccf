"""A batch under way: what is known of each row, and who is told when."""

import time
from collections.abc import Callable, Iterable

import numpy as np
from numpy.typing import NDArray

from ray_messaging.errors import MessagingError, OutcomeUnknown
from ray_messaging.interception.wire.verdicts import BatchVerdict
from ray_messaging.model.batch import Batch
from ray_messaging.receipt import BLOCKED, UNKNOWN, Outcome, Receipts, tell
from ray_messaging.sending.accumulation.pending_batch import PendingBatch
from ray_messaging.sending.delivery.row_weights import RowWeights

Rows = NDArray[np.intp]


class InFlightBatch:
    """Follow one batch from its verdicts to its receipts.

    A row is open until it is settled with a fate or failed with an error, once. `batch` is what was accepted and is
    judged, `outgoing` what leaves: with labels, and with other payloads where a rule rewrote them. `placed` names the
    mailboxes that have a row which others still lack; `copies` counts how many still lack a row (None: no row goes to
    more than one). `closed` is told how many rows and bytes of payload got their end, `finished` when the last one did.
    """

    __slots__ = (
        "_closed",
        "_finished",
        "_left",
        "_open",
        "_parcel",
        "_told",
        "_weights",
        "batch",
        "copies",
        "errors",
        "labels",
        "outcome",
        "outgoing",
        "placed",
        "rewritten",
    )

    def __init__(
        self,
        parcel: PendingBatch,
        batch: Batch,
        finished: Callable[["InFlightBatch"], None],
        closed: Callable[[int, int], None] = lambda _rows, _nbytes: None,
    ) -> None:
        self.batch = self.outgoing = batch
        self.outcome = Outcome(batch)
        self.errors: dict[int, MessagingError] = {}
        self.copies: NDArray[np.intp] | None = None
        self.placed: dict[int, set[str]] = {}
        self.rewritten: dict[int, tuple[str, bytes]] = {}
        self.labels: dict[str, set[int]] = {}
        self._parcel = parcel
        self._finished = finished
        self._closed = closed
        self._open: NDArray[np.bool_] | None = None  # by row, once rows get their end apart
        self._left = batch.rows
        self._told = False
        self._weights: RowWeights | None = None

    @property
    def open(self) -> bool:
        """Tell whether the fate of some row is not known yet."""
        return self._left > 0

    @property
    def untouched(self) -> bool:
        """Tell whether nothing is known of any row yet."""
        return self._left == self.batch.rows and not self.placed

    @property
    def open_rows(self) -> Rows:
        """Return the rows whose fate is not known yet."""
        return np.flatnonzero(self._opened())

    def _opened(self) -> NDArray[np.bool_]:
        if self._open is None:
            self._open = np.full(self.batch.rows, self.open)
        return self._open

    def still_open(self, rows: Rows) -> Rows:
        """Return those of some rows whose fate is not known yet."""
        return rows[self._opened()[rows]]

    @property
    def stopped(self) -> dict[int, tuple[str, str]]:
        """Return the rows that were blocked, with rule and reason, whether or not the log has them yet."""
        return self.outcome.blocks

    # -- verdicts -------------------------------------------------------------------------------------------------

    def apply(self, judgement: BatchVerdict, rows: Rows | None = None) -> None:
        """Take over verdicts, those on some rows (None: all), in place of earlier ones.

        A row that some mailbox has already keeps the verdict that let it pass.
        """
        if not (judgement.blocked or judgement.rewritten or judgement.labels) and self.outgoing is self.batch:
            return
        asked, still = None if rows is None else set(rows.tolist()), self._opened()

        def fresh(row: int) -> bool:
            return bool(still[row]) and row not in self.placed and (asked is None or row in asked)

        blocks = self.outcome.blocks
        for row in [row for row in blocks if fresh(row)]:
            del blocks[row]
        blocks.update((row, why) for row, why in judgement.blocked.items() if fresh(row))
        self.rewritten = {row: what for row, what in self.rewritten.items() if not fresh(row)}
        self.rewritten.update((row, what) for row, what in judgement.rewritten.items() if fresh(row))
        for name in dict.fromkeys((*self.labels, *judgement.labels)):  # in the order of the rules
            kept = {row for row in self.labels.get(name, ()) if not fresh(row)}
            self.labels[name] = kept | {row for row in judgement.labels.get(name, ()) if fresh(row)}
        self.outgoing = self.batch.with_payloads({row: line for row, (_, line) in self.rewritten.items()})
        self.outgoing.labels = {
            name: np.array(sorted(found), np.uint32) for name, found in self.labels.items() if found
        }

    def stop(self, rows: Rows) -> None:
        """Settle rows as blocked."""
        self.settle(rows, BLOCKED)

    # -- fates ----------------------------------------------------------------------------------------------------

    def expect(self, rows: Iterable[int], copies: int) -> None:
        """Note to how many mailboxes rows are on their way."""
        if self.copies is None:
            if copies == 1:
                return
            self.copies = np.ones(self.batch.rows, np.intp)
        self.copies[np.fromiter(rows, np.intp)] = copies

    def deliver(self, rows: Rows | None, mailbox: str, fate: int) -> None:
        """Note that a mailbox has some rows (None: all); they are settled when every mailbox of theirs has them."""
        if self.copies is None:
            self.settle(rows, fate)
            return
        rows = np.arange(self.batch.rows) if rows is None else rows
        for row in rows.tolist():
            self.placed.setdefault(row, set()).add(mailbox)
        self.copies[rows] -= 1
        self.settle(rows[self.copies[rows] == 0], fate)

    def settle(self, rows: Rows | None, fate: "int | NDArray[np.uint8]") -> None:
        """Fix the fate of some rows (None: all), those that are still open."""
        if rows is None and self._left == self.batch.rows:
            self.outcome.settle(None, fate)
            self._open, self._left = None, 0
            self._closed(self.batch.rows, 0 if self.batch.lines is None else self.batch.lines.nbytes)
        else:
            rows = np.arange(self.batch.rows) if rows is None else rows
            mine = self._opened()[rows]
            rows = rows[mine]
            self.outcome.settle(rows, fate if isinstance(fate, int) else fate[mine])
            self._close(rows)
        self._tell(rows)

    def fail(self, rows: Rows | None, error: MessagingError) -> None:
        """Give some rows (None: all), those that are still open, an error instead of a fate."""
        lost = self.open_rows if rows is None else self.still_open(rows)
        self.errors.update(dict.fromkeys(lost.tolist(), error))
        for row in lost.tolist():
            self.outcome.blocks.pop(row, None)
        self._close(lost)
        self._tell(lost)

    def give_up(self, error: MessagingError) -> MessagingError:
        """Give all rows that are still open an error; return it with what is known of each row."""
        self.fail(None, error)
        return self._part(0, self.batch.rows) if self.errors else error

    def _close(self, rows: Rows) -> None:
        if len(rows):
            self._opened()[rows] = False
            self._left -= len(rows)
            self._closed(len(rows), self._freed(rows))

    def _freed(self, rows: Rows) -> int:
        """Return the bytes of payload that go with rows that were just closed."""
        lines = self.batch.lines
        if lines is None:
            return 0
        if self._weights is None:
            if not self._left:
                return lines.nbytes
            self._weights = RowWeights(lines)
        return self._weights.take(rows) if self._left else self._weights.rest

    def _tell(self, rows: Rows | None) -> None:
        """Tell whoever waits for rows that were just closed."""
        if self._told:
            return
        self.outcome.done_at = time.time()
        if rows is None or (not self._left and len(rows) == self.batch.rows and not self.errors):
            self._tell_all()
        else:
            self._tell_some(rows)
        if not self._left:
            self._told = True
            self._finished(self)

    def _tell_all(self) -> None:
        outcome, singles = self.outcome, self._parcel.singles
        if self._parcel.alone:
            tell(singles, outcome)  # type: ignore[arg-type]  # none of them is None
        else:
            for row, future in enumerate(singles):
                if future is not None and not future.done():
                    future.set_result(outcome.receipt(row))
        for low, high, many in self._parcel.manies:
            if not many.done():
                many.set_result(Receipts([(outcome, low, high)]))

    def _tell_some(self, rows: Rows) -> None:
        fates, singles = self.outcome.fates, self._parcel.singles
        for row in rows.tolist() if singles else ():
            future = singles[row]
            if future is None or future.done():
                continue
            if row in self.errors:
                future.set_exception(self._part(row, row + 1))
            else:
                future.set_result(self.outcome.receipt(row))
        for low, high, many in self._parcel.manies:
            unknown = np.flatnonzero(fates[low:high] == UNKNOWN) + low
            # Most often nothing has failed yet: then there is no need to look at each.
            if many.done() or len(unknown) > len(self.errors):
                continue
            if any(row not in self.errors for row in unknown.tolist()):
                continue
            if len(unknown):
                many.set_exception(self._part(low, high))
            else:
                many.set_result(Receipts([(self.outcome, low, high)]))

    def _part(self, low: int, high: int) -> MessagingError:
        """Build the error of some rows: what is known of each, and the ids of those it concerns."""
        rows = [row for row in range(low, high) if row in self.errors]
        error = min((self.errors[row] for row in rows), key=lambda found: not isinstance(found, OutcomeUnknown))
        others = [found for found in dict.fromkeys(self.errors[row] for row in rows) if type(found) is not type(error)]
        text = str(error.args[0])
        if isinstance(error, OutcomeUnknown) and others:
            # Who sends again what none of these says to be unwritten would send some twice.
            text += f". Others of these failed for another reason: {others[0]}"
        facts = {key: value for key, value in vars(error).items() if key not in {"receipts", "message_ids"}}
        made = type(error)(text, **facts)
        codes = self.outcome.codes
        made.receipts = [self.outcome.receipt(row) if codes[row] != UNKNOWN else None for row in range(low, high)]
        made.message_ids = [self.outcome.message_id(row) for row in rows]
        made.__cause__ = error.__cause__
        return made
