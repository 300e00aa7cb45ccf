"""Digests of an experiment's steps, and the first difference between two runs, computed from the log's rows."""

from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import chain, groupby, pairwise, tee, zip_longest
from typing import Any

import numpy as np
import pyarrow as pa

from ray_messaging.addressing.channels import AgentId
from ray_messaging.audiences.hearer_pairs import Pairs
from ray_messaging.errors import ConfigError, LogError
from ray_messaging.eventlog.folder_records import absent_rows
from ray_messaging.eventlog.reading.event_rows import LogRow, dicts_of, rows_of
from ray_messaging.eventlog.reading.expansion import Expansion
from ray_messaging.eventlog.reading.filters import Filters
from ray_messaging.eventlog.reading.results import stored, with_ids
from ray_messaging.eventlog.reading.scan import View, scan
from ray_messaging.model.columns import IdColumn
from ray_messaging.model.fates import BLOCKED, FATES
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
_COLUMNS = [*_OF_MESSAGES, *_OF_BROADCASTS, "fate", "rule", "labels", "in_reply_to", "expects_answer", "noted"]


def digest(view: View, *, step: int) -> bytes:
    """Return a hash of the messages of one step.

    Before the step has ended for all groups, the log can have only the step's messages from outside, so the hash is not
    final.
    """
    _, sums = _sums(view, step=step)
    return step_digest([sums[step]])


def history(view: View, *, step: int) -> bytes:
    """Return a hash of the messages of all steps up to `step`."""
    messages, sums = _sums(view, step=slice(0, step + 1))
    chained = b""
    for number in range(step + 1):
        chained = history_digest(chained, number, messages[number], step_digest([sums[number]]))
    return chained


def _sums(view: View, *, step: int | slice) -> tuple[Counter[int], Counter[int]]:
    """Return, by step, the number of messages, and the sum of their hashes, from which the step's digest is made.

    The whole log is searched, because messages from outside of steps may be logged before those of earlier steps.

    Raises: LogError if a file of the log is gone.
    """
    if absent := absent_rows(view.folder, view.segments, view.end):
        raise LogError(f"digests cannot be computed from the log: {absent}", path=view.folder.where)
    messages, sums = Counter[int](), Counter[int]()
    for row, weight in _rows(view, Filters(step=step)):
        messages[row.step] += weight
        sums[row.step] += sum_of([row], [weight])
    return messages, sums


def _rows(view: View, filters: Filters) -> Iterator[tuple[DigestRow, int]]:
    """Yield each message of the steps once, with the number of messages for which it counts.

    A message counts for 1, and a broadcast for its number of hearers.
    """
    before, expansion, outside = "", Expansion(view.folder), list[pa.Table]()
    for part in scan(view, filters, stored(_COLUMNS), text=True):
        ordinals = part["ordinal"].to_numpy()  # rows without an ordinal have NaN, which is in no range
        for row in dicts_of(with_ids(part.filter(pa.array((ordinals >= 0) & (ordinals < FIRST_OUTSIDE))))):
            if row["audience"] is not None:
                yield _digest_row(row, expansion), row["pairs"] or 1
            elif row["message_id"] != before:
                before = row["message_id"]
                yield _digest_row(row, expansion), 1
        # Messages from outside that a rule rewrote are left out, because the digests that groups compute leave them
        # out, too.
        noted = part["noted"].to_numpy()
        outside.append(part.filter(pa.array((ordinals >= FIRST_OUTSIDE) & ~noted)))
    if not outside:
        return
    # Messages from outside are read in the order in which they arrived.
    arrived = pa.concat_tables(outside).sort_by([("step", "ascending"), ("ordinal", "ascending")])
    places = [*np.unique(arrived["step"].to_numpy(), return_index=True)[1].tolist(), len(arrived)]
    for low, high in pairwise(places):
        yield from _outside(arrived.slice(low, high - low), expansion)


def _outside(part: pa.Table, expansion: Expansion) -> Iterator[tuple[DigestRow, int]]:
    """Yield the messages from outside of steps that were read in a step, each with how many messages it stands for.

    A broadcast may stand for several messages.

    Args: `part` has these messages in the order of their arrival.
    """
    part = part.combine_chunks()
    rows = [row if row["pairs"] else row | {"audience": None} for row in dicts_of(with_ids(part))]
    heard = expansion.hearers(part)
    plain = [at for at, row in enumerate(rows) if row["to_id"] is not None]
    hearers = joined_ids([IdColumn.of([rows[at]["to_id"] for at in plain]), *(each.hearers for each in heard)])
    pairs = Pairs(np.concatenate([np.array(plain, np.intp), *(each.rows for each in heard)]), hearers)
    yield from numbered_outside([_digest_row(row, expansion) for row in rows], pairs)


def _digest_row(row: dict[str, Any], expansion: Expansion) -> DigestRow:
    """Return the fields of a row that a step's digest covers, in the form from which groups compute the digest."""
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
        row["rule"] if row["fate"] == FATES[BLOCKED] else None,
        row["labels"] or (),
        row["payload"].encode(),
        row["in_reply_to"],
        bool(row["expects_answer"]),
        audience,
    )


_PART = 4096  # the number of rows that are compared at a time
_COMPARED = (
    "message_id", "step", "step_read", "ordinal", "subtopic", "from_id", "to_id", "audience", "in_reply_to",
    "expects_answer", "payload", "labels", "fate", "rule",
)  # fmt: skip
# An agent's messages in a step are compared each with each, to find messages whose order has changed. If that would be
# more comparisons than this, the k-th message to each recipient is compared with the k-th in the other run.
_MUCH = 2**20
Rows = list[LogRow]
# A message of one run, and the message of the other run that corresponds to it. None: that run has no such message.
Unequal = tuple[LogRow | None, LogRow | None]


@dataclass(frozen=True, slots=True)
class Difference:
    """The first message in which two logs differ: its step, the agent that sent it, and its row in each log.

    `mine` or `theirs` is None if that log does not have the message.
    """

    step: int
    agent: AgentId | None
    message_id: str
    mine: LogRow | None
    theirs: LogRow | None


def first_difference(mine: Iterable[pa.Table], theirs: Iterable[pa.Table]) -> Difference | None:
    """Return the first difference between the rows of two logs, whose pages are given; None if the logs are equal.

    The messages of each agent are compared: their payloads, recipients, topics, order, fates and labels, and the rules
    that blocked messages. Message ids, and messages from outside of steps, are not compared.

    Raises: ConfigError if neither log has messages of steps.
    """
    rows = 0

    def counted(pages: Iterable[pa.Table]) -> Iterator[pa.Table]:
        nonlocal rows
        for page in pages:
            rows += len(page) - page["step"].null_count
            yield page

    _, others = beside(counted(mine), counted(theirs))
    for _, ours, those in others:
        if found := unequal(ours, those):
            return _first(found)
    if not rows:
        raise ConfigError("neither log has messages of steps, and only runs with steps=Steps() can be compared")
    return None


def _first(found: Sequence[Unequal]) -> Difference:
    """Return the difference whose message comes first, in the order that is the same in all runs."""
    mine, theirs = min(found, key=lambda pair: min(_place(row) for row in pair if row is not None))
    first = mine or theirs
    assert first is not None
    assert first.step is not None
    return Difference(first.step, first.from_id, first.message_id, mine, theirs)


def beside(
    mine: Iterable[pa.Table], theirs: Iterable[pa.Table]
) -> tuple[dict[int, Counter[bool]], Iterator[tuple[int, Rows, Rows]]]:
    """Compare two logs: skip the beginnings in which they are equal, and return the rest step by step.

    Messages from outside of steps are left out.

    Returns: for each step, how many of the skipped messages were blocked (True) and how many were not (False); and an
    iterator over the later steps, with the messages of each log.
    """
    equal: defaultdict[int, Counter[bool]] = defaultdict(Counter)
    before: _Message = None
    pairs = _in_parts(mine, theirs)
    for one, other in pairs:
        if not one.select(_COMPARED).equals(other.select(_COMPARED)):
            pairs = chain([(one, other)], pairs)
            break
        counts = _of_groups(one, before).group_by(["step", "fate"]).aggregate([([], "count_all")])
        for row in counts.to_pylist():
            equal[row["step"]][row["fate"] == FATES[BLOCKED]] += row["count_all"]
        before = _last(one, before)
    parts, other_parts = tee(pairs)
    ours, those = _sent((part for part, _ in parts), before), _sent((part for _, part in other_parts), before)
    return equal, _by_step(ours, those)


def _in_parts(mine: Iterable[pa.Table], theirs: Iterable[pa.Table]) -> Iterator[tuple[pa.Table, pa.Table]]:
    """Yield pairs of parts, one from each of two logs, with at most _PART rows. A log that has ended gives no rows."""
    for one, other in zip_longest(mine, theirs):
        pages = [other.slice(0, 0) if one is None else one, one.slice(0, 0) if other is None else other]
        for low in range(0, max(map(len, pages)), _PART):
            yield pages[0].slice(low, _PART), pages[1].slice(low, _PART)


_Message = tuple[str, AgentId | None] | None  # the id and the recipient of a message


def _of_groups(part: pa.Table, before: _Message) -> pa.Table:
    """Return the first row of each message that a group sent.

    A message may have several rows. Rows of `before`, the last message of the part before, are left out.
    """
    own = part.filter(pa.array(part["ordinal"].to_numpy() < FIRST_OUTSIDE))
    keys = [before, *_messages(own)]
    return own.filter(pa.array([key != earlier for earlier, key in pairwise(keys)], pa.bool_()))


def _messages(own: pa.Table) -> Iterator[_Message]:
    return zip(own["message_id"].to_pylist(), own["to_id"].to_pylist(), strict=True)


def _last(part: pa.Table, before: _Message) -> _Message:
    """Return the last message in `part` that a group sent, or `before` if there is none."""
    own = part.filter(pa.array(part["ordinal"].to_numpy() < FIRST_OUTSIDE))
    return next(_messages(own.slice(len(own) - 1))) if len(own) else before


def _sent(parts: Iterable[pa.Table], before: _Message) -> Iterator[LogRow]:
    """Yield the messages that groups sent, each only once, in the order that is the same in all runs.

    `before` is the message that comes just before the first one.
    """
    for part in parts:
        yield from rows_of(_of_groups(part, before))
        before = _last(part, before)


def _by_step(ours: Iterator[LogRow], those: Iterator[LogRow]) -> Iterator[tuple[int, Rows, Rows]]:
    """Yield each step in which at least one of two logs has messages, with the messages of both logs."""
    runs = [groupby(rows, key=lambda row: row.step) for rows in (ours, those)]
    heads = [next(run, None) for run in runs]
    while steps := [head[0] for head in heads if head is not None and head[0] is not None]:
        step, found = min(steps), list[Rows]()
        for at, head in enumerate(heads):
            there = head is not None and head[0] == step
            found.append([*head[1]] if there and head is not None else [])
            heads[at] = next(runs[at], None) if there else head
        yield step, found[0], found[1]


def unequal(mine: Rows, theirs: Rows) -> list[Unequal]:
    """Return the messages in which two runs differ in a step, agent by agent.

    Each message comes with a message of the other run to the same recipient, if there is one.
    """
    found: list[Unequal] = []
    agents: dict[AgentId | None, tuple[Rows, Rows]] = {}
    for side, rows in enumerate((mine, theirs)):
        for row in rows:
            agents.setdefault(row.from_id, ([], []))[side].append(row)
    for sides in agents.values():
        one, other = (sorted(rows, key=lambda row: (row.ordinal, _rank(row.to_id))) for rows in sides)
        said, told = ([_content(row) for row in rows] for rows in (one, other))
        if said == told:
            continue
        if len(said) * len(told) > _MUCH:
            blocks = [(0, len(said), 0, len(told))]
        else:
            codes = SequenceMatcher(None, said, told, autojunk=False).get_opcodes()
            blocks = [places for kind, *places in codes if kind != "equal"]  # type: ignore[misc]
        for low, high, begin, end in blocks:
            found += _paired(one[low:high], other[begin:end])
    return found


def _paired(mine: Rows, theirs: Rows) -> Iterator[Unequal]:
    """Yield the differences between the messages that an agent sent in two runs.

    The messages to the same recipient are compared in their order. A difference is a pair of unequal messages, or a
    pair of None and a message that has no counterpart in the other run.
    """
    waiting: defaultdict[AgentId | None, deque[LogRow]] = defaultdict(deque)
    for row in theirs:
        waiting[row.to_id].append(row)
    for row in mine:
        match = waiting[row.to_id].popleft() if waiting[row.to_id] else None
        if match is None or _content(row) != _content(match):
            yield row, match
    yield from ((None, row) for rows in waiting.values() for row in rows)


def _content(row: LogRow) -> tuple[Any, ...]:
    """Return the values of a message that must be equal in two runs."""
    rule = row.rule if row.fate == FATES[BLOCKED] else None
    question = None if row.in_reply_to is None else _asked(row.in_reply_to)
    said = row.subtopic, row.audience, row.fate, rule, tuple(sorted(row.labels)), row.text
    return row.to_id, row.step_read, *said, bool(row.expects_answer), question


def _asked(message_id: str) -> tuple[str, str]:
    """Return the step of a question, and the agent that asked it, from the question's message id."""
    step, _, rest = message_id.partition("-")
    return step, rest.partition("-")[2]


def _place(row: LogRow) -> tuple[Any, ...]:
    """Return a key for sorting messages into an order that is the same in all runs."""
    return row.step, _rank(row.to_id), _rank(row.from_id), row.ordinal


def _rank(agent: AgentId | None) -> tuple[Any, ...]:
    if agent is None:
        return (0,)
    return (2, agent.encode()) if isinstance(agent, str) else (1, agent)
