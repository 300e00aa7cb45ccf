"""Each voter copies the opinion of a random voter, until all voters have the same opinion."""

from math import comb

import numpy as np

from examples.zoo.claims import Claim
from ray_messaging import columns, run

NAME = "Voter model"
SOURCE = (
    "Motoo Kimura and Tomoko Ohta, Genetics 61 (1969) 763; "
    "Sood and Redner, Physical Review Letters 94 (2005) 178701, doi:10.1103/PhysRevLett.94.178701"
)


def towns(group, step):
    """In even steps ask somebody of the same town, and in odd steps answer. All towns live in one group."""
    people, heard = group.shared["people"], step.messages
    if step.number % 2:
        opinions = group.state["opinion"][np.searchsorted(group.ids, heard.to_ids)]
        step.send_columns(heard.to_ids, heard.from_ids, columns(opinion=opinions))
        return
    if step.number:
        answers = heard.column("opinion")  # one for each, in the order of group.ids
        group.state["changed"][answers != group.state["opinion"]] = step.number // 2
        group.state["opinion"] = answers.copy()
    asked = (step.uniform(1)[:, 0] * people).astype(np.int64) + group.ids // people * people
    step.send_columns(group.ids, asked, {})


def consensus_time(replicates, *, people, rounds=250):
    """Return the number of rounds until all in a town agree, for each of the towns; infinity if they do not."""
    result = run(
        towns, by="group", agents=replicates * people, until=2 * rounds + 1, shared={"people": people},
        start=lambda group: {"opinion": group.ids % 2, "changed": np.zeros(len(group.ids), np.int64)},
    ).to_pandas()  # fmt: skip
    by_town = result.groupby(result.index // people)
    return by_town["changed"].max().where(by_town["opinion"].nunique() == 1, np.inf).tolist()


def expected(people):
    """Return the expected number of rounds from one half, by a Markov chain; about 2 ln 2 times the people."""
    have = np.arange(1, people)
    ways = np.array([comb(people, k) for k in have])
    chain = ways * (have[:, np.newaxis] / people) ** have * (1 - have[:, np.newaxis] / people) ** (people - have)
    return float(np.linalg.solve(np.eye(people - 1) - chain, np.ones(people - 1))[people // 2 - 1])


CLAIMS = [
    Claim(
        "rounds until all 20 people agree, if 10 hold each opinion at first", consensus_time, expected(20),
        "the number of rounds varies between replicates by about the number of people", spread=20, replicates=200,
        small=40, sizes={"people": 20},
    )
]  # fmt: skip
