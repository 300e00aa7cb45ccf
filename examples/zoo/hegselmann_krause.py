"""Each person takes the mean of all opinions near its own: many opinions, two camps, or consensus remain."""

import numpy as np

from examples.zoo.claims import Claim
from ray_messaging import columns, run

NAME = "Bounded confidence, all at once"
SOURCE = "Rainer Hegselmann and Ulrich Krause, JASSS 5 (2002) 3, https://www.jasss.org/5/3/2.html"
PEOPLE = 625


def people(group, step):
    """In even steps tell the reader an opinion. In odd steps the reader tells everybody all opinions."""
    heard = step.messages
    if group.name == "reader" and len(heard):
        everything = np.tile(heard.column("opinion"), (len(heard), 1))
        step.send_columns(heard.to_ids, heard.from_ids, columns(opinions=everything))
    elif group.name == "people" and step.number % 2 == 0:
        if step.number:
            opinions = heard.column("opinions")  # a row for each person
            near = np.abs(opinions - group.state["opinion"][:, np.newaxis]) <= group.shared
            group.state["opinion"] = (opinions * near).sum(axis=1) / near.sum(axis=1)
        readers = np.full(len(group.ids), PEOPLE)
        step.send_columns(group.ids, readers, columns(opinion=group.state["opinion"]))


def surviving(replicates, *, reach, periods=30):
    """Return the number of opinions that survive."""
    counts = []
    for seed in range(replicates):
        result = run(
            people, by="group", agents=PEOPLE + 1, groups={"people": range(PEOPLE), "reader": [PEOPLE]},
            until=2 * periods + 1, seed=seed, shared=reach, start=lambda group: {"opinion": group.uniform(1)[:, 0]},
        )  # fmt: skip
        counts.append(1 + np.sum(np.diff(np.sort(result.states["people"]["opinion"])) > 1e-4))
    return counts


CLAIMS = [
    Claim(
        f"number of opinions that survive, confidence bound {reach}", surviving, count, why, spread=spread, apart=apart,
        replicates=3, small=int(reach > 0.1), sizes={"reach": reach},
    )
    for reach, count, why, spread, apart in (
        (0.01, 38, "the paper shows only one run, and the number varies between runs by about 2", 2, 4),
        (0.15, 2, "the published value is rounded to a whole number", 0, 0.5),
        (0.25, 1, "the published value is rounded to a whole number", 0, 0.5),
    )
]  # fmt: skip
