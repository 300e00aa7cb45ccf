"""Tables: the saved state of rules."""

import logging
import math
from collections.abc import Iterator, KeysView, Mapping, MutableMapping
from operator import is_
from typing import Any, Generic, TypeVar, cast

import msgspec
import numpy as np

from ray_messaging.common.texts import short_repr
from ray_messaging.errors import RuleError
from ray_messaging.transports.experiment_store import Fields, TableChanges

logger = logging.getLogger(__name__)

V = TypeVar("V")
Key = Any  # an id, None, a str, or a tuple of these
Journal = dict[Key, tuple[Any, ...]]  # changed keys, each with the value before, if there was one

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


class Table(MutableMapping[Key, V], Generic[V]):
    """A saved mapping from keys (ids, None, str, or tuples of these) to JSON values.

    A table records its changes, so that only these are written to the server. Values are stored as a successor will
    read them: numpy's numbers become Python's, tuples and sets become lists. Setting a key or value that cannot be
    saved raises RuleError; in a rule, that is a failure of the rule.
    """

    __slots__ = ("_cleared", "_touched", "_values", "journal", "version")

    def __init__(self, values: Mapping[Key, V] | None = None) -> None:
        self._values: dict[Key, V] = {_checked(key): _kept(value) for key, value in (values or {}).items()}
        self._touched: set[Key] = set()
        self._cleared = False
        self.version = 0  # counts changes
        self.journal: Journal | None = None  # if set, records the previous value of each key that is changed

    def __getitem__(self, key: Key) -> V:
        value = self._values[key]
        if self.journal is not None and isinstance(value, list | dict):
            self._note(key)  # it may be changed in place
        return value

    def __setitem__(self, key: Key, value: V) -> None:
        key, value = _checked(key), _kept(value)
        if self.journal is not None:
            self._note(key)
        self._values[key] = value
        self._touched.add(key)
        self.version += 1

    def __delitem__(self, key: Key) -> None:
        if self.journal is not None and key in self._values:
            self._note(_checked(key))
        del self._values[key]
        key = _checked(key)  # a numpy 7 finds the entry of 7, but cannot be encoded
        self._touched.add(key)
        self.version += 1

    def _note(self, key: Key) -> None:
        assert self.journal is not None
        if key not in self.journal:
            # A copy: rules may change a list in place.
            self.journal[key] = (_kept(self._values[key]),) if key in self._values else ()

    def put_back(self, key: Key, *value: V) -> None:
        """Set an entry to the value that a journal recorded, or remove it if no value is given."""
        if value:
            self[key] = value[0]
        else:
            self.pop(key, None)

    def __contains__(self, key: object) -> bool:
        return key in self._values

    def keys(self) -> KeysView[Key]:
        """Return a view of the keys. It is the dict's own view, which is faster than MutableMapping's view."""
        return self._values.keys()

    def __iter__(self) -> Iterator[Key]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def clear(self) -> None:
        """Remove all entries."""
        for key in self._values if self.journal is not None else ():
            self._note(key)
        self._values.clear()
        self._touched.clear()
        self._cleared = True
        self.version += 1

    def rewrite(self) -> None:
        """Mark all entries as changed: the next write replaces the table on the server."""
        self._touched = set(self._values)
        self._cleared = True
        self.version += 1

    @property
    def changed(self) -> bool:
        """Return whether there are changes since the last call of `changes`."""
        return self._cleared or bool(self._touched)

    def changes(self) -> TableChanges | None:
        """Return the changes since the last call, as fields of a Redis hash, or None if there are none."""
        if not self._touched and not self._cleared:
            return None
        put: Fields = {}
        gone: list[bytes] = []
        for key in self._touched:
            if key in self._values:
                try:
                    put[_encode(key)] = _encode(self._values[key])
                except Exception:  # changed in place after it was set: the others are saved nevertheless
                    logger.exception("the value of a rule under %r cannot be kept, and is left out", key)
            elif not self._cleared:
                gone.append(_encode(key))
        changes = TableChanges(put, gone, cleared=self._cleared)
        self._touched.clear()
        self._cleared = False
        return changes

    def dump(self) -> Fields:
        """Return all entries as fields of a Redis hash."""
        return {_encode(key): _encode(value) for key, value in self._values.items()}

    def load(self, fields: Mapping[bytes, bytes], *, merge: bool = False) -> None:
        """Load the fields of a `dump`. They replace the current entries, or with `merge` are added to them."""
        found = {_key(_decode(field)): _decode(value) for field, value in fields.items()}
        self._values = self._values | found if merge else found
        self._touched.clear()
        self._cleared = False


def _checked(key: Any) -> Key:  # noqa: ANN401 - any key that a rule sets
    """Return a key in the form in which it is saved; raise RuleError if it cannot be saved."""
    if type(key) is int or key is None:
        return key
    if isinstance(key, tuple):
        parts = tuple(map(_checked, cast("tuple[object, ...]", key)))
        # Most need no change, and a copy would cost memory for as long as it is kept.
        return key if all(map(is_, parts, key)) and type(key) is tuple else parts
    if isinstance(key, int | np.integer | np.bool_):
        return int(key)
    if isinstance(key, str):
        return _text(key)
    raise RuleError(
        f"a rule cannot keep anything under {short_repr(key)}: use an id, a text, None, or a tuple of these", rule=""
    )


def _kept(value: Any) -> Any:  # noqa: ANN401 - JSON
    """Return a value as a successor will read it; raise RuleError if it cannot be saved as JSON."""
    if type(value) is int or value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, np.generic | float):
        value = value.item() if isinstance(value, np.generic) else value
        if isinstance(value, float) and not math.isfinite(value):
            raise RuleError(
                f"a rule cannot keep {short_repr(value)}: JSON has no such number, use None or a limit", rule=""
            )
    try:
        return _decode(_encode(value))
    except Exception as error:
        raise RuleError(f"a rule cannot keep {short_repr(value)}, as it is no JSON ({error})", rule="") from error


def _text(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise RuleError(
            f"a rule cannot keep the text {short_repr(text)}: it is no Unicode ({error})", rule=""
        ) from error
    return str.__str__(text)  # numpy's, too


def _key(key: Any) -> Key:  # noqa: ANN401 - JSON
    return tuple(map(_key, key)) if isinstance(key, list) else key
