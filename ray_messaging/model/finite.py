"""Search for numbers that JSON cannot represent: NaN and the infinities, which msgspec and pydantic encode as null."""

import re
from typing import Any

import msgspec
import numpy as np

from ray_messaging.compat.msg import Msg

NULL = b"null"  # NaN is encoded as null, so JSON without this text has lost no number.
# Search for this int first, because `in` with bytes internally raises and catches an error, which takes time.
MAYBE_NULL = ord("u")
_NULL_WORD = int.from_bytes(NULL, "little")
_MANY = 2**12  # From this size on, numpy searches faster.
_NOT_FINITE = re.compile(rb"\xcb[\x7f\xff][\xf0-\xff]")  # a double in msgpack that is not finite; few other bytes match


def may_have_null(lines: bytes) -> bool:
    """Return whether JSON lines contain `null`, as a value or in a text.

    In large lines numpy compares four bytes at a time, at each of four offsets, in a quarter of the time of `in`.
    """
    if len(lines) < _MANY:
        return NULL in lines
    return any(
        (np.frombuffer(lines, "<u4", (len(lines) - at) // len(NULL), at) == _NULL_WORD).any() for at in range(len(NULL))
    )


def all_finite(payloads: object) -> bool:
    """Return whether all numbers in payloads are finite, which JSON requires.

    Return False also if this is not certain, such as for payloads that msgpack cannot encode.
    """
    try:
        return _NOT_FINITE.search(_packed(payloads)) is None
    # msgpack cannot encode these payloads, so the answer is not certain.
    except (TypeError, ValueError, OverflowError, RecursionError):
        return False


def parts_of(value: Any) -> object:  # noqa: ANN401 - any part of a payload
    """Return an object as a float, list or dict, in which its floats can be examined; {} if it has no parts."""
    if isinstance(value, float):  # The value's type is a subclass of float, for which msgspec calls this function.
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


_packed = msgspec.msgpack.Encoder(enc_hook=parts_of).encode
