"""Preview of a rule: it judges messages of the log that have passed."""

import time
from collections.abc import Iterable, Mapping
from itertools import groupby
from typing import Any

import numpy as np

from ray_messaging.eventlog.event_log import EventLog
from ray_messaging.eventlog.reading.event_rows import dicts_of
from ray_messaging.inspector.sources.log_rows import row_of
from ray_messaging.inspector.texts import name
from ray_messaging.inspector.values import Preview, Row
from ray_messaging.interception.rules import RateLimit, Rule
from ray_messaging.interception.rules.rule import Verdict
from ray_messaging.model.batch import Batch
from ray_messaging.model.columns import IdColumn, PayloadColumn

PERIOD_S = 60.0
MOST = 5_000  # messages
WIDTH = 10_000  # characters of one
_EXAMPLES = 8


def preview(log: EventLog, exp_id: str, rule: Rule) -> Preview:
    """Judge the last minute's messages that passed, at most MOST of them, by a new rule; raise LogError."""
    since = time.time() - PERIOD_S
    table = log.recent(limit=MOST, width=WIDTH + 1, fate=["delivered", "published"], since=since)
    rows = [found for found in dicts_of(table) if found["audience"] is None]
    whole = [found for found in rows if len(found["payload"]) <= WIDTH]
    found = [*judged(whole, exp_id, rule)]
    times = [row["sent_at"] for row in whole]
    blocked = [(row, verdict) for row, verdict in found if verdict.blocked]
    return Preview(
        name(rule.name),
        len(whole),
        len(blocked),
        len(found) - len(blocked),
        max(times, default=0.0) - min(times, default=0.0),
        len(rows) - len(whole),
        [_example(row, rule, verdict) for row, verdict in blocked[:_EXAMPLES]],
    )


def judged(rows: Iterable[Mapping[str, Any]], exp_id: str, rule: Rule) -> Iterable[tuple[Mapping[str, Any], Verdict]]:
    """Yield the rows that a rule does not simply let pass, second by second: rates count by the log's times."""
    if isinstance(rule, RateLimit):
        moment = [0.0]
        rule = RateLimit(rule.per_second, rule.per_round, name=rule.name, clock=lambda: moment[0])
    else:
        moment = []
    in_time = sorted(rows, key=lambda row: row["sent_at"])
    for second, group in groupby(in_time, key=lambda row: int(row["sent_at"])):
        moment[:] = [float(second)]
        part = [*group]
        verdicts = rule.check_batch(batch_of(part), exp_id)
        yield from ((part[place], verdict) for place, verdict in sorted(verdicts.items()))


def batch_of(rows: list[Mapping[str, Any]]) -> Batch:
    """Return rows of the log as the batch that a rule judges."""
    topics = dict.fromkeys(row["subtopic"] or row["channel"] for row in rows)
    numbers = {topic: place for place, topic in enumerate(topics)}
    return Batch(
        sender="preview",
        epoch=0,
        first=0,
        rows=len(rows),
        from_ids=IdColumn.of([row["from_id"] for row in rows]),
        to_ids=IdColumn.of([row["to_id"] for row in rows]),
        topics=(*topics,),
        topic=np.array([numbers[row["subtopic"] or row["channel"]] for row in rows], np.uint16),
        sent_at=np.array([row["sent_at"] for row in rows]),
        lines=PayloadColumn.of([row["payload"].encode() for row in rows], raw=True),
    )


def _example(row: Mapping[str, Any], rule: Rule, verdict: Verdict) -> Row:
    return row_of({**row, "rule": rule.name, "reason": verdict.reason, "fate": "blocked"})
