"""Texts that differ by a number, as ids and channels: made of digits, several times faster than formatting each."""

from collections.abc import Sequence
from functools import cache, lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ray_messaging.eventlog.writing.rows.repeated_columns import places

_DIGITS = 4  # written at a time
_TYPES = (np.dtype("u1"), np.dtype("u2"), np.dtype("S3"), np.dtype("u4"))  # of one digit, two, three, four
_FEW = 64  # numbers: with fewer, Arrow's formatting is as fast
_MOST_BYTES = 2**31 - 1  # of the texts of an array


def numbered_texts(head: str, numbers: NDArray[np.int64], tail: str = "") -> pa.StringArray:
    """Return the texts `{head}{number}{tail}`."""
    first, last = head.encode(), tail.encode()
    low, high = (int(numbers.min()), int(numbers.max())) if len(numbers) else (0, -1)
    longest = len(first) + len(str(high)) + len(last)
    if len(numbers) < _FEW or low < 0 or len(numbers) * longest > _MOST_BYTES:
        return pc.binary_join_element_wise(head, pc.cast(pa.array(numbers), pa.string()), tail, "")
    widths = range(len(str(low)), len(str(high)) + 1)
    if len(widths) == 1:
        compose = _ascending if _are_ascending(numbers) else _of_width
        return compose(widths[0], first, numbers, last)
    width_of = np.full(len(numbers), widths[0], np.uint8)
    for width in widths[:-1]:
        width_of += numbers >= 10**width
    rows = {width: found for width in widths if len(found := np.flatnonzero(width_of == width))}
    texts = [_of_width(width, first, numbers[found], last) for width, found in rows.items()]
    place_of = np.empty(len(numbers), np.int32)
    place_of[np.concatenate([*rows.values()])] = places(len(numbers))
    return pa.concat_arrays(texts).take(pa.array(place_of))


def _of_width(width: int, head: bytes, numbers: NDArray[np.int64], tail: bytes) -> pa.StringArray:
    """Return the texts of numbers that all have so many digits."""
    rows, line = len(numbers), len(head) + width + len(tail)
    # Arrow's memory, which it keeps for the next texts: that of numpy is mapped anew each time, for half of the time.
    data, ends = pa.allocate_buffer(rows * line), pa.allocate_buffer((rows + 1) * 4)
    np.ndarray((rows,), f"V{line}", data)[:] = np.void(head + bytes(width) + tail)
    at = len(head) + width
    for digits in _groups(width):
        higher = numbers // 10**digits
        texts = _digits(digits)
        at -= digits
        np.ndarray((rows,), texts.dtype, data, at, (line,))[:] = texts[numbers - higher * 10**digits]
        numbers = higher
    np.multiply(places(rows + 1), line, out=np.ndarray((rows + 1,), np.int32, ends))
    return pa.StringArray.from_buffers(rows, ends, data)


def _are_ascending(numbers: NDArray[np.int64]) -> bool:
    """Tell whether each number is the one before plus 1."""
    return int(numbers[-1] - numbers[0]) == len(numbers) - 1 and bool((numbers[1:] > numbers[:-1]).all())


def _ascending(width: int, head: bytes, numbers: NDArray[np.int64], tail: bytes) -> pa.StringArray:
    """Return the texts of numbers that follow each other and have so many digits: of the last ones all are known."""
    rows, line = len(numbers), len(head) + width + len(tail)
    data, ends = pa.allocate_buffer(rows * line), pa.allocate_buffer((rows + 1) * 4)
    known = min(_DIGITS, width)
    whole = _lines(head, width, tail)
    texts = np.ndarray((rows, line), np.uint8, data)
    at, number = 0, int(numbers[0])
    while at < rows:
        higher, lower = divmod(number, 10**known)
        some = texts[at : at + 10**known - lower]
        some[:] = whole[lower : lower + len(some)]
        if width > known:
            some[:, len(head) : len(head) + width - known] = np.frombuffer(b"%d" % higher, np.uint8)
        at += len(some)
        number += len(some)
    np.multiply(places(rows + 1), line, out=np.ndarray((rows + 1,), np.int32, ends))
    return pa.StringArray.from_buffers(rows, ends, data)


# In bulk, the messages of a few senders come in turn.
@lru_cache(maxsize=8)
def _lines(head: bytes, width: int, tail: bytes) -> NDArray[np.uint8]:
    """Return the texts of numbers of so many digits, of which only the last ones, all that there are, are written."""
    known = min(_DIGITS, width)
    texts = np.zeros((10**known, len(head) + width + len(tail)), np.uint8)
    texts[:] = np.frombuffer(head + bytes(width) + tail, np.uint8)
    at = len(head) + width - known
    texts[:, at : at + known] = _digits(known).view(np.uint8).reshape(-1, known)
    return texts


def _groups(width: int) -> Sequence[int]:
    """Return how many digits to write at a time, from the last one on."""
    return [*[_DIGITS] * (width // _DIGITS), *([width % _DIGITS] if width % _DIGITS else [])]


@cache
def _digits(count: int) -> NDArray[Any]:
    """Return so many digits of each number that has no more."""
    return np.frombuffer(b"".join(b"%0*d" % (count, number) for number in range(10**count)), _TYPES[count - 1])
