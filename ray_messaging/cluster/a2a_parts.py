"""Payloads as parts of A2A messages, and parts as payloads."""

import math
from collections.abc import Sequence
from typing import Any

from a2a.helpers import get_data_parts, get_text_parts, new_data_part, new_text_part
from a2a.types import Part

from ray_messaging.common.tables import MOST_EXACT
from ray_messaging.errors import InvalidPayload


def parts_of(payload: object) -> list[Part]:
    """Return a payload as the parts of an A2A message.

    A payload that is a str becomes a text part. If a payload is a dict with a str as its `content`, this str becomes a
    text part, and the other fields, if there are any, become a data part. Any other payload becomes a data part.

    Raises: InvalidPayload if A2A cannot carry a value of the payload, or would change it.
    """
    _check_exact(payload)
    try:
        return _parts_of(payload)
    except Exception as error:  # Protobuf raises errors of its own types, such as for bytes or deeply nested data.
        raise InvalidPayload(
            f"A2A cannot carry the payload ({error}): A2A accepts only JSON, so use strs as keys, and dicts, lists, "
            "strs, numbers, bools and None as values"
        ) from error


def _parts_of(payload: object) -> list[Part]:
    if isinstance(payload, str):
        return [new_text_part(payload)]
    if isinstance(payload, dict) and isinstance(payload.get("content"), str):
        others = {name: value for name, value in payload.items() if name != "content"}
        return [new_text_part(payload["content"]), *([new_data_part(others)] if others else ())]
    return [new_data_part(payload)]


def payload_of(parts: Sequence[Part]) -> dict[str, Any]:
    """Return the payload for the parts of an A2A message.

    If there are text parts, the field `content` has their texts, joined by line breaks. If there is one data part, a
    JSON object, the object's fields become fields of the payload. In all other cases, the field `data` has a list of
    the data of all data parts. This is also so if there are text parts, and the one object has a field `content`.

    Raises: InvalidPayload for a part that is neither text nor data, such as a file, for data that are not JSON, such as
    NaN, or if there are no parts.
    """
    try:
        texts, data = get_text_parts(parts), [_with_whole_numbers(each) for each in get_data_parts(parts)]
    except Exception as error:  # Protobuf raises errors of its own types, such as for NaN.
        raise InvalidPayload(f"the message has data that are not JSON: {error}") from error
    if not parts or len(texts) + len(data) != len(parts):
        raise InvalidPayload("the message has no parts, or has files or URLs: its parts must be texts and JSON data")
    found: dict[str, Any] = {"content": "\n".join(texts)} if texts else {}
    if len(data) == 1 and isinstance(data[0], dict) and not found.keys() & data[0].keys():
        return found | data[0]
    return found | {"data": data} if data else found


def _check_exact(value: object) -> None:
    """Raise InvalidPayload if `value` has a number that JSON lacks, such as NaN, or an int that a float cannot hold."""
    if isinstance(value, dict):
        for each in value.values():
            _check_exact(each)
    elif isinstance(value, list | tuple):
        for each in value:
            _check_exact(each)
    elif isinstance(value, int) and abs(value) > MOST_EXACT:
        raise InvalidPayload(f"A2A has floats only, which cannot hold {value} exactly: send the number as a str")
    elif isinstance(value, float) and not math.isfinite(value):
        raise InvalidPayload(f"A2A cannot carry {value}, because JSON has no such number: send '{value}' or None")


def _with_whole_numbers(value: Any) -> Any:  # noqa: ANN401 - in JSON's types
    """Return data with each whole float, such as 3.0, replaced by an int, because A2A sends ints as floats."""
    if isinstance(value, dict):
        return {name: _with_whole_numbers(each) for name, each in value.items()}
    if isinstance(value, list):
        return [*map(_with_whole_numbers, value)]
    # 2**53 itself stays a float, because it may have been 2**53 + 1.
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) < MOST_EXACT else value
