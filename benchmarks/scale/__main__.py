"""Cost of a message as replicas, groups, mailboxes and servers for bodies are added.

    python -m benchmarks.scale --part replicas               # about 2 minutes: without and with a replica, by turns
    python -m benchmarks.scale --part groups                 # groups in a ring on one server, more and more of them
    python -m benchmarks.scale --part groups --groups 1 8 32
    python -m benchmarks.scale --part frames                 # one sender to more and more mailboxes
    python -m benchmarks.scale --part steps                  # large and small steps on one server and on three
    python -m benchmarks.scale --part simulated              # 20 machines with 100,000,000 agents, without Ray

The interceptor has a black list. A value is the median of the rounds, with the lowest and the highest. A ratio is that
of two sides in the same round. Millions a second are counted in bulk, until the last message has come.
"""

import argparse
import logging
from collections.abc import Callable
from contextlib import nullcontext

from benchmarks.axes.society.society import cluster
from benchmarks.reports.lines import Line, as_json, show
from benchmarks.scale import frames, groups, replicas, simulated, step_bodies

PARTS = ("replicas", "groups", "frames", "steps", "simulated")


def main() -> None:
    """Measure, and print the table or JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=PARTS, action="append", help="one of the parts; none: all")
    parser.add_argument("--seconds", type=float, default=2.0, help="of a turn in bulk")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--groups", type=int, nargs="+", default=groups.GROUPS, help="rising numbers of groups")
    parser.add_argument("--json", action="store_true")
    plan = parser.parse_args()
    parts: dict[str, Callable[[], list[Line]]] = {
        "replicas": lambda: replicas.measure(plan.seconds, plan.rounds),
        "groups": lambda: groups.measure(plan.groups, plan.seconds, plan.rounds),
        "frames": lambda: frames.measure(plan.seconds, plan.rounds),
        "steps": lambda: step_bodies.measure(plan.rounds),
        "simulated": simulated.simulate,
    }
    logging.getLogger("ray_messaging").setLevel(logging.ERROR)  # the servers' data may be lost
    lines: list[Line] = []
    for name in plan.part or parts:
        with nullcontext() if name == "simulated" else cluster():
            lines += parts[name]()
    if plan.json:
        print(as_json(lines))
    else:
        show(lines, "Scale")


if __name__ == "__main__":
    main()
