"""The fields of a query: their validation, and the pyarrow expressions that select files and rows by them."""

from collections.abc import Callable, Collection, Iterable
from copy import copy
from datetime import UTC, datetime
from difflib import get_close_matches
from functools import reduce
from math import isfinite
from operator import and_, index, or_
from typing import Any, NoReturn, TypedDict

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ray_messaging.addressing.channels import INT64_MAX, INT64_MIN, AgentId, check_id
from ray_messaging.errors import InvalidAddress, InvalidQuery
from ray_messaging.eventlog.log_schema import POSITION, TEXT, typed_names
from ray_messaging.eventlog.reading.results import stored_column
from ray_messaging.model.fates import FATES

Moment = float | datetime | str
Steps = int | range | slice | Collection[int | None] | None
Names = str | Collection[str | None] | None
AgentIds = AgentId | Collection[AgentId | None] | None
MICROSECONDS = 1_000_000
_ENDS = {"from_id": ("from",), "to_id": ("to",), "agent": ("from", "to")}
_OF_RECIPIENT = ("to_id", "agent", "channel")
_NOTHING = pc.scalar(False)
_MOMENT = pa.timestamp("us", "UTC")


class Fields(TypedDict, total=False):
    """Fields of a query. In most fields, the value None selects rows that lack a value.

    For example, from_id=None selects the messages from the user, the person outside the simulation. In since, until,
    contains, limit and after, None has no effect. In channel, fate and message_id, None is an error, because each row
    has a value.

    from_id, to_id, agent (sender or recipient), channel, subtopic, fate, rule, message_id, in_reply_to (the id of the
    question), step (of sending) and step_read take a value or a collection of values; a step may also be a range or a
    slice. since (inclusive) and until (exclusive) limit sent_at. They are unix seconds, a datetime with a time zone, or
    a str in ISO format (UTC, unless it has a time zone). contains is a str that the payload's JSON text must contain;
    case matters. limit is the most rows to return, counted from the first matching row. after is a `position`: only
    rows after it are returned.
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
    step_read: Steps
    since: Moment | None
    until: Moment | None
    contains: str | None
    limit: int | None
    after: int | None


NAMES: tuple[str, ...] = tuple(Fields.__annotations__)
NEVER_NULL = ("channel", "fate", "message_id")


def invalid(name: str, value: object, reason: str) -> InvalidQuery:
    """Build the error for an invalid value of a field."""
    return InvalidQuery(f"{name}={value!r} {reason}", field=name, value=value)


def refuse_name(name: str, value: object, known: Iterable[str], reason: str) -> NoReturn:
    """Raise InvalidQuery for an unknown name.

    The error suggests the most similar known name, and lists all known names.
    """
    near = "".join(f"{each!r}, or else " for each in get_close_matches(name, known, 1))
    raise InvalidQuery(f"{reason} {name!r}: write {near}one of {', '.join(known)}", field=name, value=value)


def check_columns(columns: object, known: Collection[str]) -> list[str]:
    """Return the distinct column names as a list; raise InvalidQuery if there are none, or a name is not in `known`."""
    found: list[Any] = [*columns] if isinstance(columns, Collection) and not isinstance(columns, str) else [columns]
    if not found:
        raise invalid("by", columns, f"names no column: write one or several of {', '.join(known)}")
    for name in found:
        if name not in known:
            refuse_name(str(name), name, known, "the log cannot be counted by")
    return list(dict.fromkeys(found))


def check_agent(name: str, value: object) -> AgentId:
    """Return an agent's id in the one form that the log uses; raise InvalidQuery if it is not a valid id."""
    try:
        return check_id(value)
    except InvalidAddress as error:
        reason = (
            "cannot be an agent's id, which is an int of 64 bits, a str without control characters, or a tuple of these"
        )
        raise invalid(name, value, f"{reason}: pass the id of an agent of the log") from error


def _is_one_id_or_several(value: object) -> bool:
    """Return whether a value is a tuple of ids, such as (3, 4), that is also a valid id of a single agent."""
    if type(value) is not tuple or any(isinstance(each, tuple) for each in value):
        return False
    try:
        check_id(value)
    except InvalidAddress:
        return False
    return True


def check_text(name: str, value: object) -> str | None:
    """Return a value that is None or a valid, non-empty str; raise InvalidQuery for anything else."""
    if value is None:
        return None
    if not isinstance(value, str) or not value:
        raise invalid(name, value, "must be a str that is not empty")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise invalid(name, value, "is not valid Unicode, so no row can match it: correct the str") from error
    return value


def _fate(name: str, value: object) -> str:
    if isinstance(value, str) and value in FATES:
        return value
    raise invalid(name, value, f"is not a fate: write {' or '.join(map(repr, FATES))}")


def _number(name: str, value: object) -> int:
    try:
        number: int | None = None if isinstance(value, bool) else index(value)  # type: ignore[arg-type]  # others raise
    except TypeError:
        number = None
    if number is None or not INT64_MIN <= number <= INT64_MAX:
        raise invalid(name, value, "must be an int of 64 bits")
    return number


def check_count(name: str, value: object, *, at_least: int) -> int | None:
    """Return a value that is None, or an int of at least `at_least`; raise InvalidQuery for anything else."""
    if value is None:
        return None
    number = _number(name, value)
    if number < at_least:
        raise invalid(name, value, f"must be {at_least} or more")
    return number


def check_span(name: str, value: range | slice) -> tuple[int, int]:
    """Return the first step of a range or slice, and the step after its last one.

    Raises: InvalidQuery if the range or slice skips steps.
    """
    if value.step not in {None, 1}:
        raise invalid(name, value, "skips steps: write a range with step 1, or a list")
    low = INT64_MIN if value.start is None else _number(name, value.start)
    return low, INT64_MAX if value.stop is None else _number(name, value.stop)


def parse_steps(text: str, named: str, field: str) -> int | slice:
    """Return the step or the range of steps that a text such as `5` or `5:10` means.

    Args: `field` is the query's field. Errors call it `named`, which may be the name of an option, for example.

    Raises: InvalidQuery if the text cannot be read.
    """
    try:
        low, colon, high = text.partition(":")
        return slice(int(low) if low else None, int(high) if high else None) if colon else int(low)
    except ValueError as error:
        raise InvalidQuery(
            f"cannot read {named} {text!r}: write one step, such as 5, or a range of steps, such as 5:10",
            field=field,
            value=text,
        ) from error


def check_moment(name: str, value: object) -> int | None:
    """Return a time in microseconds since 1970 in UTC, or None for None; raise InvalidQuery if it is not a time."""
    if value is None:
        return None
    moment = value
    if isinstance(moment, str):
        try:
            moment = datetime.fromisoformat(moment)
        except ValueError as error:
            raise invalid(name, value, "is not a time: write it like '2026-11-20T07:30:00', which is UTC") from error
        moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    if isinstance(moment, datetime):
        if moment.tzinfo is None:
            raise invalid(name, value, "has no time zone: write datetime(..., tzinfo=UTC), or .astimezone()")
        moment = moment.timestamp()
    if isinstance(moment, bool) or not isinstance(moment, int | float | np.integer | np.floating):
        raise invalid(name, value, "is not a time: pass unix seconds, a datetime with a time zone, or an ISO str")
    moment = float(moment)
    if not isfinite(moment) or abs(moment) > INT64_MAX // MICROSECONDS:
        raise invalid(name, value, "is not a time that the log can hold: pass a number of seconds since 1970")
    return round(moment * MICROSECONDS)


CHECKS: dict[str, Callable[[str, Any], Any]] = {
    **dict.fromkeys(_ENDS, check_agent),
    **dict.fromkeys(("channel", "subtopic", "rule", "message_id", "in_reply_to"), check_text),
    "fate": _fate,
    "step": _number,
    "step_read": _number,
}


class Filters:
    """Validated fields of a query, and the conditions on rows that follow from them.

    The constructor raises InvalidQuery for an unknown or invalid field. `since` and `until` are in microseconds.
    """

    def __init__(self, **fields: Any) -> None:  # noqa: ANN401 - whatever a user passed
        for name, value in fields.items():
            if name not in NAMES:
                refuse_name(name, value, NAMES, "a query of the log has no field")
        self._loose = False  # True: broadcasts match any recipients that the query asks for
        self._wanted: dict[str, list[Any]] = {}
        self._spans: dict[str, tuple[int, int]] = {}  # field -> the first step, and the step after the last
        for name in CHECKS:
            if name in fields:
                self._take(name, fields[name])
        self.since = check_moment("since", fields.get("since"))
        self.until = check_moment("until", fields.get("until"))
        self.contains = check_text("contains", fields.get("contains"))
        self.limit = check_count("limit", fields.get("limit"), at_least=0)
        self.after = check_count("after", fields.get("after"), at_least=-1)

    def _take(self, name: str, value: Any) -> None:  # noqa: ANN401
        if CHECKS[name] is _number and isinstance(value, range | slice):
            self._spans[name] = check_span(name, value)
            return
        if CHECKS[name] is _number and isinstance(value, tuple):
            raise invalid(
                name,
                value,
                ("could mean two steps, or all steps between two: write [first, second] or range(first, end)"),
            )
        if CHECKS[name] is check_agent and _is_one_id_or_several(value):
            raise invalid(
                name,
                value,
                f"could mean one agent, whose id is a tuple, or several agents: write [{value!r}] or {[*value]!r}",
            )
        some = isinstance(value, Collection) and not isinstance(value, str | bytes | dict)
        values = list(value) if some else [value]
        self._wanted[name] = [None if one is None else CHECKS[name](name, one) for one in values]
        if name in NEVER_NULL and None in self._wanted[name]:
            raise invalid(
                name,
                value,
                "selects rows without a value, but every row has a value: leave the field out to get all rows",
            )

    def limited(self, limit: int | None, *, loose: bool) -> "Filters":
        """Return a copy of these filters with another limit.

        In a `loose` copy, rows of broadcasts match any wanted recipients, because such a row names no recipient.
        """
        made = copy(self)
        made._loose, made.limit = loose, limit
        return made

    @property
    def select(self) -> bool:
        """Return whether any field other than `after` and `limit` is set."""
        others = (self.since, self.until, self.contains)
        return bool(self._wanted or self._spans) or any(each is not None for each in others)

    @property
    def recipients(self) -> list[AgentId | None] | None:
        """Return the recipients that `to_id` selects, or None for any recipient."""
        return self._wanted.get("to_id")

    def condition(self, schema: pa.Schema) -> pc.Expression | None:
        """Return the expression that selects the matching rows of a file with this schema; None if all rows match.

        The expression ignores `contains` for typed payloads.
        """
        found = [self._of_field(name, schema) for name in self._wanted]
        for name, span in self._spans.items():
            found += _within(stored_column(name, schema), *span)
        moments = [None if each is None else pa.scalar(each, _MOMENT) for each in (self.since, self.until)]
        found += _within(stored_column("sent_at", schema), *moments)
        if self.after is not None:
            found.append(stored_column(POSITION.name, schema) > self.after)
        if self.contains is not None and TEXT in schema.names:  # this condition comes last, because it takes longest
            has_text = pc.match_substring(pc.field(TEXT), self.contains)
            found.append(has_text | pc.field(TEXT).is_null() if typed_names(schema.names) else has_text)
        return reduce(and_, found) if found else None

    def texts(self, schema: pa.Schema) -> dict[str, list[str]]:
        """Return {column: wanted strs} for the dictionary-encoded columns in which only certain strs match."""
        free = _OF_RECIPIENT if self._loose else ()
        return {
            name: wanted
            for name, wanted in self._wanted.items()
            if name in schema.names
            and pa.types.is_dictionary(schema.field(name).type)
            and None not in wanted
            and name not in free
        }

    def of_recipient(self, schema: pa.Schema) -> pc.Expression | None:
        """Return the expression for the wanted recipients, or None if any recipient matches.

        Use it for expanded broadcasts, whose rows already match all other fields.
        """
        found = [self._of_field(name, schema) for name in self._wanted if name in _OF_RECIPIENT]
        return reduce(and_, found) if found else None

    def _of_field(self, name: str, schema: pa.Schema) -> pc.Expression:
        wanted = self._wanted[name]
        if name in _ENDS:
            found = reduce(or_, (_of_end(end, wanted, schema) for end in _ENDS[name]))
        else:
            values = [value for value in wanted if value is not None]
            found = _is_in(stored_column(name, schema), values)
            found = found | stored_column(name, schema).is_null() if None in wanted else found
        return found | stored_column("pairs", schema).is_valid() if self._loose and name in _OF_RECIPIENT else found


def _of_end(end: str, wanted: list[Any], schema: pa.Schema) -> pc.Expression:
    numbers, names = (stored_column(f"{end}_{form}", schema) for form in ("id", "name"))
    each = [
        (column, [value for value in wanted if isinstance(value, kind)])
        for column, kind in ((numbers, int), (names, str))
    ]
    # A column without wanted values is left out. Its condition would always be false, and would keep Arrow from using
    # the statistics of the other column.
    found = [_is_in(column, values) for column, values in each if values]
    found += [numbers.is_null() & names.is_null()] if None in wanted else []
    return reduce(or_, found) if found else _NOTHING


def _is_in(column: pc.Expression, values: list[Any]) -> pc.Expression:
    if not values:
        return _NOTHING
    return column == values[0] if len(values) == 1 else column.isin(values)


def _within(column: pc.Expression, low: Any, high: Any) -> Iterable[pc.Expression]:  # noqa: ANN401 - values of the column
    if low is not None:
        yield column >= low
    if high is not None:
        yield column < high
