"""Fields of a query of the event log, and validation of their values."""

from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import UTC, datetime
from difflib import get_close_matches
from math import isfinite
from operator import index
from typing import Any, NoReturn, TypedDict

import numpy as np

from ray_messaging.addressing.channels import INT64_MAX, INT64_MIN, AgentId, check_id
from ray_messaging.errors import InvalidAddress, InvalidQuery
from ray_messaging.receipt import FATES

Moment = float | datetime | str
Steps = int | range | slice | Collection[int | None] | None
Names = str | Collection[str | None] | None
AgentIds = AgentId | Collection[AgentId | None] | None
MICROSECONDS = 1_000_000


class Fields(TypedDict, total=False):
    """Fields of a query. None selects rows without such a value, from_id=None the user's.

    from_id, to_id, agent (either end), channel, subtopic, fate, rule, message_id, in_reply_to (the id of the question)
    and step take a value or a collection of values; step a range or a slice, too. since (inclusive) and until
    (exclusive) limit sent_at: unix seconds, a datetime with a time zone, or ISO text (UTC, unless it has a time zone).
    contains is a part of the payload's JSON text, case-sensitive. payload, as {"price": 3.5, "n": slice(1, 10)}, gives
    values of typed columns: one, several, or those from the first to before the second; rows without the column do not
    match. limit is a number of rows, the first ones; after is the `position` of the row before them.
    """

    from_id: AgentIds
    to_id: AgentIds
    agent: AgentIds
    channel: str | Collection[str]
    subtopic: Names
    fate: str | Collection[str]
    rule: Names
    message_id: str | Collection[str]
    in_reply_to: Names
    step: Steps
    since: Moment | None
    until: Moment | None
    contains: str | None
    payload: Mapping[str, Any] | None
    limit: int | None
    after: int | None


NAMES: tuple[str, ...] = tuple(Fields.__annotations__)
NEVER_NULL = ("channel", "fate", "message_id")


def invalid(name: str, value: object, reason: str) -> InvalidQuery:
    """Build the error for an invalid value of a field."""
    return InvalidQuery(f"{name}={value!r} {reason}", field=name, value=value)


def refuse_name(name: str, value: object, known: Iterable[str], reason: str) -> NoReturn:
    """Raise InvalidQuery for an unknown name, with the nearest and all known ones."""
    near = get_close_matches(name, known, 1)
    meant = f", did you mean {near[0]!r}?" if near else ";"
    raise InvalidQuery(f"{reason} {name!r}{meant} There are: {', '.join(known)}", field=name, value=value)


def check_columns(columns: object, known: Collection[str]) -> list[str]:
    """Return the names of columns; raise InvalidQuery for an unknown one."""
    found: list[Any] = [*columns] if isinstance(columns, Collection) and not isinstance(columns, str) else [columns]
    if not found:
        raise invalid("by", columns, f"names no column: there are {', '.join(known)}")
    for name in found:
        if name not in known:
            refuse_name(str(name), name, known, "the log cannot be counted by")
    return list(dict.fromkeys(found))


def is_collection(value: object) -> bool:
    """Return whether a value is a collection of values."""
    return isinstance(value, Collection) and not isinstance(value, str | bytes | dict)


def check_agent(name: str, value: object) -> AgentId:
    """Return an id in canonical form; raise InvalidQuery."""
    try:
        return check_id(value)
    except InvalidAddress as error:
        raise InvalidQuery(f"{name}: {error}", field=name, value=value) from error


def check_text(name: str, value: object) -> str | None:
    """Return a non-empty text, or None; raise InvalidQuery."""
    if value is None:
        return None
    if not isinstance(value, str) or not value:
        raise invalid(name, value, "must be a text that is not empty")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise invalid(name, value, "is no Unicode text: no row can have it") from error
    return value


def _fate(name: str, value: object) -> str:
    if isinstance(value, str) and value in FATES:
        return value
    raise invalid(name, value, f"is no fate: write {', '.join(map(repr, FATES))}")


def _number(name: str, value: object) -> int:
    try:
        number: int | None = None if isinstance(value, bool) else index(value)  # type: ignore[arg-type]  # others raise
    except TypeError:
        number = None
    if number is None or not INT64_MIN <= number <= INT64_MAX:
        raise invalid(name, value, "must be an int of 64 bits")
    return number


def check_count(name: str, value: object, *, at_least: int) -> int | None:
    """Return an int of at least `at_least`, or None; raise InvalidQuery."""
    if value is None:
        return None
    number = _number(name, value)
    if number < at_least:
        raise invalid(name, value, f"must be {at_least} or more")
    return number


def check_span(value: range | slice) -> tuple[int, int]:
    """Return the first step and the one after the last; raise InvalidQuery."""
    if value.step not in {None, 1}:
        raise invalid("step", value, "leaves steps out: write a range without a step, or a list")
    low = INT64_MIN if value.start is None else _number("step", value.start)
    return low, INT64_MAX if value.stop is None else _number("step", value.stop)


def check_moment(name: str, value: object) -> int | None:
    """Return a time in microseconds since 1970, UTC; raise InvalidQuery."""
    if value is None:
        return None
    moment = value
    if isinstance(moment, str):
        try:
            moment = datetime.fromisoformat(moment)
        except ValueError as error:
            raise invalid(name, value, "is no time: write it like '2026-11-20T07:30:00', which is UTC") from error
        moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    if isinstance(moment, datetime):
        if moment.tzinfo is None:
            raise invalid(name, value, "has no time zone: write datetime(..., tzinfo=UTC), or .astimezone()")
        moment = moment.timestamp()
    if isinstance(moment, bool) or not isinstance(moment, int | float | np.integer | np.floating):
        raise invalid(name, value, "is no time: pass unix seconds, a datetime with a time zone, or ISO text")
    moment = float(moment)
    if not isfinite(moment) or abs(moment) > INT64_MAX // MICROSECONDS:
        raise invalid(name, value, "is no time that the log could hold")
    return round(moment * MICROSECONDS)


CHECKS: dict[str, Callable[[str, Any], Any]] = {
    "from_id": check_agent,
    "to_id": check_agent,
    "agent": check_agent,
    "channel": check_text,
    "subtopic": check_text,
    "fate": _fate,
    "rule": check_text,
    "message_id": check_text,
    "in_reply_to": check_text,
    "step": _number,
}
