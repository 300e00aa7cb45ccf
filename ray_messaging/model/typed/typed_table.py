"""Payloads of a batch in typed columns."""

from collections.abc import Sequence
from typing import Any, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from ray_messaging.common.texts import short_repr
from ray_messaging.errors import InvalidColumns
from ray_messaging.model.columns import PayloadColumn, adjoin, too_large
from ray_messaging.model.typed.column import ColumnType, TypedColumn

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


class TypedColumns:
    """A table of n payloads as named columns: row i is the payload `{name: value i, ...}`.

    The payloads of a batch are in such a table, or as JSON in a `PayloadColumn`. A table makes its JSON lines when they
    are needed. In JSON, NaN becomes null.
    """

    __slots__ = ("_list", "_schema", "columns", "count")

    index = None  # as in a PayloadColumn, None means that no rows share a payload
    raw = False
    small = True

    def __init__(self, columns: dict[str, TypedColumn], count: int) -> None:
        self.columns = columns
        self.count = count
        self._list: list[bytes] | None = None
        self._schema: dict[str, ColumnType] | None = None

    def __repr__(self) -> str:
        kinds = ", ".join(f"{name}: {kind}" for name, kind in self.schema.items())
        return f"TypedColumns({self.count:,} payloads, {kinds})"

    def __len__(self) -> int:
        return self.count

    @property
    def schema(self) -> dict[str, ColumnType]:
        """Return the names and types of the columns, in their order."""
        if self._schema is None:
            self._schema = {name: column.type for name, column in self.columns.items()}
        return self._schema

    @property
    def nbytes(self) -> int:
        """Return the size of the encoded columns in bytes."""
        return sum([column.nbytes for column in self.columns.values()])

    @property
    def weights(self) -> NDArray[np.int64]:
        """Return how many bytes each row takes in the encoded columns, int64 (count,)."""
        weights = np.zeros(self.count, np.int64)
        for column in self.columns.values():
            weights += column.weights
        return weights

    @property
    def volumes(self) -> NDArray[np.int64]:
        """Return the cumulative sizes: for each row, the bytes of it and of all earlier rows, int64 (count,)."""
        return np.cumsum(self.weights)

    def payload(self, row: int) -> dict[str, Any]:
        """Return the payload of a row."""
        return {name: column.value(row) for name, column in self.columns.items()}

    def payloads(self, low: int = 0, high: int | None = None) -> list[dict[str, Any]]:
        """Return the payloads of the rows from `low` to before `high`."""
        names, part = tuple(self.columns), slice(low, high)
        values = [column.take(part).tolist() for column in self.columns.values()]
        return [dict(zip(names, row, strict=True)) for row in zip(*values, strict=True)]

    @property
    def list(self) -> "list[bytes]":
        """Return the payloads as JSON."""
        if self._list is None:
            self._list = [*map(_encode, self.payloads())]
        return self._list

    @property
    def by_row(self) -> Sequence[bytes]:
        """Return the payload of each row as JSON."""
        return self.list

    @property
    def json(self) -> PayloadColumn:
        """Return the payloads as JSON lines."""
        return PayloadColumn.of(self.list)

    def row(self, row: int) -> bytes:
        """Return the payload of a row as JSON."""
        return _encode(self.payload(row)) if self._list is None else self._list[row]

    def take(self, rows: NDArray[np.intp]) -> "TypedColumns":
        """Return the payloads of some rows; consecutive rows are not copied."""
        if adjoin(rows):
            return self.part(int(rows[0]), int(rows[-1]) + 1)
        return TypedColumns({name: column.take(rows) for name, column in self.columns.items()}, len(rows))

    def part(self, low: int, high: int) -> "TypedColumns":
        """Return the payloads of the rows from `low` to before `high`, without a copy."""
        rows = slice(low, high)
        return TypedColumns({name: column.take(rows) for name, column in self.columns.items()}, high - low)

    def check(self, row: int, line: bytes) -> None:
        """Raise InvalidColumns unless a JSON payload fits the columns, so that it can replace the payload of a row."""
        self._refilled({row: _decode(line)})

    def replaced(self, changed: dict[int, bytes], rows: int) -> "Payloads":
        """Return the payloads with some rows replaced.

        If a new payload does not fit the columns, the result has JSON lines.

        Args: `changed` has the new payloads, as JSON, by row. `rows` is the number of rows of the table.
        """
        try:
            return self._refilled({row: _decode(line) for row, line in changed.items()})
        except InvalidColumns:
            return self.json.replaced(changed, rows)

    def _refilled(self, changed: dict[int, Any]) -> "TypedColumns":
        names = self.columns.keys()
        for row, payload in changed.items():
            if not isinstance(payload, dict) or payload.keys() != names:
                raise InvalidColumns(
                    f"the new payload of row {row} is {short_repr(payload)}: write a dict with exactly the keys "
                    f"{', '.join(map(repr, names))}, the names of the columns",
                    row=row,
                )
        made = {
            name: column.replaced(name, {row: payload[name] for row, payload in changed.items()})
            for name, column in self.columns.items()
        }
        return TypedColumns(made, self.count)

    def check_rows(self, limit_bytes: int) -> None:
        """Raise PayloadTooLarge if a row takes more than `limit_bytes` in the encoded columns."""
        if self.nbytes <= limit_bytes:
            return
        weights = self.weights
        row = int(np.argmax(weights))
        if int(weights[row]) > limit_bytes:
            error = too_large(int(weights[row]), limit_bytes)
            error.args = (f"row {row}: {error}",)
            raise error

    def pack(self) -> None:
        """Drop the JSON lines to save memory. They are made again when they are needed."""
        self._list = None

    @staticmethod
    def joined(parts: "Sequence[TypedColumns]") -> "TypedColumns":
        """Join tables that have the same schema to one table."""
        first, others = parts[0], parts[1:]
        if not others:
            return first
        columns: dict[str, TypedColumn] = {
            name: column.join([other.columns[name] for other in others])  # type: ignore[misc]  # it has the same class
            for name, column in first.columns.items()
        }
        return TypedColumns(columns, sum(part.count for part in parts))

    def to_arrow(self) -> Any:  # noqa: ANN401 - pyarrow.RecordBatch
        """Return the columns as a pyarrow.RecordBatch."""
        import pyarrow as pa  # noqa: PLC0415 - 80 MB that a group need not load

        return pa.RecordBatch.from_arrays(
            [column.to_arrow() for column in self.columns.values()], names=[*self.columns]
        )


Payloads: TypeAlias = PayloadColumn | TypedColumns  # the payloads of a batch
