"""Hashes of text columns: 64 bits each, from a table of random numbers for each position and byte."""

from functools import cache

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

_PLACES = 256
_LAST_PLACE = _PLACES - 1


@cache
def _table() -> NDArray[np.uint64]:
    """Return random numbers, uint64 (places * 256,). They are constant, as hashes are compared across processes."""
    return np.random.default_rng(20240607).integers(1, 2**64, _PLACES * 256, np.uint64)


def hashes(column: pa.ChunkedArray | pa.Array) -> NDArray[np.uint64]:
    """Return a hash of each text, uint64 (n,); null gives 0. Different texts rarely have equal hashes."""
    if isinstance(column, pa.ChunkedArray):
        parts = [hashes(chunk) for chunk in column.chunks]
        return np.concatenate(parts) if parts else np.zeros(0, np.uint64)
    array = column
    if pa.types.is_dictionary(array.type):
        known: NDArray[np.uint64] = np.append(hashes(array.dictionary), np.uint64(0))  # the last is for null
        codes: NDArray[np.intp] = array.indices.fill_null(len(known) - 1).to_numpy(zero_copy_only=False)
        return known[codes]
    found = _of_bytes(array.fill_null(""))
    if array.null_count:
        found[array.is_null().to_numpy(zero_copy_only=False)] = 0
    return found


def _of_bytes(array: pa.Array) -> NDArray[np.uint64]:
    _, offsets_buffer, data = array.buffers()
    dtype = np.int64 if pa.types.is_large_string(array.type) else np.int32
    found = np.zeros(len(array), np.uint64)
    if not len(array) or data is None:
        return found
    offsets = np.frombuffer(offsets_buffer, dtype)[array.offset : array.offset + len(array) + 1]
    lengths = np.diff(offsets)
    used = lengths > 0  # reduceat would give an empty text the next text's first byte
    starts = offsets[:-1][used]
    text = np.frombuffer(data, np.uint8)[offsets[0] : offsets[-1]]
    places = np.arange(offsets[0], offsets[-1], dtype=dtype) - np.repeat(starts, lengths[used])
    if len(starts):
        found[used] = np.add.reduceat(_table()[((places & _LAST_PLACE) << 8) | text], starts - offsets[0])
    return found
