"""Which change moves the outcome, and by more than chance? This program tries several changes in several towns.

Each town has a seed of its own, and runs once. For each change and each town the program makes a fork, in a Ray task.
A fork continues the town's run from its middle, under the change, and asks the language model only what the town has
not asked. The table shows how far each change moves the outcome, and how much the towns differ in this.
"""

import argparse
import tempfile
from functools import partial

import numpy as np
import pandas as pd
import ray
from counterfactual import citizen, first

from ray_messaging import EventLog, Messaging, Steps, rules

CHANGES = {
    "none": list,
    "no park": lambda: [rules.Pattern(["park"])],
    "half is lost": lambda: [rules.Sample(0.5)],
    "agent 0 is silent": lambda: [rules.BlackList([(0, None)])],
}


def outcome(result):
    """Return the share of the agents that go to the park."""
    return np.mean([state["go"] == "park" for state in result.states.values()])


@ray.remote(num_cpus=0)
def parent(folder, seed, town):
    """Run a town; return its outcome."""
    with Messaging.start(f"town{seed}", steps=Steps(seed=seed, checkpoint=2), log_dir=f"{folder}/{seed}") as messaging:
        return outcome(messaging.run(citizen, **town, progress=False))


@ray.remote(num_cpus=0)
def fork(folder, seed, change, town):
    """Run a fork of a town under a change. Return the outcome, and {who answered calls: number of these calls}."""
    into = f"{folder}/{seed}-{change.replace(' ', '-')}"
    given = CHANGES[change]()
    with Messaging.fork(f"{folder}/{seed}", into.rpartition("/")[2], at_step=2, log_dir=into, rules=given) as messaging:
        found = outcome(messaging.run(citizen, **town, progress=False))
    return found, EventLog.open(into).calls().to_pandas().query("step >= 2")["source"].value_counts().to_dict()


def main():
    """Run towns and forks, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agents", type=int, default=40)
    parser.add_argument("--seeds", type=int, default=3)
    plan = parser.parse_args()
    folder, seeds = tempfile.mkdtemp(prefix="audit-"), range(plan.seeds)
    friends = np.random.default_rng(7).integers(0, plan.agents, (3 * plan.agents, 2))
    town = {"agents": plan.agents, "groups": 1, "graph": friends, "start": first, "until": 8}
    ray.init(logging_level="error")
    free = np.array(ray.get([parent.remote(folder, seed, town) for seed in seeds]))
    table = {}
    for change in CHANGES:
        found = ray.get([*map(partial(fork.remote, folder, change=change, town=town), seeds)])
        moved = np.array([share for share, _ in found]) - free
        saved, paid = (sum(calls.get(source, 0) for _, calls in found) for source in ("parent", "model"))
        table[change] = {"moved": moved.mean(), "spread": moved.std(), "calls saved": saved, "calls paid": paid}
    print(f"the park has {free.mean():.2f} of the agents, {free.std():.2f} more or less by seed")
    print(pd.DataFrame(table).T.round(2).to_string())


if __name__ == "__main__":
    main()
