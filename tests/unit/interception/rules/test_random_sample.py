"""Sample."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.rules import batch_of, blocked, judged, one_by_one

from ray_messaging.interception.rules import Sample, label
from ray_messaging.model.extension import Extension


@given(st.integers(1, 50), st.integers(0, 2**61), st.floats(0, 1), st.integers(-(2**70), 2**70), st.text(max_size=5))
def test_at_once_one_by_one_and_again(rows, first, share, seed, sender):
    batch = batch_of([(n, None) for n in range(rows)], sender=sender, first=first)
    verdicts = judged(Sample(share, seed), batch)
    assert one_by_one(Sample(share, seed), batch) == verdicts
    later = batch_of([(n, None) for n in range(rows)], sender=sender, first=first, epoch=7)
    assert judged(Sample(share, seed), later) == verdicts


@pytest.mark.parametrize("share", [0, 0.001, 0.1, 0.5, 0.99, 1])
def test_the_share_is_met(share):
    count = len(blocked(Sample(share), batch_of([(1, 2)] * 100_000)))
    assert abs(count - 100_000 * share) <= 5 * np.sqrt(100_000 * share * (1 - share))


def test_senders_seeds_and_numbers_differ():
    """Two samples of a half agree on about a half; the same dice would agree on all, or on none."""
    picks = [
        set(blocked(Sample(0.5, seed), batch_of([(1, 2)] * 2000, sender=sender, first=first)))
        for seed, sender, first in [(0, "a", 0), (1, "a", 0), (0, "b", 0), (0, "a", 2000)]
    ]
    for place, one in enumerate(picks):
        for other in picks[:place]:
            assert 400 < len(one & other) < 600


def test_labels():
    assert set(judged(Sample(0.5, action="label", name="survey"), batch_of([(1, 2)] * 99))) == {None, label("survey")}


def test_in_steps_neither_groups_nor_attempts_change_the_choice():
    """The n-th message of an agent in a step is picked or not, whoever sends it, among whichever others."""
    agents, ordinals = [*range(50), "anna", "bert"], np.arange(4, dtype=np.uint32)

    def picked(senders, step=3):
        found = set()
        for name, first, ids in senders:
            batch = batch_of([(agent, 1) for agent in ids for _ in ordinals], sender=name, first=first)
            batch.step, batch.extension = step, Extension(ordinal=np.tile(ordinals, len(ids)))
            found |= {(ids[row // 4], row % 4) for row in blocked(Sample(0.5), batch)}
        return found

    whole = picked([("all", 0, agents)])
    assert 60 < len(whole) < 150
    assert picked([("even", 12, agents[::2]), ("odd", 900, agents[1::2])]) == whole
    assert picked([("all", 0, agents)], step=4) != whole
