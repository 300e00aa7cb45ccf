"""The newest rows of the log, in memory until there are enough for a file, or they are old enough to be written."""

import time
from typing import Any, NamedTuple

import pyarrow as pa

from ray_messaging.eventlog.folder import Segment, StepPosition
from ray_messaging.eventlog.log_schema import joined_rows, laid_out, typed_names
from ray_messaging.eventlog.writing.entries import CELLS
from ray_messaging.eventlog.writing.stream_cursors import StreamCursors
from ray_messaging.transports.log_store import LogMark

# At most two segments are in memory: the open one, and the one that is being written to a file. So these limits also
# limit the log's memory, to about 200 MB including reading, building of rows and Parquet. A busy writer uses the memory
# again for the next segment. An idle writer returns it to the system.
SEGMENT_ROWS = 262_144
SEGMENT_BYTES = 40 * 2**20

# After this many seconds, rows are written to a file even if the segment is not full.
SEGMENT_AGE_S = 30.0


# A batch takes about 10 KB of memory besides its rows, so small batches are merged, 64 at a time: first those of fewer
# than 64 rows, and then those of fewer than 4,096 rows.
_MERGED = 64
_LEVELS = (64, 4_096)


class SegmentContent(NamedTuple):
    """The content of a file of the log: rows, and the positions up to which the server's streams were read."""

    number: int
    table: pa.Table | None  # None: there are no rows
    meta: dict[str, Any]  # the argument `meta` of `Folder.stage`
    steps: StepPosition | None
    marks: dict[str, LogMark]
    finished: tuple[str, ...]  # streams that have ended, and whose last entry is in the log
    stored: Segment | None  # the file that already has all these rows; None: there is none yet


class OpenSegment:
    """The open segment: rows that are collected in memory for the log's next file."""

    def __init__(self, number: int, first_row: int) -> None:
        self.number = number
        self.first_row = first_row
        self.rows = 0
        self.nbytes = 0
        self.stored: Segment | None = None  # the file with the first rows of this segment, if there is one already
        self._batches: list[pa.RecordBatch] = []
        self._typed = set[str]()  # the names of the typed columns
        self._since: float | None = None

    def is_full(self, rows: int, nbytes: int) -> bool:
        """Return whether the segment must be closed: it has at least `rows` rows, `nbytes` bytes or CELLS cells.

        Only the cells of typed columns count.
        """
        return self.rows >= rows or self.nbytes >= nbytes or self.rows * len(self._typed) >= CELLS

    def is_too_wide_for(self, batch: pa.RecordBatch | None) -> bool:
        """Return whether this segment must be closed before `batch` is added.

        With the rows of `batch`, the segment would have too many cells (rows times typed columns).
        """
        if batch is None or not self.rows:
            return False
        rows: int = self.rows + batch.num_rows
        return rows * len(self._typed.union(typed_names(batch.schema.names))) > 2 * CELLS

    def add(self, batch: pa.RecordBatch | None) -> None:
        """Append rows, which wait to be stored in a file.

        If `batch` is None, there are no rows, but new positions in the streams wait to be stored.
        """
        self._since = self._since or time.monotonic()
        if batch is None:
            return
        self.rows += batch.num_rows
        self.nbytes += batch.nbytes
        self._typed.update(typed_names(batch.schema.names))
        self._batches.append(batch)
        for limit in _LEVELS:
            self._merge(limit)

    def _merge(self, limit: int) -> None:
        small = 0
        for batch in reversed(self._batches):
            if batch.num_rows >= limit:
                break
            small += 1
        if small >= _MERGED:
            self._batches[-small:] = joined_rows(self._batches[-small:]).combine_chunks().to_batches()

    def age(self) -> float:
        """Return for how many seconds rows or stream positions have waited to be stored in a file; 0.0 if none wait."""
        return 0.0 if self._since is None else time.monotonic() - self._since

    @property
    def waiting(self) -> bool:
        """Return whether rows, or positions up to which streams were read, are in no file yet."""
        return self._since is not None

    def table(self) -> pa.Table:
        """Return the rows that were collected for the next file as a table. There must be at least one row."""
        return laid_out(joined_rows(self._batches))

    def content(self, streams: StreamCursors, steps: StepPosition | None) -> SegmentContent:
        """Return a copy of what a file must hold now: the rows so far, and how far the server's streams were read.

        From now on these rows do not count as waiting for a file. Rows can still be added to the segment.
        """
        self._since = None
        meta = {"first_row": self.first_row, "cursors": dict(streams.cursors), "begun": dict(streams.begun)}
        meta |= {"taken": streams.taken(), "steps": steps}
        stored = self.stored if self.stored is not None and self.stored.rows == self.rows else None
        table = self.table() if self.rows else None
        return SegmentContent(self.number, table, meta, steps, streams.take_marks(), streams.finished(), stored)
