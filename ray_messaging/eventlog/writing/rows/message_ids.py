"""Column of message ids, composed of blocks of ten thousand with a common prefix: faster than formatting each."""

from collections.abc import Sequence
from functools import cache
from itertools import groupby
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ray_messaging.eventlog.writing.rows.addresses import as_texts, distinct, ends
from ray_messaging.model.batch import Batch

_DIGITS = 4
_BLOCK = 10**_DIGITS
_FEW_ROWS = 64  # rows of a block on average: with fewer, Arrow's formatting is as fast


class _Block(NamedTuple):
    """Ids with the prefix `head` and four more digits, the numbers `tails` within the block."""

    head: bytes
    tails: slice | NDArray[np.int64]
    rows: int


def message_ids(batches: Sequence[Batch]) -> pa.StringArray:
    """Return the ids of all messages, in the form of `Batch.message_id`."""
    runs = [_ids_in_step([*run]) if in_step else _ids([*run]) for in_step, run in groupby(batches, _is_in_step)]
    return runs[0] if len(runs) == 1 else pa.concat_arrays(runs)


def _is_in_step(batch: Batch) -> bool:
    return batch.ordinal is not None


def _ids_in_step(batches: Sequence[Batch]) -> pa.StringArray:
    """Return ids of step, ordinal and from_id; each distinct one is composed once."""
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
    max_blocks = sum(map(len, batches)) // _FEW_ROWS
    blocks: list[_Block] = []
    for batch in batches:
        found = _blocks(batch, max_blocks - len(blocks))
        if found is None:
            return _formatted(batches)
        blocks += found
    return _assemble(blocks)


def _blocks(batch: Batch, max_blocks: int) -> list[_Block] | None:
    """Return a batch's ids as blocks; None: there would be too many, or a number has fewer than four digits."""
    first, last, numbers = batch.first, batch.first + len(batch) - 1, batch.numbers
    if numbers is not None:
        first, last = batch.first + int(numbers[0]), batch.first + int(numbers[-1])
        if last - first != len(numbers) - 1 or (numbers[1:] <= numbers[:-1]).any():  # with gaps, or unsorted
            return _scattered(batch, max_blocks)
    if first < _BLOCK // 10 or last // _BLOCK - first // _BLOCK >= max_blocks:
        return None
    return [
        _Block(_head(batch, head), slice(low - head * _BLOCK, high - head * _BLOCK), high - low)
        for head in range(first // _BLOCK, last // _BLOCK + 1)
        for low, high in [(max(first, head * _BLOCK), min(last + 1, (head + 1) * _BLOCK))]
    ]


def _scattered(batch: Batch, max_blocks: int) -> list[_Block] | None:
    numbers = _numbers(batch)
    heads = numbers // _BLOCK
    cuts = (np.flatnonzero(heads[1:] != heads[:-1]) + 1).tolist()
    if len(cuts) >= max_blocks or int(numbers.min()) < _BLOCK // 10:
        return None
    return [
        _Block(_head(batch, int(heads[low])), numbers[low:high] - heads[low] * _BLOCK, high - low)
        for low, high in zip([0, *cuts], [*cuts, len(numbers)], strict=True)
    ]


def _head(batch: Batch, head: int) -> bytes:
    return f"{batch.sender}-{batch.epoch}-{head or ''}".encode()


def _assemble(blocks: Sequence[_Block]) -> pa.StringArray:
    data = bytearray().join((block.head + bytes(_DIGITS)) * block.rows for block in blocks)
    offsets = np.zeros(sum(block.rows for block in blocks) + 1, np.int32)
    row = at = 0
    for head, tails, rows in blocks:
        width = len(head) + _DIGITS
        np.ndarray((rows,), np.uint32, data, at + len(head), (width,))[:] = _texts()[tails]
        offsets[row + 1 : row + rows + 1] = np.arange(at + width, at + rows * width + 1, width)
        row, at = row + rows, at + rows * width
    return pa.StringArray.from_buffers(row, pa.py_buffer(offsets), pa.py_buffer(data))


def _formatted(batches: Sequence[Batch]) -> pa.StringArray:
    texts = pc.cast(pa.array(np.concatenate([_numbers(batch) for batch in batches])), pa.string())
    prefixes = [f"{batch.sender}-{batch.epoch}-" for batch in batches]
    if len(set(prefixes)) == 1:
        return pc.utf8_replace_slice(texts, 0, 0, prefixes[0])
    of = np.repeat(np.arange(len(batches), dtype=np.int32), [*map(len, batches)])
    return pc.binary_join_element_wise(pa.array(prefixes).take(pa.array(of)), texts, "")


def _numbers(batch: Batch) -> NDArray[np.int64]:
    return batch.first + (np.arange(len(batch)) if batch.numbers is None else batch.numbers.astype(np.int64))


@cache
def _texts() -> NDArray[np.uint32]:
    """Return the four digits of each number in a block."""
    return np.frombuffer(b"".join(b"%04d" % number for number in range(_BLOCK)), np.uint32)
