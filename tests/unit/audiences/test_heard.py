"""Reductions of what agents hear, against numpy on all pairs."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ray_messaging.audiences.building import build_edges
from ray_messaging.audiences.heard import Heard
from ray_messaging.audiences.hearer_pairs import Pairs
from ray_messaging.audiences.member_edges import MemberEdges
from ray_messaging.errors import InvalidColumns
from ray_messaging.model.agent_sets import AgentSet
from ray_messaging.model.columns import IdColumn, PayloadColumn, encode_dict
from ray_messaging.model.typed.input import columns

SMALL = st.integers(0, 9)
NAMED = st.one_of(SMALL, st.sampled_from(["a", "b"]))
VALUES = st.floats(-1e6, 1e6, width=32)


def graph_case():
    rows = st.lists(st.tuples(st.one_of(SMALL, st.none(), st.just("x")), VALUES), max_size=12)
    return st.tuples(st.lists(st.tuples(SMALL, SMALL), max_size=40), st.sets(NAMED), rows, st.randoms())


def member_case():
    return st.tuples(st.sets(NAMED), st.sets(NAMED), st.lists(st.tuples(NAMED, VALUES), max_size=12), st.randoms())


def check(edges, agents, rows, removed):
    """Compare all reductions with those of the listed pairs."""
    from_ids = IdColumn.of([sender for sender, _ in rows])
    taken = Pairs(np.array([row for row, _ in removed], np.intp), IdColumn.of([agent for _, agent in removed]))
    table = columns(x=np.array([value for _, value in rows], np.float64), n=np.arange(len(rows)))
    heard = Heard(edges, agents, from_ids, [table] if rows else [], taken)
    all_pairs = edges.expand(from_ids)
    pairs = {*zip(all_pairs.rows.tolist(), all_pairs.hearers.tolist(), strict=True)} - {*removed}
    inboxes = [[row for row in range(len(rows)) if (row, agent) in pairs] for agent in agents]
    assert heard.count().tolist() == [len(inbox) for inbox in inboxes]
    means, sums, largest, smallest = heard.mean("x"), heard.sum("x"), heard.max("x"), heard.min("x")
    whole = heard.sum("n") if rows else np.zeros(len(agents))
    for place, inbox in enumerate(inboxes):
        values = [rows[row][1] for row in inbox]
        assert whole[place] == sum(inbox)
        assert sums[place] == pytest.approx(math.fsum(values), rel=1e-12, abs=1e-6)
        if values:
            found = (means[place], largest[place], smallest[place])
            assert found == (pytest.approx(np.mean(values), rel=1e-12, abs=1e-6), max(values), min(values))
        else:
            assert np.isnan([means[place], largest[place], smallest[place]]).all()
    listed = [(agent, chunk, at) for chunk in heard.column("x") for at, agent in enumerate(chunk.agents)]
    assert [agent for agent, _, _ in listed] == [*agents]
    for (_, chunk, at), inbox in zip(listed, inboxes, strict=True):
        part = slice(chunk.offsets[at], chunk.offsets[at + 1])
        found = zip(chunk.from_ids.take(part).tolist(), chunk.values[part].tolist(), strict=True)
        assert sorted(found, key=str) == sorted((rows[row] for row in inbox), key=str)
    return heard


def some(pairs, random):
    listed = [*zip(pairs.rows.tolist(), pairs.hearers.tolist(), strict=True)]
    return [pair for pair in listed if random.random() < 0.3] if random.random() < 0.7 else []


@settings(max_examples=80)
@given(graph_case() | member_case())
def test_pairs_are_heard_as_they_are_listed_with_the_same_bits_in_any_group(case):
    pairs_or_members, agents, rows, random = case
    if isinstance(pairs_or_members, set):
        edges, everybody = MemberEdges.among(AgentSet.of(pairs_or_members)), agents | pairs_or_members
    else:
        edges, everybody = build_edges([np.array(pairs_or_members, np.int64).reshape(-1, 2)]), {*agents, *range(10)}
    removed = some(edges.expand(IdColumn.of([sender for sender, _ in rows])), random)
    hearers = AgentSet.of(agents)
    whole, part = check(edges, AgentSet.of(everybody), rows, removed), check(edges, hearers, rows, removed)
    places = [[*whole.agents].index(agent) for agent in hearers]
    assert whole.sum("x")[places].tobytes() == part.sum("x").tobytes()


@settings(max_examples=40)
@given(graph_case())
def test_a_graph_where_each_sends_at_most_once_is_heard_as_its_pairs_say(case):
    pairs, agents, _, random = case
    edges = build_edges([np.array(pairs, np.int64).reshape(-1, 2)])
    rows = [(sender, float(sender)) for sender in edges.senders.ints.tolist()]
    random.shuffle(rows)
    rows = rows[: random.randint(len(rows) // 2, len(rows))]
    removed = some(edges.expand(IdColumn.of([sender for sender, _ in rows])), random)
    check(edges, AgentSet.of({*agents, *range(10)}), rows, removed)


def test_vectors_bools_large_ints_and_numbers_in_json():
    edges = build_edges([[(1, 2), (3, 2), (1, 3)]])
    agents, from_ids = AgentSet.of([2, 3, 4]), IdColumn.of([1, 3])
    table = columns(v=np.array([[1.0, 2.0], [3.0, 5.0]]), alive=[True, True], n=np.array([2**62, 1]), name=["a", "b"])
    heard = Heard(edges, agents, from_ids, [table])
    np.testing.assert_array_equal(heard.mean("v"), [[2, 3.5], [1, 2], [np.nan, np.nan]])
    assert heard.sum("alive").tolist() == [2, 1, 0]
    assert heard.sum("n").tolist() == [2**62 + 1, 2**62, 0]
    lines = PayloadColumn.of([encode_dict({"x": 1}), encode_dict({"x": 4})])
    heard = Heard(edges, agents, from_ids, [lines])
    assert heard.sum("x").tolist() == [5, 1, 0]
    with pytest.raises(InvalidColumns, match="message 0 has no column 'y'"):
        heard.mean("y")
    heard = Heard(edges, agents, from_ids, [table])
    with pytest.raises(InvalidColumns, match="column 'name' has values such as 'a', but sums, means"):
        heard.mean("name")
    assert [chunk.values.tolist() for chunk in heard.column("name")] == [["a", "b", "a"]]
