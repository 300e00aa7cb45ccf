"""Texts that are shown to people: without control characters, shortened, with times in UTC."""

from datetime import UTC, datetime
from reprlib import Repr

TEXT_WIDTH = 80  # the most characters of a payload in a table


def printable(text: str) -> str:
    """Return a text without control characters, which could attack a terminal."""
    return "".join(character if character.isprintable() else "\ufffd" for character in text)


def shortened(text: str) -> str:
    """Return a text for a table: its beginning, if it is too long."""
    return text if len(text) <= TEXT_WIDTH else text[: TEXT_WIDTH - 3] + "..."


class _Short(Repr):
    def repr_int(self, x: int, level: int) -> str:
        try:
            return super().repr_int(x, level)
        except ValueError:  # Python refuses to write an int of more than 4,300 digits.
            return f"<int of about {int(x.bit_length() * _DIGITS_PER_BIT) + 1:,} digits>"


_DIGITS_PER_BIT = 0.30103
short_repr = _Short().repr  # a value for an error's text, shortened if it is long


def utc_time(seconds: float) -> str:
    """Return a time in UTC, to the millisecond; the number itself if no date can represent it."""
    try:
        return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S.%f}"[:-3]
    except (ValueError, OverflowError, OSError):  # A sender's clock may have any value, even one that is no date.
        return f"{seconds:g}"


def steps_done(count: int) -> str:
    """Return a text that says how many steps are done."""
    return f"{count:,} {'step' if count == 1 else 'steps'} done"
