"""The rumour by `ray_messaging.run`: `python -m benchmarks.steps.local_side AGENTS STEPS` prints a line of JSON."""

import json
import sys

import numpy as np

import ray_messaging
from benchmarks.steps.mesa import knows_first, person


def main():
    """Run the steps; print the version, the mean milliseconds of one step, and how many know the rumour."""
    count, steps = map(int, sys.argv[1:])
    result = ray_messaging.run(
        person, agents=count, until=steps, start=knows_first, shared=count, seed=7, progress=False
    )
    stamps = result.states[0]["stamps"]
    known = sum(state["knows"] for state in result.states.values())
    # The mean, because the digests of many steps may be computed in one of them.
    mean_ms = 1e3 * float(np.mean(np.diff(stamps)))
    print(json.dumps({"version": ray_messaging.__version__, "mean_ms": mean_ms, "known": known}))


if __name__ == "__main__":
    main()
