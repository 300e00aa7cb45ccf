"""Payloads as JSON: the form of each type, and errors that name the part that JSON cannot represent.

A form is the value that stands in the JSON. A dict, list, str, int, float, bool or None is its own form. Each other
type has one form (docs/api.md). A value without a form is refused.
"""

import json
from collections.abc import Sequence
from datetime import date, datetime, time
from enum import Enum
from os import PathLike, fspath
from typing import Any

import msgspec
import numpy as np
import orjson

from ray_messaging.common.texts import short_repr
from ray_messaging.compat.msg import Msg
from ray_messaging.compat.payload_objects import encode_object, is_object
from ray_messaging.errors import InvalidPayload
from ray_messaging.model.finite import MAYBE_NULL, NULL, parts_of
from ray_messaging.model.places import NOTHING, Place, checked_text, shown

SCALARS = frozenset((NOTHING, bool, int, float, str))  # the types of JSON values without parts; floats must be finite
_LISTS = frozenset((list, tuple))
_EXACT_NUMBERS = frozenset((int, bool))
_LARGE = 2**64
INT_DIGITS = 4299  # readers refuse an int with more digits than this, although encoders write it
_TOO_LONG = 10**INT_DIGITS
# A single plain payload (see `plain_text`) is checked and encoded in one call, `orjson.dumps(payload, None, PLAIN)`.
# The bytes are the same as those of `encode_dict`, which encodes payloads that are sent together. There are three
# exceptions, which the caller must look for: null, which may have been NaN; large numbers, which become 1e+16 instead
# of 1e16; and newlines in an orjson.Fragment. A fourth one is accepted: if the class of an Enum overrides `value`,
# orjson encodes what the override returns, and `encode_dict` the value that the Enum stores.
PLAIN = orjson.OPT_PASSTHROUGH_SUBCLASS | orjson.OPT_PASSTHROUGH_DATETIME | orjson.OPT_PASSTHROUGH_DATACLASS
LARGE, MAYBE_LARGE, LINE_END = b"e+", ord("+"), ord("\n")
_BETWEEN = b"},{"  # what stands between two payloads in the JSON text of a list
_MANY = 2**14  # for JSON texts of at least this many bytes, `plain_lines` is faster than `encode_lines`
_PREFIX = "this payload cannot become JSON: "


class ReadMessages:
    """Base of the inboxes of agents, which a payload must not contain."""

    __slots__ = ()


def is_plain(payload: Any) -> bool:  # noqa: ANN401 - a dict, or the parts of an object
    """Return whether a payload consists only of JSON's own types. NaN and the infinities are not looked for."""
    for key, value in payload.items():
        if type(key) is not str or (type(value) not in SCALARS and not _is_plain_part(value)):
            return False
    return True


def _is_plain_part(value: Any) -> bool:  # noqa: ANN401 - any part that is no scalar of JSON
    if type(value) is dict:
        return is_plain(value)
    if type(value) not in _LISTS:
        return False
    for part in value:  # noqa: SIM110 - a generator takes twice as long
        if type(part) not in SCALARS and not _is_plain_part(part):
            return False
    return True


def plain_text(payloads: object) -> bytes | None:
    """Return payloads as one JSON list, or None if one of them is not plain.

    A plain payload consists only of JSON's own types. UUIDs and members of enums are plain here, too, because there is
    one JSON text for each. Whole numbers of more than 64 bits are not plain here. `is_plain` judges these three kinds
    of values the other way, and takes ten times as long.
    """
    try:
        return orjson.dumps(payloads, None, PLAIN)
    except orjson.JSONEncodeError:
        return None


def plain_lines(text: bytes, payloads: Sequence[object]) -> bytes | None:
    """Turn a JSON list of dicts into lines, in half of the time that `encode_lines` takes. `text` is from `plain_text`.

    The commas between payloads are replaced by newlines. None is returned if the text is short, if a comma within a
    payload may look like a comma between payloads, such as in a list of dicts, or if `encode_lines` may make other
    bytes (see `PLAIN`). The caller must look for null.
    """
    # Payloads are mostly alike. If the first one contains `},{`, the others do too, and the commas are ambiguous.
    if len(text) < _MANY or encode_dict(payloads[0]).find(_BETWEEN) >= 0:
        return None
    if (MAYBE_LARGE in text and text.find(LARGE) >= 0) or LINE_END in text:
        return None
    found = np.frombuffer(text, np.uint8)
    at = np.flatnonzero(found[:-2] == _BETWEEN[0])
    at = at[(found[at + 1] == _BETWEEN[1]) & (found[at + 2] == _BETWEEN[2])]
    if len(at) != len(payloads) - 1:
        return None
    lines = found[1:].copy()
    lines[at] = lines[-1] = LINE_END
    return lines.tobytes()


def encode_plain(payload: dict[str, Any]) -> bytes | None:
    """Encode a plain payload (see `plain_text`) to the bytes of `encode_dict`; return None if it needs more checks."""
    try:
        line = orjson.dumps(payload, None, PLAIN)
    except orjson.JSONEncodeError:
        return None
    # The search for a single byte comes first, because it is the fastest, and mostly is enough.
    differs = (
        (MAYBE_NULL in line and line.find(NULL) >= 0)
        or (MAYBE_LARGE in line and line.find(LARGE) >= 0)
        or LINE_END in line
    )
    return None if differs else line


def json_form(payload: Any) -> Any:  # noqa: ANN401 - any payload
    """Return a payload in which each value has one of JSON's types (see the module's docstring).

    Raises: InvalidPayload, which names the part, for a value that JSON cannot represent.
    """
    try:
        return _form(payload, "payload")
    except RecursionError as error:
        raise InvalidPayload(
            f"{_PREFIX}its dicts and lists are nested too deeply or contain themselves: make it flat"
        ) from error


def _form(value: Any, place: Place) -> Any:  # noqa: ANN401 - any part of a payload
    if isinstance(value, str):
        return _text(str.__str__(value), place)
    if isinstance(value, float):
        if not np.isfinite(value):
            raise InvalidPayload(
                f"{_PREFIX}{shown(place)} is {float(value)}, which JSON does not have; send None or a str for it, or "
                "typed columns (columns(...)), which can hold it"
            )
        return float(value)
    if isinstance(value, dict):
        return _dict_form(value, place)
    if isinstance(value, ReadMessages):  # must come before tuples: an empty inbox is a tuple, and would become []
        raise InvalidPayload(
            f"{_PREFIX}{shown(place)} is an inbox: send the payloads of its messages, as in "
            "[message.payload for message in inbox]"
        )
    if isinstance(value, list | tuple | set | frozenset | np.ndarray | np.generic):
        return _many_form(value, place)
    if isinstance(value, Msg):
        return _form(value.to_dict(), place)
    if is_object(value):
        _check_parts(value, place)
        return value
    if isinstance(value, Enum):
        # msgspec encodes the value that the enum stores, whatever its class returns as `value`.
        return _form(value._value_, place)
    return _leaf(value, place)


def _many_form(value: Any, place: Place) -> Any:  # noqa: ANN401 - a list, a tuple, a set, or numpy's
    if isinstance(value, list | tuple):
        if _EXACT_NUMBERS.issuperset(map(type, value)) and (
            not value or max(map(abs, value)) < _LARGE
        ):  # a list of ints and bools needs no conversion, and this check is quick, as such lists are mostly short
            return value
        return [_form(part, (place, at)) for at, part in enumerate(value)]
    # The members are sorted, because the order of a set differs between processes.
    if isinstance(value, set | frozenset):
        parts = sorted([_form(part, place) for part in value], key=encode_dict)
        if all(isinstance(part, int | float) for part in parts) or all(isinstance(part, str) for part in parts):
            parts.sort()  # as JSON texts, 10 would come before 9
        return parts
    listed = _listed(value, place)
    finite = value.dtype.kind == "f" and np.isfinite(value).all() and not isinstance(listed, np.generic)
    return listed if finite else _form(listed, place)


def _dict_form(found: dict[Any, Any], place: Place) -> dict[str, Any]:
    """Return a dict with strs as keys. Keys that are ints become strs; other keys raise InvalidPayload.

    `place` is the name of the dict in errors.
    """
    made: dict[str, Any] = {}
    for key, part in found.items():
        if isinstance(key, str):
            name = _text(str.__str__(key), place, "has the key")
        elif isinstance(key, int | np.integer) and not isinstance(key, bool):
            _check_digits(int(key), place, "has the key")
            name = str(int(key))
        else:
            raise InvalidPayload(
                f"{_PREFIX}{shown(place)} has the key {short_repr(key)}, of type {type(key).__name__}: use strs, or "
                "ints, which become strs"
            )
        if name in made:
            raise InvalidPayload(
                f"{_PREFIX}{shown(place)} has two keys that become {json.dumps(name)}, and one value would be lost: "
                "use different strs"
            )
        made[name] = _form(part, (place, key))
    return made


def _text(text: str, place: Place, verb: str = "is") -> str:
    try:
        return checked_text(text, place, verb)
    except InvalidPayload as error:
        raise InvalidPayload(f"{_PREFIX}{error}") from None


def _listed(value: Any, place: Place) -> Any:  # noqa: ANN401 - an array, or a number of numpy
    """Return a numpy array as lists, and a numpy scalar as a Python value. Numpy's dates become strs."""
    if np.ma.is_masked(value) or value.dtype.names is not None:
        raise InvalidPayload(
            f"{_PREFIX}{shown(place)} is an array with masked values or with fields: fill the values, or send a dict"
        )
    if value.dtype.kind == "M" and not np.isnat(value).any():
        # The strs keep every unit of time, while `tolist` would turn nanoseconds into ints.
        return np.datetime_as_string(value).tolist()
    if value.dtype.kind in "mM":
        if value.dtype.kind == "M":
            raise _missing_time(place, "has")
        raise InvalidPayload(
            f"{_PREFIX}{shown(place)} has the type {value.dtype}, which JSON does not have; send seconds, by "
            "value / numpy.timedelta64(1, 's')"
        )
    listed = value.tolist()
    if isinstance(listed, np.generic):  # a value for which Python has no type, such as a numpy.longdouble
        return _leaf(listed, place)
    return listed


def _check_parts(value: Any, place: Place) -> None:  # noqa: ANN401 - a dataclass, a Struct, a pydantic object
    """Raise InvalidPayload if JSON would change some part of an object, or cannot represent it.

    `place` is the name of the object in the error.
    """
    for name, part in parts_of(value).items():  # type: ignore[attr-defined]  # the parts of an object are a dict
        if _has_set(part):
            raise InvalidPayload(
                f"{_PREFIX}{shown((place, name))} has a set within an object, and the order of a set differs "
                "between processes: make the set a list, by sorted(...)"
            )
        _form(part, (place, name))


def _has_set(value: Any) -> bool:  # noqa: ANN401 - any part of an object
    if isinstance(value, dict):
        return any(map(_has_set, value.values()))
    if isinstance(value, list | tuple):
        return any(map(_has_set, value))
    return isinstance(value, set | frozenset) and len(value) > 1


def _leaf(value: Any, place: Place) -> Any:  # noqa: ANN401 - any part that has no parts itself
    if isinstance(value, datetime | time):
        if value != value:  # only NaT, pandas' missing time, differs from itself
            raise _missing_time(place, "is")
        offset = value.utcoffset()
        if offset is not None and offset.total_seconds() % 60:
            raise InvalidPayload(
                f"{_PREFIX}{shown(place)} is {value.isoformat()}, whose UTC offset has seconds ({offset}): pass "
                "value.isoformat(), or, if it is a datetime, value.astimezone(datetime.UTC)"
            )
    if isinstance(value, int):
        _check_digits(value, place)
    try:
        encode_dict(value)
    except InvalidPayload:
        raise
    except (TypeError, ValueError, OverflowError, RecursionError, UnicodeError, msgspec.MsgspecError) as error:
        raise InvalidPayload(
            f"{_PREFIX}{shown(place)} is {short_repr(value)}: {error}; use dicts, lists, str, numbers, bool and None"
        ) from error
    return value


def _missing_time(place: Place, verb: str) -> InvalidPayload:
    return InvalidPayload(f"{_PREFIX}{shown(place)} {verb} NaT, which JSON does not have; send None or a str for it")


def _check_digits(number: int, place: Place, verb: str = "is") -> None:
    """Raise InvalidPayload for a number with more digits than a reader accepts.

    Args: `verb` connects the place and the number in the error's text: "is" for a value, "has the key" for a key.
    """
    if not -_TOO_LONG < number < _TOO_LONG:
        raise InvalidPayload(
            f"{_PREFIX}{shown(place)} {verb} {short_repr(number)}, and JSON readers accept at most {INT_DIGITS:,} "
            "digits: send a str, such as hex(...) of it"
        )


def _as_json(value: object) -> object:
    """Return the JSON value of an object whose type is common in simulations."""
    if isinstance(value, PathLike):
        return fspath(value)
    if isinstance(value, date | time):  # an object of a subclass that msgspec refuses, such as pandas.Timestamp
        return value.isoformat()
    if is_object(value):  # an object of pydantic: msgspec encodes all others itself
        return msgspec.Raw(encode_whole(value))
    return _same(value)


def _same(value: object) -> object:
    """Return the JSON value of a numpy value, a Msg, or an object whose class derives from str, int or float."""
    if isinstance(value, np.generic | np.ndarray):
        if value.dtype.kind == "m":
            raise TypeError("JSON has no timedelta64")
        # The callers refuse NaT.
        return (value.astype(str) if value.dtype.kind == "M" else value).tolist()
    if isinstance(value, Msg):
        return value.to_dict()
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int) and not isinstance(value, bool):  # a bool comes here only as a key, and is refused
        return int(value)
    if isinstance(value, float):
        return float(value)
    raise TypeError(f"objects of type {type(value).__name__} are not supported")


def encode_whole(payload: Any) -> bytes:  # noqa: ANN401 - of any type that has a JSON form
    """Encode an object as JSON; raise InvalidPayload, or the ValueError of an encoder, if JSON cannot represent it."""
    line = encode_object(payload, encode_dict)
    # pydantic writes these constants, which JSON does not have, if a model has ser_json_inf_nan="constants".
    if b"NaN" in line or b"Infinity" in line:
        json_form(payload)
    return line


# msgspec writes compact JSON, in which newlines are always escaped.
_encoder = msgspec.json.Encoder(enc_hook=_as_json)
encode_dict = _encoder.encode  # its callers do the other checks of `encode_payload` themselves
encode_lines = _encoder.encode_lines
# Unlike msgspec, Python's own encoder refuses bytes, sets and NaN, which would not decode to equal values.
strictly = json.JSONEncoder(allow_nan=False, default=_same).encode
