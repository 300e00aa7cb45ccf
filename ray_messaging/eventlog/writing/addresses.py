"""The log's columns of senders, recipients and channels, and a fast way to build texts that differ only by a number."""

from collections.abc import Sequence
from functools import cache, lru_cache
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ray_messaging.addressing.channels import escaped
from ray_messaging.eventlog.log_schema import DICTIONARY_ENTRIES
from ray_messaging.eventlog.writing.repeated_columns import NAME, Codes, coded, each_its_own, nulls, places, same
from ray_messaging.model.columns import INT, NONE, STR, IdColumn

_DIGITS = 4  # one table look-up writes at most this many digits
_TYPES = (np.dtype("u1"), np.dtype("u2"), np.dtype("S3"), np.dtype("u4"))  # of 1, 2, 3 and 4 bytes: one per digit
_FEW = 64  # for fewer numbers than this, Arrow's formatting is as fast
_MOST_BYTES = 2**31 - 1  # all texts of one Arrow array together may have at most this many bytes


def numbered_texts(head: str, numbers: NDArray[np.int64], tail: str = "") -> pa.StringArray:
    """Return the texts `{head}{number}{tail}`."""
    first, last = head.encode(), tail.encode()
    low, high = (int(numbers.min()), int(numbers.max())) if len(numbers) else (0, -1)
    longest = len(first) + len(str(high)) + len(last)
    if len(numbers) < _FEW or low < 0 or len(numbers) * longest > _MOST_BYTES:
        return pc.binary_join_element_wise(head, pc.cast(pa.array(numbers), pa.string()), tail, "")
    widths = range(len(str(low)), len(str(high)) + 1)
    if len(widths) == 1:
        return _of_width(widths[0], first, numbers, last)
    width_of = np.full(len(numbers), widths[0], np.uint8)
    for width in widths[:-1]:
        width_of += numbers >= 10**width
    rows = {width: found for width in widths if len(found := np.flatnonzero(width_of == width))}
    texts = [_of_width(width, first, numbers[found], last) for width, found in rows.items()]
    place_of = np.empty(len(numbers), np.int32)
    place_of[np.concatenate([*rows.values()])] = places(len(numbers))
    return pa.concat_arrays(texts).take(pa.array(place_of))


def _of_width(width: int, head: bytes, numbers: NDArray[np.int64], tail: bytes) -> pa.StringArray:
    """Return the texts `{head}{number}{tail}` of numbers that all have `width` digits."""
    rows, line = len(numbers), len(head) + width + len(tail)
    # The memory comes from Arrow's allocator, which reuses it for later texts. numpy would map new memory each time,
    # which would take half of the total time.
    data, ends = pa.allocate_buffer(rows * line), pa.allocate_buffer((rows + 1) * 4)
    np.ndarray((rows,), f"V{line}", data)[:] = np.void(head + bytes(width) + tail)
    at = len(head) + width
    while at > len(head):
        digits = min(_DIGITS, at - len(head))
        higher = numbers // 10**digits
        texts = _digits(digits)
        at -= digits
        np.ndarray((rows,), texts.dtype, data, at, (line,))[:] = texts[numbers - higher * 10**digits]
        numbers = higher
    np.multiply(places(rows + 1), line, out=np.ndarray((rows + 1,), np.int32, ends))
    return pa.StringArray.from_buffers(rows, ends, data)


@cache
def _digits(count: int) -> NDArray[Any]:
    """Return the texts of all numbers with at most `count` digits, padded with zeros to `count` digits."""
    return np.frombuffer(b"".join(b"%0*d" % (count, number) for number in range(10**count)), _TYPES[count - 1])


# If the range of some values is at most this many times the number of values, a table finds the distinct values.
# Hashing takes ten times as long.
_NEAR = 4


class Ends(NamedTuple):
    """The ids of all rows' senders, or of all rows' recipients. `values` has a number for each row.

    `kinds` says what the number is: an int id, the index of a str id in `names`, or nothing, if the id is None. If
    `kinds` is None, all numbers are int ids.
    """

    values: NDArray[np.int64]
    kinds: NDArray[np.uint8] | None
    names: list[str]

    def numbers(self) -> pa.Array:
        """Return a column with the ids that are ints. In other rows it has null."""
        return pa.array(self.values, mask=None if self.kinds is None else self.kinds != INT)

    def texts(self) -> pa.Array:
        """Return a column with the ids that are strs. In other rows it has null."""
        if self.kinds is None or not self.names:
            return nulls(len(self.values), NAME)
        named = self.kinds == STR
        return coded(pa.array(np.where(named, self.values, 0).astype(np.int32), mask=~named), self.names)


def ends(columns: Sequence[IdColumn]) -> Ends:
    """Join the ids of several frames, each of which has its own table of str ids.

    The result is a copy, so that the frames can be freed.
    """
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
    """Return whether each row's channel can be composed, without escapes, from its topic and its recipient's id."""
    if any(map(_is_plain, topics)) or any(escaped(name) != name for name in to.names):
        return False
    return to.kinds is None or not (to.kinds == NONE).any()


def _is_plain(topic: str) -> bool:
    """Return whether a topic stands for a plain channel, such as ":name" for the channel "name"."""
    return topic[0] == ":"


def subtopics(rows: int, topics: Sequence[str], of: Codes | None) -> pa.Array:
    """Return a column with the subtopic of each row, or null if the row's channel is a plain one.

    Args: `of` has the index of each row's topic (None: all rows have the first topic).
    """
    if of is None and not _is_plain(topics[0]):
        return coded(same(rows), topics[:1])
    of = np.zeros(rows, np.int32) if of is None else of
    plain = np.array([*map(_is_plain, topics)])
    return coded(pa.array(of, mask=plain[of] if plain.any() else None), topics)


def channels(exp_id: str, to: Ends, topics: Sequence[str], of: Codes | None) -> tuple[pa.Array, pa.Array]:
    """Return the columns of channels and of subtopics, for messages to `to`.

    The text of each distinct channel is built once.

    Args: `of` has the index of each row's topic (None: all rows have the first topic). A topic ":name" is the plain
    channel "name".
    """
    subtopic = subtopics(len(to.values), topics, of)
    if of is None and to.kinds is None and not _is_plain(topics[0]):
        if _are_many(to.values):
            return each_its_own(_channels(exp_id, to.values, topics[0])), subtopic
        found, codes = distinct(to.values)
        names = _channels_again(exp_id, found.tobytes(), topics[0])
        return pa.DictionaryArray.from_arrays(pa.array(codes), names, safe=False), subtopic
    texts, codes = as_texts(to._replace(names=[*map(escaped, to.names)]))
    of = np.zeros(len(codes), np.int32) if of is None else of
    plain = np.array([*map(_is_plain, topics)])
    keys = codes.astype(np.int64) * len(topics) + of
    if plain.any():  # a plain channel has no agent's id in its name
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


# The result is cached, because in a bulk send, successive chunks of rows often go to the same agents.
@lru_cache(maxsize=8)
def _channels_again(exp_id: str, ids: bytes, topic: str) -> pa.StringArray:
    return _channels(exp_id, np.frombuffer(ids, np.int64), topic)


def as_texts(to: Ends) -> tuple[pa.Array, Codes]:
    """Return the distinct ids as strs, and each row's index among them. The id None becomes "None"."""
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
    """Return whether there are more distinct values than a dictionary in a file may have."""
    if len(values) <= DICTIONARY_ENTRIES:
        return False
    low, high = int(values.min()), int(values.max())
    if high - low > _NEAR * len(values):
        return bool(pc.count_distinct(pa.array(values[: 2 * DICTIONARY_ENTRIES])).as_py() > DICTIONARY_ENTRIES)
    return int(np.count_nonzero(_marks(values, low, high))) > DICTIONARY_ENTRIES


def _marks(values: NDArray[np.int64], low: int, high: int) -> NDArray[np.bool_]:
    """Return an array that says, for each number from `low` to `high`, whether the number is among the values."""
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
