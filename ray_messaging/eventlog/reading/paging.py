"""Query results page by page, with only one page in memory: an iterator over new rows, and export to a file."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import fields as dataclass_fields
from itertools import chain
from pathlib import Path
from time import monotonic
from typing import IO, Any, Protocol

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from ray_messaging.default_limits_and_leases import LOG_NEWS_TIMEOUT_S
from ray_messaging.errors import InvalidQuery, LogError
from ray_messaging.eventlog.folder import SEGMENT
from ray_messaging.eventlog.folder_records import ACCOUNT
from ray_messaging.eventlog.log_schema import with_pandas_types
from ray_messaging.eventlog.reading.event_rows import LogRow, dicts_of, rows_of
from ray_messaging.eventlog.reading.filters import Filters
from ray_messaging.eventlog.reading.query import REACHED
from ray_messaging.eventlog.reading.results import with_columns, with_texts

_TAIL_PAGE = 4096  # the number of rows that a `Tail` queries at a time
PAGE = 65_536
OnProgress = Callable[[int], None]
WritePage = Callable[[pa.Table], None]
WriterOf = Callable[[IO[bytes], pa.Schema], AbstractContextManager[WritePage]]
_encode = msgspec.json.Encoder().encode


class LogSource(Protocol):
    """A log that answers queries, in this process or another one, see `questions.answer`."""

    live: bool  # True: more rows may come

    def follower(self) -> "LogSource":
        """Return a source for one reader of new rows. A source may have a state, so readers must not share one."""

    def ask(self, question: str, **arguments: Any) -> Any:  # noqa: ANN401 - each query has its own type of result
        """Return the answer to the query `question`, one of `questions.QUESTIONS`."""

    def wait(self, position: int, timeout_s: float) -> bool:
        """Wait for rows after a position; return False after the timeout, or if no more rows will come."""


class Tail(Iterator[LogRow]):
    """Iterator over the rows of the log after a position. It waits for new rows.

    `position` is the last position that was examined. The iteration ends when no row has come for `timeout_s` seconds
    (None: there is no timeout), after `limit` rows, or if no more rows can come.
    """

    def __init__(
        self, source: LogSource, *, after: int | None, timeout_s: float | None, fields: dict[str, Any]
    ) -> None:
        fields = dict(fields)
        self._left: int | None = fields.pop("limit", None)
        # `Filters` raises the error for an invalid field now, and not only when the first row is read.
        Filters(**fields, limit=self._left, after=after)
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
        """Return the next matching row; raise StopIteration if there is none within the timeout."""
        deadline = None if self._timeout_s is None else monotonic() + self._timeout_s
        while True:
            before = self.position
            page = self._source.ask("since", position=before, limit=_TAIL_PAGE, text=True, **self._fields)
            self.position = int(page.schema.metadata[REACHED])
            self._rows = rows_of(page)
            if len(page):
                return next(self._rows)
            if self.position > before:
                continue  # new rows came, but none matched; there may be newer ones already
            left = LOG_NEWS_TIMEOUT_S if deadline is None else deadline - monotonic()
            if not self._source.live or left <= 0:
                raise StopIteration
            self._source.wait(self.position, min(left, LOG_NEWS_TIMEOUT_S))


def export(source: LogSource, path: str | Path, on_progress: OnProgress | None, fields: dict[str, Any]) -> int:
    """Write the matching rows to a file, which appears once it is complete; return the number of rows.

    Raises: InvalidQuery for an unknown suffix, an invalid field, or a file in the folder of an event log; LogError if
    the file cannot be written.
    """
    path = Path(path)
    writer_of = _WRITERS.get(path.suffix.lower())
    if writer_of is None:
        raise InvalidQuery(
            f"cannot export to {str(path)!r}: name a file that ends in {' or '.join(_WRITERS)}",
            field="path",
            value=path,
        )
    _check_place(path)
    Filters(**{name: value for name, value in fields.items() if name != "expand"})
    unfinished = path.with_name(f".{path.name}.part")
    try:
        rows = _write(source, unfinished, writer_of, on_progress, fields)
        unfinished.replace(path)
    except OSError as error:
        why = error if path.parent.is_dir() else f"the folder {str(path.parent)!r} does not exist"
        raise LogError(f"cannot write {str(path)!r}: {why}; export to another file", path=str(path)) from error
    finally:
        unfinished.unlink(missing_ok=True)
    return rows


def _check_place(path: Path) -> None:
    """Raise InvalidQuery if the file would be in a log's folder, where readers would treat it as part of the log."""
    if (path.parent / ACCOUNT).exists() or any(
        SEGMENT.fullmatch(each.name) for each in path.parent.glob("events-*.parquet")
    ):
        raise InvalidQuery(
            f"cannot export to {str(path)!r}, because its folder has the files of an event log: export to another "
            "folder",
            field="path",
            value=path,
        )


def _write(
    source: LogSource,
    path: Path,
    writer_of: WriterOf,
    on_progress: OnProgress | None,
    fields: dict[str, Any],
) -> int:
    rows = 0
    with path.open("wb") as file:
        of_log = {name: value for name, value in fields.items() if name != "expand"}
        as_text = source.ask("has_names", expand=fields.get("expand", False), **of_log)
        text = writer_of is _json_lines_writer
        typed = pa.schema([]) if text else source.ask("typed", **of_log)
        found = pages(source, fields | {"as_text": as_text, "text": text})
        paged = (page if text else with_columns(page, typed) for page in found)
        first = next(paged)
        with writer_of(file, first.schema) as write_page:
            for page in chain([first], paged):
                write_page(page)
                rows += len(page)
                if on_progress is not None:
                    on_progress(rows)
    return rows


def pages(source: LogSource, fields: dict[str, Any], size: int = PAGE) -> Iterator[pa.Table]:
    """Yield the result of `query` page by page, up to the row that is the log's last one when the iteration begins.

    At least one page is yielded, which may be empty.
    """
    fields = dict(fields)
    after, limit = fields.pop("after", None), fields.pop("limit", None)
    position, end = -1 if after is None else after, source.ask("end")
    first = True
    while first or (position < end and limit != 0):
        page = source.ask("since", position=position, limit=size if limit is None else min(size, limit), **fields)
        position = int(page.schema.metadata[REACHED])
        if limit is not None:  # one broadcast may be expanded to more rows than are wanted
            page = page.slice(0, limit)
            limit -= len(page)
        if len(page) or first:
            yield page.replace_schema_metadata(None)
        first = False


def json_lines(table: pa.Table) -> Iterator[bytes]:
    """Yield the rows of a `query` as lines of JSON. Payloads are JSON values, times are unix seconds."""
    for row in dicts_of(table):
        for name in ("payload", "payload_before"):
            if row.get(name) is not None:
                row[name] = msgspec.Raw(row[name].encode())
        if "labels" in row:
            row["labels"] = row["labels"] or []
        yield _encode(row)


def json_line(found: Any) -> bytes:  # noqa: ANN401 - JSON's types, or a LogRow
    """Return an object as one line of JSON. The payloads of a LogRow become JSON values, not strs."""
    if isinstance(found, LogRow):
        row = {field.name: getattr(found, field.name) for field in dataclass_fields(found)}
        for name, text in (("payload", "text"), ("payload_before", "text_before")):
            value = row.pop(text)
            row[name] = None if value is None else msgspec.Raw(value.encode())
        found = row
    return _encode(found)


# -- writers: each one yields a function that writes a page -----------------------------------------------------------


@contextmanager
def _json_lines_writer(file: IO[bytes], _schema: pa.Schema) -> Iterator[WritePage]:
    yield lambda page: file.writelines(line + b"\n" for line in json_lines(page))


@contextmanager
def _csv_writer(file: IO[bytes], schema: pa.Schema) -> Iterator[WritePage]:
    """Yield a function that writes pages as CSV.

    Labels are joined by `;`. Times are in ISO format, in UTC. Vectors become text.
    """
    with pacsv.CSVWriter(file, _flat(schema.empty_table()).schema) as writer:
        yield lambda page: writer.write_table(_flat(page))


@contextmanager
def _parquet_writer(file: IO[bytes], schema: pa.Schema) -> Iterator[WritePage]:
    with pq.ParquetWriter(file, with_pandas_types(schema), compression="zstd") as writer:
        yield writer.write_table


def _flat(table: pa.Table) -> pa.Table:
    at = table.column_names.index("labels")
    table = table.set_column(at, pa.field("labels", pa.string()), pc.binary_join(table["labels"], ";"))
    vectors = {name for name in table.column_names if pa.types.is_nested(table[name].type)}
    return with_texts(table, vectors)


_WRITERS: dict[str, WriterOf] = {".parquet": _parquet_writer, ".csv": _csv_writer, ".jsonl": _json_lines_writer}
