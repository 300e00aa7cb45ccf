"""Python types for msgspec, built from a JSON Schema, so that a sender can check payloads without the user's classes.

The module also builds the JSON Schema of a user's type.
"""

from collections.abc import Callable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from functools import reduce
from itertools import chain
from operator import or_
from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec

from ray_messaging.compat.payload_objects import is_msgspecs
from ray_messaging.errors import ConfigError

Node = Mapping[str, Any]

_IGNORED = {
    "title", "description", "default", "examples", "format", "deprecated", "readOnly", "writeOnly", "uniqueItems",
    "contentMediaType", "contentEncoding", "$defs", "$schema", "$id", "$comment",
}  # fmt: skip
_OF_NUMBERS = {
    "minimum": "ge", "maximum": "le", "exclusiveMinimum": "gt", "exclusiveMaximum": "lt", "multipleOf": "multiple_of"
}  # fmt: skip
BOUNDS = {  # for each kind of value, the constraints that it may have, with their names in msgspec
    "integer": _OF_NUMBERS,
    "number": _OF_NUMBERS,
    "string": {"minLength": "min_length", "maxLength": "max_length", "pattern": "pattern"},
    "array": {"minItems": "min_length", "maxItems": "max_length"},
    "object": {"minProperties": "min_length", "maxProperties": "max_length"},
}
_KNOWN = {
    *_IGNORED, *chain.from_iterable(BOUNDS.values()), "$ref", "allOf", "anyOf", "oneOf", "const", "enum", "type",
    "properties", "required", "additionalProperties", "items", "prefixItems",
}  # fmt: skip
# JSON Schema leaves open which texts are valid in a format. Here a text is valid if the format's Python type accepts
# the text.
FORMATS: dict[str, Any] = {
    "date-time": datetime, "date": date, "time": time, "duration": timedelta, "uuid": UUID, "decimal": Decimal
}  # fmt: skip
_PLAIN: dict[str, Any] = {"string": str, "integer": int, "number": float, "boolean": bool, "null": None}


class JsonTypes:
    """Builder of Python types from one JSON Schema.

    Its methods raise ConfigError for a constraint that msgspec cannot check.

    Args: With `formats`, a str must have the format that the schema names, if the format is one of `FORMATS`.
    """

    def __init__(self, schema: Node, *, formats: bool = False) -> None:
        self._formats = FORMATS if formats else {}
        self._defs: Node = schema.get("$defs", {})
        # The references that were followed to the current node. If one of them comes again, the schema contains itself.
        self._open: list[str] = []
        self._schema, self.top = schema, self.resolved(schema)

    def decoder(self, *, lists: bool = False) -> msgspec.json.Decoder[Any]:
        """Return a decoder of payloads that refuses what the schema does not allow.

        With `lists`, the decoder decodes lists of payloads.

        Raises: ConfigError if the schema does not describe JSON objects, or if msgspec cannot check it.
        """
        if self.top.get("type", "object") != "object" or not ({"type", "properties"} & self.top.keys()):
            raise ConfigError(
                "this schema does not describe JSON objects, but all payloads are JSON objects: use a class with fields"
            )

        def make() -> msgspec.json.Decoder[Any]:
            kind = self.type_of(self._schema, "")
            return msgspec.json.Decoder(list.__class_getitem__(kind) if lists else kind)

        decoder: msgspec.json.Decoder[Any] = built(make)
        return decoder

    def resolved(self, node: Node) -> Node:
        """Return the node to which a schema node leads by references (`$ref`); the node itself if it is no reference.

        An `allOf` with only one schema is a reference, too.
        """
        while "$ref" in node or len(node.get("allOf", ())) == 1:
            node = node["allOf"][0] if "$ref" not in node else self._defs[self._name(node["$ref"])]
        return node

    def _name(self, reference: object) -> str:
        name = str(reference).removeprefix("#/$defs/")
        if name not in self._defs:
            raise ConfigError(
                f"a schema does not define {reference!r}, to which it refers: write '#/$defs/NAME', and define NAME in "
                "$defs"
            )
        return name

    def type_of(self, node: object, where: str) -> Any:  # noqa: ANN401 - a type
        """Return the Python type of the values that a node of the schema allows; `where` is the path of the field."""
        if not isinstance(node, Mapping):
            if node is True:
                return Any
            raise ConfigError(
                f"{_schema_of(where)} is {node!r}, which senders cannot check: write a schema, such as {{'type': "
                "'string'}"
            )
        if unknown := [key for key in node if key not in _KNOWN]:
            raise ConfigError(
                f"{_schema_of(where)} has the keyword {unknown[0]!r}, which senders cannot check: leave it out"
            )
        if "$ref" in node:
            return self._of_reference(node["$ref"], where)
        if len(node.get("allOf", ())) == 1:
            return self.type_of(node["allOf"][0], where)
        if "const" in node or "enum" in node:
            return self._literal([node["const"]] if "const" in node else node["enum"], where)
        for key in ("anyOf", "oneOf"):
            if key in node:
                return reduce(or_, [self.type_of(each, where) for each in node[key]])
        kinds = node.get("type")
        if kinds is None:
            return self._of_object(node, where) if "properties" in node else Any
        made = [self._of_kind(kind, node, where) for kind in ([kinds] if isinstance(kinds, str) else kinds)]
        return reduce(or_, made)

    def _of_reference(self, reference: object, where: str) -> Any:  # noqa: ANN401 - a type
        name = self._name(reference)
        if name in self._open:
            raise ConfigError(
                f"{_schema_of(where)} contains itself ({name}), and senders cannot check such a schema: give the "
                "inner field the schema {}, which allows all values"
            )
        self._open.append(name)
        try:
            return self.type_of(self._defs[name], where)
        finally:
            self._open.pop()

    @staticmethod
    def _literal(values: list[Any], where: str) -> Any:  # noqa: ANN401 - a type
        if not all(value is None or type(value) in (str, int) for value in values):
            raise ConfigError(
                f"{_schema_of(where)} lists the values {values!r}: senders can check only strs, ints and None, so "
                "leave the other values out, or give a type instead"
            )
        return Literal[tuple(values)]

    def _of_kind(self, kind: str, node: Node, where: str) -> Any:  # noqa: ANN401 - a type
        if kind == "object":
            return self._of_object(node, where)
        if kind == "string" and node.get("format") in self._formats:
            return self._formats[node["format"]]
        if kind != "array" and kind not in _PLAIN:
            known = ", ".join(map(repr, (*_PLAIN, "object", "array")))
            raise ConfigError(f"{_schema_of(where)} has the type {kind!r}: write one of JSON's types, {known}")
        found = self._of_array(node, where) if kind == "array" else _PLAIN[kind]
        return found if "prefixItems" in node else self._bounded(found, kind, node)

    @staticmethod
    def _bounded(found: Any, kind: str, node: Node) -> Any:  # noqa: ANN401 - a type
        bounds = {name: node[key] for key, name in BOUNDS.get(kind, {}).items() if key in node}
        return Annotated[found, msgspec.Meta(**bounds)] if bounds else found

    def _of_array(self, node: Node, where: str) -> Any:  # noqa: ANN401 - a type
        if node.get("prefixItems"):
            made = [self.type_of(each, f"{where}.{place}") for place, each in enumerate(node["prefixItems"])]
            return tuple.__class_getitem__(tuple(made))
        return list[self.type_of(node.get("items", True), f"{where}.items")]  # type: ignore[misc]  # the type is built

    def _of_object(self, node: Node, where: str) -> Any:  # noqa: ANN401 - a type
        others = node.get("additionalProperties", True)
        properties = node.get("properties", {})
        if not properties and others is not False:
            values = self.type_of(others, f"{where}.*")
            return self._bounded(dict[str, values], "object", node)  # type: ignore[valid-type]  # as above
        required = set(node.get("required", ()))
        fields: list[Any] = []
        for place, (name, each) in enumerate(properties.items()):
            found = self.type_of(each, f"{where}.{name}" if where else name)
            if name in required:
                fields.append((f"f{place}", found))
            else:
                fields.append((f"f{place}", found | msgspec.UnsetType if found is not Any else Any, msgspec.UNSET))
        names = {f"f{place}": name for place, name in enumerate(properties)}
        closed = others is False
        return msgspec.defstruct("Payload", fields, rename=names, kw_only=True, forbid_unknown_fields=closed)


def _schema_of(where: str) -> str:
    return f"the schema of field {where!r}" if where else "the schema"


def built(make: Callable[[], Any]) -> Any:  # noqa: ANN401 - a decoder, or a type
    """Return the result of a function; raise ConfigError if msgspec does not support a type that the function uses."""
    try:
        return make()
    except (TypeError, ValueError, KeyError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(
            f"senders cannot check this schema: {error}. Leave out the part of the schema that causes this error"
        ) from error


def described(kind: Any) -> bytes:  # noqa: ANN401 - a type, or a JSON Schema
    """Return the encoded JSON Schema of a pydantic model, a msgspec.Struct, a dataclass or a TypedDict.

    Args: `kind` is such a type, or the schema itself.

    Raises: ConfigError if the type has no schema, or has a schema that senders cannot check.
    """
    try:
        schema = kind if isinstance(kind, Mapping) else schema_of(kind)
        text = msgspec.json.encode(schema)
    except ConfigError:
        raise
    except Exception as error:
        why = str(error).partition("\n")[0].partition(". ")[0]  # the later sentences are advice for authors of types
        raise ConfigError(
            f"{kind!r} has no JSON Schema ({why}): give a pydantic model, a Struct or a dataclass"
        ) from error
    JsonTypes(msgspec.json.decode(text)).decoder()
    return text


def schema_of(kind: Any) -> Mapping[str, Any]:  # noqa: ANN401 - a type
    """Return the JSON Schema of a type. If the type has none, the error may be of any class."""
    if is_msgspecs(kind):
        return msgspec.json.schema(kind)
    import pydantic  # noqa: PLC0415 - it takes a tenth of a second

    return pydantic.TypeAdapter(kind).json_schema()
