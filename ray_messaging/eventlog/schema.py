"""Columns of the event log: one row per send and recipient.

A file lacks the columns of OPTIONAL that have no value in it; they read as null. Each has `position`, the number of the
row in the log, as its last one. Payloads in typed columns have a column `payload.x` each in place of `payload`, and a
file for each set of columns, which lacks all columns without a value. Where the channel of a row with a typed payload
is that of its recipient for its subtopic, it is null: readers compose it (see `channel_head`).
"""

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa

from ray_messaging.common.tables import pandas_types

VERSION = 4  # files of another one are refused
OF_BROADCASTS = ("pairs", "hearing_agents", "kept_pairs")
OF_EXTENSIONS = ("step_read", "ordinal", "audience", "audience_version", "in_reply_to", "expects_answer")
OPTIONAL = OF_BROADCASTS + OF_EXTENSIONS

TEXT = "payload"  # the column of payloads that are JSON text
TYPED = "payload."  # the names of columns of typed payloads begin with it
POSITION = pa.field("position", pa.int64(), nullable=False)

_CHANNEL = "channel"
_HEAD = b"channel_head"  # in the metadata of tables and files with typed payloads

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
        pa.field("pairs", pa.int64()),  # of a broadcast: the hearers in the mailbox
        pa.field("hearing_agents", _NAME),  # digest of the mailbox's agents
        pa.field("kept_pairs", pa.binary()),  # see `audiences.kept_pairs`; null: all hearers among the agents
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
# Columns of ids and other whole numbers that a row may lack.
NUMBERS = frozenset(field.name for field in SCHEMA if pa.types.is_integer(field.type) and field.nullable)


@lru_cache(maxsize=256)
def schema_with(typed: tuple[pa.Field, ...], exp_id: str) -> pa.Schema:
    """Return the schema of an experiment's rows with typed payloads; without any fields that of JSON text."""
    if not typed:
        return SCHEMA
    at = SCHEMA.get_field_index(TEXT)
    fields = [*(SCHEMA.field(place) for place in range(at)), *typed, *[*SCHEMA][at + 1 :]]
    place = SCHEMA.get_field_index(_CHANNEL)
    fields[place] = fields[place].with_nullable(True)
    return pa.schema(fields, metadata={_HEAD: f"exps:{exp_id}:agents:"})


def channel_head(of: Any) -> dict[str, str]:  # noqa: ANN401 - a pyarrow.Schema, or a file's metadata
    """Return the entry of the metadata that begins the channels of agents in typed rows; empty for JSON text.

    A channel that is null is this text, the recipient's id, ":" and the subtopic.
    """
    head = (of.metadata or {}).get(_HEAD)
    return {} if head is None else {_HEAD.decode(): head.decode()}


def with_pandas_types(schema: pa.Schema) -> pa.Schema:
    """Return a schema by which pandas reads whole numbers exactly, where some rows lack them, too."""
    named = [schema.field(name) for name in schema.names if name in NUMBERS or name.startswith(TYPED)]
    return schema.with_metadata(pandas_types(named))


def typed_names(names: Sequence[str]) -> list[str]:
    """Return those of some columns that hold typed payloads."""
    return [name for name in names if name.startswith(TYPED)]


def without_empty(table: pa.Table) -> pa.Table:
    """Return a table without the columns that may be left out and have no value: each costs a fiftieth of the time."""
    may_go = OPTIONAL if TEXT in table.column_names else SCHEMA.names
    empty = [name for name in may_go if name in table.column_names and table[name].null_count == len(table)]
    return table.drop_columns(empty)


def placed(tables: Iterable[pa.Table], first_row: int) -> list[pa.Table]:
    """Return tables with the positions of their rows; those that have none lie one after the other from a row on."""
    found = []
    for table in tables:
        if POSITION.name not in table.column_names:
            table = table.append_column(POSITION, pa.array(np.arange(first_row, first_row + len(table))))  # noqa: PLW2901 - the same rows
        found.append(table)
        first_row += len(table)
    return found
