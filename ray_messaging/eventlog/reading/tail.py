"""Tail of the log: each row as soon as it is logged."""

from collections.abc import Iterator
from time import monotonic
from typing import Any, Protocol

from ray_messaging.common.limits import LOG_NEWS_TIMEOUT_S
from ray_messaging.eventlog.reading.event_rows import LogRow, rows_of
from ray_messaging.eventlog.reading.filters import Filters
from ray_messaging.eventlog.reading.query import REACHED

PAGE = 4096  # rows per query


class Source(Protocol):
    """Log that answers queries, local or remote: see `query.answer`."""

    live: bool  # whether rows may still come

    def follower(self) -> "Source":
        """Return a source for one follower, with state of its own."""

    def ask(self, question: str, **arguments: Any) -> Any:  # noqa: ANN401 - each query has its own
        """Answer a query."""

    def wait(self, position: int, timeout_s: float) -> bool:
        """Wait for rows after a position; return False after the timeout, or if none will come."""


class Tail(Iterator[LogRow]):
    """Rows of the log from a position on, waiting for new ones; `position` is the last one examined.

    It ends after `timeout_s` without a row (None: never), after `limit` rows, or when no more can come.
    """

    def __init__(self, source: Source, *, after: int | None, timeout_s: float | None, fields: dict[str, Any]) -> None:
        fields = dict(fields)
        self._left: int | None = fields.pop("limit", None)
        Filters(**fields, limit=self._left, after=after)  # raises now, not at the first row
        self._source = source
        self._fields = fields
        self._timeout_s = timeout_s
        self._rows: Iterator[LogRow] = iter(())
        self.position: int = source.ask("end") if after is None else after

    def __next__(self) -> LogRow:
        if self._left == 0:
            raise StopIteration
        row = next(self._rows, None)
        if row is None:
            row = self._wait_for_one()
        if self._left is not None:
            self._left -= 1
        return row

    def _wait_for_one(self) -> LogRow:
        """Return the next matching row; raise StopIteration if there is none in time."""
        deadline = None if self._timeout_s is None else monotonic() + self._timeout_s
        while True:
            before = self.position
            page = self._source.ask("since", position=before, limit=PAGE, text=True, **self._fields)
            self.position = int(page.schema.metadata[REACHED])
            self._rows = rows_of(page)
            if len(page):
                return next(self._rows)
            if self.position > before:
                continue  # new rows, but no match: there may be more already
            left = LOG_NEWS_TIMEOUT_S if deadline is None else deadline - monotonic()
            if not self._source.live or left <= 0:
                raise StopIteration
            self._source.wait(self.position, min(left, LOG_NEWS_TIMEOUT_S))
