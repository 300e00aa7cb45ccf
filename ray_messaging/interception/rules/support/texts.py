"""Text as a reader sees it: the strings of a payload, without characters that hide a word."""

import re
import unicodedata
from collections.abc import Callable
from typing import Any

import msgspec

from ray_messaging.compat.msg import ROLES, names_msg

# Scripts without spaces between words, whose letters need no word boundary beside them: Thai, Lao, Myanmar, Khmer, Han,
# Hiragana, Katakana.
_UNSPACED = (
    r"\u0e00-\u0eff\u1000-\u109f\ua9e0-\ua9ff\uaa60-\uaa7f\u1780-\u17ff\u19e0-\u19ff\u2e80-\u2fdf\u3005\u3007"
    r"\u3021-\u3029\u3038-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U0001b000-\U0001b16f"
    r"\U00020000-\U0003ffff"
)
# For the regex package: to it a mark on a letter is a letter, too, while `re` splits words there.
LETTER = rf"[^\W_{_UNSPACED}]"
TOKEN = re.compile(rf"{LETTER}+")
# Invisible characters (Unicode's default ignorable code points), and marks that strike through or pile up on letters of
# any script. Marks of a single script stay, because its words differ by them.
_HIDDEN = re.compile(
    r"[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f"
    r"\ufeff\uffa0\ufff0-\ufff8\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
    r"\u0300-\u036f\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe20-\ufe2f]+"
)
_UUID4 = re.compile(r"[0-9a-f]{12}4[0-9a-f]{3}[89ab][0-9a-f]{15}")
_TIME = re.compile(r"[0-9]{4}(-[0-9]{2}){2} [0-9]{2}(:[0-9]{2}){2}")
# The fields of a Msg about itself, and the test that a value is only that.
_OWN: dict[str, Callable[[Any], object]] = {
    "__module__": lambda _: True,
    "__name__": lambda _: True,
    "role": ROLES.__contains__,
    "id": lambda value: isinstance(value, str) and _UUID4.fullmatch(value),
    "timestamp": lambda value: isinstance(value, str) and _TIME.fullmatch(value),
}
_decode = msgspec.json.Decoder().decode


def plain(text: str, *, fold: bool) -> str:
    """Return text in the Unicode normal form NFKC, without invisible characters; with `fold`, without case."""
    if text.isascii():
        return text.lower() if fold else text
    text = _visible(text)
    # Folding can take letters apart again (the Turkish dotted I).
    return _visible(text.casefold()) if fold else text


def _visible(text: str) -> str:
    return _HIDDEN.sub("", unicodedata.normalize("NFKC", text))


def decoded(line: bytes) -> Any:  # noqa: ANN401 - JSON of any shape
    """Return a payload decoded; a foreign client's that is no JSON, as one text."""
    try:
        return _decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return line.decode(errors="replace")


def visible_parts(payload: Any) -> Any:  # noqa: ANN401 - JSON of any shape
    """Return the parts of a payload that a reader sees: of a Msg, all but its class, role, id and time.

    These are left out only if their values have the form that a Msg gives them, so that nothing can hide there.
    """
    if not names_msg(payload):
        return payload
    return {key: value for key, value in payload.items() if key not in _OWN or not _OWN[key](value)}


def strings(value: Any) -> list[str]:  # noqa: ANN401 - JSON of any shape
    """Return all strings in a JSON value, except keys."""
    found: list[str] = []
    left = [value]
    while left:
        item = left.pop()
        if isinstance(item, str):
            found.append(item)
        elif isinstance(item, dict):
            left.extend(item.values())
        elif isinstance(item, list):
            left.extend(item)
    return found


def replaced(value: Any, change: Callable[[str], str]) -> Any:  # noqa: ANN401 - JSON of any shape
    """Return a JSON value with all strings changed."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {key: replaced(item, change) for key, item in value.items()}
    return [replaced(item, change) for item in value] if isinstance(value, list) else value
