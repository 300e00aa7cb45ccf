"""Two numeric columns in bulk, beside JSON payloads and beside the bytes alone, by turns in one run.

    python -m benchmarks.columns                   # about 2 minutes
    python -m benchmarks.columns --log             # the same with the event log on
    python -m benchmarks.columns --rounds 3 --million 4

One actor sends to another through the interceptor with a black list. The bytes alone are frames of the same content, by
redis-py's XADD and XREAD between two actors. A value is in millions of messages a second, from the first call until the
last message is fetched: the median of the rounds, with the lowest and the highest. A ratio is that of two sides in the
same round.
"""

import argparse
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import ray

from benchmarks.axes.society.society import BLACK_LIST, cluster
from benchmarks.columns.members import AGENTS, CHUNK, Bare, Member
from benchmarks.reports.lines import Line, as_json, ratios, show
from ray_messaging import Messaging

PART = "two numeric columns in bulk"
BARE_ROWS = 65_536  # of a frame of the bytes alone
LEAST, LEAST_LOGGED, OF_BARE, OF_JSON = 8.0, 4.0, 0.6, 2.5


def pass_on(sender: Any, receiver: Any, *what: Any) -> float:
    """Have one actor send and the other receive; return the seconds."""
    receiving = receiver.receive.remote(*what)
    began, ended = ray.get([sender.send.remote(*what), receiving])
    return ended - began


def measure(million: float, rounds: int, log_dir: Path | None) -> list[Line]:
    """Measure all sides by turns, after a turn of each to warm up."""
    calls = max(1, round(million * 1e6 / CHUNK))
    with Messaging.start("columns", rules=[BLACK_LIST], log_dir=log_dir) as messaging:
        west, east, writer, reader = Member.remote(), Member.remote(), Bare.remote(), Bare.remote()
        places = range(AGENTS), range(AGENTS, 2 * AGENTS)
        ray.get([west.open.remote(messaging, "west", places[0]), east.open.remote(messaging, "east", places[1])])
        ray.get([each.open.remote(messaging.redis, BARE_ROWS) for each in (writer, reader)])
        frames = max(1, round(calls * CHUNK / BARE_ROWS))
        sides: dict[str, Callable[[], float]] = {
            "columns": lambda: calls * CHUNK / pass_on(west, east, "columns", calls),
            "JSON": lambda: max(1, calls // 4) * CHUNK / pass_on(west, east, "JSON", max(1, calls // 4)),
            "bytes alone": lambda: frames * BARE_ROWS / pass_on(writer, reader, frames),
        }
        for turn in sides.values():
            turn()
        values: dict[str, list[float]] = {name: [] for name in sides}
        for number in range(rounds):
            for name in list(sides) if number % 2 == 0 else reversed(list(sides)):
                values[name].append(sides[name]() / 1e6)
        for member in (west, east, writer, reader):
            ray.kill(member)
    mine = values["columns"]
    least, of_bare, of_json = (LEAST, OF_BARE, OF_JSON) if log_dir is None else (LEAST_LOGGED, None, None)
    lines = [
        Line(PART, name, "million/s", found, least=least if name == "columns" else None)
        for name, found in values.items()
    ]
    return [
        *lines,
        Line(PART, "columns / bytes alone", "x", ratios(mine, values["bytes alone"]), least=of_bare),
        Line(PART, "columns / JSON", "x", ratios(mine, values["JSON"]), least=of_json),
    ]


def main() -> None:
    """Measure, and print the table or JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--million", type=float, default=8.0, help="million messages of a turn (JSON: a quarter)")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--log", action="store_true", help="with the event log on")
    parser.add_argument("--json", action="store_true")
    plan = parser.parse_args()
    with cluster(), TemporaryDirectory() as folder:
        lines = measure(plan.million, plan.rounds, Path(folder) if plan.log else None)
    if plan.json:
        print(as_json(lines))
    else:
        show(lines, "Columns")


if __name__ == "__main__":
    main()
