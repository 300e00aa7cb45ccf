"""Places within a value, which errors name, and checks that all codecs share."""

from collections.abc import Iterable
from itertools import chain
from reprlib import repr as shortened
from typing import Any

from ray_messaging.errors import InvalidPayload

Place = str | tuple["Place", object]  # the name of the whole value, or a container's place and an index or key
NOTHING = type(None)


def shown(place: Place) -> str:
    """Return a place as text, such as `payload["t"][0]`."""
    if isinstance(place, str):
        return place
    within, key = place
    name = f'"{key}"' if type(key) is str and key.isprintable() else shortened(key)
    return f"{shown(within)}[{name}]"


def checked_text(text: str, place: Place) -> str:
    """Return a text; raise InvalidPayload if it contains a lone surrogate, which UTF-8 cannot encode."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidPayload(
            f"{shown(place)} is {text[max(0, error.start - 10) : error.end + 10]!a}, which is no Unicode text: it "
            "holds half of a character (a lone surrogate), as a text has that was cut within one. "
            "text.encode(errors='replace').decode() is one without it"
        ) from None
    return text


def levels_of(values: list[Any], leaves: frozenset[type], keys: frozenset[type], lists: frozenset[type]) -> int:
    """Return how many levels values have, or 0 unless they consist of exactly these types and of dicts with such keys.

    Each level is checked as a whole, which is several times as fast as a call for each part. No value may contain
    itself, which is certain if the values were encoded before.
    """
    dicts: list[dict[Any, Any]] = []
    sequences: list[Any] = [values]
    level = 0
    while True:
        level += 1
        kinds = {*map(type, _parts(dicts, sequences))}
        within = kinds - leaves
        # Of equal keys only one is checked, which suffices because a str equals no value of another type.
        if not (within <= lists | {dict} and keys.issuperset(map(type, set().union(*dicts)))):
            return 0
        if not within:
            return level
        parts = _parts(dicts, sequences)
        found = [*parts] if kinds == within else [part for part in parts if type(part) in within]
        dicts = found if within == {dict} else [part for part in found if type(part) is dict]
        sequences = found if dict not in within else [part for part in found if type(part) is not dict]


def _parts(dicts: list[dict[Any, Any]], sequences: list[Any]) -> Iterable[Any]:
    return chain(chain.from_iterable(map(dict.values, dicts)), chain.from_iterable(sequences))
