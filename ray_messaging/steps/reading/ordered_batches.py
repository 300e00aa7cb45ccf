"""The rows of several batches as one batch, in canonical order."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ray_messaging.model.batch import Batch
from ray_messaging.model.extension import Extension
from ray_messaging.model.joining import joined_arrays, joined_ids, joined_payloads
from ray_messaging.model.message_ids import MessageIdColumn
from ray_messaging.steps.reading.canonical_order import Order, canonical_order


def in_canonical_order(batches: Sequence[Batch]) -> Batch:
    """Return the rows of some batches as one batch, in canonical order."""
    return joined_in_order(batches)[0]


def joined_in_order(batches: Sequence[Batch]) -> tuple[Batch, Order]:
    """Return the rows of some batches as one batch, in canonical order; and each one's place before, as indices."""
    rows = [batch.rows for batch in batches]
    extensions = [batch.extension or Extension() for batch in batches]
    to_ids, from_ids = [batch.to_ids for batch in batches], [batch.from_ids for batch in batches]
    steps = _by_row([batch.step for batch in batches], rows)
    ordinals = joined_arrays([each.ordinal for each in extensions if each.ordinal is not None])
    order = canonical_order(to_ids, np.broadcast_to(np.asarray(steps), len(ordinals)), from_ids, ordinals)
    table: dict[str, int] = {}
    topics = [_topics(batch, table) for batch in batches]
    lines = joined_payloads([batch.lines for batch in batches if batch.lines is not None], rows, order)
    joined = Batch(
        sender="",
        epoch=0,
        first=0,
        from_ids=joined_ids(from_ids).take(order),
        rows=len(order),
        to_ids=joined_ids(to_ids).take(order),
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
    """Return the extension of rows among which there are questions or answers."""
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
    """Return a value per row from arrays, or single values for all rows of a batch; one value if all are equal."""
    if not any(isinstance(value, np.ndarray) for value in values) and values.count(values[0]) == len(values):
        return values[0]
    return joined_arrays([np.broadcast_to(np.asarray(v), n) for v, n in zip(values, rows, strict=True)])


def _taken(values: Any, order: Order) -> Any:  # noqa: ANN401 - an array, or one value
    return values[order] if isinstance(values, np.ndarray) else values


def _topics(batch: Batch, table: dict[str, int]) -> NDArray[np.uint16]:
    places = np.array([table.setdefault(name, len(table)) for name in batch.topics], np.uint16)
    return places[np.zeros(batch.rows, np.intp) if batch.topic is None else batch.topic]


def _labels(batches: Sequence[Batch], rows: Sequence[int], order: Order) -> dict[str, NDArray[np.uint32]]:
    """Return the rows of each label, by the places that the rows have in an order."""
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
