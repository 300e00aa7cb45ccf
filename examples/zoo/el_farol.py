"""A bar is pleasant with at most 60 guests. Each of 100 people trusts its best predictor, and 60 come on average."""

import numpy as np

from examples.zoo.claims import Claim
from ray_messaging import run

NAME = "El Farol bar"
SOURCE = "Brian Arthur, American Economic Review 84 (1994) 406"
PEOPLE, ROOM, MEMORY = 100, 60, 9


def predicted(predictor, weeks):
    """Return how many guests a predictor expects, from a past week, its mirror image, or the mean or trend of weeks."""
    kind, back = predictor
    last = weeks[-back:]
    line = np.polyfit(range(back), last, 1) if kind == "trend" and back > 1 else (0, last[0])
    guesses = {"same": last[0], "mirror": PEOPLE - last[0], "mean": sum(last) / back, "trend": line[0] * back + line[1]}
    return min(max(float(guesses[kind]), 0.0), float(PEOPLE))


def guest(me, inbox):
    """Learn how many came, rate the predictors, and go if the best one expects room; the bar counts."""
    if me.id == "bar":
        if me.step % 2:
            me.state["came"] = [*me.state["came"], len(inbox)]
            for person in range(PEOPLE):
                me.send(person, {"came": len(inbox)})
    elif me.step % 2 == 0:
        for message in inbox:
            came = message.payload["came"]
            me.state["errors"] = [
                0.9 * error + 0.1 * abs(guess - came)
                for error, guess in zip(me.state["errors"], me.state["guesses"], strict=True)
            ]
            me.state["weeks"] = [*me.state["weeks"], came][-MEMORY:]
        me.state["guesses"] = [predicted(each, me.state["weeks"]) for each in me.state["predictors"]]
        if me.state["guesses"][int(np.argmin(me.state["errors"]))] <= ROOM:
            me.send("bar", {})


def born(me):
    """Give each guest six random predictors, and give all guests the same past weeks."""
    if me.id == "bar":
        return {"came": []}
    kinds = me.rng.choice(["same", "mirror", "mean", "trend"], 6).tolist()
    predictors = list(zip(kinds, me.rng.integers(1, MEMORY + 1, 6).tolist(), strict=True))
    return {"predictors": predictors, "errors": [0.0] * 6, "guesses": [ROOM] * 6, "weeks": me.shared}


def attendance(replicates, *, weeks=120):
    """Return the mean attendance after 20 weeks."""
    societies = []
    for seed in range(replicates):
        past = np.random.default_rng(seed).integers(PEOPLE + 1, size=MEMORY).tolist()
        result = run(guest, agents=[*range(PEOPLE), "bar"], until=2 * weeks, seed=seed, shared=past, start=born)
        societies.append(np.mean(result.states["bar"]["came"][20:]))
    return societies


CLAIMS = [
    Claim(
        "mean number of guests in a week", attendance, 60,
        "the number of guests varies by about 7 from week to week, so its mean over 100 weeks varies by 0.7. "
        "Arthur's paper does not list the rules by which guests predict their number, and other rules may change the "
        "mean by 2",
        spread=0.7, apart=2, replicates=4, small_sizes={"weeks": 80},
    )
]  # fmt: skip
