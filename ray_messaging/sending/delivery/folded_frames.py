"""Frames of broadcasts: one row for each sender, in place of one for each hearer."""

from copy import copy

import numpy as np
from numpy.typing import NDArray

from ray_messaging.addressing.directory import Directory, Record
from ray_messaging.audiences.folding import agents_digest, fold
from ray_messaging.common.limits import CALL_BYTES, COLUMN_ROWS, FRAME_ROWS
from ray_messaging.model.batch import Batch
from ray_messaging.model.extension import Fold
from ray_messaging.sending.delivery.in_flight_batch import InFlightBatch, Rows

# The most that a broadcast takes in a frame beside its payload: id, number, ordinal, line.
_ROW_BYTES = 24


class FoldedFrames:
    """The folding of batches that have a row for each hearer of a broadcast."""

    def __init__(self, directory: Directory) -> None:
        self._directory = directory
        self._routed: tuple[Batch, int, NDArray[np.int32]] | None = None  # the last batch, the version, its routes
        self._digests: dict[str, tuple[Record, str, bytes]] = {}  # by mailbox, of one record and topic

    def takes(self, in_flight: InFlightBatch, mailbox: str) -> bool:
        """Tell whether the rows of a batch for a mailbox can be folded: not where patterns decide which agents hear."""
        batch, record = in_flight.outgoing, self._directory.records.get(mailbox)
        broadcast = batch.extension is not None and batch.extension.audience is not None
        return broadcast and record is not None and not record.globs

    def parts(self, in_flight: InFlightBatch, mailbox: str, rows: Rows | None, most_bytes: int) -> list[Rows]:
        """Split rows so that each frame, once it is folded, is within the limits of its mailbox."""
        batch, record = in_flight.outgoing, self._directory.records[mailbox]
        assert batch.numbers is not None
        assert batch.lines is not None
        rows = np.arange(batch.rows) if rows is None else rows
        most_rows = COLUMN_ROWS if record.frame_rows >= FRAME_ROWS else record.frame_rows
        begins = np.diff(batch.numbers[rows].astype(np.int64), prepend=-1) != 0
        weights = batch.lines.weights
        lines = weights[rows if batch.lines.index is None else batch.lines.index[rows]]
        volumes = np.cumsum(np.where(begins, lines + _ROW_BYTES, 0))
        parts: list[Rows] = []
        low = 0
        while low < len(rows):
            before = int(volumes[low - 1]) if low else 0
            fitting = int(np.searchsorted(volumes, before + min(record.frame_bytes, most_bytes), side="right"))
            high = max(low + 1, min(low + most_rows, fitting))
            parts.append(rows[low:high])
            low = high
        return parts

    def fold(self, in_flight: InFlightBatch, mailbox: str, rows: Rows | None) -> Batch:
        """Return rows of a batch (None: all), which go to a mailbox, with one row for each broadcast."""
        batch = in_flight.outgoing
        routes = self._routes(in_flight.batch)
        reaching = [mailbox in names for names in self._directory.routes]
        there = np.flatnonzero(np.array(reaching)[routes])
        rows = np.arange(batch.rows) if rows is None else rows
        folded = fold(batch, rows, there, self._digest(mailbox, batch.topics[0]))
        if in_flight.rewritten and self._directory.logged:  # no rule rewrites one pair alone
            assert batch.numbers is not None
            first = rows[np.diff(batch.numbers[rows].astype(np.int64), prepend=-1) != 0].tolist()
            marked = [at for at, row in enumerate(first) if row in in_flight.rewritten]
            folded.noted = np.array(marked, np.uint32) if marked else None
        return folded

    def row_parts(self, broadcasts: Batch, rows: Rows, record: Record) -> list[Rows]:
        """Split rows that are broadcasts so that each frame is within the limits of its mailbox."""
        assert broadcasts.lines is not None
        if not len(rows):
            return []
        index, weights = broadcasts.lines.index, broadcasts.lines.weights
        volumes = np.cumsum(weights[rows if index is None else index[rows]] + _ROW_BYTES)
        limit = min(record.frame_bytes, CALL_BYTES)
        cuts = np.flatnonzero(np.diff(volumes // limit)) + 1
        return np.split(rows, cuts)

    def rows_folded(self, broadcasts: Batch, rows: Rows, counts: NDArray[np.int64], agents: bytes) -> Batch:
        """Return rows that are broadcasts as they go to a mailbox, where each has so many hearers."""
        made = broadcasts if len(rows) == broadcasts.rows else broadcasts.take(rows)
        made = copy(made)
        made.numbers, made.extension = None, copy(made.extension)
        assert made.extension is not None
        made.extension.fold = Fold(agents, int(counts[rows].sum()))
        return made

    def _routes(self, batch: Batch) -> NDArray[np.int32]:
        """Return the route of each row; several frames of one batch follow each other."""
        found = self._routed
        if found is None or found[0] is not batch or found[1] != self._directory.version:
            found = self._routed = batch, self._directory.version, self._directory.route(batch)
        return found[2]

    def _digest(self, mailbox: str, topic: str) -> bytes:
        """Return the digest of the agents of a mailbox under a subtopic."""
        record = self._directory.records[mailbox]
        found = self._digests.get(mailbox)
        if found is None or found[0] is not record or found[1] != topic:
            found = self._digests[mailbox] = record, topic, agents_digest(record.agents(topic))
        return found[2]
