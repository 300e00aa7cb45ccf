"""Circles by numpy and scipy alone, in one process: the limit of a machine without messages."""

import time
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.spatial import cKDTree

from benchmarks.circles.model import RADIUS, moved, places_of, pulls, side_of

_CHUNK = 2**17  # pairs that are looked at together


class Round(NamedTuple):
    """Seconds that a step took: to find the pairs, and the rest of it; and the processor time of all."""

    index_s: float
    step_s: float
    cpu_s: float


def plain(agents: int, steps: int) -> tuple[list[Round], NDArray[np.float64]]:
    """Run the steps; return what each took, and the last places."""
    places, side, rounds = places_of(agents), side_of(agents), []
    for _ in range(steps):
        used, begun = time.process_time(), time.perf_counter()
        tree = cKDTree(places, balanced_tree=False, compact_nodes=False)
        pairs = tree.query_pairs(RADIUS, output_type="ndarray")
        found = time.perf_counter()
        places = moved(places, *_pulled(places, pairs), side)
        over = time.perf_counter()
        rounds.append(Round(found - begun, over - found, time.process_time() - used))
    return rounds, places


def _pulled(places: NDArray[np.float64], pairs: NDArray[np.int64]) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return what all neighbours do to each agent, and how many they are."""
    one, other = pairs.T
    towards = np.empty((3, len(pairs)))
    for low in range(0, len(pairs), _CHUNK):
        part = slice(low, low + _CHUNK)
        towards[:, part] = pulls(places[other[part]] - places[one[part]]).T
    agents = len(places)
    pulled = [np.bincount(one, part, agents) - np.bincount(other, part, agents) for part in towards]
    return np.stack(pulled, axis=1), np.bincount(pairs.ravel(), minlength=agents)
