"""The port of one typed column, and its type."""

from typing import Any, NamedTuple, Protocol, Self

import numpy as np
from numpy.typing import NDArray

STRING = "string"
NUMBERS = {
    name: np.dtype(name).newbyteorder("<")
    for name in (
        *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
        *("float32", "float64", "bool"),
    )
}
NAMES = {dtype: name for name, dtype in NUMBERS.items()}  # `dtype.name` is slow
Rows = NDArray[np.intp] | slice


class ColumnType(NamedTuple):
    """Type of a column: a name in NUMBERS or STRING, and the length of its vectors (0: a row is a single value)."""

    name: str
    width: int = 0

    def __str__(self) -> str:
        return f"{self.name} vectors of {self.width}" if self.width else self.name


class TypedColumn(Protocol):
    """Column with one value for each row: a number, a bool, a string, or a vector of numbers."""

    @property
    def type(self) -> ColumnType:
        """Return the type of the values."""

    @property
    def nbytes(self) -> int:
        """Return the bytes that the column takes in a frame."""

    @property
    def weights(self) -> "int | NDArray[np.int64]":
        """Return the bytes that each row takes in a frame, as a single number if all take the same."""

    @property
    def buffers(self) -> list[NDArray[Any]]:
        """Return the arrays that make up the column in a frame, and in Arrow."""

    def __len__(self) -> int:
        """Return the number of rows."""

    def take(self, rows: Rows) -> Self:
        """Return the column of some rows; a slice is not copied."""

    def join(self, others: list[Self]) -> Self:
        """Return the column with columns of the same type appended to it."""

    def value(self, row: int) -> Any:  # noqa: ANN401 - a value of any type
        """Return the value of a row as a Python object."""

    def tolist(self) -> list[Any]:
        """Return the values as Python objects."""

    def to_numpy(self) -> NDArray[Any]:
        """Return the values as an array."""

    def to_arrow(self) -> Any:  # noqa: ANN401 - pyarrow.Array
        """Return the values as a pyarrow.Array."""

    def replaced(self, changed: dict[int, Any]) -> Self:
        """Return the column with the values of some rows replaced; raise InvalidColumns if one does not fit."""
