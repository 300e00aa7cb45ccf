"""Two people who meet put their money together and share it by chance: incomes become exponential."""

from functools import cache

import numpy as np

from examples.zoo.claims import Claim
from ray_messaging import Gini, Share, run

NAME = "Exchange of money"
SOURCE = "Dragulescu and Yakovenko, European Physical Journal B 17 (2000) 723, doi:10.1007/s100510070114"


def person(me, inbox):
    """Share with the last partner. Then tell the next partner the money, and a random number for the next sharing."""
    for message in inbox:
        total = me.state["money"] + message.payload["money"]
        part = total * ((me.state["luck"] + message.payload["luck"]) % 1)
        me.state["money"] = part if me.id < message.from_id else total - part
    me.state["luck"] = me.rng.random()
    other = int(me.shared["sums"][me.step] - me.id) % me.shared["people"]
    if other != me.id:
        me.send(other, {"money": me.state["money"], "luck": me.state["luck"]})


@cache
def last(seed, people=2000, meetings=60):
    """Return what a society ends with: the Gini coefficient of its money, and the share that has less than the mean."""
    sums = np.random.default_rng(seed).integers(people, size=meetings + 1)  # a number that all agents know
    result = run(
        person, agents=people, until=meetings + 1, seed=seed, shared={"people": people, "sums": sums},
        start=lambda _: {"money": 1.0, "luck": 0.0}, collect_every=meetings,
        collect=[Gini("money"), Share("poor", of=lambda me: me.state["money"] < 1)],
    )  # fmt: skip
    return result.series.iloc[-1]


def measured(replicates, *, column):
    """Return a column of what each society ends with."""
    return [last(seed)[column] for seed in range(replicates)]


CLAIMS = [
    Claim(
        "Gini coefficient of the money", measured, 0.5,
        "the coefficient varies between replicates by 0.29 / sqrt(number of people)", spread=0.0065, replicates=4,
        sizes={"column": "money"},
    ),
    Claim(
        "share of people with less than the mean", measured, 1 - float(np.exp(-1)),
        "the share varies between replicates by 0.48 / sqrt(number of people)", spread=0.0108,
        replicates=4, sizes={"column": "poor=True"},
    ),
]  # fmt: skip
