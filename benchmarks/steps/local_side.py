"""A model by `ray_messaging.run`: `python -m benchmarks.steps.local_side AGENTS STEPS MODEL` prints a line of JSON."""

import json
import sys

import ray_messaging
from benchmarks.contagion.ours import begins
from benchmarks.contagion.ours import person as contagious
from benchmarks.contagion.world import edges, thresholds
from benchmarks.steps.mesa import knows_first, person


def rumour(count):
    """Return the rumour's model, and its other arguments."""
    return person, {"start": knows_first, "shared": count}


def contagion(count):
    """Return the contagion's model, and its other arguments."""
    return contagious, {"start": begins(thresholds(count)), "graph": edges(count)}


def main():
    """Run the steps; print the version, the mean milliseconds of one step, and how many agents were reached."""
    count, steps = map(int, sys.argv[1:3])
    model, given = {"rumour": rumour, "contagion": contagion}[sys.argv[3]](count)
    result = ray_messaging.run(model, agents=count, until=steps, seed=7, progress=False, **given)
    stamps = result.states[0]["stamps"]
    known = sum(state["knows" if "knows" in state else "active"] for state in result.states.values())
    # The mean, because the digests of many steps may be computed in one of them.
    mean_ms = 1e3 * (stamps[-1] - stamps[0]) / (steps - 1)
    print(json.dumps({"version": ray_messaging.__version__, "mean_ms": mean_ms, "known": known}))


if __name__ == "__main__":
    main()
