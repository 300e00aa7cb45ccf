"""The first difference between the logs of two runs in steps."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import pyarrow as pa

from ray_messaging.addressing.channels import AgentId
from ray_messaging.errors import ConfigError
from ray_messaging.eventlog.reading.event_rows import LogRow, rows_of
from ray_messaging.steps.reading.box_frames import FIRST_OUTSIDE

_Key = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Difference:
    """The first message that two logs do not have in common: its step, the agent that sent it, and its row in each log.

    `mine` or `theirs` is None where that log has no such message.
    """

    step: int
    agent: AgentId | None
    message_id: str
    mine: LogRow | None
    theirs: LogRow | None


def first_difference(mine: Iterable[pa.Table], theirs: Iterable[pa.Table]) -> Difference | None:
    """Return the first difference between the rows of two logs, page by page; None: there is none.

    It compares what the digests of steps cover. Raises ConfigError where neither log has messages of steps.
    """
    rows = 0
    for one, other in zip_longest(_sent_by_groups(mine), _sent_by_groups(theirs)):
        rows += 1
        if one is not None and other is not None and _content(one) == _content(other):
            continue
        first = min((row for row in (one, other) if row is not None), key=_key)
        rows_of_it = [row if row is not None and _key(row) == _key(first) else None for row in (one, other)]
        assert first.step is not None
        return Difference(first.step, first.from_id, first.message_id, *rows_of_it)
    if not rows:
        raise ConfigError("neither log has messages of steps: only runs with steps=Steps() can be compared")
    return None


def _sent_by_groups(pages: Iterable[pa.Table]) -> Iterator[LogRow]:
    """Yield the messages of groups, in canonical order; one that several mailboxes have comes once."""
    before = ""
    for page in pages:
        ordinals = page["ordinal"].to_numpy()
        for row in rows_of(page.filter(pa.array(ordinals < FIRST_OUTSIDE))):
            if row.message_id != before:
                before = row.message_id
                yield row


def _content(row: LogRow) -> tuple[Any, ...]:
    rule = row.rule if row.fate == "blocked" else None
    asked = bool(row.expects_answer), row.in_reply_to
    return _key(row), row.step_read, row.subtopic, row.fate, rule, sorted(row.labels), row.text, *asked


def _key(row: LogRow) -> _Key:
    """Return the place of a row in canonical order."""
    return row.step, _rank(row.to_id), _rank(row.from_id), row.ordinal


def _rank(agent: AgentId | None) -> tuple[Any, ...]:
    if agent is None:
        return (0,)
    return (2, agent.encode()) if isinstance(agent, str) else (1, agent)
