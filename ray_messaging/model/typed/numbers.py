"""Column of numbers, of bools, or of vectors of them."""

from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from ray_messaging.errors import InvalidColumns
from ray_messaging.model.typed.column import NAMES, ColumnType, Rows


class NumberColumn(msgspec.Struct, eq=False):
    """Numbers of one type: an array (n,), or (n, k) for vectors, contiguous and little endian."""

    values: NDArray[Any]

    @property
    def type(self) -> ColumnType:
        """Return the type of the values."""
        return ColumnType(NAMES[self.values.dtype], self.values.shape[1] if self.values.ndim > 1 else 0)

    @property
    def nbytes(self) -> int:
        """Return the bytes that the column takes in a frame."""
        return self.values.nbytes

    @property
    def weights(self) -> int:
        """Return the bytes that each row takes in a frame."""
        return self.values.itemsize * (self.values.shape[1] if self.values.ndim > 1 else 1)

    @property
    def buffers(self) -> list[NDArray[Any]]:
        """Return the arrays that make up the column in a frame."""
        return [self.values]

    def __len__(self) -> int:
        return len(self.values)

    def take(self, rows: Rows) -> "NumberColumn":
        """Return the column of some rows; a slice is not copied."""
        return NumberColumn(self.values[rows])

    def join(self, others: "list[NumberColumn]") -> "NumberColumn":
        """Return the column with columns of the same type appended to it."""
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

    def replaced(self, changed: dict[int, Any]) -> "NumberColumn":
        """Return the column with the values of some rows replaced; raise InvalidColumns if one does not fit."""
        values = self.values.copy()
        for row, value in changed.items():
            values[row] = self._fitting(value, row)
        return NumberColumn(values)

    def _fitting(self, value: Any, row: int) -> Any:  # noqa: ANN401 - decoded JSON
        """Return a value that was decoded from JSON in the column's type; None becomes NaN.

        Raises: InvalidColumns if it does not fit.
        """
        numbers = value if self.values.ndim > 1 and isinstance(value, list) else [value]
        kind, name = self.values.dtype.kind, self.type.name
        if self.values.ndim > 1 and (not isinstance(value, list) or len(value) != self.values.shape[1]):
            raise InvalidColumns(f"row {row} has {value!r}, this column has {self.type}", row=row)
        if kind == "f":
            fits = all(number is None or type(number) in (int, float) for number in numbers)
            numbers = [np.nan if number is None else number for number in numbers]
        elif kind == "b":
            fits = all(type(number) is bool for number in numbers)
        else:
            limits = np.iinfo(self.values.dtype)
            fits = all(type(number) is int and limits.min <= number <= limits.max for number in numbers)
        if not fits:
            raise InvalidColumns(f"row {row} has {value!r}, this column has {name}", row=row)
        return numbers if self.values.ndim > 1 else numbers[0]
