"""Pruning of row groups without matching rows, by the statistics in the segment's footer."""

from typing import Any

import pyarrow.parquet as pq

from ray_messaging.eventlog.reading.filtering.fields import MICROSECONDS
from ray_messaging.eventlog.reading.filtering.filters import Filters
from ray_messaging.eventlog.reading.filtering.stored_columns import CHANNEL


def may_match(file: pq.ParquetFile, group: int, filters: Filters) -> bool:
    """Return whether a row group may have matching rows; False only if the statistics exclude it."""
    footer = _Footer(file, group)
    for name, wanted in filters.wanted.items():
        if wanted.none or name == CHANNEL or not filters.wants(name):  # a file may lack channels that readers compose
            continue
        if name == "agent":
            if not (footer.may_hold_id("from", wanted) or footer.may_hold_id("to", wanted)):
                return False
        elif name in {"from_id", "to_id"}:
            if not footer.may_hold_id(name.removesuffix("_id"), wanted):
                return False
        elif not footer.may_hold(name, wanted):
            return False
    if filters.steps is not None and not footer.meets("step", *filters.steps):
        return False
    return footer.meets("sent_at", filters.since, filters.until)


class _Footer:
    """Statistics of one row group."""

    def __init__(self, file: pq.ParquetFile, group: int) -> None:
        self._group = file.metadata.row_group(group)
        self._places = _places(file)

    def _range(self, column: str) -> tuple[Any, Any] | None:
        """Return minimum and maximum; None: unknown. A column of nulls has (None, None)."""
        place = self._places.get(column)
        if place is None:  # the file has an earlier schema, which lacks the column
            return None, None
        statistics = self._group.column(place).statistics
        if statistics is None:
            return None
        if statistics.has_null_count and statistics.null_count == self._group.num_rows:
            return None, None
        return (statistics.min, statistics.max) if statistics.has_min_max else None

    def may_hold(self, column: str, wanted: Any) -> bool:  # noqa: ANN401 - filters.Wanted
        found = self._range(column)
        return found is None or (found[0] is not None and wanted.between(*found))

    def may_hold_id(self, end: str, wanted: Any) -> bool:  # noqa: ANN401 - filters.Wanted
        return bool(
            (len(wanted.numbers) and self.may_hold(f"{end}_id", wanted))
            or (wanted.texts and self.may_hold(f"{end}_name", wanted))
        )

    def meets(self, column: str, low: int | None, high: int | None) -> bool:
        if low is None and high is None:
            return True
        found = self._range(column)
        if found is None:
            return True
        if found[0] is None:
            return False
        least, most = (value if isinstance(value, int) else round(value.timestamp() * MICROSECONDS) for value in found)
        return (low is None or most >= low) and (high is None or least < high)


def _places(file: pq.ParquetFile) -> dict[str, int]:
    """Map columns to their indices in the footer, where a list has an index for its elements."""
    paths = (file.metadata.schema.column(place).path for place in range(file.metadata.num_columns))
    return {path.partition(".")[0]: place for place, path in enumerate(paths)}
