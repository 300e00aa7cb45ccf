"""Agents whose ids are tuples, such as the nodes of a lattice of networkx."""

import networkx as nx
import pandas as pd
import pytest

from ray_messaging import Mean, Of, id_tuple, rules, run
from ray_messaging.errors import ConfigError, InvalidAddress


def cell(me, inbox):
    row, col = id_tuple(me.id)
    me.state |= {"heard": len(inbox), "from": [message.from_id for message in inbox], "place": row * 3 + col}
    for friend in me.neighbours:
        me.send(friend, {"row": row})
    if me.id == "(0, 0)":
        me.send((2, 2), {"row": row})


@pytest.mark.parametrize("groups", [1, 3, {"west": [(0, 0), (0, 1)], "east": [divmod(n, 3) for n in range(2, 9)]}])
def test_a_lattice_of_networkx_is_a_run(groups):
    lattice = nx.grid_2d_graph(3, 3)
    result = run(
        cell, agents=lattice.nodes, graph=lattice, until=2, groups=groups, progress=False,
        rules=[rules.BlackList([((1, 1), (0, 1))])],
        collect=[Mean("heard"), Of([(0, 1), (2, 2)], Mean("two", of="heard"))],
    )  # fmt: skip
    found = {id_tuple(agent): state for agent, state in result.states.items()}
    assert found.keys() == set(lattice.nodes)
    for node, state in found.items():
        friends = {*lattice[node]} | ({(0, 0)} if node == (2, 2) else set())
        assert {*map(id_tuple, state["from"])} == friends - ({(1, 1)} if node == (0, 1) else set())
    assert result.states["(1, 2)"]["place"] == 5
    assert result.fates["blocked"] == 2
    assert result.series.two.tolist() == [0, 2.5]


def test_the_index_of_a_data_frame_may_have_tuples():
    frame = pd.DataFrame({"rich": [True, False]}, index=pd.MultiIndex.from_tuples([(0, 1), (0, 2)]))
    result = run(lambda me, inbox: me.state.update(me.data), agents=frame, until=1, progress=False)
    assert result.states == {"(0, 1)": {"rich": True}, "(0, 2)": {"rich": False}}


def test_a_node_that_is_no_id_is_named():
    with pytest.raises(InvalidAddress, match=r"agent id \(0.5, 1\) has 0.5 in it"):
        run(cell, agents=[(0.5, 1)], until=1)
    with pytest.raises(ConfigError, match=r"agent '\(0, 1\)' comes twice"):
        run(cell, agents=[(0, 1), "(0, 1)"], until=1)
