"""Columns in which all rows of a frame have the same value. They are dictionary columns that share memory."""

from collections.abc import Sequence
from functools import cache

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

NAME = pa.dictionary(pa.int32(), pa.string())

# Columns of nulls, and codes that are all 0, share memory if they have at most this many rows. Longer columns are built
# each time. A chunk of a bulk send has fewer rows than this.
_SHARED_ROWS = 65_536

Codes = NDArray[np.int32]


def nulls(rows: int, kind: pa.DataType) -> pa.Array:
    """Return a column of nulls."""
    return _shared_nulls(kind).slice(0, rows) if rows <= _SHARED_ROWS else pa.nulls(rows, kind)


def places(rows: int) -> Codes:
    """Return 0, 1, 2, ... as int32, shape (rows,)."""
    return np.arange(rows, dtype=np.int32)


def coded(codes: pa.Array, names: Sequence[str]) -> pa.DictionaryArray:
    """Return a dictionary column from codes, each of which is null or an index into `names`. Codes are not checked."""
    return pa.DictionaryArray.from_arrays(codes, pa.array(names, pa.string()), safe=False)


def each_its_own(names: pa.StringArray) -> pa.DictionaryArray:
    """Return a dictionary column in which every row has an entry of its own in the dictionary."""
    return pa.DictionaryArray.from_arrays(pa.array(places(len(names))), names, safe=False)


def repeated(names: Sequence[str | None], counts: Sequence[int]) -> pa.Array:
    """Return a dictionary column that repeats each name as often as `counts` says. The name None becomes null."""
    table: dict[str, int] = {}
    found = [-1 if name is None else table.setdefault(name, len(table)) for name in names]
    first = found[0]
    if all(code == first for code in found):
        rows = sum(counts)
        return nulls(rows, NAME) if first < 0 else coded(same(rows), [*table])
    codes = np.repeat(np.array(found, np.int32), counts)
    return coded(pa.array(codes, mask=codes < 0 if -1 in found else None), [*table])


def same(rows: int) -> pa.Array:
    """Return the codes of a dictionary column in which all rows have the first name."""
    return _shared_zeros().slice(0, rows) if rows <= _SHARED_ROWS else pa.array(np.zeros(rows, np.int32))


@cache
def _shared_nulls(kind: pa.DataType) -> pa.Array:
    return pa.nulls(_SHARED_ROWS, kind)


@cache
def _shared_zeros() -> pa.Array:
    return pa.array(np.zeros(_SHARED_ROWS, np.int32))
