"""The canonical order of a step's messages."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ray_messaging.model.columns import IdColumn
from ray_messaging.steps.reading.canonical_order import canonical_order, id_ranks

AGENTS = st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1), st.text(max_size=3))
ROWS = st.lists(st.tuples(AGENTS, st.integers(0, 2**40), AGENTS, st.integers(0, 2**32 - 1)), max_size=30)


def key_of(agent: object) -> tuple[int, object]:
    """Return the sort key of an id, as the contract says it: None, ints, then strs by their bytes."""
    if agent is None:
        return (0, 0)
    return (1, agent) if isinstance(agent, int) else (2, str(agent).encode())


@given(st.lists(ROWS, min_size=1, max_size=4))
def test_the_order_is_that_of_the_four_fields(frames):
    rows = [row for frame in frames for row in frame]
    to_ids = [IdColumn.of([row[0] for row in frame]) for frame in frames]
    from_ids = [IdColumn.of([row[2] for row in frame]) for frame in frames]
    steps, ordinals = (np.array([row[field] for row in rows], np.int64) for field in (1, 3))
    order = canonical_order(to_ids, steps, from_ids, ordinals)
    keys = [(key_of(row[0]), row[1], key_of(row[2]), row[3]) for row in rows]
    assert [keys[row] for row in order.tolist()] == sorted(keys)


@given(st.lists(st.lists(AGENTS, max_size=20), min_size=1, max_size=3))
def test_ranks_sort_as_ids_do(columns):
    agents = [agent for column in columns for agent in column]
    ranks = id_ranks([IdColumn.of(column) for column in columns]).tolist()
    for one, its_rank in zip(agents, ranks, strict=True):
        for other, other_rank in zip(agents, ranks, strict=True):
            assert (its_rank < other_rank) == (key_of(one) < key_of(other))
