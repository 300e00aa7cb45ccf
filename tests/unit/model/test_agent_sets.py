"""Sets of agents and channels, held against Python's own."""

import networkx as nx
import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ray_messaging.addressing.channels import build_channel
from ray_messaging.errors import InvalidAddress
from ray_messaging.model.agent_sets import AgentSet, ChannelSet, column_of

INT = st.one_of(st.integers(-4, 12), st.integers(-(2**63), 2**63 - 1))
IDS = st.lists(st.one_of(INT, st.sampled_from(["ann", "bob", "007", "12x"])), max_size=12)
FORMS = [list, tuple, set, iter, lambda ids: np.array(ids) if ids and set(map(type, ids)) == {int} else ids]


@given(IDS, st.sampled_from(FORMS))
def test_a_set_has_the_members_that_it_was_built_from(ids, form):
    made = AgentSet.of(form(ids))
    assert (len(made), set(made)) == (len(set(ids)), set(ids))
    assert list(made) == sorted(set(ids), key=lambda each: (isinstance(each, str), each))
    assert AgentSet.of(made.column) == made
    assert AgentSet.of(made) is made


@given(IDS, IDS)
def test_sets_act_as_sets_do(one, other):
    mine, theirs = AgentSet.of(one), AgentSet.of(other)
    assert set(mine | theirs) == {*one, *other}
    assert set(mine & theirs) == {*one} & {*other}
    assert set(mine - theirs) == {*one} - {*other}
    assert (mine == theirs) == ({*one} == {*other})
    assert bool(mine) == bool(one)
    if mine == theirs:
        assert hash(mine) == hash(theirs)
    for agent_id in [*one, *other, 0, "0", 2**63, None, ("ann",)]:
        assert (agent_id in mine) == (agent_id in set(one))


@given(IDS)
def test_a_column_keeps_the_order_of_its_ids(ids):
    assert column_of(ids).tolist() == [*dict.fromkeys(ids)]


@pytest.mark.parametrize("ids", [range(0), range(5, 900_000), range(9, -9, -3), range(2**63 - 3, 2**63), range(-3, 3)])
def test_ranges(ids):
    assert column_of(ids).tolist() == [*ids]
    assert [*AgentSet.of(ids)] == sorted(ids)


@pytest.mark.parametrize("ids", [range(2**63, 2**63 + 2), [1, 2**63], [1, True], [1, None], [1.0], ["a\n"], [1, b"x"]])
def test_invalid_ids_raise(ids):
    with pytest.raises(InvalidAddress):
        AgentSet.of(ids)


def test_ids_come_in_their_one_form():
    assert [*AgentSet.of(["12", np.int32(12), "007", 3])] == [3, 12, "007"]


@given(st.dictionaries(st.sampled_from(["chat", "survey"]), IDS, max_size=2), st.sets(st.sampled_from(["news", "a:b"])))
def test_channels_are_those_of_the_agents(agents, plain):
    made = ChannelSet("e", {topic: AgentSet.of(ids) for topic, ids in agents.items()}, plain)
    expected = {build_channel("e", agent_id, topic) for topic, ids in agents.items() for agent_id in ids} | plain
    assert (len(made), set(made)) == (len(expected), expected)
    ids = ("7:chat", "07:chat", "ann", "ann:chat", "1:*", "-0:chat")
    others = ["", "x", "exps:e", "exps:f:agents:1:chat", *(f"exps:e:agents:{each}" for each in ids)]
    for channel in [*expected, *others]:
        assert (channel in made) == (channel in expected)


@pytest.mark.parametrize(
    ("agents", "words"),
    [
        ({1: "a"}, "agents are a dict, whose values would be lost: pass its keys"),
        (pd.DataFrame({"id": [1]}), "agents are a DataFrame: pass its index, or the column"),
        ("ab", "must be a list, range or array of ids, not 'ab'"),
        (5, "must be a list, range or array of ids, not 5"),
        ({1: "a"}.items(), "agents are the items of a dict, .* pass the dict's keys"),
        (enumerate(["a", "b"]), "agents are an enumerate object, .* pass only the ids"),
        (pd.DataFrame({"id": [1]}).itertuples(), "is a Pandas"),
        (pd.Series([1.0]), "is a float"),
    ],
)
def test_a_collection_with_more_than_ids_is_refused(agents, words):
    with pytest.raises(InvalidAddress, match=words):
        AgentSet.of(agents)


@pytest.mark.parametrize("agents", [pd.Series([3, 1]), pd.Index([3, 1]), {3: 0, 1: 0}.keys(), nx.Graph([(3, 1)]).nodes])
def test_a_collection_of_ids_may_be_of_any_kind(agents):
    assert column_of(agents, once=True).tolist() == [3, 1]


@pytest.mark.parametrize("agents", [[7, "7"], [1, 2, 1], np.array([4, 4]), ["ann", 1, "ann"], pd.Series([2, 2])])
def test_an_id_that_comes_twice_is_refused_where_each_is_to_come_once(agents):
    with pytest.raises(InvalidAddress, match="comes twice in agents: give each agent once"):
        column_of(agents, once=True)
    assert len(column_of(agents)) < len(agents)


def test_a_repr_names_some_agents():
    assert repr(AgentSet.of([2, "bob"])) == "AgentSet(2 agents: 2, 'bob')"
    assert repr(AgentSet.of(range(1000))) == "AgentSet(1,000 agents: 0, 1, 2, 3, 4, ...)"
