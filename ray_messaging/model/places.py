"""Names of parts of a value for errors, such as `payload["t"][0]`, and the check of strs that encoders share."""

from ray_messaging.common.texts import short_repr
from ray_messaging.errors import InvalidPayload

Place = str | tuple["Place", object]  # the name of the whole value, or (the container's place, an index or key)
NOTHING = type(None)
NOT_UNICODE = (
    "is not valid Unicode: it contains half of a character (a lone surrogate). Cut strs only between characters, "
    "or replace the half by text.encode(errors='replace').decode()"
)


def shown(place: Place) -> str:
    """Return a place in a value as a str, such as `payload["t"][0]`."""
    if isinstance(place, str):
        return place
    within, key = place
    name = f'"{key}"' if type(key) is str and key.isprintable() else short_repr(key)
    return f"{shown(within)}[{name}]"


def checked_text(text: str, place: Place, verb: str = "is") -> str:
    """Return a str unchanged; raise InvalidPayload if it contains a lone surrogate, which UTF-8 cannot encode.

    Args: `verb` connects the place and the str in the error's text: "is" for a value, "has the key" for a key.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidPayload(
            f"{shown(place)} {verb} {text[max(0, error.start - 10) : error.end + 10]!a}, which {NOT_UNICODE}"
        ) from None
    return text
