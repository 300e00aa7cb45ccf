"""Opinions among followers: in each step an agent tells its opinion to all agents that follow this agent.

    python examples/followers.py                # the graph of CollegeMsg, if it is in ../shared/data
    python examples/followers.py --generated    # 1,000 agents, a few of which are followed by many

In every step an agent moves its opinion halfway to the mean of the opinions that it hears. An opinion is a broadcast,
which travels only once to each group. The group hands the broadcast to those of its agents that follow the sender.
"""

import argparse
import gzip
from pathlib import Path

import numpy as np

from ray_messaging import Messaging, Steps, columns

COLLEGE = Path(__file__).resolve().parents[2] / "shared" / "data" / "collegemsg" / "CollegeMsg.txt.gz"


# -- the model, which runs once for each group and step
def think(group, step):
    """Move each agent's opinion towards the opinions that it hears, and broadcast the new opinions."""
    heard = step.heard(group.shared).mean("opinion")  # NaN: the agent heard nobody
    mine = group.state["opinion"]
    mine = np.where(np.isnan(heard), mine, (mine + heard) / 2)
    group.state = {"opinion": mine}
    step.broadcast_columns(group.ids, group.shared, columns(opinion=mine))


def first_opinions(group):
    """Return an opinion for each agent, from 0 to 1."""
    return {"opinion": group.uniform()[:, 0]}


# -- the graph of the model
def college(path):
    """Return who wrote to whom: pairs of sender and hearer, each once."""
    with gzip.open(path, "rt") as lines:
        return np.unique([line.split()[:2] for line in lines], axis=0).astype(np.int64)


def popular(agents=1000, follows=20, *, seed=7):
    """Return pairs of sender and follower: agents with low ids are followed most."""
    rng = np.random.default_rng(seed)
    followed = (agents * rng.random((agents, follows)) ** 3).astype(np.int64)
    return np.unique(np.stack([followed.ravel(), np.repeat(np.arange(agents), follows)], axis=1), axis=0)


def main():
    """Run the model, and print how far apart the opinions are."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--generated", action="store_true", help="generate a graph, even if the real graph is there")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--groups", type=int, default=2)
    plan = parser.parse_args()
    pairs = popular() if plan.generated or not COLLEGE.exists() else college(COLLEGE)
    ids = np.unique(pairs)

    with Messaging.start("followers", steps=Steps(seed=7)) as messaging:
        followers = messaging.create_audience("followers", graph=pairs)
        result = messaging.run(
            think, by="group", agents=ids, groups=plan.groups, until=plan.steps, start=first_opinions, shared=followers
        )

    opinions = np.concatenate([state["opinion"] for state in result.states.values()])
    print(f"{len(ids):,} agents, {followers_of_most(pairs):,} followers of one at most, {len(pairs):,} pairs")
    print(f"{len(ids) * plan.steps:,} broadcasts, {sum(result.fates.values()):,} messages")
    print(f"opinions lie between {opinions.min():.6f} and {opinions.max():.6f}, mean {np.sort(opinions).mean():.6f}")


def followers_of_most(pairs):
    """Return how many followers the most popular agent has."""
    return int(np.unique(pairs[:, 0], return_counts=True)[1].max())


if __name__ == "__main__":
    main()
