"""Checks of the settings of rules. Each check returns the value, or raises RuleError."""

from collections.abc import Sequence
from math import inf
from typing import TypeVar

from ray_messaging.errors import RuleError

T = TypeVar("T")


def check_count(setting: str, value: object, least: int, rule: str, why: str = "") -> int:
    """Return the value of a setting; raise RuleError unless it is an int from `least` to 2**62 - 1.

    Args: `why` is added to the end of the error's text.
    """
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value < 2**62:
        raise RuleError(
            f"{setting}={value!r} is invalid: give an int of at least {least} and below 2**62{why}", rule=rule
        )
    return value


def check_positive(setting: str, value: float, rule: str, below: float = inf) -> float:
    """Return the value of a setting; raise RuleError unless it is a finite number above 0 and below `below`."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < below:
        limit = "" if below == inf else f" and below {below:,.0f}"
        raise RuleError(f"{setting}={value!r} is invalid: give a finite number above 0{limit}, such as 0.5", rule=rule)
    return value


def check_choice(setting: str, value: T, choices: Sequence[T], rule: str) -> T:
    """Return the value of a setting; raise RuleError unless it is one of `choices`."""
    if value not in choices:
        raise RuleError(f"{setting}={value!r} is unknown: write {' or '.join(map(repr, choices))}", rule=rule)
    return value


def check_name(name: object) -> str:
    """Return a rule's name; raise RuleError unless it is a str that is not empty."""
    if not isinstance(name, str) or not name:
        raise RuleError(f"name={name!r} of a rule is invalid: give a str that is not empty", rule=repr(name))
    return name
