"""Names for the parts of a value, such as `payload["t"][0]`, for errors; and a check of texts for all encoders."""

from ray_messaging.common.texts import short_repr
from ray_messaging.errors import InvalidPayload

Place = str | tuple["Place", object]  # the name of the whole value, or a container's place and an index or key
NOTHING = type(None)


def shown(place: Place) -> str:
    """Return a place as text, such as `payload["t"][0]`."""
    if isinstance(place, str):
        return place
    within, key = place
    name = f'"{key}"' if type(key) is str and key.isprintable() else short_repr(key)
    return f"{shown(within)}[{name}]"


def checked_text(text: str, place: Place) -> str:
    """Return a text; raise InvalidPayload if it contains a lone surrogate, which UTF-8 cannot encode."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidPayload(
            f"{shown(place)} is {text[max(0, error.start - 10) : error.end + 10]!a}, which is not valid Unicode: it "
            "holds half of a character (a lone surrogate), such as when a text is cut within a character. "
            "text.encode(errors='replace').decode() replaces it"
        ) from None
    return text
