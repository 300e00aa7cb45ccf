"""Lattices as graphs of a run."""

import numpy as np
from numpy.typing import NDArray

from ray_messaging.errors import ConfigError


def grid(rows: int, cols: int, *, torus: bool = False, moore: bool = True) -> NDArray[np.int64]:
    """Return the edges of a lattice whose cells are agents, int64 (m, 2), for `graph=` of a run.

    The cell in row r and column c has the id `r * cols + c`, so `divmod(me.id, cols)` is (r, c). The neighbours of an
    agent come row by row. On a small torus two cells may be neighbours in two ways, or a cell may be its own neighbour.
    Even then each edge comes only once, and no edge leads from a cell to itself.

    Args:
        rows: The number of rows, at least 1.
        cols: The number of columns, at least 1.
        torus: Whether cells at one side of the lattice are neighbours of the cells at the opposite side.
        moore: Whether a cell has eight neighbours, or only the four beside it (von Neumann's neighbourhood).

    Raises: ConfigError if a number is not a whole number of at least 1.
    """
    for name, given in (("rows", rows), ("cols", cols)):
        if isinstance(given, bool) or not isinstance(given, int | np.integer) or given < 1:
            raise ConfigError(f"grid({name}={given!r}) needs a whole number of at least 1")
    row, col = np.divmod(np.arange(rows * cols, dtype=np.int64), cols)
    found = []
    for down in (-1, 0, 1):
        for right in (-1, 0, 1):
            if (down, right) == (0, 0) or (not moore and down and right):
                continue
            to_row, to_col = row + down, col + right
            if torus:
                to_row, to_col = to_row % rows, to_col % cols
            inside = (to_row >= 0) & (to_row < rows) & (to_col >= 0) & (to_col < cols)
            found.append(np.stack([row * cols + col, to_row * cols + to_col], axis=1)[inside])
    edges: NDArray[np.int64] = np.unique(np.concatenate(found), axis=0)
    return edges.compress(edges[:, 0] != edges[:, 1], axis=0)
