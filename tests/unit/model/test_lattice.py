"""Lattices: their edges are those of networkx, and those that Moore and von Neumann mean."""

import networkx as nx
import pytest

from ray_messaging import ConfigError, grid, run


@pytest.mark.parametrize("torus", [False, True])
@pytest.mark.parametrize(("rows", "cols"), [(1, 1), (1, 5), (2, 3), (4, 5)])
def test_four_neighbours_are_those_of_networkx(rows, cols, torus):
    lattice = nx.grid_2d_graph(rows, cols, periodic=torus).to_directed()
    expected = {(r * cols + c, s * cols + d) for (r, c), (s, d) in lattice.edges if (r, c) != (s, d)}
    edges = [*map(tuple, grid(rows, cols, torus=torus, moore=False).tolist())]
    assert len(edges) == len({*edges})
    assert {*edges} == expected


def test_eight_neighbours_row_by_row():
    def look(me, inbox):
        me.state["friends"] = [*me.neighbours]

    flat, round_ = (run(look, agents=20, until=1, graph=grid(4, 5, torus=torus)).states for torus in (False, True))
    assert flat[0]["friends"] == [1, 5, 6]
    assert flat[7]["friends"] == [1, 2, 3, 6, 8, 11, 12, 13]
    assert round_[0]["friends"] == [1, 4, 5, 6, 9, 15, 16, 19]
    assert {len(state["friends"]) for state in round_.values()} == {8}


def test_a_small_torus_has_each_edge_once_and_no_loop():
    assert grid(2, 2, torus=True).tolist() == [[a, b] for a in range(4) for b in range(4) if a != b]
    assert grid(1, 1, torus=True).shape == (0, 2)


@pytest.mark.parametrize(("rows", "cols"), [(0, 5), (5, 2.5), (True, 5), (5, "3")])
def test_a_lattice_has_whole_numbers_of_rows_and_columns(rows, cols):
    with pytest.raises(ConfigError, match="whole number of at least 1"):
        grid(rows, cols)
