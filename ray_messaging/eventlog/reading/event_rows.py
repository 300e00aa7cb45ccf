"""Rows of the log as objects, or as dicts in AgentSociety's form."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
import pyarrow as pa

from ray_messaging.addressing.channels import AgentId
from ray_messaging.errors import FrameError
from ray_messaging.eventlog.reading.filters import MICROSECONDS
from ray_messaging.eventlog.reading.results import as_id
from ray_messaging.model.fates import SENT, FateName

_decode = msgspec.json.Decoder().decode
_PAGE = 8192  # the number of rows that are converted to Python objects at a time


@dataclass(frozen=True, slots=True)
class LogRow:
    """One row of the event log, which says what became of one send. Times are in unix seconds.

    A message has a row for each of its recipients. A broadcast has a row for each mailbox, the queue of one group or
    messager, whose agents hear it. Fields that do not apply to the send are None. `step` is the step in which the
    message was sent, `step_read` the step in which it is read, and `ordinal` the number of the message among its
    sender's messages in the step. `from_id` is None for the user, the person outside the simulation. `to_id` is None
    for a message to the user or to a channel that belongs to no agent, and for a broadcast.
    `subtopic` is the last part of an agent's `channel`. `audience` and `audience_version` name the audience of a
    broadcast, and `pairs` is how many agents of the mailbox hear it. `in_reply_to` is the id of the question that the
    message answers, and `expects_answer` says whether it is a question. `caused_by` is the id of the message that the
    sender was handling.

    `text` is the payload as JSON, `text_before` the payload before a rule rewrote it, and `labels` are the labels that
    rules gave the message. `sent_at` is when the messager accepted the message, `delivered_at` when the server stored
    it. `fate` says what became of the message: "delivered", "published" (only a plain Redis client received it),
    "undeliverable" or "blocked". `rule` is the rule that blocked or rewrote the message, and `reason` says why nobody
    received it. `sender` is the name of the group or messager that sent it, and `mailbox` the mailbox to which it went.
    `position` is the row's number in the log. Pass `position` as `after` to get the rows after this row.
    """

    message_id: str
    step: int | None
    step_read: int | None
    ordinal: int | None
    channel: str
    subtopic: str | None
    from_id: AgentId | None
    to_id: AgentId | None
    audience: str | None
    audience_version: int | None
    pairs: int | None
    in_reply_to: str | None
    expects_answer: bool | None
    caused_by: str | None
    text: str
    text_before: str | None
    labels: tuple[str, ...]
    sent_at: float
    delivered_at: float | None
    fate: FateName
    rule: str | None
    reason: str | None
    sender: str
    mailbox: str | None
    position: int

    @property
    def payload(self) -> Any:  # noqa: ANN401 - JSON of any shape
        """Return the decoded payload; raise FrameError if it is not JSON."""
        return _decoded(self.text, self.message_id)

    @property
    def payload_before(self) -> Any:  # noqa: ANN401 - JSON of any shape
        """Return the decoded payload before a rule rewrote it; None if no rule rewrote it."""
        return None if self.text_before is None else _decoded(self.text_before, self.message_id)

    @property
    def sent(self) -> bool:
        """Return whether the message was delivered or published."""
        return self.fate in SENT


def _decoded(text: str, message_id: str) -> Any:  # noqa: ANN401 - JSON of any shape
    try:
        return _decode(text)
    except msgspec.MsgspecError as error:
        raise FrameError(f"the payload of message {message_id} is not JSON ({error}): read row.text") from error


def dicts_of(table: pa.Table) -> Iterator[dict[str, Any]]:
    """Yield the rows of a `query` as dicts. Each id is an int or a str, as its agent has it; times are unix seconds."""
    moments = [name for name in ("sent_at", "delivered_at") if name in table.column_names]
    ends = [name for name in ("from_id", "to_id") if name in table.column_names and table[name].type == pa.string()]
    for name in moments:
        at = table.column_names.index(name)
        table = table.set_column(at, name, table[name].cast(pa.int64()))
    for batch in table.to_batches(_PAGE):
        for row in batch.to_pylist():
            for name in moments:
                row[name] = None if row[name] is None else row[name] / MICROSECONDS
            for name in ends:
                row[name] = as_id(row[name])
            yield row


def rows_of(table: pa.Table) -> Iterator[LogRow]:
    """Yield the rows of a `query` as objects."""
    for row in dicts_of(table):
        row["text"], row["text_before"] = row.pop("payload"), row.pop("payload_before")
        row["labels"] = tuple(row["labels"] or ())
        yield LogRow(**row)


def rows_as_seed(table: pa.Table) -> list[dict[str, Any]]:
    """Return the rows of a `query` in the form of AgentSociety's log list, with more fields.

    AgentSociety's fields: channel, payload (decoded), from_id, to_id, start_time (unix s), consumption (seconds until
    delivery; None if it was not delivered), sent. More fields: fate, rule, reason, message_id.
    """
    return [
        {
            "channel": row.channel,
            "payload": row.payload,
            "from_id": row.from_id,
            "to_id": row.to_id,
            "start_time": row.sent_at,
            "consumption": None if row.delivered_at is None else max(0.0, row.delivered_at - row.sent_at),
            "sent": row.sent,
            "fate": row.fate,
            "rule": row.rule,
            "reason": row.reason,
            "message_id": row.message_id,
        }
        for row in rows_of(table)
    ]
