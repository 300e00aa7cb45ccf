"""Digests of an experiment's steps, and the first difference between the steps of two runs, from the log's rows."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, tee, zip_longest
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ray_messaging.addressing.channels import AgentId
from ray_messaging.audiences.pairs import Pairs
from ray_messaging.errors import ConfigError
from ray_messaging.eventlog.reading.event_rows import LogRow, dicts_of, rows_of
from ray_messaging.eventlog.reading.expansion import Expansion
from ray_messaging.eventlog.reading.filters import Filters
from ray_messaging.eventlog.reading.results import stored, with_ids
from ray_messaging.eventlog.reading.scan import View, scan
from ray_messaging.model.columns import IdColumn
from ray_messaging.model.joining import joined_ids
from ray_messaging.steps.box_frames import FIRST_OUTSIDE
from ray_messaging.steps.digests import (
    DigestRow,
    HeardBy,
    history_digest,
    numbered_outside,
    step_digest,
    sum_of,
)

_OF_MESSAGES = ["message_id", "step", "step_read", "ordinal", "from_id", "to_id", "subtopic", "payload"]
_OF_BROADCASTS = ["audience", "audience_version", "pairs", "hearing_agents", "kept_pairs"]
_COLUMNS = [*_OF_MESSAGES, *_OF_BROADCASTS, "fate", "rule", "labels", "in_reply_to", "expects_answer"]


def digest(view: View, *, step: int) -> bytes:
    """Return the digest of a step. A step that is not sealed has the digest of a step without messages."""
    _, sums = _sums(view, step=step)
    return step_digest([sums[step]])


def history(view: View, *, step: int) -> bytes:
    """Return the digest of all steps up to `step`."""
    messages, sums = _sums(view, step=slice(0, step + 1))
    chained = b""
    for number in range(step + 1):
        chained = history_digest(chained, number, messages[number], step_digest([sums[number]]))
    return chained


def _sums(view: View, *, step: int | slice) -> tuple[Counter[int], Counter[int]]:
    """Sum messages and digests by step, over all rows: messages from outside may be logged before earlier steps."""
    messages, sums = Counter[int](), Counter[int]()
    for row, weight in _rows(view, Filters(step=step)):
        messages[row.step] += weight
        sums[row.step] += sum_of([row], [weight])
    return messages, sums


def _rows(view: View, filters: Filters) -> Iterator[tuple[DigestRow, int]]:
    """Yield the messages of steps once each, with their weights in the count: 1, or a broadcast's number of pairs."""
    before, expansion, outside = "", Expansion(view.folder), list[pa.Table]()
    for part in scan(view, filters, stored(_COLUMNS), text=True):
        ordinals = part["ordinal"].to_numpy()  # null becomes NaN, which is in no range
        for row in dicts_of(with_ids(part.filter(pa.array((ordinals >= 0) & (ordinals < FIRST_OUTSIDE))))):
            if row["audience"] is not None:
                yield _digest_row(row, expansion), row["pairs"] or 1
            elif row["message_id"] != before:
                before = row["message_id"]
                yield _digest_row(row, expansion), 1
        outside.append(part.filter(pa.array(ordinals >= FIRST_OUTSIDE)))
    arrived = pa.concat_tables(outside) if outside else pa.table({"step": pa.array([], pa.int64())})
    for step in pc.unique(arrived["step"]).to_pylist():
        yield from _outside(arrived.filter(pc.equal(arrived["step"], step)), expansion)


def _outside(part: pa.Table, expansion: Expansion) -> Iterator[tuple[DigestRow, int]]:
    """Yield the messages from outside that a step has read, as groups count them."""
    part = part.sort_by("ordinal").combine_chunks()  # in the order of their arrival
    rows = [row if row["pairs"] else row | {"audience": None} for row in dicts_of(with_ids(part))]
    heard = expansion.hearers(part)
    plain = [at for at, row in enumerate(rows) if row["to_id"] is not None]
    hearers = joined_ids([IdColumn.of([rows[at]["to_id"] for at in plain]), *(each.hearers for each in heard)])
    pairs = Pairs(np.concatenate([np.array(plain, np.intp), *(each.rows for each in heard)]), hearers)
    yield from numbered_outside([_digest_row(row, expansion) for row in rows], pairs)


def _digest_row(row: dict[str, Any], expansion: Expansion) -> DigestRow:
    """Return the fields of a row that count for the digest, in the form in which groups compute it."""
    audience = None
    if row["audience"] is not None:
        found = expansion.audience_digest(row["audience"], row["audience_version"])
        audience = HeardBy(row["audience"], found)
    return DigestRow(
        row["step"],
        row["step_read"],
        row["from_id"],
        row["ordinal"],
        row["to_id"],
        row["subtopic"] or "",
        row["fate"],
        row["rule"] if row["fate"] == "blocked" else None,
        row["labels"] or (),
        row["payload"].encode(),
        row["in_reply_to"],
        bool(row["expects_answer"]),
        audience,
    )


_Key = tuple[Any, ...]
_PART = 4096  # rows that are compared at once
_COMPARED = (
    "message_id", "step", "step_read", "ordinal", "subtopic", "from_id", "to_id", "audience", "in_reply_to",
    "expects_answer", "payload", "labels", "fate", "rule",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Difference:
    """The first message that two logs do not have in common: its step, the agent that sent it, and its row in each log.

    `mine` or `theirs` is None if that log does not have the message.
    """

    step: int
    agent: AgentId | None
    message_id: str
    mine: LogRow | None
    theirs: LogRow | None


def first_difference(mine: Iterable[pa.Table], theirs: Iterable[pa.Table]) -> Difference | None:
    """Return the first difference between the rows of two logs, which come page by page; None if they are equal.

    It compares the fields that the digests of steps cover.

    Raises: ConfigError if neither log has messages of steps.
    """
    rows, before = 0, ""
    pairs = beside(mine, theirs)
    for one_part, other_part, equal in pairs:
        if not equal:
            pairs = chain([(one_part, other_part, False)], pairs)
            break
        rows, before = rows + len(one_part), last_id(one_part, before)
    parts, other_parts = tee(pairs)
    ours = sent_by_groups((part for part, _, _ in parts), before)
    for one, other in zip_longest(ours, sent_by_groups((part for _, part, _ in other_parts), before)):
        rows += 1
        if one is not None and other is not None and content_of(one) == content_of(other):
            continue
        first = min((row for row in (one, other) if row is not None), key=key_of)
        rows_of_it = [row if row is not None and key_of(row) == key_of(first) else None for row in (one, other)]
        assert first.step is not None
        return Difference(first.step, first.from_id, first.message_id, *rows_of_it)
    if not rows:
        raise ConfigError("neither log has messages of steps: only runs with steps=Steps() can be compared")
    return None


def beside(mine: Iterable[pa.Table], theirs: Iterable[pa.Table]) -> Iterator[tuple[pa.Table, pa.Table, bool]]:
    """Yield the rows of two logs beside each other in parts, and whether these and all earlier ones are equal.

    Equal parts need not be read row by row. Where one log has ended, its parts are empty.
    """
    equal = True
    for one, other in zip_longest(mine, theirs):
        pages = [other.slice(0, 0) if one is None else one, one.slice(0, 0) if other is None else other]
        for low in range(0, max(map(len, pages)), _PART):
            parts = [page.slice(low, _PART) for page in pages]
            equal = equal and parts[0].select(_COMPARED).equals(parts[1].select(_COMPARED))
            yield parts[0], parts[1], equal


def of_groups(part: pa.Table, before: str) -> pa.Table:
    """Return the first row of each message that a group sent, but for that with the id `before`."""
    own = part.filter(pa.array(part["ordinal"].to_numpy() < FIRST_OUTSIDE))
    ids = own["message_id"].to_numpy()
    return own.filter(pa.array(ids != np.concatenate([np.array([before], object), ids[:-1]])))


def last_id(part: pa.Table, before: str) -> str:
    """Return the id of the last message that a group sent in a part, `before` if there is none."""
    own = of_groups(part, before)
    return str(own["message_id"][-1]) if len(own) else before


def sent_by_groups(pages: Iterable[pa.Table], before: str = "") -> Iterator[LogRow]:
    """Yield the messages that groups sent after that with the id `before`, each once, in canonical order."""
    for page in pages:
        yield from rows_of(of_groups(page, before))
        before = last_id(page, before)


def content_of(row: LogRow) -> tuple[Any, ...]:
    """Return what of a message counts when runs are compared."""
    rule = row.rule if row.fate == "blocked" else None
    asked = bool(row.expects_answer), row.in_reply_to
    said = row.subtopic, row.audience, row.fate, rule, sorted(row.labels), row.text
    return key_of(row), row.step_read, *said, *asked


def key_of(row: LogRow) -> _Key:
    """Return the sort key of a row in canonical order."""
    return row.step, _rank(row.to_id), _rank(row.from_id), row.ordinal


def _rank(agent: AgentId | None) -> tuple[Any, ...]:
    if agent is None:
        return (0,)
    return (2, agent.encode()) if isinstance(agent, str) else (1, agent)
