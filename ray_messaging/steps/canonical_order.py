"""The canonical order of a step's messages: (to_id, step sent, from_id, n-th send of that agent in that step)."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ray_messaging.model.batch import Batch
from ray_messaging.model.columns import NONE, STR, IdColumn
from ray_messaging.model.extension import Extension
from ray_messaging.model.joining import joined_arrays, joined_ids, joined_payloads
from ray_messaging.model.message_ids import MessageIdColumn

Keys = NDArray[np.int64]
Order = NDArray[np.intp]
_INT64_BITS = 63
_BLOCK = 2**14  # rows


def canonical_order(to_ids: Sequence[IdColumn], steps: Keys, from_ids: Sequence[IdColumn], ordinals: Keys) -> Order:
    """Return the canonical order of rows as indices.

    Args: `to_ids` and `from_ids` are the ids of the rows, in consecutive columns; `steps` has the step in which each
    row was sent, `ordinals` says which send of its agent in that step it is.
    """
    order: Order | None = None
    for key in _packed([id_ranks(to_ids), steps, id_ranks(from_ids), ordinals]):
        order = _sorted_by(key, order)
    return np.arange(len(steps)) if order is None else order


def _sorted_by(key: Keys, order: Order | None) -> Order:
    """Return rows sorted by a key, which is overwritten. Rows with equal keys stay in `order` (None: ascending)."""
    rows, found = len(key), key if order is None else key[order]
    width = rows.bit_length()
    if int(found.max()) >> (_INT64_BITS - width):
        places = np.argsort(found, kind="stable")
    else:  # key and place in one number: sorting values is up to six times as fast as an argsort
        found <<= width  # in place, here and below: the pages of a new array take as long as the arithmetic
        found |= np.arange(rows)
        found.sort()
        found &= (1 << width) - 1
        places = found
    return places if order is None else order[places]


def id_ranks(columns: Sequence[IdColumn]) -> Keys:
    """Return a number for each id, in the order of the ids: None, then ints, then strs by their UTF-8 bytes."""
    values: Keys = joined_arrays([column.values for column in columns])
    if all(column.kinds is None for column in columns):
        return values
    kinds = joined_arrays([_kinds(column) for column in columns])
    ranks = np.zeros(len(values), np.int64)
    ints = (kinds != NONE) & (kinds != STR)
    numbers, places = np.unique(values[ints], return_inverse=True)
    ranks[ints] = places + 1
    # Python sorts strs by code points, which is the order of their UTF-8 bytes.
    table = sorted({name for column in columns for name in column.strings})
    place_of = {name: place for place, name in enumerate(table, len(numbers) + 1)}
    low = 0
    for column in columns:
        high = low + len(column)
        if column.kinds is not None and column.strings:
            names = np.array([place_of[name] for name in column.strings], np.int64)
            named = column.kinds == STR
            ranks[low:high][named] = names[column.values[named]]
        low = high
    return ranks


def _kinds(column: IdColumn) -> NDArray[np.uint8]:
    return np.zeros(len(column), np.uint8) if column.kinds is None else column.kinds


def _packed(keys: Sequence[NDArray[Any]]) -> list[Keys]:
    """Return keys packed into as few non-negative numbers per row as possible, with room for the row's place.

    The most significant of the keys is the first, the most significant of the returned numbers the last.
    """
    rows = len(keys[0])
    room = _INT64_BITS - rows.bit_length()
    packed: list[list[tuple[NDArray[Any], int, int]]] = []  # for each number its keys, their least values, their bits
    used = room
    for key in reversed(keys) if rows else ():
        low = int(key.min())
        width, values = (int(key.max()) - low).bit_length(), key
        if width > _INT64_BITS:
            low, width, values = 0, rows.bit_length(), np.unique(key, return_inverse=True)[1]
        if width and used + width > room:
            packed.append([])
            used = 0
        if width:
            packed[-1].append((values, low, used))
            used += width
    return [_number(parts, rows) for parts in packed]


def _number(parts: Sequence[tuple[NDArray[Any], int, int]], rows: int) -> Keys:
    """Return keys as one number per row, from blocks that stay in the processor's cache."""
    found = np.zeros(rows, np.int64)
    for start in range(0, rows, _BLOCK):
        block = found[start : start + _BLOCK]
        for key, low, place in parts:
            above = np.subtract(key[start : start + _BLOCK], low, dtype=np.int64)
            above <<= place
            block |= above
    return found


def in_canonical_order(batches: Sequence[Batch]) -> Batch:
    """Return the rows of some batches as one batch, in canonical order."""
    return joined_in_order(batches)[0]


def joined_in_order(batches: Sequence[Batch]) -> tuple[Batch, Order]:
    """Return the rows of some batches as one batch in canonical order, and the index that each row had before."""
    rows = [batch.rows for batch in batches]
    extensions = [batch.extension or Extension() for batch in batches]
    to_ids = joined_ids([batch.to_ids for batch in batches])
    from_ids = joined_ids([batch.from_ids for batch in batches])
    steps = _by_row([batch.step for batch in batches], rows)
    ordinals = joined_arrays([each.ordinal for each in extensions if each.ordinal is not None])
    order = canonical_order([to_ids], np.broadcast_to(np.asarray(steps), len(ordinals)), [from_ids], ordinals)
    table: dict[str, int] = {}
    topics = [_topics(batch, table) for batch in batches]
    lines = joined_payloads([batch.lines for batch in batches if batch.lines is not None], rows, order)
    joined = Batch(
        sender="",
        epoch=0,
        first=0,
        from_ids=from_ids.take(order),
        rows=len(order),
        to_ids=to_ids.take(order),
        topics=tuple(table),
        topic=joined_arrays(topics)[order] if len(table) > 1 else None,
        step=_taken(steps, order),
        sent_at=_taken(_by_row([batch.sent_at for batch in batches], rows), order),
        lines=lines,
        labels=_labels(batches, rows, order),
        extension=Extension(ordinal=ordinals[order] if ordinals.any() else ordinals),
    )
    if any(each.expects_answer is not None or each.in_reply_to is not None for each in extensions):
        joined.extension = _with_conversation(extensions, rows, order)
    return joined, order


def _with_conversation(extensions: Sequence[Extension], rows: Sequence[int], order: Order) -> Extension:
    """Return the joined extension of rows, some of which are questions or answers."""
    parts = [
        Extension(
            ordinal=each.ordinal,
            in_reply_to=MessageIdColumn.none(count) if each.in_reply_to is None else each.in_reply_to,
            expects_answer=np.zeros(count, np.bool_) if each.expects_answer is None else each.expects_answer,
            asked_outside=each.asked_outside,
        )
        for each, count in zip(extensions, rows, strict=True)
    ]
    joined = Extension.joined([*zip(parts, rows, strict=True)])
    assert joined is not None
    return joined.take(order)


def _by_row(values: Sequence[Any], rows: Sequence[int]) -> Any:  # noqa: ANN401 - an array, or one value
    """Return one value per row from arrays, or from single values for all rows of a batch.

    Return a single value if all are the same single value.
    """
    if not any(isinstance(value, np.ndarray) for value in values) and values.count(values[0]) == len(values):
        return values[0]
    return joined_arrays([np.broadcast_to(np.asarray(v), n) for v, n in zip(values, rows, strict=True)])


def _taken(values: Any, order: Order) -> Any:  # noqa: ANN401 - an array, or one value
    return values[order] if isinstance(values, np.ndarray) else values


def _topics(batch: Batch, table: dict[str, int]) -> NDArray[np.uint16]:
    places = np.array([table.setdefault(name, len(table)) for name in batch.topics], np.uint16)
    return places[np.zeros(batch.rows, np.intp) if batch.topic is None else batch.topic]


def _labels(batches: Sequence[Batch], rows: Sequence[int], order: Order) -> dict[str, NDArray[np.uint32]]:
    """Return the rows of each label, as the positions that the rows have in `order`."""
    if not any(batch.labels for batch in batches):
        return {}
    places = np.empty(len(order), np.uint32)
    places[order] = np.arange(len(order), dtype=np.uint32)
    found: dict[str, list[NDArray[np.uint32]]] = {}
    low = 0
    for batch, count in zip(batches, rows, strict=True):
        for name, marked in batch.labels.items():
            found.setdefault(name, []).append(places[marked + low])
        low += count
    return {name: np.sort(joined_arrays(parts)) for name, parts in found.items()}
