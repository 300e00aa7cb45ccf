"""Run one axis: a Plan as JSON on stdin, a figure as JSON per line on stdout."""

import importlib
import sys

from benchmarks.axes import AXES, ROOMS
from benchmarks.figures import Plan, emit


def main() -> None:
    """Run the axis that the command line names."""
    if len(sys.argv) != 2 or sys.argv[1] not in AXES:
        sys.exit(f"usage: python -m benchmarks.axes NAME < plan.json, where NAME is one of {', '.join(AXES)}")
    room = next(room for room, names in ROOMS.items() if sys.argv[1] in names)
    axis = importlib.import_module(f"benchmarks.axes.{room}.{sys.argv[1]}")
    for figure in axis.measure(Plan.from_json(sys.stdin.read())):
        emit(figure)


if __name__ == "__main__":
    main()
