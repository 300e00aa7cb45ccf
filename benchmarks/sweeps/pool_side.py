"""The sweep by `ray_messaging.run` in a plain pool: `python -m benchmarks.sweeps.pool_side` prints a line of JSON."""

import json
from functools import partial
from multiprocessing import get_context

import ray_messaging
from benchmarks.contagion.world import STEPS, edges, thresholds
from benchmarks.sweeps.design import FIRSTS, PROCESSES
from benchmarks.sweeps.ours import person


def since(first):
    limits = thresholds()
    result = ray_messaging.run(
        partial(person, first=first),
        agents=len(limits),
        until=STEPS,
        graph=edges(),
        start=lambda me: {"active": False, "heard": 0, "since": -1, "threshold": limits[me.id]},
        progress=False,
    )
    return sum(each["since"] for each in result.states.values())


def main():
    with get_context("spawn").Pool(PROCESSES) as pool:
        print(json.dumps(dict(zip(FIRSTS, pool.map(since, FIRSTS, chunksize=1), strict=True))))


if __name__ == "__main__":
    main()
