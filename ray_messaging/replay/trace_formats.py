"""Readers of trace files: edge lists, CSV with a header, and JSON lines, gzipped or plain."""

import codecs
import csv
import gzip
import re
import zlib
from collections.abc import Callable, Iterator
from decimal import Decimal
from io import BytesIO, StringIO
from pathlib import Path
from typing import Any

import msgspec

from ray_messaging.errors import TraceError
from ray_messaging.replay.trace_rows import FIELDS, Columns, Requested, RowError, cut, is_exact

GZIP_MAGIC = b"\x1f\x8b"
CHUNK_BYTES = 1 << 20
EDGE_FIELDS = ("src", "dst", "time")
TIMELESS_WIDTH = 2
_TEXTS = frozenset(FIELDS["text"][1])

# The columns of a file of KONECT, a collection of networks. Such a file begins with a line like `% sym unweighted`.
KONECT_FIELDS = ("src", "dst", "weight", "time")
_KONECT = re.compile(r"(\s*#[^\n]*\n)*\s*%(%|\s)")
_MATRIX = "%%MatrixMarket"
_NUMBER = re.compile(r"[-+]?[0-9.]+([eE][-+]?[0-9]+)?")
_LATE_QUOTE = re.compile(r'(^|[,\n])[ \t]+"')  # a quote after a space at the beginning of a cell of CSV
_JSON_ARRAY = re.compile(r"\s*\[\s*[{\[\]]")


class TraceFile:
    """A whole trace file, unzipped.

    `data` are the file's UTF-8 bytes without byte order mark, and `text` is `data`, decoded. `stem` and `extension` are
    the parts of the name without .gz. The extension is in lower case, and begins with a dot.

    Raises: TraceError if the file cannot be read, is damaged, empty, or not UTF-8.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        inner = path.with_suffix("") if path.suffix.lower() == ".gz" else path
        self.stem, self.extension = inner.stem, inner.suffix.lower()
        try:
            raw = path.read_bytes()
        except OSError as error:
            reason = error.strerror or str(error)
            raise TraceError(
                f"cannot read the trace {str(path)!r} ({reason}): check the path and its permissions",
                file=str(path),
                line=0,
            ) from error
        # The first bytes decide whether the file is zipped. Its name may mislead, because browsers unzip downloads and
        # keep .gz.
        data = self._unzip(raw) if raw.startswith(GZIP_MAGIC) else raw
        self.data = data.removeprefix(codecs.BOM_UTF8)
        if not self.data.strip():
            raise self.broken(
                1, "the file is empty, but a trace has one message on each line: download or write it again"
            )
        self.text = self._decode()

    def broken(self, line: int, reason: str) -> TraceError:
        """Build the error for a line that is not valid. Lines are counted from 1."""
        return TraceError(f"{self.path.name}:{line}: {reason}", file=str(self.path), line=line)

    def _unzip(self, raw: bytes) -> bytes:
        parts: list[bytes] = []
        with gzip.GzipFile(fileobj=BytesIO(raw)) as stream:
            try:
                # Unlike `read`, `read1` also returns the data before the damage, whose lines are counted for the error.
                while part := stream.read1(CHUNK_BYTES):
                    parts.append(part)
            except (OSError, EOFError, zlib.error) as error:
                line = sum(part.count(b"\n") for part in parts) + 1
                raise self.broken(
                    line,
                    f"the gzip data is damaged from about this line on ({error}): download or zip it again",
                ) from error
        return b"".join(parts)

    def _decode(self) -> str:
        try:
            return self.data.decode()
        except UnicodeDecodeError as error:
            line = self.data.count(b"\n", 0, error.start) + 1
            begin = self.data.rfind(b"\n", 0, error.start) + 1
            raise self.broken(
                line,
                f"byte {error.start - begin + 1} of the line, {self.data[error.start]:#04x}, is not UTF-8: "
                "save the file as UTF-8, plain or gzipped",
            ) from error


Reader = Callable[[TraceFile, Requested], Columns]


def _number(spelled: str) -> float | Decimal:
    """Return a number of JSON as a float if a float can represent it, otherwise as a Decimal."""
    value = float(spelled)
    return value if is_exact(spelled, value) else Decimal(spelled)


# The values have no types here, because only the few fields that are read must be valid.
_json_rows = msgspec.json.Decoder(dict[str, Any], float_hook=_number)


def reader_for(source: TraceFile) -> Reader:
    """Return the reader for a file by its extension, or if that is unknown, by its first lines.

    Raises: TraceError if the file is a JSON array.
    """
    if _JSON_ARRAY.match(source.text):
        raise source.broken(
            1,
            "the file is a JSON array, but a trace has one object per line: convert it, for example by "
            f"`zcat -f {source.path.name} | jq -c '.[]' > {source.stem}-lines.jsonl`",
        )
    known = READERS.get(source.extension)
    if known is not None:
        return known
    if _KONECT.match(source.text):
        return read_edges
    lines = (line.strip() for line in source.text.split("\n"))
    first = next((line for line in lines if line and not line.startswith("#")), "")
    if first.startswith("{"):
        return read_json_lines
    return read_csv if "," in first else read_edges


def read_edges(source: TraceFile, requested: Requested) -> Columns:
    """Read `src dst [time]` lines, split at tabs in a .tsv file and at white space in other files.

    The first line decides whether there are times. Lines that begin with # are comments. In files of KONECT, lines that
    begin with % are comments, too, and all other lines are `src dst [weight [time]]`, split at white space.

    Raises: TraceError with the number of the first line that is not valid, or can be read in two ways.
    """
    konect = _KONECT.match(source.text)
    names, comments = (KONECT_FIELDS, ("#", "%")) if konect else (EDGE_FIELDS, ("#",))
    cells_of = _cells_of_konect if konect else _cells_between_tabs if source.extension == ".tsv" else _cells
    try:
        # If there are no times, the row number takes the place of the time, as the last cell.
        columns = Columns({name: -1 if name == "time" else place for place, name in enumerate(names)}, requested)
    except RowError as broken:
        raise source.broken(1, str(broken)) from None
    width = 0
    for line, content in enumerate(source.text.split("\n"), 1):
        first = content.split(maxsplit=1)
        if first and first[0] == _MATRIX:
            raise source.broken(line, "this is a Matrix Market file: drop all lines before the first edge")
        if not content.strip("\r ") or (first and first[0].startswith(comments)):
            continue
        try:
            cells: list[Any] = cells_of(content)
            if not width:
                _check_first(cells, at_tabs=cells_of is _cells_between_tabs)
                width = len(cells) if TIMELESS_WIDTH <= len(cells) < len(names) else len(names)
            if len(cells) != width:
                raise RowError(f"the line has {len(cells)} columns instead of {width}: correct the line")  # noqa: TRY301 - reported below
            columns.add(cells if width == len(names) else [*cells, len(columns)])
        except RowError as broken:
            expected, found = " ".join(names[: width or len(names)]), cut(content.strip("\r"))
            between = " with tabs between" if cells_of is _cells_between_tabs else ""
            raise source.broken(
                line,
                f"expected {expected!r}{between}, found {found!r}. {_sentence(broken)}. You can also begin the line "
                "with # to skip it. If the file has another format, name it .csv or .jsonl, or .txt if its cells end "
                "at white space",
            ) from None
    return _filled(source, columns)


def _sentence(error: RowError) -> str:
    text = str(error)
    return text[0].upper() + text[1:]


def _cells(content: str) -> list[str]:
    """Return the cells of a line, split at white space.

    Raises: RowError if the line may be meant to be split at tabs, or if a cell is in quotes.
    """
    if "\t" in content:
        for cell in content.rstrip().split("\t"):
            words = cell.split()
            if not words:
                raise RowError(
                    "the line has an empty cell between tabs: give the file the extension .tsv, or fill the cell"
                )
            if len(words) > 1 and not all(map(_NUMBER.fullmatch, words)):
                raise RowError(
                    f"{cut(cell.strip())!r} between tabs may be one cell or several. If it is one, give the file the "
                    "extension .tsv. If it is several, replace all tabs by spaces"
                )
    return _unquoted(content.split())


def _cells_of_konect(content: str) -> list[str]:
    """Return the cells of a line, split at white space; raise RowError for an empty cell between tabs."""
    if not all(map(str.strip, content.rstrip().split("\t"))):
        raise RowError("the line has an empty cell between tabs: fill the cell")
    return content.split()


def _cells_between_tabs(content: str) -> list[str]:
    """Return the cells of a line, split at tabs.

    Raises: RowError for an empty time, several numbers in one cell, or a cell in quotes.
    """
    cells = [cell.strip() for cell in content.split("\t")]
    for cell in cells:
        if len(words := cell.split()) > 1 and all(map(_NUMBER.fullmatch, words)):
            raise RowError(f"{cut(cell)!r} may be one cell or several: write tabs between cells")
    if all(cells[:2]) and cells[2:] == [""]:
        raise RowError("the time is empty: fill it, or drop the tab before it")
    return _unquoted(cells)


def _unquoted(cells: list[str]) -> list[str]:
    """Return the cells of a line; raise RowError if a cell is in quotes, which may or may not belong to its text."""
    for cell in cells:
        if len(cell) > 1 and cell[0] == cell[-1] == '"':
            raise RowError(f"{cut(cell)} has quotes: drop them, or write CSV or JSON lines")
    return cells


def read_csv(source: TraceFile, requested: Requested) -> Columns:
    """Read CSV with a header, in which quoted cells may have line breaks.

    Raises: TraceError with the number of the first line that is not valid.
    """
    columns: Columns | None = None
    width = 0
    for line, cells in _csv_rows(source):
        if columns is not None and len(cells) != width:
            expected = f"expected {width} cells as in the header, found {len(cells)}"
            raise source.broken(line, f"{expected}: correct the row, or quote a cell that has a comma")
        try:
            if columns is None:
                columns, width = Columns(_header_keys(cells), requested), len(cells)
            else:
                columns.add(cells)
        except RowError as broken:
            raise source.broken(line, str(broken)) from None
    return _filled(source, columns)


def read_json_lines(source: TraceFile, requested: Requested) -> Columns:
    """Read one JSON object per line. The first object decides which default names of fields are used.

    Raises: TraceError with the number of the first line that is not valid.
    """
    columns: Columns | None = None
    for line, content in enumerate(source.data.split(b"\n"), 1):
        if not content or content.isspace():
            continue
        try:
            row = _json_rows.decode(content)
            if columns is None:
                columns = Columns({name: name for name in row}, requested)
            # The columns have no place for the text, so without an error it would be dropped silently.
            if columns.texts is None and not _TEXTS.isdisjoint(row):
                raise RowError("this row has a text, and the rows before it have none: give every row a text")  # noqa: TRY301 - reported below
            columns.add(row)
        except RowError as broken:
            raise source.broken(line, str(broken)) from None
        except (msgspec.DecodeError, RecursionError) as error:
            raise source.broken(
                line, f"expected a JSON object ({error}), one on each line: correct or drop this line"
            ) from error
    return _filled(source, columns)


# The reader of each file extension. A .tsv file has no header.
READERS: dict[str, Reader] = {
    **dict.fromkeys((".txt", ".edges", ".edgelist", ".tsv"), read_edges),
    ".csv": read_csv,
    **dict.fromkeys((".jsonl", ".ndjson"), read_json_lines),
}


def _check_first(cells: list[Any], *, at_tabs: bool) -> None:
    """Raise RowError if the first line is not an edge.

    Args: `at_tabs` says whether lines are split at tabs only, and not at all white space.
    """
    first, second = (cell.lower() for cell in (cells * 2)[:2])
    if first in FIELDS["sender"][1] and second in FIELDS["receiver"][1]:
        raise RowError("the line has the names of columns, but an edge list has no header: drop the line")
    if not at_tabs and any(cell.endswith((",", ";")) for cell in cells):
        raise RowError("a cell ends with a comma or semicolon, but this format separates cells by white space")


def _csv_rows(source: TraceFile) -> Iterator[tuple[int, list[str]]]:
    # Lines end only at \n, so that line numbers are those of an editor.
    rows = csv.reader(StringIO(source.text, newline="\n"), strict=True)
    begin = 1
    # The rows in a second reading of the file, in which a quote after a space begins a quoted cell. If any row differs
    # from the first reading, the file is ambiguous.
    others: Iterator[list[str]] | None = None
    if _LATE_QUOTE.search(source.text):
        others = csv.reader(StringIO(source.text, newline="\n"), skipinitialspace=True)
    try:
        for cells in rows:
            if others is not None and [*map(_left, cells)] != [*map(_left, next(others, []))]:
                raise source.broken(
                    begin, "a quote comes after a space, so it may or may not belong to the cell's text: drop the space"
                )
            if len(cells) > 1 or "".join(cells).strip():
                yield begin, cells
            begin = rows.line_num + 1
    except csv.Error as error:
        remedy = 'close each quote, write a quote within a cell as "", and end lines by \\n or \\r\\n'
        if "field limit" in str(error):
            remedy = "close the cell's quote if it is missing; if the cell is that long, write the trace as JSON lines"
        raise source.broken(begin, f"not a valid CSV row ({error}): {remedy}") from error


def _left(cell: str) -> str:
    return cell.lstrip(" ")


def _header_keys(cells: list[str]) -> dict[str, int]:
    names = [cell.strip() for cell in cells]
    if doubled := next((name for name in names if name and names.count(name) > 1), None):
        raise RowError(f"the header names {doubled!r} twice: rename one of the two")
    return {name: place for place, name in enumerate(names)}


def _filled(source: TraceFile, columns: Columns | None) -> Columns:
    if not columns:
        raise source.broken(1, "the file contains no message: a trace needs one message on each line")
    return columns
