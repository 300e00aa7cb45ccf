"""Glob patterns of Redis, by which a subscription matches many channels."""

import re
from collections.abc import Callable
from functools import lru_cache

from ray_messaging.errors import InvalidAddress

_GLOB = re.compile(r"[*?\[\]\\]")


def is_glob(channel: str) -> bool:
    """Return whether a subscription is a Redis pattern. Otherwise it is one channel."""
    return _GLOB.search(channel) is not None


@lru_cache(100_000)
def glob_pattern(glob: str) -> re.Pattern[bytes]:
    """Translate a Redis pattern to a regular expression.

    Redis matches bytes, has [^a] but not [!a], and uses the backslash as its escape character.
    """
    text, at = glob.encode(), 0
    parts = [b""]  # the regular expressions of the texts between the stars of the pattern
    while at < len(text):
        character = text[at : at + 1]
        at += 1
        if character == b"*":
            parts.append(b"")
            continue
        if character == b"[":
            part, at = _glob_set(text, at)
        elif character == b"\\" and at < len(text):
            part, at = re.escape(text[at : at + 1]), at + 1
        else:
            part = b"." if character == b"?" else re.escape(character)
        parts[-1] += part
    if len(parts) == 1:
        return re.compile(parts[0], re.DOTALL)
    # The text after each star matches at its first position, without backtracking. So *a*a*a*b cannot take very long.
    middle = b"".join(b"(?>.*?%s)" % part for part in parts[1:-1] if part)
    return re.compile(b"%s%s.*%s" % (parts[0], middle, parts[-1]), re.DOTALL)


def _glob_set(text: bytes, at: int) -> tuple[bytes, int]:
    """Translate a character set in a Redis pattern to a regular expression.

    The set begins at index `at`, after [, and ends at ] or at the end of the text. Return the translation, and the
    index of the set's end.
    """
    inverted = text[at : at + 1] == b"^"
    at += inverted
    found: set[int] = set()
    while at < len(text) and text[at] != ord("]"):
        if text[at] == ord("\\") and at + 1 < len(text):
            found.add(text[at + 1])
            at += 2
        elif at + 2 < len(text) and text[at + 1] == ord("-"):
            low, high = sorted((text[at], text[at + 2]))
            found.update(range(low, high + 1))
            at += 3
        else:
            found.add(text[at])
            at += 1
    wanted = b"".join(b"\\x%02x" % byte for byte in sorted(set(range(256)) - found if inverted else found))
    return (b"[" + wanted + b"]" if wanted else b"(?!)"), at + 1


def compile_glob(glob: str) -> Callable[[str], bool]:
    """Return a function that says whether a channel matches a pattern.

    Raises: InvalidAddress if the pattern cannot be encoded as UTF-8.
    """
    try:
        matched = glob_pattern(glob).fullmatch
    except UnicodeEncodeError:
        raise InvalidAddress(
            f"pattern {glob!r} cannot be used: it has a character that UTF-8 cannot encode (half a surrogate pair)",
            value=glob,
        ) from None
    return lambda channel: matched(channel.encode()) is not None


def literal_prefix(glob: str) -> str:
    """Return the text before a pattern's first special character, with which all matching channels begin."""
    return _GLOB.split(glob, maxsplit=1)[0]
