"""Rows of a trace file to columns: ids, times and texts, each checked."""

from array import array
from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ray_messaging.replay.fields import Getter, RowError, compile_template, find_field, is_template, shown
from ray_messaging.replay.values import TraceIds, parse_time, read_text

if TYPE_CHECKING:
    from ray_messaging.channels import AgentId

FROM_FIELDS = ("from", "src", "source", "sender")
TO_FIELDS = ("to", "dst", "target", "receiver", "recipient")
TIME_FIELDS = ("time", "ts", "timestamp", "seq")
TEXT_FIELDS = ("text", "message", "content")


class Asked(NamedTuple):
    """Name the fields a user asked for; None where the default names serve."""

    sender: str | None = None
    receiver: str | None = None
    time: str | None = None
    text: str | None = None


class Columns:
    """Gather a trace's columns, row by row.

    `keys` maps each field's name to what a row is indexed by: its place in a list, or its name in a mapping.
    Raises RowError where a field is missing or a value cannot be used, ConfigError for a bad template.
    """

    def __init__(self, keys: Mapping[str, Any], asked: Asked) -> None:
        self.senders: list[AgentId] = []
        self.receivers: list[AgentId] = []
        # Not a list: 8 bytes a message instead of 32.
        self.times = array("d")
        self._sender = _id_getter("sender", asked.sender, FROM_FIELDS, keys)
        self._receiver = _id_getter("receiver", asked.receiver, TO_FIELDS, keys)
        time = find_field("time", asked.time, TIME_FIELDS, keys)
        if time is None:
            raise RowError(_none_found("time", TIME_FIELDS, keys))
        self._time = itemgetter(keys[time])
        text = find_field("text", asked.text, TEXT_FIELDS, keys)
        self._text = None if text is None else itemgetter(keys[text])
        self.texts: list[str] | None = None if text is None else []
        self._ids = TraceIds()

    def __len__(self) -> int:
        return len(self.senders)

    def add(self, row: Any) -> None:  # noqa: ANN401 - a list or a mapping, as the keys say
        """Append one row; a row that raises RowError leaves the columns unusable."""
        ids = self._ids
        try:
            self.senders.append(ids.read(self._sender(row), "sender"))
            self.receivers.append(ids.read(self._receiver(row), "receiver"))
            self.times.append(parse_time(self._time(row)))
            if self._text is not None and self.texts is not None:
                self.texts.append(read_text(self._text(row)))
        except KeyError as error:
            raise RowError(f"this row has no field {error.args[0]!r}: add it, or name one that every row has") from None

    def times_array(self) -> npt.NDArray[np.float64]:
        """Return the times as an array of their own, float64."""
        return np.array(self.times, dtype=np.float64)


def _id_getter(noun: str, asked: str | None, defaults: Sequence[str], keys: Mapping[str, Any]) -> Getter:
    if asked is not None and is_template(asked):
        return compile_template(noun, asked, keys)
    found = find_field(noun, asked, defaults, keys)
    if found is None:
        raise RowError(_none_found(noun, defaults, keys))
    return itemgetter(keys[found])


def _none_found(noun: str, defaults: Sequence[str], keys: Mapping[str, Any]) -> str:
    option = {"sender": "from", "receiver": "to"}.get(noun, noun)
    return (
        f"no field for the {noun}: expected one of {', '.join(defaults)}, found {shown(keys)}; "
        f"name yours by {option}_field (on the command line --{option})"
    )
