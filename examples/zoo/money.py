"""Two who meet put their money together and share it by chance: incomes become exponential."""

from functools import cache

import numpy as np

from examples.zoo.claims import Claim
from ray_messaging import run

NAME = "Exchange of money"
SOURCE = "A. Dragulescu, V. M. Yakovenko, Eur. Phys. J. B 17 (2000) 723, doi:10.1007/s100510070114"


def person(me, inbox):
    """Share with whom it met, and show the next one its money, and a number that decides together with the other's."""
    for message in inbox:
        total = me.state["money"] + message.payload["money"]
        part = total * ((me.state["luck"] + message.payload["luck"]) % 1)
        me.state["money"] = part if me.id < message.from_id else total - part
    me.state["luck"] = me.rng.random()
    other = int(me.shared["sums"][me.step] - me.id) % me.shared["people"]
    if other != me.id:
        me.send(other, {"money": me.state["money"], "luck": me.state["luck"]})


@cache
def incomes(seed, people=2000, meetings=60):
    """Return the money of each, ascending, in units of the mean."""
    sums = np.random.default_rng(seed).integers(people, size=meetings)  # chance that a pair has in common
    result = run(
        person, agents=people, until=meetings, seed=seed, shared={"people": people, "sums": sums},
        start=lambda _: {"money": 1.0, "luck": 0.0},
    )  # fmt: skip
    return np.sort([state["money"] for state in result.states.values()])


def gini(replicates):
    """Return the Gini coefficient of each society."""
    societies = [incomes(seed) for seed in range(replicates)]
    return [2 * np.arange(1, len(each) + 1) @ each / len(each) / each.sum() - 1 - 1 / len(each) for each in societies]


def below_mean(replicates):
    """Return the share of each society that has less than the mean."""
    return [np.mean(incomes(seed) < 1) for seed in range(replicates)]


CLAIMS = [
    Claim("Gini coefficient", gini, 0.5, "varies by 0.29 / sqrt(people)", spread=0.0065, replicates=6),
    Claim(
        "share with less than the mean", below_mean, 1 - float(np.exp(-1)), "varies by 0.48 / sqrt(people)",
        spread=0.0108, replicates=6,
    ),
]  # fmt: skip
