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
