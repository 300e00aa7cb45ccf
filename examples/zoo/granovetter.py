"""A hundred people riot or go home, and the threshold of one of them decides which."""

from examples.zoo.claims import Claim
from ray_messaging import run

NAME = "Riot by thresholds"
SOURCE = "Mark Granovetter, American Journal of Sociology 83 (1978) 1420, doi:10.1086/226707"
PEOPLE = 100


def person(me, inbox):
    """Join once as many people riot as the threshold says, and let all others see it."""
    me.state["rioters"] += len(inbox)
    if not me.state["riots"] and me.state["rioters"] >= me.shared[me.id]:
        me.state["riots"] = True
        for other in range(PEOPLE):
            if other != me.id:
                me.send(other, {})


def rioters(replicates, *, thresholds):
    """Return how many riot in the end."""
    riots = [
        run(
            person, agents=PEOPLE, until=PEOPLE + 1, shared=thresholds, seed=seed,
            start=lambda _: {"riots": False, "rioters": 0},
        )
        for seed in range(replicates)
    ]  # fmt: skip
    return [sum(state["riots"] for state in riot.states.values()) for riot in riots]


CLAIMS = [
    Claim(
        f"number of rioters, thresholds 0, {second}, 2, 3 and so on to 99", rioters, count,
        "the model uses no random numbers", sizes={"thresholds": [0, second, *range(2, PEOPLE)]},
    )
    for second, count in ((1, 100), (2, 1))
]  # fmt: skip
