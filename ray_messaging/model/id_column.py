"""Column of ids: int64 values, with kinds and a string table only where some ids are not ints."""

from collections.abc import Iterable, Sequence
from struct import Struct as Packer
from struct import error as StructError  # noqa: N812 - it is a class
from struct import pack
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from ray_messaging.addressing.channels import AgentId, check_id
from ray_messaging.errors import InvalidAddress

INT, STR, NONE = 0, 1, 2
_SIZE = 8  # bytes of a value
_at = Packer("<q").unpack_from


# A struct is built in C: each batch has two of these, and a single message is a batch.
class IdColumn(msgspec.Struct, eq=False):
    """N ids: `values` int64 (n,), `kinds` uint8 (n,) or None if all are ints, and the table `strings` of str ids.

    Where kinds is STR, the value is an index into `strings`. Where it is NONE, the id is None (the user). The values
    are kept as an array, or as the encoded bytes, from which the array is made on first use.
    """

    _values: NDArray[np.int64] | None
    kinds: NDArray[np.uint8] | None = None
    strings: tuple[str, ...] = ()
    _packed: bytes | memoryview = b""  # little endian, if there is no array
    _objects: list[AgentId | None] | None = None

    @classmethod
    def of(cls, ids: Sequence[AgentId | None]) -> "IdColumn":
        """Build a column from ids in canonical form (see `channels.check_id`)."""
        try:
            # Stricter than numpy, which would read the str "007" as 7, and twice as fast.
            return cls(None, None, (), pack(f"<{len(ids)}q", *ids))
        except StructError:
            return cls._of_mixed(ids)

    @classmethod
    def _of_mixed(cls, ids: Sequence[AgentId | None]) -> "IdColumn":
        table: dict[str, int] = {}
        values = np.zeros(len(ids), np.int64)
        kinds = np.zeros(len(ids), np.uint8)
        for row, agent_id in enumerate(ids):
            if agent_id is None:
                kinds[row] = NONE
            elif isinstance(agent_id, str):
                kinds[row] = STR
                values[row] = table.setdefault(agent_id, len(table))
            else:
                values[row] = agent_id
        return cls(_read_only(values), _read_only(kinds), tuple(table))

    @classmethod
    def checked(cls, ids: object, *, none: bool = False) -> "IdColumn":
        """Build a column from ids that a user passed; raise InvalidAddress with the first invalid one.

        Args: ids is a numpy integer array or any iterable of ids; None is allowed if `none`.
        """
        if isinstance(ids, np.ndarray) and ids.ndim == 1 and ids.dtype.kind in "iu" and ids.dtype != np.uint64:
            return cls(_read_only(ids.astype(np.int64, copy=True)))
        if not isinstance(ids, Iterable) or isinstance(ids, str | bytes) or getattr(ids, "ndim", 1) == 0:
            raise InvalidAddress(f"ids must be an array or a list of ids, not {ids!r}", value=ids)
        return cls.of([None if none and agent_id is None else check_id(agent_id) for agent_id in ids])

    @classmethod
    def constant(cls, agent_id: AgentId | None, rows: int) -> "IdColumn":
        """Build a column that repeats one id."""
        if isinstance(agent_id, int):
            return cls(_read_only(np.full(rows, agent_id, np.int64)))
        kind = NONE if agent_id is None else STR
        return cls(np.zeros(rows, np.int64), np.full(rows, kind, np.uint8), () if agent_id is None else (agent_id,))

    @property
    def values(self) -> NDArray[np.int64]:
        """Return the values, int64 (n,)."""
        if self._values is None:
            self._values = np.frombuffer(self._packed, "<i8")
        return self._values

    @property
    def packed(self) -> bytes | memoryview:
        """Return the values as encoded: int64 (n,), little endian."""
        return self._packed if self._values is None else np.ascontiguousarray(self._values).data

    def __len__(self) -> int:
        return len(self._packed) // _SIZE if self._values is None else len(self._values)

    def take(self, rows: Any) -> "IdColumn":  # noqa: ANN401 - a slice, a mask or an index array
        """Return the column of some rows (a slice, a mask or an index array)."""
        values, kinds = self.values[rows], None if self.kinds is None else self.kinds[rows]
        if kinds is None or len(values) >= len(self.strings):
            return IdColumn(values, kinds, self.strings)
        # Only names in use: each frame carries its table.
        named = kinds == STR
        used, places = np.unique(values[named], return_inverse=True)
        values = values.copy()
        values[named] = places
        return IdColumn(values, kinds, tuple(self.strings[place] for place in used.tolist()))

    @property
    def width(self) -> int:
        """Return the largest number of bytes that a str id takes beside the column."""
        return max((len(name.encode()) for name in self.strings), default=0)

    def tolist(self) -> list[AgentId | None]:
        """Return the ids as Python objects. The list is cached: do not change it."""
        if self._objects is None:
            objects: list[Any] = self.values.tolist()
            if self.kinds is not None:
                for row in np.flatnonzero(self.kinds).tolist():
                    objects[row] = self.strings[objects[row]] if self.kinds[row] == STR else None
            self._objects = objects
        return self._objects

    def __getitem__(self, row: int) -> AgentId | None:
        if self.kinds is not None:
            return self.tolist()[row]
        if self._values is None and row >= 0:
            found: int = _at(self._packed, row * _SIZE)[0]
            return found
        return self.values.item(row)

    def __reduce__(self) -> tuple[Any, ...]:
        return IdColumn, (self.values, self.kinds, self.strings)

    def to_numpy(self) -> NDArray[Any]:
        """Return int64 if all ids are ints, else an object array."""
        return self.values if self.kinds is None else np.array(self.tolist(), dtype=object)


def _read_only(values: NDArray[Any]) -> NDArray[Any]:
    """Forbid writes: a rule in this process gets the very array that is sent."""
    values.flags.writeable = False
    return values
