"""Everybody is content with three in ten neighbours of the same kind, and yet the town divides."""

import numpy as np

from examples.zoo.claims import Claim
from ray_messaging import grid, run

NAME = "Segregation"
SOURCE = (
    "Thomas Schelling, Journal of Mathematical Sociology 1 (1971) 143, doi:10.1080/0022250X.1971.9989794; "
    "the published value is from Uri Wilensky's NetLogo model (1997), "
    "http://ccl.northwestern.edu/netlogo/models/Segregation"
)
WANTED, RESIDENTS = 0.3, 2000 / 51**2  # a share of the neighbours; NetLogo's 2,000 turtles on 51 x 51 patches


def house(me, inbox):
    """Tell the neighbours who lives here. Ask for another house if too few are alike. If empty, let one agent in."""
    if me.step % 3 == 0:
        if len(inbox):  # the agent that lived here has moved into another house
            me.state["lives"] = 0
        for neighbour in me.neighbours if me.state["lives"] else ():
            me.send(neighbour, {"lives": me.state["lives"]})
    elif me.step % 3 == 1:
        kinds = [message.payload["lives"] for message in inbox] if me.state["lives"] else []
        me.state |= {"alike": kinds.count(me.state["lives"]), "neighbours": len(kinds)}
        if me.state["alike"] < WANTED * len(kinds):
            me.send(int(me.rng.integers(len(me.shared))), {"lives": me.state["lives"]})
    elif len(inbox) and not me.state["lives"]:
        comes = inbox[int(me.rng.integers(len(inbox)))]
        me.state["lives"] = comes.payload["lives"]
        me.send(comes.from_id, {})


def alike(replicates, *, side=51, rounds=60):
    """Return the share of neighbours of the same kind, over all residents."""
    shares = []
    for seed in range(replicates):
        lives = np.zeros(side * side, int)
        lives[: int(RESIDENTS * side * side)] = 1
        lives[: int(RESIDENTS * side * side) // 2] = 2
        result = run(
            house, agents=side * side, until=3 * rounds + 2, graph=grid(side, side, torus=True), seed=seed,
            shared=np.random.default_rng(seed).permutation(lives),
            start=lambda me: {"lives": int(me.shared[me.id])},
        ).to_pandas()  # fmt: skip
        shares.append(result["alike"].sum() / result["neighbours"].sum())
    return shares


CLAIMS = [
    Claim(
        "share of neighbours of the same kind, if agents want 30%", alike, 0.7,
        "the source gives a rounded value, 70%", apart=0.05, replicates=2, small_sizes={"side": 20, "rounds": 40},
    )
]  # fmt: skip
