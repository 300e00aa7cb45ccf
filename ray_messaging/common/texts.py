"""Texts that are shown to people: without control characters, shortened, with times in UTC."""

from datetime import UTC, datetime
from reprlib import Repr

TEXT_WIDTH = 80  # a longer text in a line of output is cut to this many characters


def printable(text: str) -> str:
    """Return a text with U+FFFD in place of unprintable characters: control characters could attack a terminal."""
    return "".join(character if character.isprintable() else "\ufffd" for character in text)


def shortened(text: str) -> str:
    """Return a text for a line of output: cut it if it has more than TEXT_WIDTH characters."""
    return text if len(text) <= TEXT_WIDTH else text[: TEXT_WIDTH - 3] + "..."


class _Short(Repr):
    def repr_int(self, x: int, level: int) -> str:
        try:
            repr(x)
        except ValueError:  # Python refuses to write an int of more than 4,300 digits
            return f"<int of about {int(x.bit_length() * _DIGITS_PER_BIT) + 1:,} digits>"
        return super().repr_int(x, level)


_DIGITS_PER_BIT = 0.30103
short_repr = _Short().repr  # the repr of a value, for an error; a long one is shortened


def error_in_words(error: BaseException) -> str:
    """Return the type of an error and its text; the type alone if the error has no text."""
    text = str(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def utc_time(seconds: float) -> str:
    """Return a time in UTC as a text with milliseconds; the number itself if no date can represent the time."""
    try:
        return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S.%f}"[:-3]
    except (ValueError, OverflowError, OSError):  # a sender's clock may have any value, also one that is no date
        return f"{seconds:g}"


def steps_done(count: int) -> str:
    """Return a text that says how many steps are done."""
    return f"{count:,} {'step' if count == 1 else 'steps'} done"
