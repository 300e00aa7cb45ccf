"""Columns of sender, recipient and channel."""

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ray_messaging.eventlog.encoding import DICTIONARY_ENTRIES
from ray_messaging.eventlog.writing.rows.numbered_texts import numbered_texts
from ray_messaging.eventlog.writing.rows.repeated_columns import NAME, Codes, coded, each_its_own, nulls, same
from ray_messaging.model.columns import INT, NONE, STR, IdColumn

# Values in a range of at most this many times their number are counted by a table: a hash takes ten times as long.
_NEAR = 4


class Ends(NamedTuple):
    """Senders, or recipients, of all rows: `values` int64 and `kinds` as in `IdColumn`, with one table of names."""

    values: NDArray[np.int64]
    kinds: NDArray[np.uint8] | None
    names: list[str]

    def numbers(self) -> pa.Array:
        """Return the column of int ids."""
        return pa.array(self.values, mask=None if self.kinds is None else self.kinds != INT)

    def texts(self) -> pa.Array:
        """Return the column of str ids."""
        if self.kinds is None or not self.names:
            return nulls(len(self.values), NAME)
        named = self.kinds == STR
        return coded(pa.array(np.where(named, self.values, 0).astype(np.int32), mask=~named), self.names)


def ends(columns: Sequence[IdColumn]) -> Ends:
    """Join the ids of frames, each with its own table of names. The result does not reference the frames."""
    values = np.concatenate([ids.values for ids in columns])
    if all(ids.kinds is None for ids in columns):
        return Ends(values, None, [])
    kinds = np.concatenate([np.full(len(ids), INT, np.uint8) if ids.kinds is None else ids.kinds for ids in columns])
    table: dict[str, int] = {}
    start = 0
    for ids in columns:
        if ids.strings:
            places = np.array([table.setdefault(name, len(table)) for name in ids.strings], np.int64)
            own, named = values[start : start + len(ids)], kinds[start : start + len(ids)] == STR
            own[named] = places[own[named]]
        start += len(ids)
    return Ends(values, kinds, [*table])


def are_of_agents(to: Ends, topics: Sequence[str]) -> bool:
    """Tell whether each channel is that of the recipient for the topic: then readers of the log can compose it."""
    return not any(map(_is_plain, topics)) and (to.kinds is None or not (to.kinds == NONE).any())


def _is_plain(topic: str) -> bool:
    """Tell whether a topic stands for a plain channel, as ":name" for the channel "name"."""
    return topic[0] == ":"


def subtopics(rows: int, topics: Sequence[str], of: Codes | None) -> pa.Array:
    """Return the subtopics of all rows, with the arguments of `channels`."""
    if of is None and not _is_plain(topics[0]):
        return coded(same(rows), topics[:1])
    of = np.zeros(rows, np.int32) if of is None else of
    plain = np.array([*map(_is_plain, topics)])
    return coded(pa.array(of, mask=plain[of] if plain.any() else None), topics)


def channels(exp_id: str, to: Ends, topics: Sequence[str], of: Codes | None) -> tuple[pa.Array, pa.Array]:
    """Return channel and subtopic. The text of a channel is built once.

    Args: of has each row's topic (None: all have the first). A topic ":name" is the plain channel "name".
    """
    subtopic = subtopics(len(to.values), topics, of)
    if of is None and to.kinds is None and not _is_plain(topics[0]):
        if _are_many(to.values):
            return each_its_own(_channels(exp_id, to.values, topics[0])), subtopic
        found, codes = distinct(to.values)
        names = _channels_again(exp_id, found.tobytes(), topics[0])
        return pa.DictionaryArray.from_arrays(pa.array(codes), names, safe=False), subtopic
    texts, codes = as_texts(to)
    of = np.zeros(len(codes), np.int32) if of is None else of
    plain = np.array([*map(_is_plain, topics)])
    keys = codes.astype(np.int64) * len(topics) + of
    if plain.any():  # a plain channel has no id
        keys = np.where(plain[of], len(texts) * len(topics) + of, keys)
    found, codes = distinct(keys)
    texts = pa.concat_arrays([texts, pa.array([""])])
    heads = pa.array([topic[1:] if _is_plain(topic) else f"exps:{exp_id}:agents:" for topic in topics])
    tails = pa.array(["" if _is_plain(topic) else f":{topic}" for topic in topics])
    ids, topic_of = texts.take(pa.array(found // len(topics))), pa.array(found % len(topics))
    names = pc.binary_join_element_wise(heads.take(topic_of), ids, tails.take(topic_of), "")
    return pa.DictionaryArray.from_arrays(pa.array(codes), names, safe=False), subtopic


def _channels(exp_id: str, ids: NDArray[np.int64], topic: str) -> pa.StringArray:
    """Return the channels of some agents for one topic."""
    return numbered_texts(f"exps:{exp_id}:agents:", ids, f":{topic}")


# In bulk, successive chunks of rows go to the same agents.
@lru_cache(maxsize=8)
def _channels_again(exp_id: str, ids: bytes, topic: str) -> pa.StringArray:
    return _channels(exp_id, np.frombuffer(ids, np.int64), topic)


def as_texts(to: Ends) -> tuple[pa.Array, Codes]:
    """Return the distinct ids as texts, and each row's index among them; None is spelled "None"."""
    if to.kinds is None:
        found, codes = distinct(to.values)
        return pc.cast(pa.array(found), pa.string()), codes
    ints = to.kinds == INT
    found, places = distinct(to.values[ints])
    codes = np.empty(len(to.values), np.int32)
    codes[ints] = places
    codes[to.kinds == STR] = len(found) + to.values[to.kinds == STR]
    codes[to.kinds == NONE] = len(found) + len(to.names)
    return pa.concat_arrays([pc.cast(pa.array(found), pa.string()), pa.array([*to.names, "None"], pa.string())]), codes


def _are_many(values: NDArray[np.int64]) -> bool:
    """Tell whether there are more distinct values than a dictionary in a file may have."""
    if len(values) <= DICTIONARY_ENTRIES:
        return False
    low, high = int(values.min()), int(values.max())
    if high - low > _NEAR * len(values):
        return bool(pc.count_distinct(pa.array(values[: 2 * DICTIONARY_ENTRIES])).as_py() > DICTIONARY_ENTRIES)
    return int(np.count_nonzero(_marks(values, low, high))) > DICTIONARY_ENTRIES


def _marks(values: NDArray[np.int64], low: int, high: int) -> NDArray[np.bool_]:
    """Return whether each number from `low` to `high` is among the values."""
    there = np.zeros(high - low + 1, np.bool_)
    there[values - low] = True
    return there


def distinct(values: NDArray[np.int64]) -> tuple[NDArray[np.int64], Codes]:
    """Return the distinct values, and each row's index among them."""
    low, high = (int(values.min()), int(values.max())) if len(values) else (0, 0)
    if high - low > _NEAR * len(values):
        encoded = pc.dictionary_encode(pa.array(values))
        return encoded.dictionary.to_numpy(), encoded.indices.to_numpy()
    found = np.flatnonzero(_marks(values, low, high))
    code_of = np.empty(high - low + 1, np.int32)
    code_of[found] = np.arange(len(found), dtype=np.int32)
    return found + low, code_of[values - low]
