"""The plan of a run: which agents are in which group, with their data and neighbours."""

import uuid
from threading import Lock

import networkx as nx
import numpy as np
import pandas as pd
import pytest

from ray_messaging.addressing.channels import check_id
from ray_messaging.cluster.run.run_plan import Homes, plan_groups
from ray_messaging.errors import ConfigError


def neighbours(agents, graph, groups=2):
    plans = plan_groups(agents, groups, graph, 2)
    return {agent: [*found] for plan in plans for agent, (_, found) in plan.rows.items()}


@pytest.mark.parametrize("dtype", [np.int64, np.int8, np.uint8, np.uint64])
@pytest.mark.parametrize("rows", [0, 1, 100])
def test_an_array_of_edges_gives_the_neighbours_of_its_pairs(dtype, rows):
    edges = np.random.default_rng(rows).integers(0, 9, (rows, 2)).astype(dtype)
    assert neighbours(9, edges) == neighbours(9, [(int(one), int(other)) for one, other in edges])


@pytest.mark.parametrize(
    ("graph", "expected"),
    [
        (nx.path_graph(3), {0: [1], 1: [2, 0], 2: [1]}),
        (nx.path_graph(3, create_using=nx.DiGraph), {0: [1], 1: [2], 2: []}),
        (nx.Graph([(0, 0), (0, 2)]), {0: [0, 2], 1: [], 2: [0]}),
        ([("0", "1"), ("1", "2")], {0: [1], 1: [2], 2: []}),
        (np.array([[0, 1], [0, 2]]), {0: [1, 2], 1: [], 2: []}),
        ([(0, 2), (0, 1), ("0", 2), (0, 1)], {0: [2, 1], 1: [], 2: []}),
        (nx.MultiGraph([(0, 1), (0, 1), (1, 0)]), {0: [1], 1: [0], 2: []}),
        (nx.MultiDiGraph([(0, 1), (0, 1), (2, 1), (2, 2)]), {0: [1], 1: [], 2: [1, 2]}),
        (pd.DataFrame({"ab": [0, 1], "cd": [1, 2]}), {0: [1], 1: [2], 2: []}),
        (iter([(0, 1), (0, 1)]), {0: [1], 1: [], 2: []}),
    ],
)
def test_neighbours_are_those_that_the_graph_says(graph, expected):
    assert neighbours(3, graph) == expected


@pytest.mark.parametrize("index", [["1", "2"], [uuid.UUID(int=5), uuid.UUID(int=6)], [1, "ann"]])
def test_rows_of_a_table_go_to_the_agents_of_its_index(index):
    plans = plan_groups(pd.DataFrame({"mood": [0.5, 0.7]}, index=index), 1, None, 2)
    ids = dict(zip([*map(check_id, index)], [{"mood": 0.5}, {"mood": 0.7}], strict=True))
    assert {agent: data for agent, (data, _) in plans[0].rows.items()} == ids


@pytest.mark.parametrize(
    "agents",
    [
        {3: 0, 1: 0}.keys(),
        {1: 3, 0: 1}.values(),
        {1, 3},
        (agent for agent in (3, 1)),
        pd.Series([3, 1], index=["a", "b"]),
        pd.Index([1, 3]),
        pd.Series([1, 3], dtype="Int64"),
        nx.Graph([(1, 3)]).nodes,
        nx.Graph([(1, 3)]),
    ],
)
def test_agents_may_be_a_collection_of_any_kind(agents):
    assert [*plan_groups(agents, 1, None, 2)[0].agents] == [1, 3]


STRANGE, TWICE = "ids that are not agents of this run", "comes twice in agents"


@pytest.mark.parametrize(
    ("agents", "graph", "words"),
    [
        (3, {0: [1, 2]}, "graph is a dict: pass pairs"),
        (3, {(0, 1): 0.5}, "graph is a dict: pass pairs"),
        (3, ["01", "12"], "graph has '01'"),
        (3, "friends", "graph='friends' names an audience, which only messaging.run can look up"),
        (3, [(0, 1, 0.5)], "graph has"),
        (3, pd.DataFrame({"a": [0], "b": [1], "weight": [0.5]}), "graph has"),
        *((3, graph, STRANGE) for graph in ([(0, 3)], [(7, 0)], [(0, "ann")], nx.path_graph(4))),
        ({1: "a", 2: "b"}, None, "agents are a dict, whose values would be lost"),
        (pd.DataFrame([[1, 2]], columns=["mood", "mood"]), None, "two columns of agents= have the same name"),
        *((agents, None, TWICE) for agents in ([1, 1, 2], ["1", 1], iter([5, 5]))),
        (
            pd.DataFrame({"name": ["ann"], "lock": [Lock()]}),
            None,
            "column 'lock' of agents has .*pass that object in shared=",
        ),
        (pd.concat([pd.DataFrame({"v": [1, 2]}), pd.DataFrame({"v": [3, 4]})]), None, TWICE),
    ],
)
def test_agents_and_graphs_that_would_lose_something_are_refused(agents, graph, words):
    with pytest.raises(ConfigError, match=words):
        plan_groups(agents, 2, graph, 2)


async def test_rows_that_were_not_loaded_are_loaded_again():
    plans = plan_groups(pd.DataFrame({"age": [1, 2, 3, 4]}), 2, None, 2)
    lost = True

    class Reference:
        def __await__(self):
            if lost:
                raise OSError("lost")
            return plans[1]
            yield

    homes, everybody = Homes(plans[0], {"other": Reference()}), plans[0].agents | plans[1].agents
    with pytest.raises(OSError, match="lost"):
        await homes.prepare(everybody)
    lost = False
    await homes.prepare(everybody)
    assert plans[0].rows.keys() == {*everybody}
