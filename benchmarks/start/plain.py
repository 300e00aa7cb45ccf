"""The program in plain Ray: `python -m benchmarks.start.plain BEGAN STEPS` prints its parts."""

import logging
import sys

import ray

from benchmarks.start.watch import Stopwatch
from benchmarks.steps.plain import RoutingDriver


def main() -> None:
    """Start four actors, run the steps, and as many again."""
    watch = Stopwatch()
    watch.lap("imports")
    ray.init(address="local", include_dashboard=False, logging_level=logging.ERROR)
    watch.lap("ray.init")
    steps = int(sys.argv[2])
    groups = RoutingDriver()
    groups.turn(steps)
    watch.lap("first run")
    groups.turn(steps)
    watch.lap("second run")
    groups.shutdown()
    ray.shutdown()
    watch.lap("end")
    watch.show()


if __name__ == "__main__":
    main()
