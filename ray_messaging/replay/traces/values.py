"""Values of a trace's rows: ids, times and texts as Python objects."""

from datetime import UTC, datetime
from math import isfinite

from ray_messaging.addressing.channels import AgentId, check_id
from ray_messaging.errors import InvalidAddress
from ray_messaging.replay.traces.fields import RowError

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
SHOWN_CHARS = 40


class TraceIds:
    """Read ids, each spelling once: a trace has few agents and many rows."""

    def __init__(self) -> None:
        # Only str keys: True and 1.0 would find the entry of 1.
        self._known: dict[str, AgentId] = {}

    def read(self, raw: object, noun: str) -> AgentId:
        """Return an id in its one form; raise RowError if it is empty, or no agent can have it."""
        if type(raw) is not str:
            return _checked(raw, noun)
        known = self._known.get(raw)
        if known is None:
            known = self._known[raw] = _checked(raw.strip(), noun)
        return known


def parse_time(raw: object) -> float:
    """Return a number as it is, an ISO-8601 date and time as unix s (without an offset: UTC).

    Raises RowError for anything else.
    """
    if type(raw) is str:
        try:
            value = float(raw)
        except ValueError:
            return _iso_time(raw)
        # float() takes 1_000, which no trace means.
        if isfinite(value) and "_" not in raw:
            return value
    elif type(raw) is int or type(raw) is float:
        try:
            value = float(raw)
        except OverflowError:
            value = float("inf")
        if isfinite(value):
            return value
    raise RowError(_no_time(raw))


def read_text(raw: object) -> str:
    """Return the text as it is; raise RowError if it is no str."""
    if type(raw) is not str:
        raise RowError(f"the text is of type {type(raw).__name__}: it must be a str, empty where nothing was said")
    return raw


def _checked(raw: object, noun: str) -> AgentId:
    if raw is None or raw == "":
        raise RowError(f"the {noun} is empty: give it an id, or drop the row")
    try:
        return check_id(raw)
    except InvalidAddress as error:
        raise RowError(f"the {noun} is no id ({error})") from None


def _iso_time(raw: str) -> float:
    try:
        moment = datetime.fromisoformat(raw.strip())
    except ValueError:
        raise RowError(_no_time(raw)) from None
    return ((moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - EPOCH).total_seconds()


def _no_time(raw: object) -> str:
    shown = repr(raw)
    shown = shown if len(shown) <= SHOWN_CHARS else f"{shown[:SHOWN_CHARS]}..."
    return f"time {shown} is neither a finite number nor ISO-8601 (2004-04-15T14:56:01Z)"
