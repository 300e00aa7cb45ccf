"""If two people with similar opinions meet, their opinions come nearer; opinions end in a few clusters."""

import numpy as np

from examples.zoo.claims import Claim
from ray_messaging import run

NAME = "Bounded confidence, in pairs"
SOURCE = "Deffuant, Neau, Amblard and Weisbuch, Advances in Complex Systems 3 (2000) 87, doi:10.1142/S0219525900000078"


def person(me, inbox):
    """Hear the last partner, and tell the next partner an opinion. The sum of two agents' ids makes them partners."""
    for message in inbox:
        gap = message.payload["opinion"] - me.state["opinion"]
        if abs(gap) < me.shared["reach"]:
            me.state["opinion"] += 0.5 * gap
    other = int(me.shared["sums"][me.step] - me.id) % me.shared["people"]
    if other != me.id:
        me.send(other, {"opinion": me.state["opinion"]})


def clusters(replicates, *, reach, people=1000, meetings=150):
    """Return the number of clusters with at least 5% of the people."""
    counts = []
    for seed in range(replicates):
        sums = np.random.default_rng(seed).integers(people, size=meetings)  # a number that all agents know
        result = run(
            person, agents=people, until=meetings, seed=seed, start=lambda me: {"opinion": me.rng.random()},
            shared={"reach": reach, "people": people, "sums": sums},
        )  # fmt: skip
        opinions = np.sort([state["opinion"] for state in result.states.values()])
        sizes = np.diff([0, *np.flatnonzero(np.diff(opinions) > reach / 2) + 1, people])
        counts.append(np.sum(sizes >= 0.05 * people))
    return counts


CLAIMS = [
    Claim(
        f"number of clusters of opinions, threshold {reach}", clusters, count,
        "the published value is rounded to a whole number", apart=0.5, replicates=3,
        small=int(reach == 0.2), sizes={"reach": reach}, small_sizes={"people": 400, "meetings": 100},
        declared=declared,
    )
    for reach, count, declared in (
        (0.5, 1, ""),
        (0.2, 2, ""),
        (
            0.1, 5, "the published value is the whole part of 1 / (2 threshold), which the authors of the paper "
            "call a rough rule. In theory the distance between clusters is 2.2 times the threshold "
            "(Ben-Naim, Krapivsky and Redner, Physica D 183 (2003) 190), "
            "so some runs have only four clusters",
        ),
    )
]  # fmt: skip
