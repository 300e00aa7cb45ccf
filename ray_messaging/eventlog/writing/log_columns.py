"""Columns of the event log, built from the columns of frames. Python code loops over frames, never over rows."""

from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate, groupby
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ray_messaging.audiences.cache import audience_of
from ray_messaging.eventlog.log_schema import OF_EXTENSIONS, SCHEMA, TEXT, head_of
from ray_messaging.eventlog.writing.addresses import (
    are_of_agents,
    as_texts,
    channels,
    distinct,
    ends,
    numbered_texts,
    subtopics,
)
from ray_messaging.eventlog.writing.hearers import Hearers, hearer_columns
from ray_messaging.eventlog.writing.payloads import payload_columns, sparse_column
from ray_messaging.eventlog.writing.repeated_columns import NAME, Codes, coded, nulls, places, repeated
from ray_messaging.model.batch import Batch
from ray_messaging.model.extension import Extension
from ray_messaging.model.fates import FATES, IS_SENT, facts_of
from ray_messaging.model.message_ids import NO_NUMBER, MessageIdColumn
from ray_messaging.wire.notes import LogNote

# The range of Python's datetime, in microseconds. The time in a message can be outside of this range if a sender's
# clock is wrong, or if a foreign client wrote the frame.
_FIRST_US, _LAST_US = -62_135_596_800_000_000, 253_402_300_799_999_999
_TIME = pa.timestamp("us", tz="UTC")
_LABELS = pa.list_(pa.string())
_REASONS = [said for fate in FATES if (said := facts_of(fate).reason)]
_REASON_OF = np.array([_REASONS.index(said) if (said := facts_of(fate).reason) else -1 for fate in FATES])
_PLAIN = Extension()
# If senders have on average at least this many successive rows, message ids are composed by one call for each sender.
# With fewer rows, one call for all senders is as fast.
_FEW_ROWS = 64


class LoggedPart(NamedTuple):
    """A part of the log: the rows of one stream entry that are to be logged, at least one row.

    `note` is the sender's record of which rows were blocked or rewritten, and why (None: there is none). `fates` has
    the fates of the rows.
    """

    batch: Batch
    rows: Codes | None  # the indices of the logged rows in the frame; None: all rows of the frame are logged
    entry: str
    mailbox: str | None
    fates: int | NDArray[np.uint8]
    note: LogNote | None = None
    hearers: Hearers | None = None  # None: the rows are not broadcasts, or their hearers are not known


class _Run(NamedTuple):
    """Log rows of several batches, joined to one sequence, with each batch's first row and number of rows.

    `fates` is an int if all rows have the same fate.
    """

    parts: Sequence[LoggedPart]
    starts: list[int]
    counts: list[int]
    fates: int | NDArray[np.uint8]

    @property
    def rows(self) -> int:
        return self.starts[-1] + self.counts[-1]


def record_batch(exp_id: str, parts: Sequence[LoggedPart]) -> pa.RecordBatch:
    """Build the log's rows from the contents of stream entries, in their order.

    The names of typed columns (values that senders passed as columns) contain their types.
    """
    counts = [len(part.batch) for part in parts]
    run = _Run(parts, [0, *accumulate(counts[:-1])], counts, _fates(parts, counts))
    from_ids, to_ids = ends([part.batch.from_ids for part in parts]), ends([part.batch.to_ids for part in parts])
    rule, reason, before = _notes(run)
    batches = [part.batch for part in parts]
    payloads = payload_columns([batch.lines for batch in batches], counts)
    folded = any(map(_is_folded, parts))
    topics, of = _topics(run)
    if TEXT not in payloads and not folded and are_of_agents(to_ids, topics):
        channel, subtopic = nulls(run.rows, NAME), subtopics(run.rows, topics, of)
    else:
        channel, subtopic = channels(exp_id, to_ids, topics, of)
    columns = {
        "message_id": message_ids(batches),
        "step": number_column([batch.step for batch in batches], counts, np.int64),
        "channel": channel,
        "subtopic": subtopic,
        "from_id": from_ids.numbers(),
        "to_id": to_ids.numbers(),
        "from_name": from_ids.texts(),
        "to_name": to_ids.texts(),
        "payload_before": before,
        "labels": _labels(run),
        "sent_at": _times(run),
        "delivered_at": _delivered_at(run),
        "fate": _fate(run),
        "rule": rule,
        "reason": reason,
        "sender": repeated([part.batch.sender for part in parts], counts),
        "mailbox": repeated([part.mailbox for part in parts], counts),
        "noted": pa.array(np.repeat([part.note is not None for part in parts], counts)),
        "entry": repeated([part.entry for part in parts], counts),
        "row": pa.array(np.concatenate([_places(part) for part in parts])),
    }
    columns |= extension_columns(batches) | hearer_columns([part.hearers for part in parts], counts) | payloads
    if folded:
        columns["channel"] = _channels_of_broadcasts(exp_id, run, channel)
    if len(payloads) == 1:
        return pa.RecordBatch.from_arrays([columns[name] for name in SCHEMA.names], schema=SCHEMA)
    fields = [field for field in SCHEMA if field.name in columns]
    fields += [pa.field(name, column.type) for name, column in payloads.items() if name != TEXT]
    schema = pa.schema(fields, head_of(exp_id))
    return pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)


def _is_folded(part: LoggedPart) -> bool:
    """Return whether each row of the part stands for several hearers of a broadcast."""
    return part.hearers is not None or part.batch.fold is not None


def _channels_of_broadcasts(exp_id: str, run: _Run, channel: pa.Array) -> pa.Array:
    """Return the channels of all rows.

    The channel of a broadcast contains the audience's name, because a broadcast has no recipient.
    """
    pieces = []
    for part, start, count in zip(run.parts, run.starts, run.counts, strict=True):
        found = channel.slice(start, count).dictionary_decode()
        if _is_folded(part):
            head = f"exps:{exp_id}:audiences:{audience_of(part.batch).name}"
            topics = pa.array([f"{head}:{each}" for each in part.batch.topics])
            codes = np.zeros(count, np.int64) if part.batch.topic is None else part.batch.topic
            found = topics.take(pa.array(codes))
        pieces.append(found)
    return pa.concat_arrays(pieces).dictionary_encode()


def _places(part: LoggedPart) -> Codes:
    return places(len(part.batch)) if part.rows is None else part.rows


def _spread(values: Iterable[Any], counts: Sequence[int], dtype: type[Any]) -> NDArray[Any]:
    """Join the parts of a column.

    Each part is an array with an element for each row, or a single value for all of its rows. The result is a copy,
    because a view would keep the whole frame in memory.

    Args:
        values: The parts.
        counts: The number of rows of each part.
        dtype: The type of the column.
    """
    column, start = np.empty(sum(counts), dtype), 0
    for value, count in zip(values, counts, strict=True):
        column[start : start + count] = value
        start += count
    return column


def _times(run: _Run) -> pa.Array:
    times = [part.batch.sent_at for part in run.parts]
    if any(isinstance(time, np.ndarray) for time in times):
        return pa.array(_micros(_spread(times, run.counts, np.float64))).view(_TIME)
    return pa.array(np.repeat(_micros(np.array(times, np.float64)), run.counts)).view(_TIME)


def _micros(seconds: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return times in microseconds, clipped to the range of datetime."""
    with np.errstate(invalid="ignore", over="ignore"):
        micros = np.nan_to_num(np.rint(seconds * 1e6), nan=0.0, posinf=_LAST_US, neginf=_FIRST_US)
    # The limits are applied to ints, because a float cannot represent the last microsecond exactly.
    whole: NDArray[np.int64] = np.clip(micros, -9e18, 9e18).astype(np.int64)
    return np.clip(whole, _FIRST_US, _LAST_US)


def _delivered_at(run: _Run) -> pa.Array:
    taken = np.array([int(part.entry.partition("-")[0]) * 1000 for part in run.parts], np.int64)
    nowhere = np.broadcast_to(~IS_SENT[run.fates], run.rows)
    return pa.array(np.repeat(taken, run.counts), mask=nowhere if nowhere.any() else None).view(_TIME)


def _fates(parts: Sequence[LoggedPart], counts: Sequence[int]) -> int | NDArray[np.uint8]:
    found = [part.fates for part in parts]
    if all(isinstance(fate, int) and fate == found[0] for fate in found):
        return found[0]
    return _spread(found, counts, np.uint8)


def _fate(run: _Run) -> pa.Array:
    if isinstance(run.fates, int):
        return repeated([FATES[run.fates]], [run.rows])
    return coded(pa.array(run.fates.astype(np.int32)), FATES)


def _topics(run: _Run) -> tuple[list[str], Codes | None]:
    """Return the distinct topics, and each row's index among them (None: all rows have the first topic)."""
    table: dict[str, int] = {}
    maps = [[table.setdefault(topic, len(table)) for topic in part.batch.topics] for part in run.parts]
    if len(table) == 1:
        return [*table], None
    of = np.empty(run.rows, np.int32)
    for part, start, count, own in zip(run.parts, run.starts, run.counts, maps, strict=True):
        topic = part.batch.topic
        of[start : start + count] = own[0] if topic is None else np.array(own, np.int32)[topic]
    return [*table], of


def _labels(run: _Run) -> pa.Array:
    borne = [
        (name, rows.astype(np.int64) + start)
        for part, start in zip(run.parts, run.starts, strict=True)
        for name, rows in sorted(part.batch.labels.items())
        if len(rows)
    ]
    if not borne:
        return nulls(run.rows, _LABELS)
    rows = np.concatenate([rows for _, rows in borne])
    names = np.repeat(np.arange(len(borne)), [len(rows) for _, rows in borne])
    order = np.argsort(rows, kind="stable")
    counts = np.bincount(rows, minlength=run.rows)
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    values = pa.array([name for name, _ in borne], pa.string()).take(pa.array(names[order]))
    return pa.ListArray.from_arrays(pa.array(offsets), values, mask=pa.array(counts == 0))


def _notes(run: _Run) -> tuple[pa.Array, pa.Array, pa.Array]:
    """Return three columns: the rule that acted on a message, the reason, and the payload before a rewrite.

    If several rules acted on a message, the columns have the last one.
    """
    rule, reason = np.full(run.rows, -1, np.int32), np.full(run.rows, _REASON_OF[run.fates], np.int32)
    if (reason < 0).all() and not any(part.note and (part.note.why or part.note.before) for part in run.parts):
        none = nulls(run.rows, NAME)
        return none, none, sparse_column(run.rows, {})
    rules: dict[str, int] = {}
    reasons = {said: place for place, said in enumerate(_REASONS)}
    before: dict[int, bytes] = {}
    for part, start in zip(run.parts, run.starts, strict=True):
        if part.note is None:
            continue
        for why in part.note.why:
            rows = np.frombuffer(why.rows, "<u4").astype(np.int64) + start
            rule[rows] = rules.setdefault(why.rule, len(rules))
            reason[rows] = reasons.setdefault(why.reason, len(reasons))
        for said in part.note.before:
            before.update(dict.fromkeys((start + np.frombuffer(said.rows, "<u4").astype(np.int64)).tolist(), said.line))
    return (
        coded(pa.array(rule, mask=rule < 0), [*rules]),
        coded(pa.array(reason, mask=reason < 0), [*reasons]),
        sparse_column(run.rows, before),
    )


def extension_columns(batches: Sequence[Batch]) -> dict[str, pa.Array]:
    """Return, by name, the columns of facts that only some messages have, such as the step or the audience."""
    counts = [len(batch) for batch in batches]
    if all(batch.extension is None for batch in batches):
        return {name: nulls(sum(counts), SCHEMA.field(name).type) for name in OF_EXTENSIONS}
    found = [batch.extension or _PLAIN for batch in batches]

    def numbers(value: Callable[[Extension], NDArray[Any] | int | None]) -> pa.Array:
        return number_column([value(extension) for extension in found], counts, np.int64)

    return {
        "step_read": numbers(lambda extension: extension.deliver),
        "ordinal": numbers(lambda extension: extension.ordinal),
        "audience": repeated([extension.audience and extension.audience.name for extension in found], counts),
        "audience_version": numbers(lambda extension: extension.audience and extension.audience.version),
        "in_reply_to": _message_ids([extension.in_reply_to for extension in found], counts),
        "expects_answer": number_column([extension.expects_answer for extension in found], counts, np.bool_),
        "caused_by": _message_ids([extension.caused_by for extension in found], counts),
    }


def number_column(found: Sequence[NDArray[Any] | int | None], counts: Sequence[int], dtype: type[Any]) -> pa.Array:
    """Return one column for the rows of all batches.

    Args: `found` has for each batch an array, one value for all its rows, or None, which becomes null.
    """
    if all(value is None for value in found):
        return nulls(sum(counts), pa.from_numpy_dtype(dtype))
    column = _spread((0 if value is None else value for value in found), counts, dtype)
    missing = [value is None for value in found]
    return pa.array(column, mask=np.repeat(missing, counts) if any(missing) else None)


def _message_ids(found: Sequence[MessageIdColumn | None], counts: Sequence[int]) -> pa.Array:
    if all(column is None for column in found):
        return nulls(sum(counts), pa.string())
    parts = [column or MessageIdColumn.of([None] * count) for column, count in zip(found, counts, strict=True)]
    ids = MessageIdColumn.joined(parts)
    whole = ids.numbers == NO_NUMBER
    texts = pa.array(ids.texts, pa.string()).take(pa.array(ids.all_places()))
    tails = pc.cast(pa.array(ids.numbers, mask=whole), pa.string()).fill_null("")
    column = pc.binary_join_element_wise(texts, tails, "")
    return pc.if_else(pc.equal(column, ""), pa.scalar(None, pa.string()), column)


def message_ids(batches: Sequence[Batch]) -> pa.StringArray:
    """Return the ids of all messages, in the form of `Batch.message_id`."""
    runs = groupby(batches, lambda batch: batch.ordinal is not None)
    made = [_ids_in_step([*run]) if in_step else _ids([*run]) for in_step, run in runs]
    return made[0] if len(made) == 1 else pa.concat_arrays(made)


def _ids_in_step(batches: Sequence[Batch]) -> pa.StringArray:
    """Return the ids of messages that were sent in steps.

    Such an id consists of step, ordinal and from_id. Each distinct id is composed only once.
    """
    steps, step_of = distinct(
        np.concatenate([np.broadcast_to(np.asarray(each.step, np.int64), len(each)) for each in batches])
    )
    ordinals, ordinal_of = distinct(
        np.concatenate([each.ordinal for each in batches if each.ordinal is not None]).astype(np.int64)
    )
    names, name_of = as_texts(ends([each.from_ids for each in batches]))
    shape = (len(steps), len(ordinals), len(names))
    found, codes = distinct(np.ravel_multi_index((step_of, ordinal_of, name_of), shape))
    step, ordinal, name = map(pa.array, np.unravel_index(found, shape))
    step, ordinal = (
        pc.cast(pa.array(values), pa.string()).take(of) for values, of in ((steps, step), (ordinals, ordinal))
    )
    return pc.binary_join_element_wise(step, ordinal, names.take(name), "-").take(pa.array(codes))


def _ids(batches: Sequence[Batch]) -> pa.StringArray:
    turns = [(prefix, _numbers([*found])) for prefix, found in groupby(batches, _prefix)]
    if len(turns) * _FEW_ROWS <= sum(map(len, batches)):
        texts = [numbered_texts(prefix, numbers) for prefix, numbers in turns]
        return texts[0] if len(texts) == 1 else pa.concat_arrays(texts)
    of = np.repeat(np.arange(len(turns), dtype=np.int32), [len(numbers) for _, numbers in turns])
    prefixes = pa.array([prefix for prefix, _ in turns]).take(pa.array(of))
    numbers = pa.array(np.concatenate([numbers for _, numbers in turns]))
    return pc.binary_join_element_wise(prefixes, pc.cast(numbers, pa.string()), "")


def _prefix(batch: Batch) -> str:
    return f"{batch.sender}-{batch.epoch}-"


def _numbers(batches: Sequence[Batch]) -> NDArray[np.int64]:
    return np.concatenate(
        [
            each.first + (np.arange(len(each)) if each.numbers is None else each.numbers.astype(np.int64))
            for each in batches
        ]
    )
