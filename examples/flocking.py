"""Birds fly in the same direction as their neighbours: an audience whose positions change in every step.

    pip install ray-messaging
    python examples/flocking.py
    python examples/flocking.py --birds 2000 --steps 40 --groups 4

Each bird tells all birds in sight in which direction it flies, and turns towards the mean of what it hears. The birds
live on a square. The order of the flock is 1 if all birds fly in the same direction, and near 0 at the start.
"""

import argparse

import numpy as np
import ray

from ray_messaging import Messaging, Steps, columns
from ray_messaging.errors import StepAborted

SPEED, TURN, SIGHT, ROOM = 0.05, 5.0, 1.0, 5.0  # ROOM is the length of a side of the square


@ray.remote(num_cpus=0, retry_exceptions=[StepAborted], max_retries=-1)
def fly(group, sky, start, until):
    """Hear the neighbours, turn, tell them the new direction, and fly on."""
    for step in group.steps(until=until):
        if step.state is None:
            angle = 2 * np.pi * step.uniform(1)[:, 0]
            birds = np.column_stack([start, np.cos(angle), np.sin(angle)])
        else:
            birds = np.frombuffer(step.state).reshape(-1, 4)
        heard = step.heard(sky)
        towards = np.stack([heard.mean("x"), heard.mean("y")], axis=1)  # NaN: nobody was near
        wanted = birds[:, 2:] + TURN * np.nan_to_num(towards)
        heading = wanted / np.linalg.norm(wanted, axis=1, keepdims=True)
        places = (birds[:, :2] + SPEED * heading) % ROOM
        step.state = np.column_stack([places, heading]).tobytes()
        step.broadcast_columns(list(step.agents), sky, columns(x=heading[:, 0], y=heading[:, 1]))
        step.move(sky, list(step.agents), places)  # all groups use the new places from the next step on


def main():
    """Let the birds fly, and print the order of the flock."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--birds", type=int, default=300)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--groups", type=int, default=2)
    plan = parser.parse_args()
    ids = np.arange(plan.birds)
    places = np.random.default_rng(7).random((plan.birds, 2)) * ROOM

    with Messaging.start("flock", steps=Steps(seed=7, groups=plan.groups)) as messaging:
        parts = np.array_split(ids, plan.groups)
        groups = messaging.create_groups({f"flock-{number}": part for number, part in enumerate(parts)})
        sky = messaging.create_audience("sky", positions=places, radius=SIGHT)
        for until in range(5, plan.steps + 1, 5):
            flying = [
                fly.remote(group, sky, places[part], until) for group, part in zip(groups.values(), parts, strict=True)
            ]
            ray.get(flying)
            heading = np.concatenate([np.frombuffer(group.state).reshape(-1, 4)[:, 2:] for group in groups.values()])
            order = np.linalg.norm(heading.mean(axis=0))
            print(f"step {until:3}: order {order:.6f}, {sky.pairs / plan.birds:.1f} neighbours each")


if __name__ == "__main__":
    main()
