"""A Tune sweep: how far a rumour gets, by the chance that an agent tells the rumour to a friend.

    pip install "ray[tune]"
    python examples/sweep.py --chances 0.01 0.03 0.1

Each trial is an experiment of its own, with a server, groups and a log of its own: trials share nothing. The
experiment and its log have the name that Tune gives the trial.
"""

import argparse
from pathlib import Path

from ray import tune

from ray_messaging import Messaging, Steps

AGENTS = 300


def student(me, inbox):
    """Hear the rumour, and tell it to some friends from the next step on."""
    if me.state["knows"]:
        for friend in me.neighbours:
            if me.rng.random() < me.shared["chance"]:
                me.send(friend, {"text": "have you heard?"})
    me.state["knows"] = me.state["knows"] or len(inbox) > 0


def trial(config):
    """Run one experiment, and report its outcome to Tune."""
    name = tune.get_context().get_trial_id()
    ring = [(n, (n + k) % AGENTS) for n in range(AGENTS) for k in (-7, -1, 1, 7)]
    with Messaging.start(f"sweep-{name}", steps=Steps(seed=7), log_dir=f"{config['logs']}/{name}") as messaging:
        result = messaging.run(
            student, agents=AGENTS, groups=2, until=config["steps"], graph=ring, progress=False,
            shared={"chance": config["chance"]}, start=lambda me: {"knows": me.id == 0},
        )  # fmt: skip
    know = sum(state["knows"] for state in result.states.values())
    tune.report({"know": know, "messages": sum(result.fates.values())})


def main():
    """Run all trials, some at a time, and print the outcome of each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chances", type=float, nargs="+", default=[0.02, 0.05, 0.1, 0.2])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument(
        "--folder", type=Path, default=Path("sweep"), help="the folder for the logs, and for what Tune keeps"
    )
    plan = parser.parse_args()
    folder = plan.folder.resolve()  # a trial works in another folder, so paths for it must be absolute
    tuner = tune.Tuner(
        tune.with_resources(trial, {"cpu": 1}),  # the groups of the trial need no cores of their own
        param_space={"chance": tune.grid_search(plan.chances), "steps": plan.steps, "logs": str(folder / "logs")},
        run_config=tune.RunConfig(name="tune", storage_path=str(folder), verbose=0),
    )
    found = tuner.fit()
    print("chance   know it   messages")
    for result in sorted(found, key=lambda result: result.config["chance"]):
        if result.error:
            raise result.error
        print(f"{result.config['chance']:>6}  {result.metrics['know']:>8,}  {result.metrics['messages']:>9,}")


if __name__ == "__main__":
    main()
