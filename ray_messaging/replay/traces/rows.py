"""Rows of a trace file to columns: ids, times and texts, each checked."""

from array import array
from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ray_messaging.replay.traces.fields import Getter, RowError, compile_template, find_field, is_template, shown
from ray_messaging.replay.traces.values import TraceIds, parse_time, read_text

if TYPE_CHECKING:
    from ray_messaging.addressing.channels import AgentId

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
        sender = _id_getter("sender", asked.sender, FROM_FIELDS, keys)
        receiver = _id_getter("receiver", asked.receiver, TO_FIELDS, keys)
        time = find_field("time", asked.time, TIME_FIELDS, keys)
        if sender is None or receiver is None or time is None:
            raise RowError(_none_found({"sender": sender, "receiver": receiver, "time": time}, keys))
        self._sender, self._receiver, self._time = sender, receiver, itemgetter(keys[time])
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
            raise RowError(
                f"this row has no field {error.args[0]!r}, only {shown(row)}: add it, or name one that every row has "
                "(on the command line by --from, --to, --time, --text)"
            ) from None

    def times_array(self) -> npt.NDArray[np.float64]:
        """Return the times as an array of their own, float64."""
        return np.array(self.times, dtype=np.float64)


def _id_getter(noun: str, asked: str | None, defaults: Sequence[str], keys: Mapping[str, Any]) -> Getter | None:
    if asked is not None and is_template(asked):
        return compile_template(noun, asked, keys)
    found = find_field(noun, asked, defaults, keys)
    return None if found is None else itemgetter(keys[found])


def _none_found(fields: Mapping[str, object], keys: Mapping[str, Any]) -> str:
    """Say which fields were looked for in vain, what the file has instead, and how to name each."""
    options = {"sender": ("from", FROM_FIELDS), "receiver": ("to", TO_FIELDS), "time": ("time", TIME_FIELDS)}
    told = [
        f"for the {noun}: expected one of {', '.join(options[noun][1])}, found {shown(keys)}; "
        f"name yours by {options[noun][0]}_field (on the command line --{options[noun][0]})"
        for noun, found in fields.items()
        if found is None
    ]
    return "no field " + "; nor ".join(told)
