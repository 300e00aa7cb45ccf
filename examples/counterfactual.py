"""A town decides where to meet. In a second run nobody may speak of one of the places, from a given step on.

The second run is a fork of the first run. It begins in the middle, and asks the language model only what the first run
did not ask. The program prints where the two runs first differ, and why.

python examples/counterfactual.py --at-step 4 --without park
"""

import argparse
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np

from ray_messaging import EventLog, Messaging, Steps, compare, rules

PLACES = ("cafe", "market", "park")


def ask_model(prompt):
    """Return the place that a language model names. This fake model counts the words of the prompt."""
    return max(PLACES, key=lambda place: (prompt.count(place), place))


async def citizen(me, inbox):
    """Hear where friends go, let the model decide, and tell friends."""
    if heard := " ".join(message.payload["go"] for message in inbox):
        me.state["go"] = await me.remember(ask_model, heard)
    for friend in me.neighbours:
        me.send(friend, {"go": me.state["go"]})


def first(me):
    """Return the place that an agent likes at first."""
    return {"go": str(me.rng.choice(PLACES))}


def main():
    """Run the town, fork it, and print where the two runs first differ, and why."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agents", type=int, default=60)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--at-step", type=int, default=2, help="the first step of the second run")
    parser.add_argument("--without", choices=PLACES, default="park", help="the place of which nobody may speak")
    plan = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="counterfactual-"))
    friends = np.random.default_rng(7).integers(0, plan.agents, (3 * plan.agents, 2))
    town = {"agents": plan.agents, "groups": 2, "graph": friends, "start": first, "until": plan.steps}

    with Messaging.start("free", steps=Steps(seed=7, checkpoint=1), log_dir=folder / "free") as messaging:
        free = messaging.run(citizen, **town)
    moderator = [rules.Pattern([plan.without], name="moderator")]
    with Messaging.fork(
        folder / "free", "moderated", at_step=plan.at_step, log_dir=folder / "moderated", rules=moderator
    ) as messaging:
        moderated = messaging.run(citizen, **town)

    for name, result in (("as they like", free), (f"without the {plan.without}", moderated)):
        print(f"{name}: {dict(sorted(Counter(state['go'] for state in result.states.values()).items()))}")
    log = EventLog.open(folder / "moderated")
    calls = log.calls().to_pandas().query(f"step >= {plan.at_step}")["source"].value_counts()
    print(f"{calls.get('parent', 0)} calls were answered by the first run, {calls.get('model', 0)} by the model")
    difference = compare(log, folder / "free")
    print(difference)
    if difference.first is not None:
        print(log.why(difference.first.message_id, depth=1))
    print(f"the logs are in {folder}: ray-messaging report {folder}/free {folder}/moderated")


if __name__ == "__main__":
    main()
