"""Rows of a log as the tests write them, and the folders that hold them."""

import json
from datetime import UTC, datetime
from unittest.mock import patch

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs as pafs

from ray_messaging.eventlog.event_log import EventLog
from ray_messaging.eventlog.folder import Folder
from ray_messaging.eventlog.log_schema import OPTIONAL, SCHEMA
from ray_messaging.eventlog.reading.filters import Filters
from ray_messaging.eventlog.reading.questions import answer
from ray_messaging.eventlog.reading.scan import View, groups_with

T0 = 1_700_000_000.0  # unix s


def row(number, from_id=1, to_id=2, **facts):
    """Build a row as the writer would: message `number` of sender `s`, delivered unless the facts say otherwise."""
    subtopic = facts.pop("subtopic", "agent-chat")
    sent_at = facts.pop("sent_at", T0 + number)
    fate = facts.get("fate", "delivered")
    is_delivered = fate == "delivered"
    ends = {}
    for end, value in (("from", from_id), ("to", to_id)):
        ends[f"{end}_id"] = value if isinstance(value, int) else None
        ends[f"{end}_name"] = value if isinstance(value, str) else None
    return {
        "message_id": f"s-1-{number}",
        "step": None,
        **dict.fromkeys(OPTIONAL),
        "channel": "exps:test:user-payback" if to_id is None else f"exps:test:agents:{to_id}:{subtopic}",
        "subtopic": None if to_id is None else subtopic,
        **ends,
        "payload": json.dumps({"content": facts.pop("text", f"hello {number}")}, separators=(",", ":")),
        "payload_before": None,
        "labels": None,
        "sent_at": _time(sent_at),
        "delivered_at": _time(sent_at + 0.001) if is_delivered else None,
        "fate": fate,
        "rule": None,
        "reason": None,
        "sender": "s",
        "mailbox": "m" if is_delivered else None,
        "noted": not is_delivered,
        "entry": f"{number}-0",
        "row": 0,
    } | facts


def end_of(found, end):
    """Return a row's sender or recipient."""
    return found[f"{end}_id"] if found[f"{end}_id"] is not None else found[f"{end}_name"]


def _time(seconds):
    return datetime.fromtimestamp(seconds, UTC)


ROWS = [
    row(0, 1, 2, step=1, labels=["kind"]),
    row(1, 1, 2, sent_at=T0),
    row(2, "ann", 1, text='a "quoted", text'),
    row(3, 2, 1, fate="blocked", rule="black_list", reason="this pair is on the black list"),
    row(4, 2, 2, fate="undeliverable"),
    row(5, None, 2),
    row(6, 2, None),
    row(7, 1, 2, fate="published", payload_before='{"content":"before"}', rule="polite"),
]


def table_of(rows):
    return pa.Table.from_pylist(rows, schema=SCHEMA)


def write_folder(path, parts, *, row_group_rows=1000):
    """Write each part (a list of rows) as a segment, as the writer would; return the folder."""
    folder = Folder(path)
    folder.prepare("test")
    first = 0
    for number, rows in enumerate(parts):
        times = [found["sent_at"].timestamp() for found in rows]
        span = {"first_s": min(times), "last_s": max(times)} if times else {}
        facts = {"exp_id": "test", "epoch": 1, "first_row": first, "cursors": {}} | span
        with patch("ray_messaging.eventlog.folder.ROW_GROUP_ROWS", row_group_rows):
            folder.write(number, table_of(rows), facts)
        first += len(rows)
    return folder


def groups_read(path, fields):
    """Return the row groups of a folder's only segment that are not left out by their statistics."""
    (segment,) = Folder(path).segments()
    fragment = ds.ParquetFileFormat().make_fragment(segment.path, pafs.LocalFileSystem())
    filters, schema = Filters(**fields), fragment.physical_schema
    fragment = fragment.subset(row_group_ids=groups_with(fragment, filters.texts(schema)))
    return [group.id for each in fragment.split_by_row_group(filters.condition(schema)) for group in each.row_groups]


class ViewSource:
    """A source of segments and of rows in memory, which may grow; an event wakes the waiters."""

    live = True

    def __init__(self, folder, live=()):
        self.folder = folder
        self.tables = [table_of(rows) for rows in live]
        self.waited = []  # positions
        self.coming = []  # lists of rows that come one by one when somebody waits

    def follower(self):
        return self

    def ask(self, what, **arguments):
        return answer(View(self.folder, self.folder.segments(), self.tables), what, arguments)

    def wait(self, position, timeout_s):
        self.waited.append(position)
        if not self.coming:
            self.live = False
            return False
        self.tables.append(table_of(self.coming.pop(0)))
        return True


def log_of(folder, live=()):
    return EventLog(ViewSource(folder, live))
