"""An intervention: a society with a rule against insults, beside the same society without the rule.

    python examples/moderation.py
    ray-messaging report moderation-logs/free moderation-logs/moderated    # both runs side by side

Agents in a ring get angry when they hear insults, and then insult others. In one of two runs a rule masks insults from
step 10 on. Both runs have the same seed, so they are equal up to step 9. The logs name the first message that differs.
"""

import argparse
from pathlib import Path

import numpy as np

from ray_messaging import EventLog, Messaging, Steps, rules

INSULT = "idiot"


def neighbour(me, inbox):
    """Cool down, get angry at insults, and tell a neighbour something about the weather, or an insult."""
    insults = sum(INSULT in message.payload["says"] for message in inbox)
    me.state["anger"] = min(1.0, 0.8 * me.state["anger"] + 0.3 * insults)
    says = f"you {INSULT}" if me.rng.random() < 0.1 + me.state["anger"] else "nice weather"
    me.send(int(me.rng.choice(me.neighbours)), {"says": says})


def ring(agents, *, near=4):
    """Return the edges of a ring in which each agent knows the next ones on both sides."""
    ids = np.arange(agents)
    return np.concatenate([np.stack([ids, (ids + k) % agents], axis=1) for k in range(-near, near + 1) if k])


def run(name, folder, plan, *, moderated):
    """Run the society, and return the mean anger in the end."""
    with Messaging.start(name, steps=Steps(seed=7), log_dir=folder, on_existing="reset") as messaging:
        if moderated:
            messaging.rules.insert(rules.Pattern(words=[INSULT], action="mask"), at_step=plan.at)
        result = messaging.run(
            neighbour, agents=plan.agents, groups=2, until=plan.steps, graph=ring(plan.agents),
            start=lambda _: {"anger": 0.0},
        )  # fmt: skip
    return sum(state["anger"] for state in result.states.values()) / plan.agents


def main():
    """Run both societies, and print what the logs say."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agents", type=int, default=500)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--at", type=int, default=10, help="the first step with the rule")
    parser.add_argument("--folder", type=Path, default=Path("moderation-logs"))
    plan = parser.parse_args()
    folders = {name: plan.folder / name for name in ("free", "moderated")}
    anger = {name: run(name, folder, plan, moderated=name == "moderated") for name, folder in folders.items()}
    logs = {name: EventLog.open(folder) for name, folder in folders.items()}
    print("step   insults heard: free, moderated")
    heard = {name: dict.fromkeys(range(plan.steps), 0) for name in logs}
    for name, log in logs.items():
        heard[name] |= {row["step"]: row["count"] for row in log.count(by="step", contains=INSULT).to_pylist()}
    for step in range(plan.steps):
        print(f"{step:>4}  {heard['free'][step]:>20,}  {heard['moderated'][step]:>9,}")
    print("mean anger in the end:", ", ".join(f"{name} {found:.2f}" for name, found in anger.items()))
    first = logs["free"].diff(logs["moderated"])
    print(f"the runs differ first in step {first.step}: {first.mine.payload} became {first.theirs.payload}")


if __name__ == "__main__":
    main()
