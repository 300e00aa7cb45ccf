"""Lattices: their edges are those between cells that touch, by an edge or also by a corner."""

import pytest

from ray_messaging import grid, run
from ray_messaging.errors import ConfigError


@pytest.mark.parametrize("torus", [False, True])
@pytest.mark.parametrize(("rows", "cols"), [(1, 1), (1, 5), (2, 3), (4, 5)])
@pytest.mark.parametrize("moore", [False, True])
def test_neighbours_are_the_cells_that_touch(rows, cols, torus, moore):
    def apart(one, other, count):
        return min((one - other) % count, (other - one) % count) if torus else abs(one - other)

    cells = [(row, col) for row in range(rows) for col in range(cols)]
    touch = [
        [row * cols + col, to_row * cols + to_col]
        for row, col in cells
        for to_row, to_col in cells
        for down, right in [(apart(row, to_row, rows), apart(col, to_col, cols))]
        if (max(down, right) == 1 if moore else down + right == 1)
    ]
    assert grid(rows, cols, torus=torus, moore=moore).tolist() == touch


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
