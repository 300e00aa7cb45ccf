"""Python values of every kind, for properties of codecs; and their equality, which tells types apart."""

from datetime import UTC, timedelta, timezone, tzinfo
from zoneinfo import ZoneInfo

import numpy as np
from hypothesis import strategies as st

ZONES = st.sampled_from(
    [
        None,
        UTC,
        timezone(timedelta(hours=-3, minutes=-30)),
        timezone(timedelta(seconds=28), "a name"),
        *map(ZoneInfo, ("Europe/Berlin", "America/New_York", "UTC")),
    ]
)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
FLOAT = st.floats(allow_nan=False, allow_infinity=False)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | FLOAT | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)
json_leaves = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.text(st.characters())
times = st.datetimes(timezones=ZONES, allow_imaginary=True) | st.times(timezones=ZONES)
leaves = (
    json_leaves
    | st.binary(max_size=9)
    | times
    | st.dates()
    | st.timedeltas()
    | st.decimals().filter(lambda found: not found.is_snan())  # these have no hash
    | st.uuids()
    | st.complex_numbers()
)
odd = st.sampled_from([object(), ..., int, range(3), bytearray(b"x"), np.array([None]), np.ma.masked_array([1], [1])])
odd |= st.just(ZoneInfo.no_cache("Europe/Berlin"))
arrays = st.sampled_from([*"bihfdDqQ?", ">q", "i1", "u8", "f2", ">i4", "M8[s]", "m8[D]", "U3", "S2"]).flatmap(
    lambda kind: st.binary(max_size=96).map(lambda data: _array_of(np.dtype(kind), data))
)
numpy_texts = st.text("ab\0", max_size=3).flatmap(
    lambda text: st.sampled_from([np.str_(text), np.bytes_(text.encode())])
)
numbers = arrays | arrays.filter(len).map(lambda array: array[0]) | numpy_texts
hashable = st.recursive(
    leaves | numpy_texts, lambda inner: st.lists(inner, max_size=3).map(tuple) | st.frozensets(inner, max_size=3)
)
anything = st.recursive(
    leaves | numbers | odd,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(hashable, inner, max_size=4)
        | st.sets(hashable, max_size=4)
        | st.frozensets(hashable, max_size=4)
    ),
    max_leaves=12,
)


def _array_of(dtype, data):
    """Return an array of these bytes, or of texts of the bytes' numbers."""
    if dtype.kind in "US?":
        return np.frombuffer(data, np.uint8).astype(dtype)
    return np.frombuffer(data[: len(data) // dtype.itemsize * dtype.itemsize], dtype)


def marked(value):
    """Return a value with its types, so that two of these are equal only where value and types are."""
    kind = type(value)
    if kind in (list, tuple):
        return kind, [*map(marked, value)]
    if kind in (set, frozenset):
        return kind, sorted(map(repr, map(marked, value)))
    if kind is dict:
        return kind, [(marked(key), marked(part)) for key, part in value.items()]
    if isinstance(value, np.ndarray | np.generic):
        return kind, value.dtype.str, value.dtype.char, value.shape, value.tobytes()
    if isinstance(value, tzinfo):
        return kind, repr(value)
    return kind, repr(value), repr(getattr(value, "fold", 0))
