"""Conway's Life: seven cells live for exactly 130 generations, and then none is left."""

from examples.zoo.claims import Claim
from ray_messaging import Mean, grid, run

NAME = "Life"
SOURCE = "Martin Gardner, Scientific American 223/4 (1970) 120; Die hard: https://conwaylife.com/wiki/Die_hard"
DIE_HARD = """
......O.
OO......
.O...OOO
"""


def cell(me, inbox):
    """Live by the number of living neighbours, and tell them."""
    if me.step:
        me.state["lives"] = len(inbox) == 3 or (me.state["lives"] and len(inbox) == 2)
    if me.state["lives"]:
        me.stay_active()
        for neighbour in me.neighbours:
            me.send(neighbour, {})


def generations(replicates, *, side=60):
    """Return the first generation in which no cell lives."""
    middle = side // 2
    alive = {
        (middle + y) * side + middle + x
        for y, line in enumerate(DIE_HARD.split())
        for x, mark in enumerate(line)
        if mark == "O"
    }
    result = run(
        cell, agents=side * side, until=150, graph=grid(side, side, torus=True), only_active=True,
        collect=Mean("lives"), start=lambda me: {"lives": me.id in alive},
    )  # fmt: skip
    return [float(result.series.index[result.series["lives"] == 0][0])] * replicates


CLAIMS = [Claim("generations until the pattern Die hard is dead", generations, 130, "the model uses no random numbers")]
