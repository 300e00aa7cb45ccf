"""The open segment: rows in memory until the segment is full, or old enough."""

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from ray_messaging.eventlog.folder import Segment, StepPosition
from ray_messaging.eventlog.log_schema import POSITION
from ray_messaging.eventlog.writing.payloads import Kind
from ray_messaging.eventlog.writing.placed_rows import PlacedRows, Places
from ray_messaging.eventlog.writing.stream_cursors import StreamCursors
from ray_messaging.transports.log_store import LogMark

# At most two segments are in memory: the open one, and the one that is written to a file. So these bound the log's
# memory: about 200 MB with reading, row building and Parquet. A busy writer keeps the memory for the next segment, an
# idle one returns it to the system.
SEGMENT_ROWS = 262_144
SEGMENT_BYTES = 40 * 2**20

# After this time rows are written to a file that is not full yet.
SEGMENT_AGE_S = 30.0


# A batch costs about 10 KB plus its rows. So this many small batches are merged, at two levels, up to the rows of a
# frame of the bulk path.
_MERGED = 64
_LEVELS = (64, 4_096)
_KINDS = 32  # a segment with so many kinds of payloads is full, as each kind has a file of its own


class KindRows:
    """The rows of one segment whose payloads have the same typed columns."""

    def __init__(self) -> None:
        self._batches: list[pa.RecordBatch] = []
        self._places: list[Places] = []  # for each batch, the places of its rows in the segment

    def add(self, batch: pa.RecordBatch, places: Places) -> None:
        """Append rows."""
        self._batches.append(batch)
        self._places.append(places)
        for limit in _LEVELS:
            self._merge(limit)

    def _merge(self, limit: int) -> None:
        small = 0
        for batch in reversed(self._batches):
            if batch.num_rows >= limit:
                break
            small += 1
        if small >= _MERGED:
            merged = pa.Table.from_batches(self._batches[-small:]).combine_chunks().to_batches()
            self._places[-small:] = [np.concatenate(self._places[-small:])]
            self._batches[-small:] = merged

    def table(self, first_row: int) -> pa.Table:
        """Return the rows in order, with their positions in the log. The segment's first row has `first_row`."""
        positions = pa.array(np.concatenate(self._places) + first_row)
        return pa.Table.from_batches(self._batches).append_column(POSITION, positions)


class Sealed(NamedTuple):
    """The content of a segment at one moment, with the stream cursors of that moment."""

    number: int
    tables: list[pa.Table]  # one for each kind of payloads
    meta: dict[str, Any]  # as for `Folder.stage`
    steps: StepPosition | None
    marks: dict[str, LogMark]
    finished: tuple[str, ...]  # streams that ended and were read completely
    stored: Segment | None  # its file, if it has all these rows


class OpenSegment:
    """The segment that is being filled. It collects rows in memory."""

    def __init__(self, number: int, first_row: int) -> None:
        self.number = number
        self.first_row = first_row
        self.rows = 0
        self.nbytes = 0
        self.stored: Segment | None = None  # its file, if any
        self._kinds: dict[Kind, KindRows] = {}
        self._since: float | None = None

    def is_full(self, rows: int, nbytes: int) -> bool:
        """Return whether the segment has so many rows, bytes or kinds of payloads that it must be closed."""
        return self.rows >= rows or self.nbytes >= nbytes or len(self._kinds) >= _KINDS

    def add(self, found: Sequence[PlacedRows]) -> None:
        """Append rows. Even without any, there are cursors then that are not stored yet."""
        self._since = self._since or time.monotonic()
        first = self.rows
        for kind, batch, places in found:
            self._kinds.setdefault(kind, KindRows()).add(batch, places + first)
            self.rows += batch.num_rows
            self.nbytes += batch.nbytes

    def age(self) -> float:
        """Return for how many seconds rows or cursors have waited to be stored; 0.0 if none wait."""
        return 0.0 if self._since is None else time.monotonic() - self._since

    @property
    def waiting(self) -> bool:
        """Return whether there are rows or cursors that are not stored yet."""
        return self._since is not None

    def tables(self) -> list[pa.Table]:
        """Return the rows with their positions in the log, in one table for each set of typed columns."""
        return [rows.table(self.first_row) for rows in self._kinds.values()]

    def seal(self, streams: StreamCursors, steps: StepPosition | None) -> Sealed:
        """Return the present content with the present cursors. More rows may be added later."""
        self._since = None
        meta = {"first_row": self.first_row, "cursors": dict(streams.cursors), "begun": dict(streams.begun)}
        meta |= {"taken": streams.taken(), "steps": steps}
        stored = self.stored if self.stored is not None and self.stored.rows == self.rows else None
        return Sealed(self.number, self.tables(), meta, steps, streams.take_marks(), streams.finished(), stored)
