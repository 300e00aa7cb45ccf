"""Search for numbers that JSON cannot represent: NaN and the infinities.

msgspec and pydantic encode them as null.
"""

import re
from typing import Any

import msgspec
import numpy as np

from ray_messaging.compat.msg import Msg

NULL = b"null"  # NaN becomes null in JSON, so JSON without this text has lost no number
# A quick search for this byte comes before a search for NULL. It is an int, because `in` with bytes internally raises
# and catches an error, which takes time.
MAYBE_NULL = ord("u")
_NULL_WORD = int.from_bytes(NULL, "little")
_MANY = 2**12  # from this size in bytes on, a search by numpy is faster
_NOT_FINITE = re.compile(rb"\xcb[\x7f\xff][\xf0-\xff]")  # a float in msgpack that is not finite


def may_have_null(lines: bytes) -> bool:
    """Return whether JSON lines contain `null`, as a value or within a string.

    Large data is searched by numpy, in words of four bytes that begin at each of four offsets. That takes a quarter of
    the time of `in`.
    """
    if len(lines) < _MANY:
        return NULL in lines
    return any(
        (np.frombuffer(lines, "<u4", (len(lines) - at) // len(NULL), at) == _NULL_WORD).any() for at in range(len(NULL))
    )


def all_finite(payloads: object) -> bool:
    """Return whether all numbers in payloads are finite, which JSON requires.

    False is also returned if the answer is not certain, such as for payloads that msgpack cannot encode.
    """
    try:
        return _NOT_FINITE.search(_packed(payloads)) is None
    # These errors mean that msgpack cannot encode the payloads, so the answer is not certain.
    except (TypeError, ValueError, OverflowError, RecursionError):
        return False


def parts_of(value: Any) -> object:  # noqa: ANN401 - any part of a payload
    """Return an object in a form in which its floats can be examined: a float, list or dict; {} if it has no parts."""
    if isinstance(value, float):  # msgspec calls this function for subclasses of float
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
