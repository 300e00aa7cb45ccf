"""Columns of the event log, schema 2: one row per send and recipient.

Schema 1 lacks the columns of ADDED, which read as null in its files. A file has the lowest schema that can hold it:
plain messages are logged as they always were. A file may have more columns, as `payload.x` of typed payloads: queries
leave out those that are not here.
"""

import pyarrow as pa

VERSION = 2
ADDED = ("step_read", "ordinal", "audience", "audience_version", "in_reply_to", "expects_answer")

_NAME = pa.dictionary(pa.int32(), pa.string())

# An int id is in from_id/to_id, a str id in from_name/to_name; the user, and the recipient on a plain channel, has
# neither. `entry` and `row` are the row's source in its stream. They order the rows of one mailbox, and together with
# `mailbox` they are unique. Rows from the log stream (blocked, published, undeliverable, rewritten) have `noted`.
SCHEMA = pa.schema(
    [
        pa.field("message_id", pa.string(), nullable=False),
        pa.field("step", pa.int64()),  # in which it was sent
        pa.field("step_read", pa.int64()),  # in which its recipient reads it
        pa.field("ordinal", pa.int64()),  # the n-th accepted message of its sender in the step, from 0
        pa.field("channel", _NAME, nullable=False),
        pa.field("subtopic", _NAME),  # null on plain channels
        pa.field("from_id", pa.int64()),
        pa.field("to_id", pa.int64()),
        pa.field("from_name", _NAME),
        pa.field("to_name", _NAME),
        pa.field("audience", _NAME),
        pa.field("audience_version", pa.int64()),
        pa.field("in_reply_to", pa.string()),  # message_id of the question
        pa.field("expects_answer", pa.bool_()),
        pa.field("payload", pa.large_string(), nullable=False),  # JSON text
        pa.field("payload_before", pa.large_string()),  # before a rule rewrote it
        pa.field("labels", pa.list_(pa.string())),  # null: none
        pa.field("sent_at", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field(
            "delivered_at", pa.timestamp("us", tz="UTC")
        ),  # when the server accepted it; null if it was not delivered
        pa.field("fate", _NAME, nullable=False),  # see receipt.FATES
        pa.field("rule", _NAME),  # the rule that blocked or rewrote it
        pa.field("reason", _NAME),
        pa.field("sender", _NAME, nullable=False),  # the messager that sent it
        pa.field("mailbox", _NAME),  # where it was delivered
        pa.field("noted", pa.bool_(), nullable=False),
        pa.field("entry", _NAME, nullable=False),
        pa.field("row", pa.int32(), nullable=False),
    ]
)


def in_lowest_schema(table: pa.Table) -> tuple[pa.Table, int]:
    """Return a table in the lowest schema that can hold it, and the number of that schema."""
    if any(table[name].null_count < len(table) for name in ADDED):
        return table, VERSION
    return table.drop_columns(list(ADDED)), 1
