"""Payloads as parts of A2A messages, and parts as payloads."""

from collections.abc import Sequence
from typing import Any

from a2a.helpers import get_data_parts, get_text_parts, new_data_part, new_text_part
from a2a.types import Part

from ray_messaging.common.tables import MOST_EXACT
from ray_messaging.errors import InvalidPayload


def parts_of(payload: object) -> list[Part]:
    """Return a payload as parts: its `content` as a text, and everything else as data."""
    if isinstance(payload, str):
        return [new_text_part(payload)]
    if isinstance(payload, dict) and isinstance(payload.get("content"), str):
        others = {name: value for name, value in payload.items() if name != "content"}
        return [new_text_part(payload["content"]), *([new_data_part(others)] if others else ())]
    return [new_data_part(payload)]


def payload_of(parts: Sequence[Part]) -> dict[str, Any]:
    """Return parts as a payload: texts as `content`, and a JSON object as it is.

    Raises: InvalidPayload for parts that are neither text nor data, such as files, or if there are no parts.
    """
    texts, data = get_text_parts(parts), [_with_whole_numbers(each) for each in get_data_parts(parts)]
    if not parts or len(texts) + len(data) != len(parts):
        raise InvalidPayload("the message must consist of texts and JSON data: files and URLs are not taken")
    found: dict[str, Any] = {"content": "\n".join(texts)} if texts else {}
    if len(data) == 1 and isinstance(data[0], dict) and not found.keys() & data[0].keys():
        return found | data[0]
    return found | {"data": data} if data else found


def _with_whole_numbers(value: Any) -> Any:  # noqa: ANN401 - in JSON's types
    """Return data with each whole float, such as 3.0, replaced by an int, because A2A sends ints as floats."""
    if isinstance(value, dict):
        return {name: _with_whole_numbers(each) for name, each in value.items()}
    if isinstance(value, list):
        return [*map(_with_whole_numbers, value)]
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) <= MOST_EXACT else value
