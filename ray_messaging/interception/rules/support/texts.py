"""Text as a reader sees it: the strings of a payload, without the tricks that hide a word."""

import re
import unicodedata
from collections.abc import Callable
from typing import Any

import msgspec

from ray_messaging.compat.msg import ROLES, names_msg

# Scripts that set no space between words, so that no boundary is asked for beside their letters: Thai, Lao, Myanmar,
# Khmer, Han, Hiragana, Katakana.
_UNSPACED = (
    r"\u0e00-\u0eff\u1000-\u109f\ua9e0-\ua9ff\uaa60-\uaa7f\u1780-\u17ff\u19e0-\u19ff\u2e80-\u2fdf\u3005\u3007"
    r"\u3021-\u3029\u3038-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U0001b000-\U0001b16f"
    r"\U00020000-\U0003ffff"
)
LETTER = rf"[^\W_{_UNSPACED}]"  # for the regex package, to which a mark on a letter is one, too; re parts words there
TOKEN = re.compile(rf"{LETTER}+")
# What is not seen (Unicode's default ignorable code points), and the marks that strike through or pile up on letters of
# any script. Marks of one script stay: its words differ by them.
_HIDDEN = re.compile(
    r"[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f"
    r"\ufeff\uffa0\ufff0-\ufff8\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
    r"\u0300-\u036f\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe20-\ufe2f]+"
)
_UUID4 = re.compile(r"[0-9a-f]{12}4[0-9a-f]{3}[89ab][0-9a-f]{15}")
_TIME = re.compile(r"[0-9]{4}(-[0-9]{2}){2} [0-9]{2}(:[0-9]{2}){2}")
# What a Msg says of itself, and how to know that it is no more than that.
_OWN: dict[str, Callable[[Any], object]] = {
    "__module__": lambda _: True,
    "__name__": lambda _: True,
    "role": ROLES.__contains__,
    "id": lambda value: isinstance(value, str) and _UUID4.fullmatch(value),
    "timestamp": lambda value: isinstance(value, str) and _TIME.fullmatch(value),
}
_decode = msgspec.json.Decoder().decode


def plain(text: str, *, fold: bool) -> str:
    """Return text in its Unicode normal form NFKC, without what is not seen; `fold`: without case, too."""
    if text.isascii():
        return text.lower() if fold else text
    text = _shown(text)
    # Folding can take letters apart again (the Turkish dotted I).
    return _shown(text.casefold()) if fold else text


def _shown(text: str) -> str:
    return _HIDDEN.sub("", unicodedata.normalize("NFKC", text))


def decoded(line: bytes) -> Any:  # noqa: ANN401 - JSON of any shape
    """Return a payload; one that is no JSON (a foreign client's) as one text."""
    try:
        return _decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return line.decode(errors="replace")


def said(payload: Any) -> Any:  # noqa: ANN401 - JSON of any shape
    """Return what a payload says to its reader: of a Msg all but its class, role, id and time.

    They are left out only in the form that a Msg gives them, so that nothing can hide there.
    """
    if not names_msg(payload):
        return payload
    return {key: value for key, value in payload.items() if key not in _OWN or not _OWN[key](value)}


def strings(value: Any) -> list[str]:  # noqa: ANN401 - JSON of any shape
    """Return all strings in a JSON value; keys are not looked at."""
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
    """Return a JSON value with all its strings changed."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {key: replaced(item, change) for key, item in value.items()}
    return [replaced(item, change) for item in value] if isinstance(value, list) else value
