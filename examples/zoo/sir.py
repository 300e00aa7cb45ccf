"""An epidemic among people who meet at random ends before all were ill."""

import numpy as np

from examples.zoo.claims import Claim
from ray_messaging import run

NAME = "SIR epidemic"
SOURCE = "Kermack and McKendrick, Proceedings of the Royal Society A 115 (1927) 700, doi:10.1098/rspa.1927.0118"


def person(me, inbox):
    """Be ill for one step, and infect as many others as chance says; then be immune."""
    if me.state["health"] == "ill":
        for _ in range(me.rng.poisson(me.shared["contacts"])):
            me.send(int(me.rng.integers(me.shared["people"])), {})
        me.state["health"] = "immune"
    elif me.state["health"] == "healthy" and len(inbox):
        me.state["health"] = "ill"
        me.stay_active()


def ever_ill(replicates, *, contacts, people=10_000):
    """Return the share of people who were ill, in each epidemic."""
    first = people // 100  # so many that chance does not end the epidemic at once
    epidemics = [
        run(
            person, agents=people, until=60, seed=seed, only_active=True,
            shared={"contacts": contacts, "people": people},
            start=lambda me: {"health": "ill" if me.id < first else "healthy"},
        )
        for seed in range(replicates)
    ]  # fmt: skip
    return [np.mean([state["health"] != "healthy" for state in each.states.values()]) for each in epidemics]


def final_size(contacts, first=0.01):
    """Return the share z for which z = 1 - (1 - first) exp(-contacts z)."""
    share = 1.0
    for _ in range(1000):
        share = 1 - (1 - first) * np.exp(-contacts * share)
    return float(share)


CLAIMS = [
    Claim(
        f"share of people ever ill, R0 = {contacts}, 1% ill at first", ever_ill, final_size(contacts),
        "the share varies between replicates by about 0.9 / sqrt(number of people)", spread=0.01, replicates=4, small=1,
        sizes={"contacts": contacts},
    )
    for contacts in (1.5, 2.0)
]  # fmt: skip
