"""The columns of the event log out of those of frames; what is Python here is done per frame, not per row."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ray_messaging.eventlog.schema import SCHEMA
from ray_messaging.eventlog.writing.payloads import payload_column, sparse_column
from ray_messaging.frames import Batch
from ray_messaging.ids import INT, NONE, STR, Ids
from ray_messaging.lines import Lines
from ray_messaging.notes import Note
from ray_messaging.receipt import FATES, NO_LISTENER, PUBLISHED, UNDELIVERABLE

# The times that Python's datetime can hold, in microseconds: a sender's clock, or a foreign frame, may say anything.
_FIRST_US, _LAST_US = -62_135_596_800_000_000, 253_402_300_799_999_999
_TIME = pa.timestamp("us", tz="UTC")
_NAME = pa.dictionary(pa.int32(), pa.string())
_FATES = pa.array(FATES)

Codes = NDArray[np.int32]


class Part(NamedTuple):
    """The rows of one entry that belong in the log."""

    batch: Batch
    rows: Codes | None  # where they stood in the frame; None: it is whole
    entry: str
    mailbox: str | None
    fates: int | NDArray[np.uint8]
    note: Note | None = None


class _Run(NamedTuple):
    """Some parts as one run of rows: `of` (int32) has the part of each row, `starts` the first row of each part."""

    parts: Sequence[Part]
    starts: list[int]
    of: Codes

    @property
    def rows(self) -> int:
        return len(self.of)


def record_batch(exp_id: str, parts: Sequence[Part]) -> pa.RecordBatch:
    """Build the rows of some parts, in their order."""
    counts = [len(part.batch) for part in parts]
    starts = np.cumsum([0, *counts[:-1]]).tolist()
    run = _Run(parts, starts, np.repeat(np.arange(len(parts), dtype=np.int32), counts))
    fates = _each(run, lambda part: part.fates, np.uint8)
    from_id, from_name, _, _ = _ids([part.batch.from_ids for part in parts])
    to_id, to_name, to_texts, to_codes = _ids([part.batch.to_ids for part in parts])
    channel, subtopic = _channels(exp_id, run, to_texts, to_codes)
    rule, reason, before = _notes(run, fates)
    columns = {
        "message_id": _message_ids(run),
        "step": _steps(run),
        "channel": channel,
        "subtopic": subtopic,
        "from_id": from_id,
        "to_id": to_id,
        "from_name": from_name,
        "to_name": to_name,
        "payload": payload_column([_lines(part) for part in parts]),
        "payload_before": before,
        "labels": _labels(run),
        "sent_at": _times(run),
        "delivered_at": _delivered_at(run, fates),
        "fate": pa.DictionaryArray.from_arrays(pa.array(fates.astype(np.int32)), _FATES),
        "rule": rule,
        "reason": reason,
        "sender": _names(run, lambda part: part.batch.sender),
        "mailbox": _names(run, lambda part: part.mailbox),
        "noted": pa.array(np.array([part.note is not None for part in parts])[run.of]),
        "entry": _names(run, lambda part: part.entry),
        "row": pa.array(_each(run, _places, np.int32)),
    }
    return pa.RecordBatch.from_arrays([columns[name] for name in SCHEMA.names], schema=SCHEMA)


def _lines(part: Part) -> Lines:
    assert part.batch.lines is not None
    return part.batch.lines


def _places(part: Part) -> Codes:
    return np.arange(len(part.batch), dtype=np.int32) if part.rows is None else part.rows


def _each(run: _Run, value: Callable[[Part], Any], dtype: Any) -> NDArray[Any]:  # noqa: ANN401 - numpy's dtype
    """Return a column that each part has as an array, or as one value for all its rows; a view would keep the frame."""
    column = np.empty(run.rows, dtype)
    for part, start in zip(run.parts, run.starts, strict=True):
        column[start : start + len(part.batch)] = value(part)
    return column


def _names(run: _Run, value: Callable[[Part], str | None]) -> pa.DictionaryArray:
    """Return a column that is one name, or null, for all rows of a part."""
    table: dict[str, int] = {}
    found = [None if name is None else table.setdefault(name, len(table)) for name in map(value, run.parts)]
    return _coded(pa.array(found, pa.int32()).take(pa.array(run.of)), table)


def _coded(codes: pa.Array, names: Iterable[str]) -> pa.DictionaryArray:
    return pa.DictionaryArray.from_arrays(codes, pa.array([*names], pa.string()))


def _message_ids(run: _Run) -> pa.Array:
    numbers = pc.cast(pa.array(_each(run, _numbers, np.int64)), pa.string())
    prefixes = [f"{part.batch.sender}-{part.batch.epoch}-" for part in run.parts]
    if len(set(prefixes)) == 1:
        return pc.utf8_replace_slice(numbers, 0, 0, prefixes[0])
    return pc.binary_join_element_wise(pa.array(prefixes).take(pa.array(run.of)), numbers, "")


def _numbers(part: Part) -> NDArray[np.int64]:
    batch = part.batch
    return batch.first + (np.arange(len(batch)) if batch.numbers is None else batch.numbers.astype(np.int64))


def _steps(run: _Run) -> pa.Array:
    steps = [part.batch.step for part in run.parts]
    if all(step is None for step in steps):
        return pa.nulls(run.rows, pa.int64())
    values = _each(run, lambda part: 0 if part.batch.step is None else part.batch.step, np.int64)
    return pa.array(values, mask=np.array([step is None for step in steps])[run.of])


def _times(run: _Run) -> pa.Array:
    seconds = _each(run, lambda part: part.batch.sent_at, np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        micros = np.nan_to_num(np.rint(seconds * 1e6), nan=0.0, posinf=_LAST_US, neginf=_FIRST_US)
    # A float cannot hold the last microsecond: what is above is cut only once it is an int.
    micros = np.clip(micros, -9e18, 9e18).astype(np.int64)
    return pa.array(np.clip(micros, _FIRST_US, _LAST_US)).view(_TIME)


def _delivered_at(run: _Run, fates: NDArray[np.uint8]) -> pa.Array:
    times = np.array([int(part.entry.partition("-")[0]) * 1000 for part in run.parts], np.int64)
    return pa.array(times[run.of], mask=fates > PUBLISHED).view(_TIME)


def _ids(columns: Sequence[Ids]) -> tuple[pa.Array, pa.Array, pa.Array, Codes]:
    """Return ids as ints, as names, and as codes (int32) of their texts; the text of None is "None"."""
    values = np.concatenate([ids.values for ids in columns])
    if all(ids.kinds is None for ids in columns):
        encoded = pc.dictionary_encode(pa.array(values))
        texts = pc.cast(encoded.dictionary, pa.string())
        return pa.array(values), pa.nulls(len(values), _NAME), texts, encoded.indices.to_numpy()
    kinds = np.concatenate([np.full(len(ids), INT, np.uint8) if ids.kinds is None else ids.kinds for ids in columns])
    table: dict[str, int] = {}
    start = 0
    for ids in columns:
        if ids.strings:
            places = np.array([table.setdefault(name, len(table)) for name in ids.strings], np.int64)
            own, named = values[start : start + len(ids)], kinds[start : start + len(ids)] == STR
            own[named] = places[own[named]]
        start += len(ids)
    numbers = pa.array(values, mask=kinds != INT)
    names = _coded(pa.array(np.where(kinds == STR, values, 0).astype(np.int32), mask=kinds != STR), table)
    encoded = pc.dictionary_encode(numbers)
    codes = encoded.indices.fill_null(0).to_numpy(zero_copy_only=False).copy()
    ints = len(encoded.dictionary)
    codes[kinds == STR] = ints + values[kinds == STR]
    codes[kinds == NONE] = ints + len(table)
    texts = pa.concat_arrays([pc.cast(encoded.dictionary, pa.string()), pa.array([*table, "None"], pa.string())])
    return numbers, names, texts, codes


def _channels(exp_id: str, run: _Run, texts: pa.Array, codes: Codes) -> tuple[pa.Array, pa.Array]:
    """Return channel and subtopic; a channel's text is built once for each that is there."""
    table: dict[str, int] = {}
    maps = [np.array([table.setdefault(topic, len(table)) for topic in part.batch.topics]) for part in run.parts]
    if len(table) == 1:
        topics = np.zeros(run.rows, np.int32)
    else:
        own = dict(zip(map(id, run.parts), maps, strict=True))
        topics = _each(run, lambda part: _topics(part.batch, own[id(part)]), np.int32)
    plain = np.array([topic[0] == ":" for topic in table])
    subtopic = _coded(pa.array(topics, mask=plain[topics]) if plain.any() else pa.array(topics), table)
    keys = codes.astype(np.int64) * len(table) + topics
    if plain.any():  # no id stands in a plain channel
        keys = np.where(plain[topics], len(texts) * len(table) + topics, keys)
    encoded = pc.dictionary_encode(pa.array(keys))
    texts = pa.concat_arrays([texts, pa.array([""])])
    found = encoded.dictionary.to_numpy()
    heads = pa.array([topic[1:] if topic[0] == ":" else f"exps:{exp_id}:agents:" for topic in table])
    tails = pa.array(["" if topic[0] == ":" else f":{topic}" for topic in table])
    ids, of = texts.take(pa.array(found // len(table))), pa.array(found % len(table))
    channels = pc.binary_join_element_wise(heads.take(of), ids, tails.take(of), "")
    return pa.DictionaryArray.from_arrays(encoded.indices, channels), subtopic


def _topics(batch: Batch, places: NDArray[np.int64]) -> NDArray[np.int64] | int:
    return int(places[0]) if batch.topic is None else places[batch.topic]


def _labels(run: _Run) -> pa.Array:
    borne = [
        (name, rows.astype(np.int64) + start)
        for part, start in zip(run.parts, run.starts, strict=True)
        for name, rows in part.batch.labels.items()
        if len(rows)
    ]
    if not borne:
        return pa.nulls(run.rows, pa.list_(pa.string()))
    rows = np.concatenate([rows for _, rows in borne])
    names = np.repeat(np.arange(len(borne)), [len(rows) for _, rows in borne])
    order = np.argsort(rows, kind="stable")
    counts = np.bincount(rows, minlength=run.rows)
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    values = pa.array([name for name, _ in borne], pa.string()).take(pa.array(names[order]))
    return pa.ListArray.from_arrays(pa.array(offsets), values, mask=pa.array(counts == 0))


def _notes(run: _Run, fates: NDArray[np.uint8]) -> tuple[pa.Array, pa.Array, pa.Array]:
    """Return rule, reason and the payload before a rewrite; of several rules at one row the last counts."""
    unheard = fates == UNDELIVERABLE
    if not unheard.any() and not any(part.note and (part.note.why or part.note.before) for part in run.parts):
        return pa.nulls(run.rows, _NAME), pa.nulls(run.rows, _NAME), sparse_column(run.rows, {})
    rules: dict[str, int] = {}
    reasons = {NO_LISTENER: 0}
    rule, reason = np.full(run.rows, -1, np.int32), np.where(unheard, 0, -1).astype(np.int32)
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
        _coded(pa.array(rule, mask=rule < 0), rules),
        _coded(pa.array(reason, mask=reason < 0), reasons),
        sparse_column(run.rows, before),
    )
