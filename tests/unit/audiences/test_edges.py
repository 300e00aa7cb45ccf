"""Edges of both kinds against sets of pairs in plain Python."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ray_messaging.audiences.building import build_edges
from ray_messaging.audiences.member_edges import MemberEdges
from ray_messaging.errors import InvalidAddress, InvalidColumns
from ray_messaging.model.agent_sets import AgentSet
from ray_messaging.model.columns import IdColumn

SMALL, LARGE = st.integers(0, 12), st.sampled_from([-(2**63), -5, 0, 3, 2**31, 2**40, 2**63 - 1])
AGENTS = st.one_of(st.integers(0, 6), st.sampled_from(["a", "b", "c"]))
SENDERS = st.lists(st.one_of(AGENTS, st.none()), max_size=9)


def graphs():
    ids = st.one_of(st.just(SMALL), st.just(LARGE), st.just(st.one_of(SMALL, LARGE)))
    pairs = ids.flatmap(lambda each: st.lists(st.tuples(each, each), max_size=40))
    return st.tuples(pairs, st.integers(1, 10))


def built(pairs, size):
    chunks = (pairs[low : low + size] for low in range(0, len(pairs), size))
    return build_edges(np.array(chunk, np.int64).reshape(-1, 2) for chunk in chunks)


def check(edges, pairs, from_ids):
    """Compare edges with a set of pairs, for some senders."""
    column = IdColumn.of(from_ids)
    order = {agent: place for place, agent in enumerate(AgentSet.of({b for _, b in pairs}))}
    expected = [
        (row, agent)
        for row, sender in enumerate(from_ids)
        for agent in sorted((b for a, b in pairs if a == sender), key=order.__getitem__)
    ]
    found = edges.expand(column)
    assert [*zip(found.rows.tolist(), found.hearers.tolist(), strict=True)] == expected
    assert edges.counts(column).tolist() == [sum(row == each for row, _ in expected) for each in range(len(from_ids))]


@settings(max_examples=40)
@given(graphs(), st.lists(st.one_of(SMALL, LARGE, st.none(), st.just("x")), max_size=9), st.sets(SMALL), st.sets(LARGE))
def test_a_graph_has_the_pairs_it_was_built_of(graph, from_ids, some, others):
    pairs, size = graph
    edges, there = built(pairs, size), {*pairs}
    assert edges.pairs == len(there)
    check(edges, there, from_ids)
    hearers, senders = AgentSet.of(some | others), AgentSet.of(some)
    toward = edges.toward(hearers)
    check(toward, {(a, b) for a, b in there if b in hearers}, from_ids)
    check(edges.of(senders), {(a, b) for a, b in there if a in senders}, from_ids)
    check(toward.of(senders), {(a, b) for a, b in there if a in senders and b in hearers}, from_ids)


@settings(max_examples=40)
@given(graphs(), st.randoms(use_true_random=False))
def test_the_hash_of_a_graph_depends_on_its_pairs_alone(graph, random):
    pairs, size = graph
    first = built(pairs, size)
    again = [*pairs, *pairs[:3]]
    random.shuffle(again)
    assert built(again, 7).digest == first.digest
    assert built([*pairs, (99, 98)], size).digest != first.digest
    assert first.toward(AgentSet.of([1])).digest == first.digest


@settings(max_examples=40)
@given(st.sets(AGENTS), SENDERS, st.sets(AGENTS), st.sets(AGENTS))
def test_members_hear_everybody_but_themselves(members, from_ids, some, senders):
    edges = MemberEdges.among(AgentSet.of(members))
    asked = {*from_ids, *members}
    there = {(a, b) for a in asked for b in members if a != b}
    check(edges, there, from_ids)
    hearers = AgentSet.of(some)
    check(edges.toward(hearers), {pair for pair in there if pair[1] in some}, from_ids)
    check(
        edges.toward(hearers).of(AgentSet.of(senders)),
        {(a, b) for a, b in there if b in some and a in senders},
        from_ids,
    )
    assert edges.pairs == len(members) * max(len(members) - 1, 0)


def test_edges_that_are_none_are_refused_with_their_row():
    with pytest.raises(InvalidColumns, match=r"shape \(2,\)"):
        build_edges([np.array([1, 2])])
    with pytest.raises(InvalidColumns, match=r"edge 2 is \(1, 'a'\)") as caught:
        build_edges([np.array([[1, 2], [3, 4]]), [(1, "a")]])
    assert caught.value.row == 2
    with pytest.raises(InvalidAddress, match=r"1\.5"):
        build_edges([np.array([[1.5, 2.0]])])
