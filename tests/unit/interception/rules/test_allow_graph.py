"""AllowGraph."""

import pickle

import networkx as nx
import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.rules import AGENT, PAIRS, batch_of, blocked, judged, one_by_one

from ray_messaging.errors import InvalidAddress, RuleError
from ray_messaging.interception.rules import AllowGraph

EDGES = st.lists(st.tuples(AGENT, AGENT), max_size=8)
MEMBERS = st.lists(AGENT, min_size=1, max_size=4)


@given(PAIRS, EDGES, MEMBERS, MEMBERS, EDGES, MEMBERS, st.booleans(), st.booleans())
def test_verdicts_are_those_by_hand(pairs, edges, team, other, inner, square, user, channels):
    networks = {"team": team, "other": other, "inner": inner, "square": square}
    rule = AllowGraph(edges, networks=networks, public=["square"], user=user, channels=channels)

    def passes(from_id, to_id):
        if to_id is None:
            return channels and (user or from_id is not None)
        if to_id in square:
            return True
        if from_id is None:
            return user
        return (from_id, to_id) in [*edges, *inner] or any(
            from_id in members and to_id in members for members in (team, other, square)
        )

    batch = batch_of(pairs)
    assert blocked(rule, batch) == [row for row, pair in enumerate(pairs) if not passes(*pair)]
    assert one_by_one(rule, batch) == judged(rule, batch)
    assert judged(pickle.loads(pickle.dumps(rule)), batch) == judged(rule, batch)


def test_many_edges_of_ints():
    edges = {(n, n * 7 % 1000) for n in range(1000)} | {(-n, 2**62 - n) for n in range(1000)}
    asked = [*edges, *((b, a) for a, b in edges)]
    assert blocked(AllowGraph(edges), batch_of(asked)) == [row for row, edge in enumerate(asked) if edge not in edges]


def test_edges_of_the_same_hash_are_told_apart():
    """The hash of a pair is from * A ^ to * B: solve it for another pair of the same hash."""
    a, b, size = 0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 2**64
    wanted = (1 * a % size) ^ (2 * b % size)
    twin = (wanted ^ (3 * a % size)) * pow(b, -1, size) % size
    twin = twin - size if twin >= size // 2 else twin
    for edges in ([(1, 2)], [(3, twin)], [(1, 2), (3, twin)]):
        asked = [(1, 2), (3, twin), (2, 1)]
        assert blocked(AllowGraph(edges), batch_of(asked)) == [row for row in range(3) if asked[row] not in edges]


@pytest.mark.parametrize("kind", [nx.Graph, nx.DiGraph, nx.MultiGraph, nx.MultiDiGraph])
def test_networkx(kind):
    graph = kind([(1, 2), (2, "ann"), (1, 2)])
    graph.add_node(9)
    found = blocked(AllowGraph(graph), batch_of([(1, 2), (2, "ann"), (2, 1), ("ann", 2), (1, "ann"), (9, 1)]))
    assert found == ([2, 3, 4, 5] if graph.is_directed() else [4, 5])
    # A node without edges is a member, too.
    public = AllowGraph(networks={"square": graph}, public="square")
    assert blocked(public, batch_of([(7, 9), (None, 9), (9, 7)])) == [2]


def test_graphs_in_other_forms():
    for graph in (np.array([[1, 2], [2, 3]]), ((a, a + 1) for a in (1, 2)), {(1, 2), (2, 3)}, [[1, "2"], ["2", 3]]):
        assert blocked(AllowGraph(graph), batch_of([(1, 2), (2, 3), (3, 2)])) == [2]
    for graph in (pd.DataFrame({"a": [1], "b": [2]}), np.array([[1, 2]])):
        assert blocked(AllowGraph(networks={"one": graph}), batch_of([(1, 2), (2, 1)])) == [1]
    assert blocked(AllowGraph([]), batch_of([(1, 2), (1, 1), (None, 1), (1, None)])) == [0, 1]


def test_reasons():
    rule = AllowGraph([(1, 2)], user=False, channels=False)
    assert [verdict.reason for verdict in judged(rule, batch_of([("ann", 2), (None, 2), (1, None)]))] == [
        "agent 'ann' may not write to agent 2: no edge joins them",
        "the user may not write to agent 2: no edge joins them",
        "agent 1 may not write to plain channels: no edge joins them",
    ]


@pytest.mark.parametrize(
    ("graph", "settings", "words"),
    [
        (None, {}, "no graph"),
        (7, {}, "graph= is 7, which is not a graph"),
        ("ab", {}, "'ab', which is not a graph"),
        ([1, 2], {}, "graph= has 1, which is not an edge"),
        ([(1, 2, 3)], {}, r"\(1, 2, 3\), which is not an edge"),
        (None, {"networks": {"team": [(1, 2), 3]}}, "the network 'team' has 3, which is not an edge"),
        (None, {"networks": [(1, 2)]}, "is not a mapping"),
        ({1: [2]}, {}, "is not a graph"),
        (
            None,
            {"networks": {"team": {1: [2], 3: []}}},
            "the network 'team' is .* not a graph",
        ),  # all its keys were joined
        (
            None,
            {"networks": {"team": [1]}, "public": ["square"]},
            r"public='square' is not the name of a network: networks= has 'team'",
        ),
        ([(1, 2)], {"public": ["square"]}, "'square'"),
    ],
)
def test_invalid_arguments_are_refused(graph, settings, words):
    with pytest.raises(RuleError, match=words):
        AllowGraph(graph, **settings)


def test_a_list_of_edges_in_another_list_is_no_edge():
    with pytest.raises(RuleError, match=r"the pair \[\(1, 2\), \(3, 4\)\] is a list"):
        AllowGraph([[(1, 2), (3, 4)]])


@pytest.mark.parametrize("graph", [[(1.5, 2)], [(1, None)], nx.Graph([("a\n", 1)])])
def test_invalid_ids_are_refused(graph):
    with pytest.raises(InvalidAddress, match="agent id"):
        AllowGraph(graph)
