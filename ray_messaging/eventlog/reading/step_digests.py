"""Digests of an experiment's steps, computed from the log's rows."""

from collections.abc import Iterator
from functools import partial
from itertools import groupby
from typing import Any, NamedTuple

import pyarrow as pa

from ray_messaging.eventlog.reading.event_rows import dicts_of
from ray_messaging.eventlog.reading.filtering.filters import Filters
from ray_messaging.eventlog.reading.filtering.scan import View, scan
from ray_messaging.eventlog.reading.result_columns import plain, stored, with_ids
from ray_messaging.steps.box_frames import FIRST_OUTSIDE
from ray_messaging.steps.digests import DigestRow, history_digest, step_digest, sum_of

_COLUMNS = (
    "message_id step step_read ordinal from_id to_id subtopic fate rule labels payload".split()  # noqa: SIM905 - shorter
)


class StepSum(NamedTuple):
    """The messages of one step that groups sent: their number, and their digest."""

    step: int
    messages: int
    digest: bytes


def digest(view: View, *, step: int) -> bytes:
    """Return the digest of a step: that of no messages where it is not sealed."""
    return next((found.digest for found in _sums(view, step=step)), step_digest([]))


def history(view: View, *, step: int) -> bytes:
    """Return the digest of all steps up to one."""
    sums = {found.step: found for found in _sums(view, step=slice(0, step + 1))}
    chained = b""
    for number in range(step + 1):
        found = sums.get(number) or StepSum(number, 0, step_digest([]))
        chained = history_digest(chained, number, found.messages, found.digest)
    return chained


def _sums(view: View, **fields: Any) -> Iterator[StepSum]:  # noqa: ANN401 - as a query's
    """Yield the sums of steps, as they come in the log; the rows of one follow each other."""
    for step, rows in groupby(_rows(view, Filters(**fields)), lambda row: row.step):
        messages, total = 0, 0
        for row in rows:
            messages += 1
            total += sum_of([row])
        yield StepSum(step, messages, step_digest([total]))


def _rows(view: View, filters: Filters) -> Iterator[DigestRow]:
    """Yield the messages of groups; one that several mailboxes have comes once."""
    before = ""
    for part in scan(view, filters, stored(_COLUMNS), partial(_sent_by_groups)):
        for row in dicts_of(with_ids(part)):
            if row["message_id"] != before:
                before = row["message_id"]
                yield digest_row(row)


def _sent_by_groups(part: pa.Table) -> pa.Table:
    ordinals = part["ordinal"].to_numpy()
    return plain(part.filter(pa.array(ordinals < FIRST_OUTSIDE)))  # null is no number, and so not less


def digest_row(row: dict[str, Any]) -> DigestRow:
    """Return what of a row counts for the digest, as the groups count it."""
    return DigestRow(
        row["step"],
        row["step_read"],
        row["from_id"],
        row["ordinal"],
        row["to_id"],
        row["subtopic"],
        row["fate"],
        row["rule"] if row["fate"] == "blocked" else None,
        row["labels"] or (),
        row["payload"].encode(),
    )
