"""Square lattices, which several models of the zoo live on: site number row * side + column."""

import numpy as np

FOUR = ((-1, 0), (0, -1), (0, 1), (1, 0))
EIGHT = tuple((y, x) for y in (-1, 0, 1) for x in (-1, 0, 1) if (y, x) != (0, 0))


def edges(side, moves=EIGHT, *, torus=True):
    """Return pairs (m, 2) of neighbouring sites, both ways; on a torus the last column is beside the first."""
    row, column = np.divmod(np.arange(side * side), side)
    pairs = []
    for y, x in moves:
        to_row, to_column = row + y, column + x
        inside = (to_row >= 0) & (to_row < side) & (to_column >= 0) & (to_column < side) | torus
        neighbour = to_row % side * side + to_column % side
        pairs.append(np.stack([row * side + column, neighbour], axis=1)[inside])
    return np.concatenate(pairs)
