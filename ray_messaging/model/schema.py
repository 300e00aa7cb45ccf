"""The schema of one subtopic's payloads, and the schemas of all subtopics."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import msgspec
import numpy as np

from ray_messaging.compat.payload_objects import explained
from ray_messaging.errors import ConfigError
from ray_messaging.model.columns import PayloadColumn
from ray_messaging.model.json_types import JsonTypes, Node, built, decoder_of
from ray_messaging.model.typed.column import STRING, ColumnType, TypedColumn
from ray_messaging.model.typed.table import Payloads, TypedColumns


class Misfitting(NamedTuple):
    """A row whose payload does not fit (None: no payload fits), the field that does not, and why."""

    row: int | None
    field: str
    reason: str


class Schema:
    """Check of the payloads of one subtopic. Args: `text` is a JSON Schema. Raises ConfigError for unsupported ones."""

    def __init__(self, text: bytes) -> None:
        schema = msgspec.json.decode(text)
        self._decoder = decoder_of(schema)
        self._types = JsonTypes(schema)
        top = self._types.resolved(schema)
        self._properties: Node = top.get("properties", {})
        self._required = list(top.get("required", ()))
        self._others = top.get("additionalProperties", True)
        self._known: dict[tuple[str, ColumnType], ColumnCheck] = {}

    def misfits(self, payloads: Payloads) -> Iterator[Misfitting]:
        """Yield the payloads that do not fit, row by row. A typed column of a wrong type yields one for all rows."""
        return self._of_columns(payloads) if isinstance(payloads, TypedColumns) else self._of_lines(payloads.json)

    def _of_lines(self, payloads: PayloadColumn) -> Iterator[Misfitting]:
        try:
            self._decoder.decode_lines(payloads.blob)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            for line, text in enumerate(payloads.list):
                try:
                    self._decoder.decode(text)
                except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
                    reason, field = explained(str(error))
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
            yield from self._known[key].misfits(name, column)

    def _check_of(self, name: str, kind: ColumnType) -> "ColumnCheck":
        node = self._properties.get(name, self._others)
        if node is False:
            return ColumnCheck(f"there is no such field: it has {', '.join(self._properties)}")
        return check_of(self._types, node, name, kind)


class ColumnCheck:
    """Check of one typed column: `refused` says why no value fits, or `kind` is a type by which values are checked.

    If there is neither, all values fit.
    """

    def __init__(self, refused: str = "", kind: Any = None) -> None:  # noqa: ANN401 - a type
        self._refused = refused
        self._kind = kind

    def misfits(self, name: str, column: TypedColumn) -> Iterator[Misfitting]:
        """Yield the rows that do not fit."""
        if self._refused:
            yield Misfitting(None, name, self._refused)
        elif self._kind is not None:
            values, kinds = column.tolist(), list.__class_getitem__(self._kind)
            try:
                msgspec.convert(values, kinds)
            except msgspec.ValidationError:
                for row, value in enumerate(values):
                    try:
                        msgspec.convert(value, self._kind)
                    except msgspec.ValidationError as error:
                        reason, field = explained(str(error))
                        yield Misfitting(row, f"{name}.{field}" if field else name, reason)


def check_of(types: JsonTypes, node: object, name: str, kind: ColumnType) -> ColumnCheck:
    """Return the check of a column of a given type by a node of the schema."""
    node = types.resolved(node) if isinstance(node, Mapping) else {}
    choices = [types.resolved(each) for each in node.get("anyOf", node.get("oneOf", [node]))]
    fitting = [each for each in choices if _holds(types, each, kind)]
    if not fitting:
        expected = " or ".join(dict.fromkeys(str(each.get("type", "another value")) for each in choices))
        return ColumnCheck(f"a column of {kind} has another type than {expected}")
    if any(not _is_bound(types, each) for each in fitting):
        return ColumnCheck()
    return ColumnCheck(kind=built(lambda: types.type_of(node, name)))


def _holds(types: JsonTypes, node: Node, kind: ColumnType) -> bool:
    """Return whether a node may allow values of a column's type."""
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


_LIMITS = {
    "const", "enum", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "minLength",
    "maxLength", "pattern", "prefixItems",
}  # fmt: skip


def _is_bound(types: JsonTypes, node: Node) -> bool:
    """Return whether a node has constraints besides the type."""
    items = node.get("items")
    return bool(_LIMITS & node.keys()) or (isinstance(items, Mapping) and _is_bound(types, types.resolved(items)))


class Schemas:
    """The schemas of an experiment's subtopics in a directory; `version` counts their changes, so 0 means none."""

    def __init__(self) -> None:
        self.version = 0
        self._texts: Mapping[str, bytes] = {}
        self._made: dict[str, Schema | ConfigError] = {}

    def update(self, texts: Mapping[str, bytes]) -> None:
        """Set the schemas of all subtopics that have one."""
        if texts != self._texts:
            self._texts, self._made = dict(texts), {}
            self.version += 1

    def of(self, subtopic: str) -> Schema | None:
        """Return the schema of a subtopic, or None if it has none; raise ConfigError if this version cannot use it."""
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
