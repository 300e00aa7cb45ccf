"""Encoding of Python values, such as agents' states, as bytes from which equal values are decoded.

The bytes are msgpack. Values that msgpack alone does not keep exactly (a tuple, a set, a date with its zone) have an
extension type.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import is_dataclass
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum
from gc import get_referents, is_tracked
from itertools import chain
from sys import getrefcount
from typing import Any, NamedTuple
from uuid import UUID
from zoneinfo import ZoneInfo

import msgspec
import numpy as np
from msgspec.msgpack import Ext

from ray_messaging.common.texts import short_repr
from ray_messaging.errors import InvalidPayload, PayloadTooLarge
from ray_messaging.model.places import NOTHING, Place, checked_text, shown
from ray_messaging.model.read_only import ReadOnlyDict

KEPT = (
    "None, bool, int, float, complex, str, bytes, list, tuple, dict, set, frozenset, datetime, date, time, timedelta, "
    "zones of zoneinfo and datetime.timezone, Decimal, UUID, and numpy's numbers and arrays"
)
# msgpack encodes values of these types exactly. For ints and strs that it cannot encode, it raises an error.
_LEAVES = frozenset((NOTHING, bool, int, float, str, bytes))
_ADVICE: tuple[tuple[Any, str], ...] = (
    (Enum, "keep its .value"),
    (datetime, "keep a datetime.datetime, by to_pydatetime()"),
    (ZoneInfo, "keep zoneinfo.ZoneInfo(key), which gives one object for each key"),
    (
        np.ndarray | np.generic,
        "keep its tolist(), or an array of numbers, bools, texts or dates without fields and masks",
    ),
    (bytearray | memoryview, "keep bytes(...) of it"),
)
_CONTAINERS = frozenset((dict, list))
_NUMPY_KINDS = "biufcMmSU"  # numpy's kinds of types, without those of Python objects and of records with fields
_encode = msgspec.msgpack.Encoder().encode
_MICROSECOND = timedelta(microseconds=1)
_LISTED = max(map(getrefcount, [{}]))  # what getrefcount returns for an object to which only a list refers
BLOCK = 1024  # the number of states that are read, examined and encoded together, to stay in the processor's cache
_SHORT, _LONG = 16, 2**16  # msgpack's head of a list has 1 byte below 16 items, 3 bytes below 65,536, otherwise 5
_HEAD = 3  # the size of the head of a list of `BLOCK` items


def encode_exactly(value: object, place: str) -> bytes:
    """Encode a value as bytes from which an equal value of the same type can be decoded.

    `place` is the name of the value in error messages.

    Raises: InvalidPayload if a part of the value cannot be encoded exactly.
    """
    # Mostly msgpack alone can encode the value exactly. If not, `_whole` converts the value's parts, or raises an error
    # that names the part at fault.
    with suppress(TypeError, ValueError, OverflowError, RecursionError):
        encoded = _encode(value)
        if _examined([value], {type(value)})[0]:
            return encoded
    return _encode(_whole(value, place))


def encode_pairs_exactly(pairs: Mapping[Any, Any], place: str) -> bytes:
    """Return the bytes that `encode_exactly` makes of the list of a mapping's (key, value) tuples, but faster."""
    keys, values = [*pairs], [*pairs.values()]
    # Values that msgpack alone cannot encode exactly are left to `encode_exactly`.
    with suppress(TypeError, ValueError, OverflowError, RecursionError):
        forms = [Ext(_FORMS[tuple].code, _encode(pair)) for pair in pairs.items()]
        if _examined(keys, {*map(type, keys)})[0] and _examined(values, {*map(type, values)})[0]:
            return _encode(forms)
    return encode_exactly([*pairs.items()], place)


def kept_exactly(values: list[dict[Any, Any]], kinds: set[type], place: str) -> tuple[bytes, list[dict[Any, Any]]]:
    """Encode a list of dicts; return the bytes, and equal dicts that nobody else can change.

    The returned list is `values` itself if msgpack alone encodes `values` exactly, and nothing else refers to a dict or
    list in it. In all other cases the returned list is decoded from the bytes.

    Args: `kinds` has the types of the dicts, because some may be of a subclass. `place` is the name of the list in
    errors.
    Raises: InvalidPayload for a part that cannot be encoded exactly.
    """
    try:
        encoded = _encode(values)
        plain, alone = _examined(values, kinds)
    except (TypeError, ValueError, OverflowError, RecursionError):
        plain = alone = False  # the code below finds the part that cannot be encoded
    if not plain:
        encoded = _encode([_whole(value, place) for value in values])
    return encoded, values if alone else decode_exactly(encoded)


def is_kept_exactly(values: list[dict[Any, Any]], kinds: set[type]) -> bool:
    """Return whether `kept_exactly` would return these dicts themselves. This does not encode them.

    Two reasons why a value cannot be encoded are not noticed: a str with half of a surrogate pair, and deep nesting.

    Args: `kinds` has the types of the dicts, because some may be of a subclass.
    """
    return all(_examined(values, kinds, may_loop=True))


def joined_lists(parts: Sequence[bytes], count: int) -> bytes:
    """Return encoded lists as one encoded list of `count` items.

    Args: each of the `parts` but the last has `BLOCK` items.
    """
    if len(parts) == 1:
        return parts[0]
    head = b"\xdc" + count.to_bytes(2) if count < _LONG else b"\xdd" + count.to_bytes(4)
    last = count - (len(parts) - 1) * BLOCK
    return b"".join([head, *(part[_HEAD:] for part in parts[:-1]), parts[-1][_HEAD if last >= _SHORT else 1 :]])


def _examined(values: list[Any], kinds: set[type], *, may_loop: bool = False) -> tuple[bool, bool]:
    """Return whether msgpack alone encodes values exactly, and whether each dict and list in them is used only once.

    All parts on the same level of nesting are checked together, which is many times as fast as a call for each part.

    Args: `kinds` has the types of the values. With `may_loop`, a value may contain itself, so if a dict or list is used
    twice, both results are False. Without `may_loop`, the caller has encoded the values, so none contains itself.
    """
    level, alone = values, True
    # A dict or list that is used once is referred to by two objects: by the list `level`, and by the dict or list that
    # contains it.
    most = _LISTED + 1
    while True:
        within = kinds - _LEAVES
        if not within <= _CONTAINERS:
            return False, False
        if not within:
            return True, alone
        if level is not values or kinds != within:
            level = [part for part in level if type(part) in _CONTAINERS]
        alone = alone and sum(map(getrefcount, level)) == most * len(level)
        if may_loop and not alone:
            return False, False
        kinds = {*map(type, _parts(level, alone=alone))}
        # Only dicts and lists that the garbage collector tracks can have dicts and lists in them.
        level = _parts([*filter(is_tracked, level)], alone=alone)


def _parts(containers: list[Any], *, alone: bool) -> list[Any]:
    """Return the parts of dicts and lists, the `containers`. `alone` is true if nothing else refers to these."""
    # `get_referents` is faster. It also returns the keys of dicts, but no key is a dict or a list, because these have
    # no hash. In Python 3.13 it leaves out the contents of an object's `__dict__`. But then the object also refers to
    # that dict, so `alone` is False.
    if alone:
        return get_referents(*containers)
    return [*chain.from_iterable(chain(each, each.values()) if type(each) is dict else each for each in containers)]


def _whole(value: Any, place: str) -> Any:  # noqa: ANN401 - any value
    try:
        form = _form(value, place)
        _encode(form)
    except RecursionError as error:
        raise InvalidPayload(
            f"{place} cannot be stored, because its dicts and lists are nested too deeply or contain themselves: make "
            "it flat"
        ) from error
    return form


def _form(value: Any, place: Place) -> Any:  # noqa: ANN401 - any part of a value
    """Return a value in a form that msgpack encodes exactly. The form has msgpack's extension types if needed.

    `place` is the name of the value in errors.

    Raises: InvalidPayload for a part that cannot be encoded exactly.
    """
    kind = dict if type(value) is ReadOnlyDict else type(value)
    if kind is str:
        return checked_text(value, place)
    if kind is list:
        return [_form(part, (place, at)) for at, part in enumerate(value)]
    if kind is dict and all(_is_plain_key(key) for key in value):
        for key in value:
            if type(key) is str:
                checked_text(key, place, "has the key")
        return {key: _form(part, (place, key)) for key, part in value.items()}
    if kind in _LEAVES and (kind is not int or _is_plain_key(value)):
        return value
    if kind is set or kind is frozenset:  # members are sorted, because a set's order differs between processes
        return Ext(_FORMS[kind].code, _encode(sorted([_form(member, place) for member in value], key=_encode)))
    form = _FORMS.get(np.generic if isinstance(value, np.generic) else kind)
    parts = None if form is None else form.parts(value)
    if form is None or parts is None:
        raise InvalidPayload(
            f"{shown(place)} is {short_repr(value)}, and objects of type {kind.__name__!r} cannot be stored: "
            f"{_advice(value)}. What can be stored: {KEPT}"
        )
    try:
        return Ext(form.code, _encode(_formed(kind, parts, place)))
    except UnicodeEncodeError as error:
        raise InvalidPayload(
            f"{shown(place)} is {short_repr(value)}, which cannot be kept: {error}. "
            "text.encode(errors='replace').decode() makes a text that can be kept"
        ) from error


def _formed(kind: type, parts: Any, place: Place) -> Any:  # noqa: ANN401 - the parts of any value
    """Return the parts of a value that needs an extension type, each converted by `_form`.

    An error names the item of a tuple, or the key of a dict, that is at fault. For other types it names only the value.
    """
    if kind is tuple or type(parts) is not list:
        return _form(parts, place)
    if kind is dict:
        name: Place = f"a key of {shown(place)}"
        places = chain.from_iterable((name, (place, key)) for key in parts[::2])
        return [*map(_form, parts, places)]
    return [_form(part, place) for part in parts]


def _is_plain_key(key: object) -> bool:
    return type(key) in _LEAVES and (type(key) is not int or -(2**63) <= key < 2**64)


def _advice(value: Any) -> str:  # noqa: ANN401 - any part of a value
    """Return advice for an error's text: what a user can keep instead of a value."""
    if hasattr(value, "_asdict"):
        return "keep its _asdict(), or a tuple(...) of it"
    if is_dataclass(value) and not isinstance(value, Enum):
        return "keep dataclasses.asdict(...) of it"
    if hasattr(value, "model_dump"):
        return "keep its model_dump()"
    for kinds, advice in _ADVICE:
        if isinstance(value, kinds):
            return advice
    for kind in (dict, list, tuple, set, str, int, float):
        if isinstance(value, kind):
            return f"keep {kind.__name__}(...) of it"
    return "keep its parts in a dict"


class _ExtensionType(NamedTuple):
    """A msgpack extension type for one Python type.

    `code` is its number, which must never change. `parts` splits a value into parts, and `joined` makes the value from
    its parts.

    If `parts` returns None, the value is refused.
    """

    code: int
    parts: Callable[[Any], Any]
    joined: Callable[[Any], Any]


def _array_parts(value: Any) -> list[Any] | None:  # noqa: ANN401 - an array or a number
    dtype = value.dtype
    if dtype.kind not in _NUMPY_KINDS or dtype.fields:
        return None
    return [type_name(dtype), [*value.shape], value.tobytes()]


def type_name(dtype: np.dtype[Any]) -> str:
    """Return the str from which numpy builds exactly this type.

    `dtype.str` cannot be used, because it is the same for two int types of one size.
    """
    name = dtype.str
    return name if np.dtype(name).char == dtype.char else name[0] + dtype.char


def _array(parts: list[Any]) -> Any:  # noqa: ANN401 - an array
    name, shape, data = parts
    dtype = np.dtype(name)
    if dtype.kind not in _NUMPY_KINDS:
        raise InvalidPayload(
            f"a stored value is damaged, because it is an array of the type {name!r}, which is never stored"
        )
    return np.ndarray(shape, dtype, data).copy()


def _number(parts: list[Any]) -> Any:  # noqa: ANN401 - a number, or a text, of numpy
    name, _, data = parts
    dtype = np.dtype(name)
    if dtype.kind not in "US":
        return _array(parts)[()]
    # The value is built from its bytes, because numpy removes null characters from the end of a str that it takes from
    # an array.
    data = data[: dtype.itemsize]
    if dtype.kind == "S":
        return np.bytes_(data)
    return np.str_(data.decode(f"utf-32-{'be' if name[0] == '>' else 'le'}", "surrogatepass"))


def _zone_key(zone: ZoneInfo) -> str | None:
    """Return the key of a time zone, or None if ZoneInfo(key) is another object, which would not be equal."""
    # These errors mean that the zone has no key, or that its key is not the name of a zone.
    with suppress(TypeError, ValueError, LookupError, OSError):
        return zone.key if ZoneInfo(zone.key) is zone else None
    return None


def _zone_parts(zone: timezone) -> list[Any]:
    return [zone.utcoffset(None) // _MICROSECOND, zone.tzname(None)]


def _zone(parts: list[Any]) -> timezone:
    offset = parts[0] * _MICROSECOND
    unnamed = timezone(offset)
    return unnamed if unnamed.tzname(None) == parts[1] else timezone(offset, parts[1])


def _pairs(parts: list[Any]) -> dict[Any, Any]:
    return dict(zip(parts[::2], parts[1::2], strict=True))


_FORMS: dict[type, _ExtensionType] = {
    tuple: _ExtensionType(1, list, tuple),
    set: _ExtensionType(2, list, set),
    frozenset: _ExtensionType(3, list, frozenset),
    dict: _ExtensionType(
        4, lambda found: [*chain.from_iterable(found.items())], _pairs
    ),  # a dict with a key that msgpack alone cannot encode exactly
    int: _ExtensionType(
        5,
        lambda found: found.to_bytes(found.bit_length() // 8 + 1, signed=True),
        lambda data: int.from_bytes(data, signed=True),
    ),
    datetime: _ExtensionType(
        6,
        lambda found: [found.replace(tzinfo=None, fold=0).isoformat(), found.fold, found.tzinfo],
        lambda parts: datetime.fromisoformat(parts[0]).replace(fold=parts[1], tzinfo=parts[2]),
    ),
    date: _ExtensionType(7, date.isoformat, date.fromisoformat),
    time: _ExtensionType(
        8,
        lambda found: [found.replace(tzinfo=None, fold=0).isoformat(), found.fold, found.tzinfo],
        lambda parts: time.fromisoformat(parts[0]).replace(fold=parts[1], tzinfo=parts[2]),
    ),
    timedelta: _ExtensionType(
        9, lambda found: [found.days, found.seconds, found.microseconds], lambda parts: timedelta(*parts)
    ),
    timezone: _ExtensionType(10, _zone_parts, _zone),
    ZoneInfo: _ExtensionType(11, _zone_key, ZoneInfo),
    Decimal: _ExtensionType(12, str, Decimal),
    complex: _ExtensionType(16, lambda found: [found.real, found.imag], lambda parts: complex(*parts)),
    UUID: _ExtensionType(13, lambda found: found.bytes, lambda data: UUID(bytes=data)),
    np.ndarray: _ExtensionType(14, _array_parts, _array),
    np.generic: _ExtensionType(15, _array_parts, _number),
}
_JOINED = {form.code: form.joined for form in _FORMS.values()}


def _extension(code: int, data: memoryview) -> object:
    joined = _JOINED.get(code)
    if joined is None:
        raise InvalidPayload(
            f"a stored value has the type {code}, which this version of ray_messaging does not know: use the version "
            "that stored it"
        )
    return joined(decode_exactly(data))


decode_exactly: Callable[[bytes | memoryview], Any] = msgspec.msgpack.Decoder(ext_hook=_extension).decode


def check_state(state: bytes | None, limit: int, name: str) -> bytes | None:
    """Return the state; raise InvalidPayload unless it is bytes or None, PayloadTooLarge if it is above the limit."""
    if state is not None and not isinstance(state, bytes):
        raise InvalidPayload(
            f"{name} must be bytes or None, not {type(state).__name__}: encode it, as in json.dumps(state).encode()"
        )
    if state is not None and len(state) > limit:
        raise PayloadTooLarge(
            f"this state takes {len(state):,} bytes, the limit is {limit:,}: keep a reference to the data instead, or "
            "raise MessagingConfig.state_bytes",
            size=len(state),
            limit=limit,
        )
    return state
