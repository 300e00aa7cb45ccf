"""Column of message ids."""

from collections.abc import Sequence
from itertools import groupby

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ray_messaging.eventlog.writing.rows.addresses import as_texts, distinct, ends
from ray_messaging.eventlog.writing.rows.numbered_texts import numbered_texts
from ray_messaging.model.batch import Batch

_FEW_ROWS = 64  # of a sender in turn, on average: with fewer, one call for all senders is as fast


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
