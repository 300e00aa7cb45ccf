"""The places of a group's agents."""

from hypothesis import given
from hypothesis import strategies as st

from ray_messaging.model.agent_sets import AgentSet
from ray_messaging.model.columns import IdColumn
from ray_messaging.steps.agent_places import AgentPlaces

AGENTS = st.one_of(st.integers(-(2**63), 2**63 - 1), st.integers(0, 9), st.text("abäß", min_size=1, max_size=2))


@given(st.sets(AGENTS, max_size=20), st.lists(st.one_of(AGENTS, st.none()), max_size=20))
def test_the_place_of_an_agent_is_its_index_in_the_order_of_ids(hosted, asked):
    expected = sorted(agent for agent in hosted if isinstance(agent, int))
    expected += sorted((agent for agent in hosted if isinstance(agent, str)), key=str.encode)
    places = AgentPlaces(AgentSet.of(hosted))
    assert list(places) == expected
    wanted = [expected.index(agent) if agent in hosted else -1 for agent in asked]
    assert places.find(IdColumn.of(asked)).tolist() == wanted
    for agent, place in zip(asked, wanted, strict=True):
        if agent is not None:
            assert places.place(agent) == place


def test_consecutive_ids_are_found_without_a_search():
    places = AgentPlaces(AgentSet.of(range(5, 10)))
    assert places.find(IdColumn.of([4, 5, 9, 10, -(2**63), 2**63 - 1])).tolist() == [-1, 0, 4, -1, -1, -1]
