"""Numbers that JSON does not have: NaN and the infinities, which msgspec and pydantic write as null."""

import re
from collections.abc import Iterable
from math import isfinite
from typing import Any

import msgspec
import numpy as np

from ray_messaging.compat.msg import Msg
from ray_messaging.errors import InvalidPayload

NULL = b"null"  # JSON without it has lost no number
MAYBE_NULL = ord("u")  # an int, to look for first: a search for bytes by `in` raises and drops an error internally
_NULL_WORD = int.from_bytes(NULL, "little")
_MANY = 2**12  # bytes that numpy searches in less time
_NOT_FINITE = re.compile(rb"\xcb[\x7f\xff][\xf0-\xff]")  # a double of msgpack that is no number; few others look alike


def check_finite(payload: object) -> None:
    """Raise InvalidPayload, with the place, for a payload that holds a number which is NaN or infinite."""
    if not all_finite(payload):
        for place, number in _floats(payload, ""):
            if not isfinite(number):
                raise InvalidPayload(
                    f"this payload cannot become JSON: {place} is {float(number)}, which JSON does not have; send None "
                    "or a text for it, or typed columns (columns(...)), where floats keep it"
                )


def may_have_null(lines: bytes) -> bool:
    """Return whether JSON lines hold `null`, as a value or in a text.

    In large ones numpy compares four bytes at a time, from each of four beginnings: a quarter of the time of `in`.
    """
    if len(lines) < _MANY:
        return NULL in lines
    return any(
        (np.frombuffer(lines, "<u4", (len(lines) - at) // len(NULL), at) == _NULL_WORD).any() for at in range(len(NULL))
    )


def all_finite(payloads: object) -> bool:
    """Return whether all numbers of payloads have a form in JSON; False also where that is not certain."""
    try:
        return _NOT_FINITE.search(_packed(payloads)) is None
    except (TypeError, ValueError, OverflowError, RecursionError):  # what msgpack cannot have
        return False


def _floats(value: Any, place: str) -> Iterable[tuple[str, float]]:  # noqa: ANN401 - any part of a payload
    if isinstance(value, float):
        yield place, value
    elif isinstance(value, dict):
        for key, part in value.items():
            yield from _floats(part, f"{place}.{key}" if place else str(key))
    elif isinstance(value, list | tuple | set | frozenset):
        for at, part in enumerate(value):
            yield from _floats(part, f"{place}[{at}]")
    elif not isinstance(value, str | int | None):
        yield from _floats(_plain(value), place)


def _plain(value: Any) -> object:  # noqa: ANN401 - any part of a payload
    """Return an object as its parts, of which one without floats has none."""
    if isinstance(value, float):  # of a subclass, which msgspec asks about
        return float(value)
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    if isinstance(value, Msg):
        return value.to_dict()
    serializer = getattr(value, "__pydantic_serializer__", None)
    if serializer is not None:
        return serializer.to_python(value, by_alias=True)
    names = getattr(value, "__struct_fields__", ()) or getattr(value, "__dataclass_fields__", ())
    return {name: getattr(value, name, None) for name in names}


_packed = msgspec.msgpack.Encoder(enc_hook=_plain).encode
