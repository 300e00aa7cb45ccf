"""A rumour among students: how many students know the rumour after each step.

    python examples/rumour.py                # the graph of CollegeMsg, if it is in ../shared/data
    python examples/rumour.py --generated    # a small world of 1,000 agents

The student with the most friends knows the rumour at first. In every step each student who knows the rumour tells each
friend with a probability of 5%. The same seed gives the same table, whatever the number of groups.
"""

import argparse
import gzip
from collections import Counter
from pathlib import Path

import numpy as np

from ray_messaging import Messaging, Steps

COLLEGE = Path(__file__).resolve().parents[2] / "shared" / "data" / "collegemsg" / "CollegeMsg.txt.gz"


# -- the model
def student(me, inbox):
    """Hear the rumour, and tell it to some friends from the next step on."""
    if me.state["since"] is not None:
        for friend, chance in zip(me.neighbours, me.rng.random(len(me.neighbours)), strict=True):
            if chance < 0.05:
                me.send(friend, {"text": "have you heard?"})
    elif len(inbox):
        me.state["since"] = me.step


# -- the graph of the model
def college(path):
    """Return who wrote to whom: edges (m, 2), each once."""
    with gzip.open(path, "rt") as lines:
        return np.unique([line.split()[:2] for line in lines], axis=0).astype(np.int64)


def small_world(agents=1000, friends=6, *, seed=7):
    """Return the edges of a ring in which each agent knows the next ones; one in ten also knows an agent far away."""
    ids, rng = np.arange(agents), np.random.default_rng(seed)
    near = [np.stack([ids, (ids + k) % agents], axis=1) for k in range(1, friends // 2 + 1)]
    far = rng.integers(0, agents, (agents // 10, 2))
    edges = np.concatenate([*near, far[far[:, 0] != far[:, 1]]])
    return np.unique(np.concatenate([edges, edges[:, ::-1]]), axis=0)


def main():
    """Run the rumour, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--generated", action="store_true", help="generate a graph, even if the real graph is there")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--groups", type=int, default=2)
    plan = parser.parse_args()
    edges = small_world() if plan.generated or not COLLEGE.exists() else college(COLLEGE)
    ids, first = np.unique(edges), np.bincount(edges[:, 0]).argmax()

    with Messaging.start("rumour", steps=Steps(seed=7)) as messaging:
        result = messaging.run(
            student, agents=ids, groups=plan.groups, until=plan.steps, graph=edges,
            start=lambda me: {"since": 0 if me.id == first else None},
        )  # fmt: skip

    heard = Counter(state["since"] for state in result.states.values())
    print(f"{len(ids):,} agents, {len(edges):,} edges, {sum(result.fates.values()):,} messages")
    print("step   know it")
    for step in range(plan.steps):
        known = sum(count for since, count in heard.items() if since is not None and since <= step)
        print(f"{step:>4}  {known:>8,}  {'#' * round(50 * known / len(ids))}")


if __name__ == "__main__":
    main()
