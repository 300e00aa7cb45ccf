"""The payload columns: from lines of JSON text to Arrow, in few passes over the bytes."""

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa

from ray_messaging.lines import Lines

_TEXT = pa.large_string()


def payload_column(payloads: Sequence[Lines]) -> pa.LargeStringArray:
    """Build the column of all payloads, one after the other."""
    if all(lines.index is None and not lines.raw for lines in payloads):
        return _plain([lines.blob for lines in payloads])
    return pa.concat_arrays([_column(lines) for lines in payloads])


def sparse_column(rows: int, payloads: Mapping[int, bytes]) -> pa.LargeStringArray:
    """Build a column of which only some rows have a payload."""
    if not payloads:
        return pa.nulls(rows, _TEXT)
    found: list[bytes | None] = [None] * rows
    for row, payload in payloads.items():
        found[row] = readable(payload)
    return pa.array(found, pa.large_binary()).cast(_TEXT)


def readable(payload: bytes) -> bytes:
    """Return a payload as UTF-8: what a foreign client published may be anything."""
    try:
        payload.decode()
    except UnicodeDecodeError:
        return payload.decode(errors="replace").encode()
    return payload


def _column(lines: Lines) -> pa.LargeStringArray:
    if lines.raw:
        column = pa.array([readable(line) for line in lines.list], pa.large_binary()).cast(_TEXT)
    else:
        column = _plain([lines.blob])
    return column if lines.index is None else column.take(pa.array(lines.index))


def _plain(blobs: Sequence[bytes]) -> pa.LargeStringArray:
    """Build a column of blobs in which each line ends by a newline."""
    blob = blobs[0] if len(blobs) == 1 else b"".join(blobs)
    if not _is_utf8(blob):
        lines = [readable(line) for line in blob.split(b"\n")[:-1]]
        return pa.array(lines, pa.large_binary()).cast(_TEXT)
    ends = np.flatnonzero(np.frombuffer(blob, np.uint8) == ord("\n"))
    offsets = np.zeros(len(ends) + 1, np.int64)
    # Each line before has lost its newline.
    np.subtract(ends, np.arange(len(ends)), out=offsets[1:])
    data = pa.py_buffer(blob.replace(b"\n", b""))
    return pa.LargeStringArray.from_buffers(len(ends), pa.py_buffer(offsets), data)


def _is_utf8(blob: bytes) -> bool:
    if blob.isascii():
        return True
    try:
        blob.decode()
    except UnicodeDecodeError:
        return False
    return True
