"""A few innovators change a random network if its people have enough neighbours, but not too many."""

from math import comb, exp, factorial

import numpy as np

from examples.zoo.claims import Claim
from ray_messaging import run

NAME = "Cascades on random networks"
SOURCE = (
    "Duncan Watts, PNAS 99 (2002) 5766, doi:10.1073/pnas.082090499; "
    "the published values are from Gleeson and Cahalane, Physical Review E 75 (2007) 056103, "
    "doi:10.1103/PhysRevE.75.056103"
)
THRESHOLD, FIRST = 0.18, 0.005


def person(me, inbox):
    """Adopt once a given share of the neighbours has adopted, and tell the neighbours."""
    me.state["heard"] += len(inbox)
    first = me.step == 0 and me.rng.random() < FIRST
    enough = me.state["heard"] and me.state["heard"] >= THRESHOLD * len(me.neighbours)
    if not me.state["adopts"] and (first or enough):
        me.state["adopts"] = True
        for friend in me.neighbours:
            me.send(friend, {})


def cascade(replicates, *, degree, people=10_000):
    """Return the share that adopts, for several random networks."""
    shares = []
    for seed in range(replicates):
        pairs = np.random.default_rng(seed).integers(people, size=(degree * people // 2, 2))
        edges = np.unique(np.sort(pairs[pairs[:, 0] != pairs[:, 1]]), axis=0)
        result = run(
            person, agents=people, until=80, graph=np.concatenate([edges, edges[:, ::-1]]), seed=seed,
            only_active=True, start=lambda _: {"adopts": False, "heard": 0},
        )  # fmt: skip
        shares.append(np.mean([state["adopts"] for state in result.states.values()]))
    return shares


def expected(degree):
    """Return the share that adopts in an infinite Poisson network, by Gleeson's and Cahalane's equations 1 and 2."""

    def adopts(friends, told, q):
        enough = [m for m in range(1, told + 1) if m >= THRESHOLD * friends]
        return sum(comb(told, m) * q**m * (1 - q) ** (told - m) for m in enough)

    have = {k: exp(-degree) * degree**k / factorial(k) for k in range(40)}
    q = FIRST
    for _ in range(100):
        q = FIRST + (1 - FIRST) * sum(k / degree * have[k] * adopts(k, k - 1, q) for k in have if k)
    return FIRST + (1 - FIRST) * sum(have[k] * adopts(k, k, q) for k in have)


CLAIMS = [
    Claim(
        f"share of people that adopt, {degree} neighbours each, {where}", cascade, expected(degree),
        "a share of 10,000 people varies by up to 0.005, and by as much again because chance chooses the innovators",
        spread=0.01, replicates=4, sizes={"degree": degree},
    )
    for degree, where in ((3, "where cascades spread"), (8, "too many for cascades"))
]  # fmt: skip
