"""Encoding of which pairs of a frame count, of those that an audience gives for its rows."""

import numpy as np
from numpy.typing import NDArray

from ray_messaging.errors import FrameError

_RUNS, _BITS = b"r", b"b"
_PLACE = np.dtype("<u4")


def encode_kept(places: NDArray[np.intp], pairs: int) -> bytes:
    """Return some of so many pairs, by their ascending places, as bytes; b"": all.

    Runs of places, or a bit for each pair, whichever is shorter: so a few pairs take as few bytes as all but a few.
    """
    if len(places) == pairs:
        return b""
    begins = np.flatnonzero(np.diff(places, prepend=-2) != 1)
    if len(begins) * 2 * _PLACE.itemsize <= (pairs + 7) // 8:
        ends = places[np.append(begins[1:], len(places)) - 1] + 1 if len(begins) else begins
        return _RUNS + np.stack((places[begins], ends), axis=1).astype(_PLACE).tobytes()
    bits = np.zeros(pairs, np.bool_)
    bits[places] = True
    return _BITS + np.packbits(bits).tobytes()


def kept_places(kept: bytes, pairs: int) -> NDArray[np.intp]:
    """Return the places that `encode_kept` was given; raise FrameError for bytes that do not fit so many pairs."""
    kind, data = kept[:1], kept[1:]
    if kind == _BITS and len(data) == (pairs + 7) // 8:
        bits = np.unpackbits(np.frombuffer(data, np.uint8), count=pairs)
        return np.flatnonzero(bits)
    if kind == _RUNS and len(data) % (2 * _PLACE.itemsize) == 0:
        bounds = np.frombuffer(data, _PLACE).astype(np.int64)
        steps = np.diff(bounds, prepend=-1)
        if bool((steps >= 0).all()) and bool((steps[1::2] > 0).all()) and (not len(bounds) or bounds[-1] <= pairs):
            begins, lengths = bounds[::2], steps[1::2]
            before = np.cumsum(lengths) - lengths
            places: NDArray[np.intp] = np.arange(int(lengths.sum())) + np.repeat(begins - before, lengths)
            return places
    raise FrameError("invalid frame: it keeps pairs that its rows do not have; find the client that wrote it")
