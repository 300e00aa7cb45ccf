"""Buyers come by themselves, or because other buyers tell them; sales rise to a peak."""

import numpy as np

from examples.zoo.claims import Claim
from ray_messaging import run

NAME = "Diffusion of a new product"
SOURCE = "Frank Bass, Management Science 15 (1969) 215, doi:10.1287/mnsc.15.5.215"
ALONE, TALK = 0.0104, 0.4186  # p and q of room air conditioners, a year
STEPS = 10  # in a year


def market(group, step):
    """Buy by chance, or because others told about it; a buyer tells somebody now and then."""
    luck, bought = step.uniform(3), group.state["step"] >= 0
    heard = step.heard_counts > 0
    buys = ~bought & (heard | (luck[:, 0] < ALONE / STEPS))
    group.state["step"][buys] = step.number
    talks = (bought | buys) & (luck[:, 1] < TALK / STEPS)
    told = (luck[:, 2] * group.shared["people"]).astype(np.int64)
    step.send_columns(group.ids[talks], told[talks], {})


def peak(replicates, *, people=20_000, years=20):
    """Return the year in which as many have bought as at the peak of sales; the peak itself is noisier."""
    years_of_peak = []
    for seed in range(replicates):
        result = run(
            market, by="group", agents=people, until=years * STEPS, seed=seed, shared={"people": people},
            start=lambda group: {"step": np.full(len(group.ids), -1)},
        )  # fmt: skip
        steps = result.to_pandas()["step"]
        by_step = np.cumsum(np.bincount(steps[steps >= 0], minlength=years * STEPS)) / people
        years_of_peak.append(np.argmax(by_step >= 0.5 - ALONE / TALK / 2) / STEPS)
    return years_of_peak


CLAIMS = [
    Claim(
        "year in which most is sold, room air conditioners", peak, float(np.log(TALK / ALONE) / (ALONE + TALK)),
        "the year varies between replicates by 0.2, because the first buyers come by chance. A message "
        "takes one step, which is 0.1 years, and rounding times to steps may add another step",
        spread=0.2, apart=0.2, replicates=4, small=1,
    )
]  # fmt: skip
