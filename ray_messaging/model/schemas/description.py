"""Descriptions of types as JSON Schema, which any process can enforce without the type."""

from collections.abc import Mapping
from typing import Any, is_typeddict

import msgspec

from ray_messaging.compat.payload_objects import Form, form_of
from ray_messaging.errors import ConfigError
from ray_messaging.model.schemas.json_types import decoder_of


def described(kind: Any) -> bytes:  # noqa: ANN401 - a type, or a JSON Schema
    """Return the JSON Schema of a pydantic model, msgspec.Struct, dataclass, TypedDict, or of one given as a dict.

    Raises: ConfigError where it has none, or one that senders cannot check.
    """
    try:
        schema = kind if isinstance(kind, Mapping) else _schema_of(kind)
        text = msgspec.json.encode(schema)
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(
            f"{kind!r} has no JSON Schema ({error}): give a pydantic model, a Struct or a dataclass"
        ) from error
    decoder_of(msgspec.json.decode(text))
    return text


def _schema_of(kind: Any) -> Mapping[str, Any]:  # noqa: ANN401 - as above
    if form_of(kind) is Form.NATIVE or is_typeddict(kind):
        return msgspec.json.schema(kind)
    import pydantic  # noqa: PLC0415 - it takes a tenth of a second

    return pydantic.TypeAdapter(kind).json_schema()
