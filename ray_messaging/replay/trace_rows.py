"""Rows of a trace file, converted to columns of valid ids, times and texts."""

import re
from array import array
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from math import inf, isfinite
from operator import itemgetter
from typing import Any

import msgspec

from ray_messaging.addressing.channels import AgentId, check_id
from ray_messaging.errors import ConfigError, InvalidAddress

Getter = Callable[[Any], Any]
SHOWN_FIELDS = 20
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
SHOWN_CHARS = 60

# For each field of a message: the command-line option that names it, and its default names. Exports of our own log have
# from_id, to_id, sent_at and payload. They also have `sender`, which is a group, and not an agent.
FIELDS = {
    "sender": ("from", ("from", "src", "source", "from_id", "sender")),
    "receiver": ("to", ("to", "dst", "target", "to_id", "receiver", "recipient")),
    "time": ("time", ("time", "ts", "timestamp", "seq", "sent_at")),
    "text": ("text", ("text", "message", "content", "payload")),
}
Requested = Mapping[str, str | None]  # the name that the caller gave for each field; None: a default name in FIELDS

_SHORT = 15  # a float can hold every number of at most this many characters, if it has no exponent
_FLOAT_ID = re.compile(r"[+-]?\d+\.(0+|\d+[eE][+-]?\d+)")  # 12.0 or 1.2e+07: how pandas may write an int
_OF_LOG = (
    ". In an export of a log of ray_messaging, messages of the user have no sender, and broadcasts no receiver: "
    "`ray-messaging log query LOG --subtopic agent-chat --expand --json` writes a broadcast as a row for each hearer"
)
_encode = msgspec.json.Encoder().encode
_PART = re.compile(r"\{\{|\}\}|[^{}]+|\{(?P<field>[^{}.\[\]!:]+)\}")  # a doubled brace, plain text, or a field
_FIRST_DATE, _LAST_DATE = 1900_01_01_00_00_00, 2100_01_01_00_00_00  # limits of dates that are written as numbers
_FINER = re.compile(r"\.\d{6}\d*[1-9]")  # a time with digits beyond microseconds


class RowError(Exception):
    """A row is not valid. Callers, which know the file and the line, raise a TraceError from this error."""


def find_field(noun: str, requested: Requested, keys: Mapping[str, Any]) -> str | None:
    """Return the requested field.

    If none is requested, return the first default name that is among the keys, or None if there is none.

    Case is ignored for default names.

    Raises: RowError if the requested field does not exist.
    """
    if (name := requested[noun]) is not None:
        if name not in keys:
            raise RowError(f"there is no field {name!r} for the {noun}: the fields are {shown(keys)}")
        return name
    # The order is reversed, so that of two spellings of a name the first one in the file is used.
    by_lower = {key.lower(): key for key in reversed(list(keys))}
    return next((by_lower[name] for name in FIELDS[noun][1] if name in by_lower), None)


def compile_template(noun: str, template: str, keys: Mapping[str, Any]) -> Getter:
    """Return a function that makes an id from a row by a template.

    A template may only have plain `{field}`s. With attributes or indices it could read the insides of objects.

    Raises: ConfigError if a template has anything else, RowError if a field does not exist.
    """
    parts = [*_PART.finditer(template)]
    names = [part["field"] for part in parts if part["field"] is not None]
    if not names or "".join(part[0] for part in parts) != template:
        raise ConfigError(
            f"cannot use the template {template!r} for the {noun}: write plain fields such as '{{game}}-{{sender}}', "
            "without attribute, index, conversion or format"
        )
    if missing := [name for name in names if name not in keys]:
        raise RowError(
            f"the template {template!r} for the {noun} names {missing[0]!r}, which is no field: "
            f"the fields are {shown(keys)}"
        )
    get = {name: itemgetter(keys[name]) for name in names}
    pieces = [(part[0].replace("{{", "{").replace("}}", "}"), part["field"]) for part in parts]
    return lambda row: "".join([text if name is None else _piece(name, get[name], row) for text, name in pieces])


def shown(keys: Mapping[str, Any]) -> str:
    """Return the names of the fields for an error message, shortened if there are many."""
    names = [repr(name) for name in list(keys)[:SHOWN_FIELDS]]
    return ", ".join(names) + (f" and {len(keys) - SHOWN_FIELDS} more" if len(keys) > SHOWN_FIELDS else "")


def _piece(name: str, get: Getter, row: Any) -> str:  # noqa: ANN401 - a list or a mapping, as the keys say
    value = get(row)
    if type(value) is int:
        return str(value)
    if type(value) is not str:
        raise RowError(f"field {name!r} of the template is of type {type(value).__name__}: it must be a str or an int")
    if not (stripped := value.strip()):
        raise RowError(f"field {name!r} of the template is empty: give it a value, or drop the row")
    return stripped


class Columns:
    """The columns of a trace, built row by row.

    `keys` maps the name of each field to its key in a row, which is an index if rows are lists, and a name if rows are
    mappings.

    Raises: RowError for a missing field or an invalid value, ConfigError for an invalid template.
    """

    def __init__(self, keys: Mapping[str, Any], requested: Requested) -> None:
        self.places: dict[AgentId, int] = {}  # the index of each agent, in order of first appearance
        # In an array a number takes 4 or 8 bytes, in a list 32.
        self.sources, self.targets, self.times = array("i"), array("i"), array("d")
        sender, receiver = (_id_getter(noun, requested, keys) for noun in ("sender", "receiver"))
        time = find_field("time", requested, keys)
        if sender is None or receiver is None or time is None:
            raise RowError(_none_found({"sender": sender, "receiver": receiver, "time": time}, keys))
        self._sender, self._receiver, self._time = sender, receiver, itemgetter(keys[time])
        text = find_field("text", requested, keys)
        if text == "payload" and any(key.startswith("payload.") for key in keys):
            raise RowError(
                "the payloads are split into several columns here: export the log to .jsonl, which has whole payloads"
            )
        self._text = None if text is None else itemgetter(keys[text])
        self.texts: list[str] | None = None if text is None else []
        # For each spelling of an id, the index of the agent, so that each spelling is parsed only once. Only strs are
        # keys: as keys, True, 1.0 and 1 would be the same.
        self._known: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self.times)

    def add(self, row: Any) -> None:  # noqa: ANN401 - a list or a mapping, as the keys say
        """Append a row. After a RowError this object must not be used any more."""
        try:
            self.sources.append(self._place(self._sender(row), "sender"))
            self.targets.append(self._place(self._receiver(row), "receiver"))
            self.times.append(parse_time(self._time(row)))
            if self._text is not None and self.texts is not None:
                self.texts.append(read_text(self._text(row)))
        except KeyError as error:
            raise RowError(
                f"this row has no field {error.args[0]!r}, only {shown(row)}: add it, or name a field that every row "
                "has "
                "(on the command line by --from, --to, --time, --text)"
            ) from None

    def _place(self, raw: object, noun: str) -> int:
        if type(raw) is not str:
            return self.places.setdefault(_checked(raw, noun), len(self.places))
        known = self._known.get(raw)
        if known is None:
            stripped = raw.strip()
            if stripped[:1] == '"' != raw[:1]:
                raise RowError(
                    f"the {noun} {cut(stripped)} has white space before its quote, so the quote may or may not belong "
                    "to the id: drop the white space"
                )
            known = self._known[raw] = self.places.setdefault(_checked(stripped, noun), len(self.places))
        return known


def _id_getter(noun: str, requested: Requested, keys: Mapping[str, Any]) -> Getter | None:
    name = requested[noun]
    if name is not None and ("{" in name or "}" in name):
        return compile_template(noun, name, keys)
    found = find_field(noun, requested, keys)
    return None if found is None else itemgetter(keys[found])


def _none_found(fields: Mapping[str, object], keys: Mapping[str, Any]) -> str:
    """Build the error text for missing fields: the expected names, the file's fields, and the options."""
    nouns = [noun for noun, found in fields.items() if found is None]
    missing = ", ".join(f"the {noun} (such as {FIELDS[noun][1][0]!r})" for noun in nouns)
    names, options = (", ".join(text.format(FIELDS[noun][0]) for noun in nouns) for text in ("{}_field=", "--{}"))
    found = f"no field for {missing} among {shown(keys)}: "
    if any(key.strip().isdecimal() for key in keys):  # a number is probably a value of the first message, not a name
        header = ",".join(FIELDS[noun][0] for noun in fields)
        found += f"if the file has no header, write one above its first message, such as {header}; otherwise "
    return f"{found}name your fields by {names} (on the command line {options})"


def parse_time(raw: Any) -> float:  # noqa: ANN401 - a cell of a trace
    """Return a time as a float: a number unchanged, and a date in ISO-8601 in unix seconds.

    A date without an offset is in UTC.

    Raises: RowError if the time is neither a number nor a date, if it may be either, or if a float cannot represent it
    exactly.
    """
    if type(raw) not in {str, int, float, Decimal}:
        raise RowError(_no_time(raw))
    try:
        value = float(raw)
    except OverflowError:
        value = inf
    except ValueError:
        return _iso_time(raw)
    if _FIRST_DATE <= value < _LAST_DATE:
        _check_no_date(raw, int(value))
    if not isfinite(value) or (
        type(raw) is str and "_" in raw
    ):  # float() accepts 1_000, which is not a number in a trace
        raise RowError(_no_time(raw))
    if type(raw) is not float and not is_exact(str(raw), value):
        raise RowError(
            f"time {cut(str(raw))} has more digits than a float holds, so different times would become equal: "
            "write seconds with at most six decimals (divide nanoseconds by 1,000,000,000), or sequence numbers"
        )
    return value


def _check_no_date(raw: object, number: int) -> None:
    """Raise RowError for a number that may be a date, such as 20261120093000 for 9:30 on 20 November 2026."""
    try:
        date = datetime.strptime(str(number), "%Y%m%d%H%M%S").isoformat()  # noqa: DTZ007 - no zone is known
    except ValueError:
        return
    raise RowError(
        f"time {cut(str(raw))} may be a number, or the date {date}: write dates in ISO-8601 ({date}Z), and numbers in "
        "another unit"
    )


def is_exact(spelled: str, value: float) -> bool:
    """Return whether a float represents the number that a text spells.

    It does if both are equal, or if `repr` of the float spells the same number, such as for 0.1.
    """
    if len(spelled) <= _SHORT and "e" not in spelled.lower():
        return True
    number = Decimal(spelled)
    return number == Decimal(value) or number == Decimal(repr(value))


def read_text(raw: object) -> str:
    """Return a str unchanged, and a dict as JSON; raise RowError for anything else."""
    if type(raw) is dict:  # a whole payload, as in an export of our own log
        return _encode(raw).decode()
    if type(raw) is not str:
        raise RowError(f"the text is of type {type(raw).__name__}: it must be a dict, or a str, which may be empty")
    return raw


def _checked(raw: object, noun: str) -> AgentId:
    if raw is None or raw == "":
        raise RowError(f"the {noun} is empty: give it an id, or drop the row{_OF_LOG if raw is None else ''}")
    if type(raw) is str and _FLOAT_ID.fullmatch(raw):
        raise RowError(
            f"the {noun} {raw!r} is a whole number written as a float, which would be another agent than the "
            "same number as an int: write it as an int (in pandas by astype('Int64')). If it is a name and no number, "
            f"put a letter before it by {FIELDS[noun][0]}_field='v{{...}}', with the name of its field in the braces"
        )
    try:
        return check_id(raw)
    except InvalidAddress as error:
        raise RowError(f"the {noun} is not a valid id ({error})") from None


def _iso_time(raw: str) -> float:
    if _FINER.search(raw):
        raise RowError(
            f"time {cut(raw)} is finer than a microsecond, so different times would become equal: write six decimals"
        )
    try:
        moment = datetime.fromisoformat(raw.strip())
    except ValueError:
        raise RowError(_no_time(raw)) from None
    return ((moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - EPOCH).total_seconds()


def _no_time(raw: object) -> str:
    return f"time {cut(repr(raw))} is neither a finite number nor ISO-8601 (2004-04-15T14:56:01Z)"


def cut(shown: str) -> str:
    """Return the beginning of a text for an error message."""
    return shown if len(shown) <= SHOWN_CHARS else f"{shown[:SHOWN_CHARS]}..."
