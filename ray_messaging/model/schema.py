"""JSON Schemas of payloads: the schema of one subtopic, and the schemas of all subtopics."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

import msgspec
import numpy as np

from ray_messaging.compat.payload_objects import explained
from ray_messaging.errors import ConfigError
from ray_messaging.model.columns import PayloadColumn
from ray_messaging.model.json_types import BOUNDS, JsonTypes, Node, built
from ray_messaging.model.typed.column import STRING, ColumnType
from ray_messaging.model.typed.typed_table import Payloads, TypedColumns

_REFUSALS = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


class Misfitting(NamedTuple):
    """A payload that does not fit a schema.

    `row` is the payload's row (None: no row fits), `field` the field that does not fit, and `reason` says why.
    """

    row: int | None
    field: str
    reason: str


class Schema:
    """Check of the payloads of one subtopic.

    Args: `text` is a JSON Schema. Raises ConfigError for a schema that senders cannot check.
    """

    def __init__(self, text: bytes) -> None:
        self._types = JsonTypes(msgspec.json.decode(text))
        self._decoder, top = self._types.decoder(), self._types.top
        self._properties: Node = top.get("properties", {})
        self._required = list(top.get("required", ()))
        self._others = top.get("additionalProperties", True)
        self._known: dict[tuple[str, ColumnType], tuple[str, Any]] = {}

    def misfits(self, payloads: Payloads) -> Iterator[Misfitting]:
        """Yield a Misfitting for each payload that does not fit.

        If a typed column is missing, or has a name or a type that the schema does not allow, there is only one
        Misfitting for the column.
        """
        return self._of_columns(payloads) if isinstance(payloads, TypedColumns) else self._of_lines(payloads.json)

    def _of_lines(self, payloads: PayloadColumn) -> Iterator[Misfitting]:
        try:
            self._decoder.decode_lines(payloads.blob)
        except _REFUSALS:
            for line, field, reason in _refused(self._decoder.decode, payloads.list):
                rows = [line] if payloads.index is None else np.flatnonzero(payloads.index == line).tolist()
                yield from (Misfitting(row, field, reason) for row in rows)

    def _of_columns(self, payloads: TypedColumns) -> Iterator[Misfitting]:
        if not payloads.count:
            return
        for name in self._required:
            if name not in payloads.columns:
                yield Misfitting(None, name, "this column is missing")
        for name, column in payloads.columns.items():
            key = name, column.type
            if key not in self._known:
                self._known[key] = self._check_of(name, column.type)
            trouble, kind = self._known[key]
            if trouble:
                yield Misfitting(None, name, trouble)
            elif kind is not None:
                values = column.tolist()
                try:
                    msgspec.convert(values, list.__class_getitem__(kind))
                except _REFUSALS:
                    for row, field, reason in _refused(partial(msgspec.convert, type=kind), values):
                        yield Misfitting(row, f"{name}.{field}" if field else name, reason)

    def _check_of(self, name: str, kind: ColumnType) -> tuple[str, Any]:
        """Compare a column's type with the schema.

        Returns: the reason why no value can fit ("" if a value may fit), and the type to which each value must be
        converted as a check (None if the values need no check).
        """
        types, node = self._types, self._properties.get(name, self._others)
        if node is False:
            return f"the schema has no such field, only {', '.join(map(repr, self._properties)) or 'none'}", None
        node = types.resolved(node) if isinstance(node, Mapping) else {}
        choices = [types.resolved(each) for each in node.get("anyOf", node.get("oneOf", [node]))]
        fitting = [each for each in choices if _holds(types, each, kind)]
        if not fitting:
            expected = " or ".join(dict.fromkeys(str(each.get("type", "another value")) for each in choices))
            return f"the values are of type {kind}, but the schema allows only {expected}", None
        bound = all(_is_bound(types, each) for each in fitting)
        return "", built(lambda: types.type_of(node, name)) if bound else None


def _refused(check: Callable[[Any], object], values: Iterable[Any]) -> Iterator[tuple[int, str, str]]:
    """Yield, for each value that a check refuses, its position, the field that does not fit, and the reason."""
    for place, value in enumerate(values):
        try:
            check(value)
        except _REFUSALS as error:
            reason, field = explained(str(error))
            yield place, field, reason


def _holds(types: JsonTypes, node: Node, kind: ColumnType) -> bool:
    """Return whether a node of a schema may allow values of a column's type."""
    if "const" in node or "enum" in node:
        return kind.width == 0
    kinds = node.get("type")
    if kinds is None:
        return "properties" not in node
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if not kind.width:
        return bool(_names_of(kind.name) & {*kinds})
    items = types.resolved(node.get("items", {})) if isinstance(node.get("items", {}), Mapping) else {}
    least, most = node.get("minItems", 0), node.get("maxItems", kind.width)
    return "array" in kinds and least <= kind.width <= most and _holds(types, items, ColumnType(kind.name))


def _names_of(name: str) -> set[str]:
    if name == STRING:
        return {"string"}
    if name == "bool":
        return {"boolean"}
    return {"number"} if name.startswith("float") else {"integer", "number"}


_LIMITS = {"const", "enum", "prefixItems", *BOUNDS["number"], *BOUNDS["string"]}


def _is_bound(types: JsonTypes, node: Node) -> bool:
    """Return whether a node of a schema has constraints besides the type and the number of items."""
    items = node.get("items")
    return bool(_LIMITS & node.keys()) or (isinstance(items, Mapping) and _is_bound(types, types.resolved(items)))


class Schemas:
    """The schemas of an experiment's subtopics. `version` is the number of changes of these schemas so far."""

    def __init__(self) -> None:
        self.version = 0
        self._texts: Mapping[str, bytes] = {}
        self._made: dict[str, Schema | ConfigError] = {}

    def update(self, texts: Mapping[str, bytes]) -> None:
        """Replace all schemas by those in `texts`, a dict with a JSON Schema for each subtopic."""
        if texts != self._texts:
            self._texts, self._made = dict(texts), {}
            self.version += 1

    def of(self, subtopic: str) -> Schema | None:
        """Return the schema of a subtopic, or None.

        Raises: ConfigError if this version of the package cannot check the schema.
        """
        if subtopic not in self._texts:
            return None
        if subtopic not in self._made:
            try:
                self._made[subtopic] = Schema(self._texts[subtopic])
            except (ConfigError, msgspec.DecodeError) as error:
                self._made[subtopic] = ConfigError(f"the schema of subtopic {subtopic!r} cannot be used here: {error}")
        found = self._made[subtopic]
        if isinstance(found, ConfigError):
            raise found
        return found
