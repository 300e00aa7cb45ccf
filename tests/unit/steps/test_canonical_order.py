"""The canonical order of a step's messages."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.batches import batch_to

from ray_messaging.model.columns import IdColumn, PayloadColumn
from ray_messaging.model.extension import Extension
from ray_messaging.steps.canonical_order import canonical_order, joined_in_order

INTS = st.integers(-(2**63), 2**63 - 1)
AGENTS = st.one_of(st.none(), INTS, st.text(max_size=3))
ROWS = st.lists(st.tuples(AGENTS, st.integers(0, 2**40), AGENTS, st.integers(0, 2**32 - 1)), max_size=30)
FAR_APART = st.lists(st.tuples(INTS, st.integers(0, 3), INTS, st.integers(0, 9)), min_size=1, max_size=30)


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


@given(st.lists(ROWS.filter(len), min_size=1, max_size=4) | st.lists(FAR_APART, min_size=1, max_size=4))
def test_joined_batches_have_the_rows_in_that_order(frames):
    """Ids that are far apart, small ones and names come back as they were."""
    batches = [
        batch_to(
            [row[0] for row in rows],
            [row[2] for row in rows],
            step=np.array([row[1] for row in rows], np.int64),
            sent_at=0.0,
            lines=PayloadColumn.of([b"%d" % row[3] for row in rows]),
            extension=Extension(ordinal=np.array([row[3] for row in rows], np.uint32)),
        )
        for rows in frames
    ]
    joined = joined_in_order(batches)[0]
    columns = joined.to_ids.tolist(), joined.step.tolist(), joined.from_ids.tolist(), joined.extension.ordinal.tolist()
    found = [*zip(*columns, strict=True)]
    rows = [row for frame in frames for row in frame]
    assert found == sorted(rows, key=lambda row: (key_of(row[0]), row[1], key_of(row[2]), row[3]))
    assert joined.lines.by_row == [b"%d" % row[3] for row in found]


PARTS = st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=6), min_size=1, max_size=4)


@pytest.mark.parametrize("recipients", ["one each", "one each, apart", "many", "far apart", "farther apart", "names"])
@given(parts=PARTS, seed=st.integers(0, 9))
@settings(max_examples=4, deadline=None)
def test_the_order_of_many_rows(recipients, parts, seed):
    """Many rows come in parts, each of which has its senders ascending, or not."""
    random = np.random.default_rng(seed)
    columns, low = [], 0
    for part in parts:
        rows = 2_000 * len(part)
        senders = np.repeat(np.array(part), 2_000)
        ordinals = np.arange(low, low + rows)
        columns.append((senders, ordinals))
        low += rows
    to_ids = {
        "one each": lambda: random.permutation(low),
        "one each, apart": lambda: 2 * random.permutation(low) - 7,
        "many": lambda: random.integers(0, 300, low),
        "far apart": lambda: random.integers(0, 2**31, low),
        "farther apart": lambda: random.integers(-(2**63), 2**63 - 1, low),
        "names": lambda: np.array([*"abc"], object)[random.integers(0, 3, low)],
    }[recipients]()
    from_ids, sends = (np.concatenate(found) for found in zip(*columns, strict=True))
    order = canonical_order(
        [IdColumn.of(to_ids.tolist())], np.full(low, 3), [IdColumn.of(each.tolist()) for each, _ in columns], sends
    )
    assert order.tolist() == sorted(range(low), key=lambda row: (to_ids[row], from_ids[row], sends[row]))
