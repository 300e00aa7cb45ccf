"""The canonical order of a step's messages: by to_id, step of sending, from_id, and ordinal.

The n-th message that an agent sends in a step has ordinal n.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ray_messaging.model.batch import Batch, TopicColumn, topic_column
from ray_messaging.model.columns import NONE, STR, IdColumn
from ray_messaging.model.extension import Extension
from ray_messaging.model.joining import joined_arrays, joined_ids, joined_payloads
from ray_messaging.model.message_ids import MessageIdColumn

Keys = NDArray[np.int64]
Order = NDArray[np.intp]
_INT64_BITS = 63
_BLOCK = 2**14  # the number of rows that one block of the computation has
_LONG_RUN = 16  # From this average length of ascending runs on, the stable sort is used.


def canonical_order(to_ids: Sequence[IdColumn], steps: Keys, from_ids: Sequence[IdColumn], ordinals: Keys) -> Order:
    """Return the order in which agents read messages of steps, as indices of the rows.

    It is called canonical, because it is the same in every run, on any number of groups.

    Args: `to_ids` and `from_ids` are columns that together have an id for each row. `steps` has the step in which each
    row was sent, and `ordinals` the number of the row among its sender's messages in that step.
    """
    return _sorted_rows([id_ranks(to_ids), steps, id_ranks(from_ids), ordinals])[0]


class _Part(NamedTuple):
    """A sort key that is packed with other keys into one number.

    `key` is the key's index. `low` is its least value, and `shift` is the position of its lowest bit in the number. If
    the key's values are too far apart for a number, `values` has their ranks.
    """

    key: int
    values: NDArray[Any]
    low: int
    shift: int


def _sorted_rows(keys: Sequence[NDArray[Any]], wanted: Sequence[int] = ()) -> tuple[Order, list[NDArray[Any]]]:
    """Return the order of rows by keys, as indices, and the values of the `wanted` keys in this order.

    Rows are sorted by the first key. Rows with equal values of it are sorted by the second key, and so on.
    """
    rows, order = len(keys[0]), None
    numbers = _packed(keys)
    width = rows.bit_length()
    taken: dict[int, NDArray[Any]] = {}
    for parts in numbers:
        found = _sorted_by(parts, rows, order)
        if len(numbers) == 1:  # reading a key from the sorted numbers takes a fifth of the time of `key[order]`
            taken = {
                part.key: _key_of(found, parts, at)
                for at, part in enumerate(parts)
                if part.key in wanted and part.values is keys[part.key]
            }
        found &= (1 << width) - 1
        order = found if order is None else order[found]
    if order is None:
        order = np.arange(rows)
    varied = {part.key for parts in numbers for part in parts}
    return order, [taken[key] if key in taken else keys[key][order] if key in varied else keys[key] for key in wanted]


def _sorted_by(parts: Sequence[_Part], rows: int, order: Order | None) -> Keys:
    """Pack the keys and the position of each row into one number, and return the sorted numbers.

    A row's position is its index in `order`. If `order` is None, it is the row's own index.
    """
    # Sorting packed numbers is up to six times as fast as an argsort of the keys. The numbers are computed in blocks
    # that stay in the processor's cache, because large arrays need new memory pages, which cost as much time as the
    # arithmetic.
    width, found = rows.bit_length(), np.empty(rows, np.int64)
    for start in range(0, rows, _BLOCK):
        block = found[start : start + _BLOCK]
        block[:] = np.arange(start, start + len(block))
        at = slice(start, start + _BLOCK) if order is None else order[start : start + _BLOCK]
        for _, values, low, shift in parts:
            above = np.subtract(values[at], low, dtype=np.int64)
            above <<= width + shift
            block |= above
    # If the numbers have long ascending runs, the stable sort merges the runs in a tenth of the time of quicksort.
    # Otherwise quicksort is faster.
    runs = np.count_nonzero(found[1:] < found[:-1])
    found.sort(kind="stable" if runs * _LONG_RUN < rows else "quicksort")
    return found


def _key_of(numbers: Keys, parts: Sequence[_Part], at: int) -> NDArray[Any]:
    """Return the values of the key `parts[at]`, read from the sorted numbers into which all keys were packed."""
    rows, part = len(numbers), parts[at]
    above = parts[at + 1].shift if at + 1 < len(parts) else _INT64_BITS - rows.bit_length()
    # Ids may be packed as int32, but are returned as int64. Other keys are returned in their own type.
    found = np.empty(rows, np.int64 if part.values.dtype == np.int32 else part.values.dtype)
    for start in range(0, rows, _BLOCK):
        block = numbers[start : start + _BLOCK] >> (rows.bit_length() + part.shift)
        block &= (1 << (above - part.shift)) - 1
        block += part.low
        found[start : start + _BLOCK] = block
    return found


def id_ranks(columns: Sequence[IdColumn]) -> NDArray[np.integer[Any]]:
    """Return numbers that have the same order as the ids. Equal ids get equal numbers.

    The order of ids is: None, then ints, then strs by their UTF-8 bytes.
    """
    if all(column.kinds is None for column in columns):
        stored: NDArray[np.integer[Any]] = joined_arrays([column.stored for column in columns])
        return stored
    values: Keys = joined_arrays([column.values for column in columns])
    kinds = joined_arrays([_kinds(column) for column in columns])
    ranks = np.zeros(len(values), np.int64)
    ints = (kinds != NONE) & (kinds != STR)
    numbers, places = np.unique(values[ints], return_inverse=True)
    ranks[ints] = places + 1
    # Python sorts strs by code points. The UTF-8 bytes of strs have the same order.
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


def _packed(keys: Sequence[NDArray[Any]]) -> list[list[_Part]]:
    """Plan how to pack all keys of a row into few non-negative numbers; return the parts of each number.

    Each number has room for the row's index, too. The first key is the most significant one, and it is in the last
    number. A key that has the same value in all rows is left out.
    """
    rows = len(keys[0])
    room = _INT64_BITS - rows.bit_length()
    packed: list[list[_Part]] = []
    used = room
    for at, key in reversed([*enumerate(keys)]) if rows else ():
        low = int(key.min())
        width, values = (int(key.max()) - low).bit_length(), key
        if width > room:
            low, width, values = 0, rows.bit_length(), np.unique(key, return_inverse=True)[1]
        if width and used + width > room:
            packed.append([])
            used = 0
        if width:
            packed[-1].append(_Part(at, values, low, used))
            used += width
    return packed


def joined_in_order(batches: Sequence[Batch]) -> tuple[Batch, Order]:
    """Return the rows of some batches as one batch in canonical order, and each row's index in the joined batches.

    Canonical order does not depend on the order of arrival, or on how agents are spread over groups.
    """
    rows = [batch.rows for batch in batches]
    extensions = [batch.extension or Extension() for batch in batches]
    to_ids = joined_ids([batch.to_ids for batch in batches])
    from_ids = joined_ids([batch.from_ids for batch in batches])
    steps = _by_row([batch.step for batch in batches], rows)
    ordinals = joined_arrays([each.ordinal for each in extensions if each.ordinal is not None])
    keys = [id_ranks([to_ids]), id_ranks([from_ids]), ordinals]
    if isinstance(steps, np.ndarray):  # if all messages are of one step, `steps` is a single value
        keys.insert(1, steps)
    last = len(keys) - 1
    order, (to_ranks, from_ranks, taken) = _sorted_rows(keys, wanted=(0, last - 1, last))
    names = dict.fromkeys(name for batch in batches for name in batch.topics)
    table = {name: place for place, name in enumerate(names)}
    lines = joined_payloads([batch.lines for batch in batches if batch.lines is not None], rows, order)
    senders, receivers = (
        IdColumn(ranks.astype(np.int64, copy=False)) if ids.kinds is None else ids.take(order)
        for ids, ranks in ((from_ids, from_ranks), (to_ids, to_ranks))
    )
    joined = Batch(
        sender="",
        epoch=0,
        first=0,
        from_ids=senders,
        rows=len(order),
        to_ids=receivers,
        topics=tuple(table),
        topic=joined_arrays([_topics(batch, table) for batch in batches])[order] if len(table) > 1 else None,
        step=steps[order] if isinstance(steps, np.ndarray) else steps,
        sent_at=_times(batches, rows, order),
        lines=lines,
        labels=_labels(batches, rows, order) if any(batch.labels for batch in batches) else {},
        extension=Extension(ordinal=taken),
    )
    if any(each.expects_answer is not None or each.in_reply_to is not None for each in extensions):
        joined.extension = _with_conversation(extensions, rows, order)
    return joined, order


def _with_conversation(extensions: Sequence[Extension], rows: Sequence[int], order: Order) -> Extension:
    """Return the extensions of several batches, some of which have questions or answers, as one in the given order.

    For a batch without questions and answers, the result says that its rows are neither.
    """
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
    """Join a field of several batches: return an array with one value per row.

    In each batch the field is an array, or one value that all rows share. If all batches share the same value, return
    only this value.
    """
    if not any(isinstance(value, np.ndarray) for value in values) and values.count(values[0]) == len(values):
        return values[0]
    return joined_arrays([np.broadcast_to(np.asarray(v), n) for v, n in zip(values, rows, strict=True)])


def _times(batches: Sequence[Batch], rows: Sequence[int], order: Order) -> Any:  # noqa: ANN401 - an array, or one value
    values = [batch.sent_at for batch in batches]
    if any(isinstance(value, np.ndarray) for value in values) or values.count(values[0]) == len(values):
        times = _by_row(values, rows)
        return times[order] if isinstance(times, np.ndarray) else times
    # Each batch has one time. The numbers of the batches are put in order instead of the times. A number usually takes
    # at most a quarter of the memory of a time, so the numbers fit into the processor's cache.
    numbers = np.repeat(np.arange(len(values), dtype=np.min_scalar_type(len(values))), rows)
    return np.array(values)[numbers[order]]


def _topics(batch: Batch, table: dict[str, int]) -> TopicColumn:
    places = topic_column([table[name] for name in batch.topics], len(table))
    return places[np.zeros(batch.rows, np.intp) if batch.topic is None else batch.topic]


def _labels(batches: Sequence[Batch], rows: Sequence[int], order: Order) -> dict[str, NDArray[np.uint32]]:
    """Return, for each label, its rows, as positions in `order`."""
    places = np.empty(len(order), np.uint32)
    places[order] = np.arange(len(order), dtype=np.uint32)
    found: dict[str, list[NDArray[np.uint32]]] = {}
    low = 0
    for batch, count in zip(batches, rows, strict=True):
        for name, marked in batch.labels.items():
            found.setdefault(name, []).append(places[marked + low])
        low += count
    return {name: np.sort(joined_arrays(parts)) for name, parts in found.items()}
