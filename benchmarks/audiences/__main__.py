"""Broadcasts to audiences, with the figures of docs/audiences.md.

python -m benchmarks.audiences                        # 1,000,000 agents with 200 hearers each, two groups
python -m benchmarks.audiences --agents 100000 --groups 1 --steps 5
python -m benchmarks.audiences --rules                # a black list of 100,000 pairs on a million
"""

import argparse
import asyncio

from benchmarks.audiences.followers import measure, show
from benchmarks.audiences.pair_rules import measure_rules


def main() -> None:
    """Measure, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agents", type=int, default=1_000_000)
    parser.add_argument("--hearers", type=int, default=200)
    parser.add_argument("--groups", type=int, default=2)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--rules", action="store_true", help="verdicts on pairs, in place of steps")
    given = parser.parse_args()
    if given.rules:
        for name, seconds in asyncio.run(measure_rules()).items():
            print(f"{seconds:7.3f} s  {name}")
        return
    show(measure(given.agents, given.hearers, given.groups, given.steps))


if __name__ == "__main__":
    main()
