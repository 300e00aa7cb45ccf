"""The black list, held against a naive one."""

import json

from hypothesis import given
from hypothesis import strategies as st

from ray_messaging.frames import Batch
from ray_messaging.ids import Ids
from ray_messaging.interception.rules import BlackList

AGENT = st.one_of(st.integers(0, 6), st.integers(-(2**63), 2**63 - 1), st.sampled_from(["ann", "bob"]))
PAIR = st.tuples(st.one_of(AGENT, st.none()), st.one_of(AGENT, st.none()))


def batch_of(pairs):
    from_ids, to_ids = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    return Batch(
        sender="s", epoch=0, first=0, from_ids=Ids.of(from_ids), to_ids=Ids.of(to_ids), topics=("chat",)
    )  # fmt: skip


def naive(blocked, pair):
    """A wildcard stands for any agent; None among ids is the user, or a channel that is no agent's."""
    from_id, to_id = pair
    for a, b in blocked:
        from_fits = from_id is not None and a in (None, from_id)
        to_fits = b is None if to_id is None else b in (None, to_id)
        if from_fits and to_fits:
            return True
    return False


@given(st.sets(PAIR, max_size=8), st.lists(PAIR, max_size=20))
def test_it_blocks_what_a_naive_one_blocks(blocked, sent):
    rule = BlackList(blocked)
    asked = [*sent, *blocked]
    found = rule.check_batch(batch_of(asked), "e")
    assert set(found) == {row for row, pair in enumerate(asked) if naive(blocked, pair)}
    assert all(found.values())


@given(st.sets(PAIR, max_size=5), st.sets(PAIR, max_size=5), st.lists(PAIR, max_size=9))
def test_changes(first, second, sent):
    rule = BlackList(first)
    rule.add(second)
    rule.remove(first)
    assert rule.pairs == second - first
    assert set(rule.check_batch(batch_of(sent), "e")) == {
        row for row, pair in enumerate(sent) if naive(second - first, pair)
    }
    rule.set(first)
    copy = BlackList()
    copy.load(json.loads(json.dumps(rule.dump())))
    assert copy.pairs == first
    assert copy.check_batch(batch_of(sent), "e") == rule.check_batch(batch_of(sent), "e")


def test_many_pairs_and_many_messages():
    pairs = {(n, n * 7 % 5000) for n in range(5000)}
    rule = BlackList(pairs)
    asked = [(n, (n + k) * 7 % 5000) for n in range(5000) for k in (0, 1)]
    assert len(rule.check_batch(batch_of(asked), "e")) == 5000
