"""What a rule must not forget: a table that knows what changed, so that only that is written to the server."""

from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any, Generic, TypeVar

import msgspec

V = TypeVar("V")
Key = Any  # an id, None, a str, or a tuple of these
Fields = dict[bytes, bytes]

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


class Table(MutableMapping[Key, V], Generic[V]):
    """Map keys (ids, None, str, or tuples of these) to JSON values, and remember which were touched."""

    __slots__ = ("_cleared", "_touched", "_values", "version")

    def __init__(self, values: Mapping[Key, V] | None = None) -> None:
        self._values: dict[Key, V] = dict(values or {})
        self._touched: set[Key] = set()
        self._cleared = False
        self.version = 0  # counts changes

    def __getitem__(self, key: Key) -> V:
        return self._values[key]

    def __setitem__(self, key: Key, value: V) -> None:
        self._values[key] = value
        self._touched.add(key)
        self.version += 1

    def __delitem__(self, key: Key) -> None:
        del self._values[key]
        self._touched.add(key)
        self.version += 1

    def __contains__(self, key: object) -> bool:
        return key in self._values

    def __iter__(self) -> Iterator[Key]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def clear(self) -> None:
        """Forget everything at once."""
        self._values.clear()
        self._touched.clear()
        self._cleared = True
        self.version += 1

    def rewrite(self) -> None:
        """Have everything written anew, in place of whatever is on the server."""
        self._touched = set(self._values)
        self._cleared = True
        self.version += 1

    @property
    def changed(self) -> bool:
        """Tell whether there are changes."""
        return self._cleared or bool(self._touched)

    def changes(self) -> "Changes | None":
        """Return what changed since this was last asked, as fields of a hash; None: nothing did."""
        if not self._touched and not self._cleared:
            return None
        put: Fields = {}
        gone: list[bytes] = []
        for key in self._touched:
            if key in self._values:
                put[_encode(key)] = _encode(self._values[key])
            elif not self._cleared:
                gone.append(_encode(key))
        changes = Changes(put, gone, cleared=self._cleared)
        self._touched.clear()
        self._cleared = False
        return changes

    def dump(self) -> Fields:
        """Return everything as fields of a hash."""
        return {_encode(key): _encode(value) for key, value in self._values.items()}

    def load(self, fields: Mapping[bytes, bytes], *, merge: bool = False) -> None:
        """Take over what `dump` gave: in place of what is here, or (`merge`) beside it."""
        found = {_key(_decode(field)): _decode(value) for field, value in fields.items()}
        self._values = self._values | found if merge else found
        self._touched.clear()
        self._cleared = False


class Changes(msgspec.Struct, frozen=True):
    """Say what a table's fields became; `cleared`: all that was there before went first."""

    put: Fields
    gone: list[bytes]
    cleared: bool = False


def _key(key: Any) -> Key:  # noqa: ANN401 - JSON
    return tuple(map(_key, key)) if isinstance(key, list) else key
