"""The last rows that match a query, with payloads cut: found from the end of the log backwards."""

import sys
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ray_messaging.eventlog.reading.fields import check_count
from ray_messaging.eventlog.reading.filters import Filters
from ray_messaging.eventlog.reading.results import COLUMNS, joined, stored, with_ids
from ray_messaging.eventlog.reading.scan import View, scan
from ray_messaging.eventlog.schema import TEXT

SIZE = "payload_bytes"
_TEXTS = (TEXT, "payload_before")


def recent(view: View, *, limit: int, width: int, **fields: Any) -> pa.Table:  # noqa: ANN401 - see Fields
    """Return the last `limit` matching rows in log order, with payloads as JSON text of at most `width` characters.

    `payload_bytes` is the size of the whole text. Only as many segments are read as are needed. Memory holds the
    payloads of some row groups, and no more than `limit` rows of each after that.
    """
    asked = check_count("limit", limit, at_least=0)
    left = sys.maxsize if asked is None else asked
    shown = check_count("width", width, at_least=0) or 0
    names = stored(COLUMNS)
    found: list[pa.Table] = []
    for part, after in _backwards(view, fields.pop("after", None)) if left else ():
        filters = Filters(**fields, after=after)
        if not filters.select:
            filters.after = max(part.end - 1 - left, -1 if after is None else after)
        rows = scan(part, filters, names, text=True)
        table = joined((_cut(some.slice(max(0, len(some) - left)), shown) for some in rows), names)
        if not len(table):
            continue
        table = table.slice(max(0, len(table) - left))
        found.insert(0, table)
        left -= len(table)
        if left <= 0:
            break
    return with_ids(joined(found, names) if found else _cut(joined([], names), shown))


def _backwards(view: View, after: int | None) -> Iterator[tuple[View, int | None]]:
    """Yield the live rows, then each segment from the last to the first: a view, and the position before its rows."""
    closed = view.closed - 1
    if view.live:
        yield View(view.folder, view.segments[-1:], view.live), max(closed, -1 if after is None else after)
    for segment in reversed(view.segments):
        if after is not None and segment.first_row + segment.rows <= after + 1:
            return
        yield View(view.folder, [segment]), after


def _cut(part: pa.Table, width: int) -> pa.Table:
    """Cut the payloads of a part, and add the size of each."""
    sizes = pc.binary_length(part[TEXT]).cast(pa.int64())
    for name in _TEXTS:
        place = part.column_names.index(name)
        part = part.set_column(place, name, pc.utf8_slice_codeunits(part[name], 0, width))
    return part.append_column(SIZE, sizes)
