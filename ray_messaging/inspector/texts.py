"""Texts of agents as a page may show them: cut, with every control character visible."""

import unicodedata
from typing import Any

TEXT_WIDTH = 2_000  # characters of a payload
NAME_WIDTH = 60
_PICTURES = 0x2400  # Unicode's pictures of control characters
_DELETE = 0x7F
_CONTROLS = 0x20
_ODD = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}


def visible(text: str) -> str:
    """Return a text in which control characters, marks of direction and lone surrogates are visible signs."""
    if text.isprintable():
        return text
    return "".join(map(_sign, text))


def _sign(character: str) -> str:
    if character.isprintable() or unicodedata.category(character) not in _ODD:
        return character
    code = ord(character)
    if code < _CONTROLS:
        return chr(_PICTURES + code)
    return "\u2421" if code == _DELETE else f"\u27e8U+{code:04X}\u27e9"


def name(value: object) -> str:
    """Return an id or a name for a page; None is the user."""
    return cut("the user" if value is None else str(value), NAME_WIDTH)


def cut(text: object, width: int = TEXT_WIDTH) -> str:
    """Return the visible beginning of a text."""
    whole = "" if text is None else str(text)
    return visible(whole) if len(whole) <= width else visible(whole[: width - 1]) + "\u2026"


def size(nbytes: int) -> str:
    """Return a size for people."""
    for unit in ("bytes", "KiB", "MiB"):
        if nbytes < 1024:
            return f"{nbytes:.0f} {unit}" if unit == "bytes" else f"{nbytes:.1f} {unit}"
        nbytes /= 1024  # type: ignore[assignment]
    return f"{nbytes:,.1f} GiB"


def number(value: float | None) -> str:
    """Return a count for people; an unknown one is a dash."""
    if value is None:
        return "\u2013"
    return f"{value:,.0f}" if value >= 10 or value == int(value) else f"{value:.1f}"


def settings(description: dict[str, Any]) -> str:
    """Return a rule's settings as `name=value`, cut."""
    shown = (f"{key}={value}" for key, value in description.items() if key not in _SHOWN_ELSEWHERE)
    return cut(", ".join(shown), 300)


_SHOWN_ELSEWHERE = {"name", "kind", "failures", "on_error", "last_error", "last_failed_at", "errors"}
