"""Typed columns of numbers, bools, vectors of numbers or bools, and strings."""

from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from ray_messaging.common.texts import short_repr
from ray_messaging.errors import InvalidColumns

STRING = "string"
NUMBERS = {
    name: np.dtype(name).newbyteorder("<")
    for name in (
        *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
        *("float32", "float64", "bool"),
    )
}
NAMES = {dtype: name for name, dtype in NUMBERS.items()}  # a table, because `dtype.name` is slow
Rows = NDArray[np.intp] | slice
# A byte is within a UTF-8 character, and not its first byte, if `byte & _CONTINUES == _CONTINUATION`.
_CONTINUES, _CONTINUATION = 0xC0, 0x80


class ColumnType(NamedTuple):
    """Type of a column: a key of NUMBERS, or STRING, and the length of the column's vectors (0: single values)."""

    name: str
    width: int = 0

    def __str__(self) -> str:
        return f"{self.name} vectors of {self.width}" if self.width else self.name


class NumberColumn(msgspec.Struct, eq=False):
    """A column of numbers: an array (n,), or (n, k) for vectors of k numbers, contiguous and little endian."""

    values: NDArray[Any]

    @property
    def type(self) -> ColumnType:
        """Return the type of the values."""
        return ColumnType(NAMES[self.values.dtype], self.values.shape[1] if self.values.ndim > 1 else 0)

    @property
    def nbytes(self) -> int:
        """Return the size of the encoded column in bytes."""
        return self.values.nbytes

    @property
    def weights(self) -> int:
        """Return how many bytes each row takes in the encoded column."""
        return self.values.itemsize * (self.values.shape[1] if self.values.ndim > 1 else 1)

    @property
    def buffers(self) -> list[NDArray[Any]]:
        """Return the arrays of which the encoded column consists."""
        return [self.values]

    def __len__(self) -> int:
        return len(self.values)

    def take(self, rows: Rows) -> "NumberColumn":
        """Return the column of some rows; a slice is not copied."""
        return NumberColumn(self.values[rows])

    def join(self, others: "list[NumberColumn]") -> "NumberColumn":
        """Return this column with other columns of the same type appended."""
        return NumberColumn(np.concatenate([self.values, *(other.values for other in others)]))

    def value(self, row: int) -> Any:  # noqa: ANN401 - a number or a list
        """Return the value of a row, which is a list if it is a vector."""
        return self.values[row].tolist()

    def tolist(self) -> list[Any]:
        """Return the values as Python objects."""
        return self.values.tolist()  # type: ignore[no-any-return]  # a list, because the array has rows

    def to_numpy(self) -> NDArray[Any]:
        """Return the values; the array is read-only."""
        return self.values

    def to_arrow(self) -> Any:  # noqa: ANN401 - pyarrow.Array
        """Return the values as a pyarrow.Array, without a copy unless they are bools."""
        import pyarrow as pa  # noqa: PLC0415 - 80 MB that a group need not load

        flat = pa.array(self.values.reshape(-1))
        return flat if self.values.ndim == 1 else pa.FixedSizeListArray.from_arrays(flat, self.values.shape[1])

    def replaced(self, name: str, changed: dict[int, Any]) -> "NumberColumn":
        """Return the column with the values of some rows replaced; raise InvalidColumns if one does not fit.

        Args: `name` is the column's name, for errors. `changed` has the new values by row.
        """
        values = self.values.copy()
        for row, value in changed.items():
            values[row] = self._fitting(name, value, row)
        return NumberColumn(values)

    def _fitting(self, name: str, value: Any, row: int) -> Any:  # noqa: ANN401 - decoded JSON
        """Check that a decoded JSON value fits the column, and return it. In a column of floats, None becomes NaN.

        Raises: InvalidColumns if the value does not fit.
        """
        numbers = value if self.values.ndim > 1 and isinstance(value, list) else [value]
        kind = self.values.dtype.kind
        if self.values.ndim > 1 and (not isinstance(value, list) or len(value) != self.values.shape[1]):
            raise _unfit(name, value, self.type, row)
        if kind == "f":
            fits = all(number is None or type(number) in (int, float) for number in numbers)
            numbers = [np.nan if number is None else number for number in numbers]
            fits = fits and all(_float_holds(self.values.dtype, number) for number in numbers)
        elif kind == "b":
            fits = all(type(number) is bool for number in numbers)
        else:
            limits = np.iinfo(self.values.dtype)
            fits = all(type(number) is int and limits.min <= number <= limits.max for number in numbers)
        if not fits:
            raise _unfit(name, value, self.type, row)
        return numbers if self.values.ndim > 1 else numbers[0]


def _unfit(name: str, value: object, kind: ColumnType, row: int) -> InvalidColumns:
    return InvalidColumns(
        f"the new payload of row {row} has {short_repr(value)} in the column {name!r}, which has the type {kind}: give "
        "a value that this type can hold",
        column=name,
        row=row,
    )


def _float_holds(kind: np.dtype[Any], number: float) -> bool:
    """Return whether a float type can store a number.

    A whole number must be stored exactly. A float must not become infinite.
    """
    try:
        with np.errstate(over="ignore"):
            found = float(kind.type(number))
    except OverflowError:  # the number is an int that is larger than all floats
        return False
    return found == number if type(number) is int else np.isinf(found) == np.isinf(number)


class TextColumn(msgspec.Struct, eq=False):
    """A column of strings in Arrow's layout: row i is the UTF-8 text `data[offsets[i]:offsets[i + 1]]`.

    `data` is uint8, `offsets` int32 or int64.
    """

    offsets: NDArray[Any]
    data: NDArray[np.uint8]

    @classmethod
    def of(cls, texts: list[str]) -> "TextColumn":
        """Build a column from strings; raise UnicodeEncodeError if UTF-8 cannot encode one of them."""
        joined = "".join(texts)
        if joined.isascii():
            data, lengths = joined.encode(), map(len, texts)
        else:
            encoded = [text.encode() for text in texts]
            data, lengths = b"".join(encoded), map(len, encoded)
        return cls(_offsets(np.fromiter(lengths, np.int64, len(texts))), np.frombuffer(data, np.uint8))

    @property
    def type(self) -> ColumnType:
        """Return the type of the values."""
        return ColumnType(STRING)

    @property
    def nbytes(self) -> int:
        """Return the size of the encoded column in bytes."""
        return 4 * len(self.offsets) + int(self.offsets[-1]) - int(self.offsets[0])

    @property
    def weights(self) -> NDArray[np.int64]:
        """Return how many bytes each row takes in the encoded column."""
        return np.diff(self.offsets).astype(np.int64, copy=False) + 4

    @property
    def buffers(self) -> list[NDArray[Any]]:
        """Return the offsets, as int32 that begin at 0, and the text."""
        low, high = int(self.offsets[0]), int(self.offsets[-1])
        offsets = self.offsets - low if low else self.offsets
        return [np.ascontiguousarray(offsets, "<i4"), self.data[low:high]]

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def take(self, rows: Rows) -> "TextColumn":
        """Return the column of some rows; a slice is not copied."""
        if isinstance(rows, slice):
            low, high, _ = rows.indices(len(self))
            return TextColumn(self.offsets[low : high + 1], self.data)
        starts = self.offsets[rows].astype(np.int64)
        lengths = self.offsets[1:][rows] - starts
        offsets = _offsets(lengths)
        # The position of each byte is the start of its row plus the byte's distance from that start.
        places = np.repeat(starts - offsets[:-1], lengths) + np.arange(offsets[-1])
        return TextColumn(offsets, self.data[places])

    def join(self, others: "list[TextColumn]") -> "TextColumn":
        """Return this column with other columns appended."""
        columns = [self, *others]
        lengths = np.concatenate([np.diff(column.offsets) for column in columns])
        return TextColumn(_offsets(lengths), np.concatenate([column.buffers[1] for column in columns]))

    def value(self, row: int) -> str:
        """Return the string of a row."""
        return self.data[self.offsets[row] : self.offsets[row + 1]].tobytes().decode()

    def tolist(self) -> list[str]:
        """Return the strings."""
        offsets, data = self.buffers
        encoded = data.tobytes()
        bounds = pairwise(offsets.tolist())
        if encoded.isascii():
            text = encoded.decode()
            return [text[low:high] for low, high in bounds]
        return [encoded[low:high].decode() for low, high in bounds]

    def to_numpy(self) -> NDArray[Any]:
        """Return the strings as an object array of str."""
        # The dtype is object, because with "<U" each string would take as much memory as the longest one.
        return np.array([*self.tolist(), None], object)[:-1]

    def to_arrow(self) -> Any:  # noqa: ANN401 - pyarrow.Array
        """Return the strings as a pyarrow.Array, without a copy of the text."""
        import pyarrow as pa  # noqa: PLC0415 - 80 MB that a group need not load

        offsets, data = self.buffers
        return pa.StringArray.from_buffers(len(self), pa.py_buffer(offsets), pa.py_buffer(data))

    def replaced(self, name: str, changed: dict[int, Any]) -> "TextColumn":
        """Return the column with the strings of some rows replaced; raise InvalidColumns if one is not a str.

        Args: `name` is the column's name, for errors. `changed` has the new strings by row.
        """
        texts = self.tolist()
        for row, text in changed.items():
            if not isinstance(text, str):
                raise _unfit(name, text, self.type, row)
            texts[row] = text
        return TextColumn.of(texts)

    def trouble(self) -> str | None:
        """Return what is wrong with a decoded column, or None if it is valid.

        The column comes from another process, so its `offsets` and `data` may have any values.
        """
        offsets, data = self.offsets, self.data
        if int(offsets[0]) != 0 or int(offsets[-1]) != len(data) or bool((offsets[1:] < offsets[:-1]).any()):
            return "its strings have impossible bounds"
        if not len(data) or int(data.max()) < _CONTINUATION:
            return None
        try:
            str(data.data, "utf-8")
        except UnicodeDecodeError:
            return "its strings are not UTF-8"
        begins = data[offsets[offsets < len(data)]]
        return "a string ends within a character" if bool((begins & _CONTINUES == _CONTINUATION).any()) else None


# Each column has one value per row.
TypedColumn: TypeAlias = NumberColumn | TextColumn


def _offsets(lengths: NDArray[Any]) -> NDArray[np.int64]:
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets
