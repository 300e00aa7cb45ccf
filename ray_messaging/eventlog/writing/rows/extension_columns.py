"""Columns of steps, questions and audiences; for plain messages they have no values."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ray_messaging.eventlog.schema import OF_EXTENSIONS, SCHEMA
from ray_messaging.eventlog.writing.rows.repeated_columns import nulls, repeated
from ray_messaging.model.batch import Batch
from ray_messaging.model.extension import Extension
from ray_messaging.model.message_ids import NO_NUMBER, MessageIdColumn

_PLAIN = Extension()


def extension_columns(batches: Sequence[Batch]) -> dict[str, pa.Array]:
    """Return the columns of the batches' extensions, by name."""
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
        "in_reply_to": _replies([extension.in_reply_to for extension in found], counts),
        "expects_answer": number_column([extension.expects_answer for extension in found], counts, np.bool_),
    }


def number_column(found: Sequence[NDArray[Any] | int | None], counts: Sequence[int], dtype: type[Any]) -> pa.Array:
    """Return a column from each batch's array, or single value, or null; it shares no memory with them."""
    if all(value is None for value in found):
        return nulls(sum(counts), pa.from_numpy_dtype(dtype))
    column, start = np.zeros(sum(counts), dtype), 0
    for value, count in zip(found, counts, strict=True):
        column[start : start + count] = 0 if value is None else value
        start += count
    missing = [value is None for value in found]
    return pa.array(column, mask=np.repeat(missing, counts) if any(missing) else None)


def _replies(found: Sequence[MessageIdColumn | None], counts: Sequence[int]) -> pa.Array:
    if all(column is None for column in found):
        return nulls(sum(counts), pa.string())
    parts = [column or MessageIdColumn.of([None] * count) for column, count in zip(found, counts, strict=True)]
    ids = MessageIdColumn.joined(parts)
    whole = ids.numbers == NO_NUMBER
    texts = pa.array(ids.texts, pa.string()).take(pa.array(ids.all_places()))
    tails = pc.cast(pa.array(ids.numbers, mask=whole), pa.string()).fill_null("")
    column = pc.binary_join_element_wise(texts, tails, "")
    return pc.if_else(pc.equal(column, ""), pa.scalar(None, pa.string()), column)
