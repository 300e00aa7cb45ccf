"""Cooperators survive beside defectors without memory, if they have neighbours."""

import numpy as np

from examples.zoo.claims import Claim
from ray_messaging import Mean, columns, grid, run

NAME = "Spatial prisoner's dilemma"
SOURCE = "Martin Nowak and Robert May, Nature 359 (1992) 826, doi:10.1038/359826a0"
TEMPTATION = 1.9


def field(group, step):
    """In odd steps play against the neighbours and itself. In even steps do what the best of these nine did."""
    heard, mine = step.messages, group.state["cooperates"]
    if step.number % 2:
        partners = heard.column("cooperates").reshape(-1, 9).sum(axis=1)  # nine messages for each site, in its order
        won = partners * np.where(mine, 1.0, TEMPTATION)
    elif step.number:
        best = heard.column("won").reshape(-1, 9).argmax(axis=1)
        mine = group.state["cooperates"] = heard.column("cooperates").reshape(-1, 9)[np.arange(len(mine)), best]
    speakers, hearers = group.shared.T
    told = {"cooperates": mine[speakers]}
    if step.number % 2:
        told["won"] = won[speakers]
    step.send_columns(speakers, hearers, columns(**told))


def cooperators(replicates, *, side=40, generations=100):
    """Return the mean share of cooperators in the last quarter of the generations."""
    means, oneself = [], np.stack([np.arange(side * side)] * 2, axis=1)
    for seed in range(replicates):
        result = run(
            field, by="group", agents=side * side, until=2 * generations, seed=seed, collect=Mean("cooperates"),
            collect_every=2, shared=np.concatenate([grid(side, side, torus=True), oneself]),
            start=lambda group: {"cooperates": group.uniform(1)[:, 0] < 0.9},
        )  # fmt: skip
        means.append(result.series["cooperates"].iloc[-generations // 4 :].mean())
    return means


CLAIMS = [
    Claim(
        "share of cooperators, temptation 1.9", cooperators, 12 * np.log(2) - 8,
        "the curve in the paper goes up and down by 0.02", spread=0.01, apart=0.02, replicates=2,
        small_sizes={"side": 25, "generations": 50},
    )
]  # fmt: skip
