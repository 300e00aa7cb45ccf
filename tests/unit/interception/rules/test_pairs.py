"""The index that rules out rows: it stays sparse while it grows, or says that it is full."""

import numpy as np
import pytest

from ray_messaging.interception.rules.pairs import PairIndex
from ray_messaging.model.columns import IdColumn

STRANGERS = IdColumn(np.arange(10**6, 10**6 + 1000)), IdColumn(np.arange(2 * 10**6, 2 * 10**6 + 1000))


@pytest.mark.parametrize(
    "pair_of", [lambda n: (n, n), lambda n: (n, None), lambda n: (None, n)], ids=["pairs", "from", "to"]
)
@pytest.mark.parametrize("size", [0, 1000])
def test_it_is_full_before_it_is_crowded(pair_of, size):
    index = PairIndex(map(pair_of, range(size)))
    added = size
    while index.add(pair_of(added)):
        added += 1
    assert added >= 2 * size
    assert len(index.candidates(*STRANGERS)) < 300


def test_names_fill_it_too():
    index, added = PairIndex(), 0
    while index.add((f"agent{added}", 1)):
        added += 1
    assert added < 100


def test_added_pairs_are_found():
    index = PairIndex([(1, 2)])
    for pair in [(3, 4), (5, None), (None, 6), ("ann", None)]:
        assert index.add(pair)
    sent = [(1, 2), (3, 4), (5, 9), (9, 6), ("ann", 9), *((n, n) for n in range(100, 110))]
    found = index.candidates(IdColumn.of([a for a, _ in sent]), IdColumn.of([b for _, b in sent]))
    assert {0, 1, 2, 3, 4} <= set(found)
    assert len(found) < 12
    index.add((None, None))
    assert index.candidates(*STRANGERS) == list(range(1000))
