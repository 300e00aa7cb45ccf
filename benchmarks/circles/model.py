"""The circles model: each agent is pushed away by those nearer than half the radius, and pulled by the others in it.

It is that of FLAME GPU's example of this name. No imports of ours: Mesa's environment holds nothing of it.
"""

import math

import numpy as np

RADIUS = 2.0
PULL = 0.05
NEIGHBOURS = 33  # of an agent at the start, on average
SEED = 7


def side_of(agents):
    """Return the length of a side of the volume."""
    return (agents / NEIGHBOURS * 4 / 3 * math.pi) ** (1 / 3) * RADIUS


def places_of(agents):
    """Return where the agents are at the start, (n, 3)."""
    return np.random.default_rng(SEED).random((agents, 3)) * side_of(agents)


def pulls(towards):
    """Return what each of some neighbours does to an agent, (m, 3), from the ways to them; 0 for one at its place."""
    far = np.sqrt(np.einsum("ij,ij->i", towards, towards))
    scale = np.sin(far * (-2 * math.pi / RADIUS)) * PULL
    np.divide(scale, far, out=scale, where=far > 0)
    return towards * scale[:, None]


def moved(places, pulled, neighbours, side):
    """Return the next places: each goes by the mean of what its neighbours do to it, and stays in the volume."""
    return np.clip(places + pulled / np.maximum(neighbours, 1)[:, None], 0, side)
