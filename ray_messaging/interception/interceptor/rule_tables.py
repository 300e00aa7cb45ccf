"""Tables, which hold the state of rules and are saved on the server."""

import logging
import math
from collections.abc import Iterator, KeysView, Mapping, MutableMapping
from functools import reduce
from operator import is_
from typing import Any, Generic, TypeVar, cast

import msgspec
import numpy as np

from ray_messaging.common.texts import short_repr
from ray_messaging.errors import RuleError
from ray_messaging.model.places import NOT_UNICODE
from ray_messaging.transports.experiment_store import Fields, TableChanges

logger = logging.getLogger(__name__)

V = TypeVar("V")
Key = Any  # an id, None, a str, or a tuple of these
# The change of an entry. An int is added to the entry's value, which is a count. A list has the entry's new value, or
# is empty if the entry was removed.
Change = int | list[Any]
# The name of a layer. A layer has the changes that a group's step made to entries, and that can still be undone. The
# name is the group's name if the layer is saved, or the tuple (group,) if it belongs to a batch without an answer yet.
Layer = str | tuple[str]
_BASE = ""  # the key, in place of a layer's name, of an entry's value without the changes of layers

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


class Table(MutableMapping[Key, V], Generic[V]):
    """A saved mapping from keys (ids, None, str, or tuples of these) to JSON values.

    A table records its changes, so that only changes are written to the server. Values are stored in the form in which
    a later process will read them: numpy's numbers become Python's, tuples and sets become lists. Setting a key or
    value that cannot be saved raises RuleError. If a rule does so while it judges a message, the rule has failed on the
    message.

    A group may run a step again, for example if its process has died. Then the changes that the rule made to the table
    when it judged the group's messages of the step are undone, and the rule judges the group's messages again. The
    changes become final once the step cannot run again. A reader of the table sees changes at once, even before they
    are final. If several groups add to one count, the reader sees the sum. When all verdicts on a batch (messages that
    are sent together) are known, the changes made for the batch are saved. So they can be undone even after a restart
    of the rule's process.
    """

    __slots__ = ("_cleared", "_journal", "_laid", "_layers", "_touched", "_unsaved", "_values", "version")

    def __init__(self, values: Mapping[Key, V] | None = None) -> None:
        self._values: dict[Key, V] = {_checked(key): _kept(value) for key, value in (values or {}).items()}
        self._touched: set[Key] = set()
        self._cleared = False
        self.version = 0  # the number of changes so far
        # While a batch of a step is judged: for each entry that the rule changes, [its earlier value], or [] if there
        # was no entry. At other times: None.
        self._journal: dict[Key, list[Any]] | None = None
        # For each entry that layers change: under `_BASE`, [its value without these changes], or [] if there would be
        # no entry without them. Then, under each layer's name, the layer's change.
        self._layers: dict[Key, dict[Layer, Change]] = {}
        self._laid: dict[Layer, set[Key]] = {}  # the keys of the entries that each layer changes
        self._unsaved: set[tuple[str, Key]] = set()  # (layer, key) of each change that the next write saves or removes

    def __getitem__(self, key: Key) -> V:
        value = self._values[key]
        if self._journal is not None and isinstance(value, list | dict):
            self._begin_change(key, [])  # the caller may change this list or dict in place
        return value

    def __setitem__(self, key: Key, value: V) -> None:
        key, value = _checked(key), _kept(value)
        if self._journal is not None or key in self._layers:
            self._begin_change(key, [value])
        else:
            self._touched.add(key)
        self._values[key] = value
        self.version += 1

    def __delitem__(self, key: Key) -> None:
        if key not in self._values:
            raise KeyError(key)
        key = _checked(key)  # np.int64(7) finds the entry of the key 7, but cannot be saved
        if self._journal is not None or key in self._layers:
            self._begin_change(key, [])
        else:
            self._touched.add(key)
        del self._values[key]
        self.version += 1

    def __contains__(self, key: object) -> bool:
        return key in self._values

    def keys(self) -> KeysView[Key]:
        """Return the keys as a dict's view, which is faster than the view that MutableMapping would make."""
        return self._values.keys()

    def __iter__(self) -> Iterator[Key]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def clear(self) -> None:
        """Remove all entries of the table."""
        if self._journal is not None:
            for key in self._values:
                self._begin_change(key, [])
        else:
            for each in (self._touched, self._unsaved, self._layers, self._laid):
                each.clear()
            self._cleared = True
        self._values.clear()
        self.version += 1

    # -- layers ---------------------------------------------------------------------------------------------------

    def begin_layer(self) -> None:
        """Begin to record which entries a batch changes, so that the changes can be undone later.

        `end_layer` ends the record.
        """
        self._journal = {}

    def end_layer(self, group: str, *, done: bool) -> bool:
        """End the record that `begin_layer` began, and keep the recorded changes as changes of `group`.

        These changes can be undone. Return whether there are any.

        Args: `done` says whether all verdicts on the batch are known. If they are, the changes are saved together with
        the verdicts. If some verdicts are missing, the changes are not saved. If the interceptor, the actor that
        applies the rules, then dies, the next interceptor judges the batch again, and so makes the changes again.
        """
        journal, self._journal = self._journal or {}, None
        opened: Layer = (group,)
        for key, before in journal.items():
            try:
                change = _change(before, self._copy(key))
            except RuleError:  # the rule changed the value in place, to one that cannot be saved
                logger.exception("a rule keeps a value under %r that cannot be stored, so the value is left out", key)
                continue
            if change is not None:
                layers = self._layers.setdefault(key, {_BASE: before})
                others = [layer for layer in layers if layer not in {_BASE, group, opened}]
                if isinstance(change, list) or any(isinstance(layers[layer], list) for layer in others):
                    self._make_final(key, layers, others)
                layers[opened] = _joined(layers.get(opened, 0), change)
                self._laid.setdefault(opened, set()).add(key)
        found = opened in self._laid
        if done:
            self._merge(opened, group)
        return found

    def settle(self, group: str | None = None) -> None:
        """Make the changes of a group (None: of all groups) final, so that they cannot be undone any more."""
        for layer in [*self._laid] if group is None else [group]:
            self._merge(layer, _BASE)

    def drop(self, layer: Layer) -> bool:
        """Undo the changes that a group made in the table; return whether there were any.

        Args: `layer` says which changes to undo. A group's name means the changes for the group's batches on which all
        verdicts are known. The tuple (name,) means the changes for its one batch on which some verdicts are missing.
        """
        keys = self._laid.pop(layer, ())
        for key in keys:
            layers = self._layers[key]
            self._take_off(key, layer)
            self._show(key, layers)
        self.version += bool(keys)
        return bool(keys)

    def _merge(self, layer: Layer, into: str) -> None:
        for key in self._laid.pop(layer, ()):
            layers = self._layers[key]
            layers[into] = _joined(layers.get(into, 0), layers[layer])
            if into == _BASE:
                self._touched.add(key)
            else:
                self._laid.setdefault(into, set()).add(key)
                self._unsaved.add((into, key))
            self._take_off(key, layer)

    def _make_final(self, key: Key, layers: dict[Layer, Change], of: list[Layer]) -> None:
        """Make the changes that some groups made to an entry final, so that they cannot be undone any more.

        Args: `layers` is the item of `_layers` for this entry. `of` names the layers whose changes become final, in
        this order.
        """
        for layer in of:
            layers[_BASE] = _joined(layers[_BASE], layers.pop(layer))
            self._laid[layer].discard(key)
            self._touched.add(key)
            if isinstance(layer, str):
                self._unsaved.add((layer, key))

    def _take_off(self, key: Key, layer: Layer) -> None:
        layers = self._layers[key]
        del layers[layer]
        if len(layers) == 1:
            del self._layers[key]
        if isinstance(layer, str):
            self._unsaved.add((layer, key))

    def _show(self, key: Key, layers: Mapping[Layer, Change]) -> None:
        """Compute an entry of the table anew from its final value and the changes that can still be undone."""
        value = reduce(_joined, layers.values())
        if isinstance(value, list) and value:
            self._values[key] = _kept(value[0])
        else:
            self._values.pop(key, None)

    def _begin_change(self, key: Key, after: list[Any]) -> None:
        """Record a change of an entry before it is made, so that it can be undone if a group runs its step again.

        Between `begin_layer` and `end_layer`, the entry's earlier value is recorded. A change at any other time cannot
        be undone.

        Args: `after` has the entry's new value, or is empty if the entry is to be removed.
        """
        if self._journal is not None:
            if key not in self._journal:
                self._journal[key] = self._copy(key)
            return
        self._touched.add(key)
        layers = self._layers[key]
        change = _change(self._copy(key), after)
        if isinstance(change, int):
            layers[_BASE] = _joined(layers[_BASE], change)
        elif change is not None:
            # The new value replaces the changes of all layers, so that no layer can be undone for this entry any more.
            for layer in [*layers][1:]:
                self._laid[layer].discard(key)
                self._take_off(key, layer)

    def _copy(self, key: Key) -> list[Any]:
        """Return a list with a copy of an entry's value, or an empty list if there is no entry.

        The value is copied, because rules may change it in place.
        """
        return [_kept(self._values[key])] if key in self._values else []

    # -- saving to the server -------------------------------------------------------------------------------------

    def rewrite(self) -> None:
        """Mark all entries as changed, so that the next write replaces the table on the server."""
        self._touched = {*self._values, *self._layers}
        self._unsaved = {(layer, key) for layer, keys in self._laid.items() if isinstance(layer, str) for key in keys}
        self._cleared = True
        self.version += 1

    @property
    def changed(self) -> bool:
        """Return whether an entry has changed since the last call of `changes`."""
        return self._cleared or bool(self._touched) or bool(self._unsaved)

    def changes(self) -> TableChanges | None:
        """Return the changes since the last call, as fields of a Redis hash, or None if there are none.

        A group's change that may still be undone has its own field, whose name is the JSON object {group: key}.
        """
        if not self.changed:
            return None
        put: Fields = {}
        gone: list[bytes] = []
        for key in self._touched:
            layers = self._layers.get(key)
            found = layers[_BASE] if layers else [self._values[key]] if key in self._values else []
            if isinstance(found, list) and found:
                try:
                    put[_encode(key)] = _encode(found[0])
                # The rule changed the value in place, to one that cannot be saved. The other entries are saved.
                except Exception:
                    logger.exception(
                        "a rule keeps a value under %r that cannot be stored, so the value is left out", key
                    )
            elif not self._cleared:
                gone.append(_encode(key))
        for group, key in self._unsaved:
            change = self._layers.get(key, {}).get(group)
            if change is not None:
                put[_encode({group: key})] = _encode(change)
            elif not self._cleared:
                gone.append(_encode({group: key}))
        changes = TableChanges(put, gone, cleared=self._cleared)
        self._touched.clear()
        self._unsaved.clear()
        self._cleared = False
        return changes

    def dump(self) -> Fields:
        """Return all entries as fields of a Redis hash, with all changes, even those that may still be undone."""
        return {_encode(key): _encode(value) for key, value in self._values.items()}

    def load(self, fields: Mapping[bytes, bytes], *, merge: bool = False) -> None:
        """Load fields that `changes` or `dump` has returned.

        The loaded entries replace all current entries. With `merge`, current entries with other keys stay.
        """
        for each in (self._touched, self._unsaved, self._layers, self._laid):
            each.clear()
        self._cleared = False
        entries: dict[Key, V] = {}
        laid: list[tuple[str, Key, Change]] = []
        for field, data in fields.items():
            key, value = _decode(field), _decode(data)
            if isinstance(key, dict):
                laid += [(group, _key(each), value) for group, each in cast("dict[str, Any]", key).items()]
            else:
                entries[_key(key)] = value
        self._values = self._values | entries if merge else entries
        for group, key, change in laid:
            self._layers.setdefault(key, {_BASE: self._copy(key)})[group] = change
            self._laid.setdefault(group, set()).add(key)
        for key, layers in self._layers.items():
            self._show(key, layers)


def _change(before: list[Any], after: list[Any]) -> Change | None:
    """Return how an entry was changed, or None if it was not changed.

    Return the difference if the new value is an int, and the earlier value is an int or there was no entry. Otherwise
    return `after`. `before` and `after` have one item, the entry's value, or none if there is no entry.
    """
    if after == before:
        return None
    return after[0] - sum(before) if after and all(type(value) is int for value in (*before, *after)) else after


def _joined(earlier: Change, later: Change) -> Change:
    """Return one change of an entry that has the effect of two successive changes."""
    if isinstance(later, list):
        return later
    if isinstance(earlier, list):
        return [later + sum(value for value in earlier if type(value) is int)]
    return earlier + later


def _checked(key: Any) -> Key:  # noqa: ANN401 - any key that a rule sets
    """Return a key as it is saved; raise RuleError if it cannot be saved."""
    if type(key) is int or key is None:
        return key
    if isinstance(key, tuple):
        parts = tuple(map(_checked, cast("tuple[object, ...]", key)))
        # Most keys need no change, and a copy would take memory for as long as the entry exists.
        return key if all(map(is_, parts, key)) and type(key) is tuple else parts
    if isinstance(key, int | np.integer | np.bool_):
        return int(key)
    if isinstance(key, str):
        return _text(key)
    raise RuleError(
        f"a rule cannot keep a value under the key {short_repr(key)}: use an int, a str, None, or a tuple of these",
        rule="",
    )


def _kept(value: Any) -> Any:  # noqa: ANN401 - JSON
    """Return a value as a later process will read it; raise RuleError if it cannot be saved as JSON."""
    if type(value) is int or value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, np.generic | float):
        value = value.item() if isinstance(value, np.generic) else value
        if isinstance(value, float) and not math.isfinite(value):
            raise RuleError(
                f"a rule cannot keep {short_repr(value)}: JSON has no such number. Use None, or a finite number",
                rule="",
            )
    try:
        return _decode(_encode(value))
    except Exception as error:
        raise RuleError(
            f"a rule cannot keep {short_repr(value)}, because JSON cannot represent it ({error}): use dicts, lists, "
            "strs, numbers, bools and None",
            rule="",
        ) from error


def _text(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise RuleError(f"a rule cannot keep the text {short_repr(text)}, which {NOT_UNICODE}", rule="") from error
    return str.__str__(text)  # a str of numpy becomes a plain str


def _key(key: Any) -> Key:  # noqa: ANN401 - JSON
    return tuple(map(_key, key)) if isinstance(key, list) else key
