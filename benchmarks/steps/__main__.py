"""Steps beside plain Ray actors, by turns in one run.

    python -m benchmarks.steps                # all parts: about 10 minutes
    python -m benchmarks.steps --part small   # a step of 6,000 messages over 4 groups
    python -m benchmarks.steps --part idle    # the barrier alone, over 64 groups
    python -m benchmarks.steps --part collect --part advance    # series, and runs that stand between their steps
    python -m benchmarks.steps --part checkpoint     # checkpoints of 1,000,000 agents
    python -m benchmarks.steps --part calls    # calls that agents remember
    python -m benchmarks.steps --part mesa    # a rumour in Mesa 3, in an environment of its own (see --envs)
    python -m benchmarks.steps --part local   # that and a contagion by `ray_messaging.run`, without Ray
    python -m benchmarks.steps --part large   # 300,000 and 5,000,000 messages to one group in a step
    python -m benchmarks.steps --steps 10 --rounds 2

A value is the time of one step in milliseconds: the median of the rounds, with the lowest and the highest. A ratio is
that of two sides in the same round. "Above the model" is a step's time without the model's own, measured alone in one
loop, beside the same of plain Ray.
"""

import argparse
import statistics
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from benchmarks.axes.society.society import cluster
from benchmarks.reports.lines import Line, as_json, ratios, show
from benchmarks.setup.environments import FOLDER
from benchmarks.steps import remembered
from benchmarks.steps.idle import IdleByHandles, IdleInOwnActors
from benchmarks.steps.large import measure
from benchmarks.steps.mesa import LOCAL, SIZES, compare
from benchmarks.steps.mesa import local as compare_local
from benchmarks.steps.million import Million
from benchmarks.steps.model import MESSAGES, alone_ms
from benchmarks.steps.runs import LoggedCrowd, StandingRun, ten_numbers
from benchmarks.steps.sides import PEERS, SIDES

MILLION, ABOVE, COLLECT, ADVANCE, CHECKPOINT, KNOWN = 1.3, 0.4, 1.1, 3.0, 500.0, 10.0


def by_turns(sides: Mapping[str, Any], steps: int, rounds: int) -> dict[str, list[float]]:
    """Return the milliseconds of a step of each side in each round, after a turn to warm up."""
    for side in sides.values():
        side.turn(max(3, steps // 5))
    values: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(rounds):
        for name in list(sides) if number % 2 == 0 else reversed(list(sides)):
            values[name].append(sides[name].turn(steps))
    for side in sides.values():
        side.shutdown()
    return values


def small(steps: int, rounds: int) -> list[Line]:
    """Measure a step of 6,000 messages over 4 groups."""
    sides = {kind.name: kind() for kind in (*PEERS, *SIDES)}
    values = by_turns(sides, steps, rounds)
    alone = [alone_ms(steps) for _ in range(rounds)]
    model = statistics.median(alone)
    part = f"{MESSAGES:,} messages, 4 groups"
    lines = [Line(part, "the model alone, in one loop", "ms", alone)]
    lines += [Line(part, name, "ms", found) for name, found in values.items()]
    for peer, kind in product(PEERS, SIDES):
        mine, theirs = values[kind.name], values[peer.name]
        lines.append(Line(part, f"{kind.name} / {peer.name}", "x", ratios(mine, theirs), kind.most))
        above = ratios([ms - model for ms in mine], [ms - model for ms in theirs])
        lines.append(Line(part, f"{kind.name} / {peer.name}, above the model", "x", above, ABOVE))
    return lines


def idle(steps: int, rounds: int) -> list[Line]:
    """Measure 64 idle groups, one side after the other: each has up to 73 processes."""
    lines = []
    for kind in (IdleInOwnActors, IdleByHandles):
        values = by_turns({kind.name: kind()}, steps, rounds)
        lines.append(Line("64 idle groups", kind.name, "ms", values[kind.name], kind.most))
    return lines


def million(steps: int, rounds: int) -> list[Line]:
    """Measure 1,000,000 messages in a step, and without steps."""
    sides = {"send_columns in steps": Million(stepped=True), "unsynchronised": Million(stepped=False)}
    values = by_turns(sides, max(2, steps // 10), rounds)
    part = "1,000,000 agents, one message each"
    lines = [Line(part, name, "ms", found) for name, found in values.items()]
    return [*lines, Line(part, "steps / unsynchronised", "x", ratios(*values.values()), MILLION)]


def collect(steps: int, rounds: int) -> list[Line]:
    """Measure ten numbers of each of 100,000 agents, collected in each step."""
    sides = {"collect=": StandingRun(100_000, 2, collect=ten_numbers), "the run alone": StandingRun(100_000, 2)}
    values = by_turns(sides, max(3, steps // 10), rounds)
    part = "100,000 agents, ten numbers of each"
    lines = [Line(part, name, "ms", found) for name, found in values.items()]
    return [*lines, Line(part, "collect= / the run alone", "x", ratios(*values.values()), COLLECT)]


def checkpoint(_steps: int, rounds: int) -> list[Line]:
    """Measure checkpoints of 1,000,000 agents with 104 bytes of state each: four in a turn of four steps, and none."""
    sides = {
        "a checkpoint each step": LoggedCrowd(1_000_000, 2, checkpoint=1),
        "a log": LoggedCrowd(1_000_000, 2),
        "no log": LoggedCrowd(1_000_000, 2, logged=False),
    }
    values = by_turns(sides, 4, rounds)
    part = "1,000,000 agents, 104 bytes of each"
    lines = [Line(part, name, "ms", found) for name, found in values.items()]
    with_, without, bare = values.values()
    cost = [one - other for one, other in zip(with_, without, strict=True)]
    lines.append(Line(part, "a checkpoint", "ms", cost, CHECKPOINT))
    return [*lines, Line(part, "a log / no log", "x", ratios(without, bare))]


def advance(steps: int, rounds: int) -> list[Line]:
    """Measure a run of 1,000 agents that advances step by step."""
    sides = {"advance(1)": StandingRun(1000, 4, one_by_one=True), "advance(n)": StandingRun(1000, 4)}
    values = by_turns(sides, steps, rounds)
    part = "1,000 agents in 4 groups"
    lines = [Line(part, name, "ms", found) for name, found in values.items()]
    return [*lines, Line(part, "advance(1) / advance(n)", "x", ratios(*values.values()), ADVANCE)]


def large(_steps: int, _rounds: int) -> list[Line]:
    """Measure 300,000 and 5,000,000 messages to one group in a step, each once."""
    lines = []
    for count, small in ((300_000, True), (300_000, False), (5_000_000, False)):
        found, beside = measure(count, small=small), measure(count, stepped=False)
        part = f"{count:,} messages to one group"
        side = (
            ("small sends" if small else "columns")
            + " in a step"
            + (f", refused: {found.refused}" if found.refused else "")
        )
        lines += [Line(part, side, "ms", [found.ms]), Line(part, "columns, unsynchronised", "ms", [beside.ms])]
        lines.append(Line(part, "the reader's memory", "MB", [found.megabytes]))
    return lines


def mesa(_steps: int, rounds: int, envs: Path = FOLDER) -> list[Line]:
    """Measure the rumour beside Mesa at three sizes; a million agents once, the others in up to three rounds."""
    lines = []
    for agents in SIZES:
        found: dict[str, list[float]] = {}
        for _ in range(1 if agents == max(SIZES) else min(rounds, 3)):
            for side, ms in compare(envs, agents).items():
                found.setdefault(side, []).append(ms)
        lines += [Line(f"rumour, {agents:,} agents", side, "ms", values) for side, values in found.items()]
    return lines


def local(_steps: int, rounds: int, envs: Path = FOLDER) -> list[Line]:
    """Measure the contagion and the rumour by `ray_messaging.run` beside Mesa, by turns in fresh processes."""
    lines = []
    for model, sizes in LOCAL.items():
        for agents, (steps, most) in sizes.items():
            found = [compare_local(envs, model, agents, steps) for _ in range(rounds)]
            part = f"{model}, {agents:,} agents, one process"
            taken = {side: [each[side] for each in found] for side in found[0]}
            lines += [Line(part, side, "ms", values) for side, values in taken.items()]
            ours_ms = taken.pop("ray_messaging.run")
            for side, values in taken.items():
                limit = most if side == "Mesa" else None
                lines.append(Line(part, f"ray_messaging.run / {side}", "x", ratios(ours_ms, values), limit))
    return lines


def calls(_steps: int, rounds: int) -> list[Line]:
    """Measure 10,000 remembered calls of 100 agents, in this process."""
    made, known = zip(*(remembered.measure() for _ in range(rounds + 1)), strict=True)
    part = "10,000 remembered calls"
    return [Line(part, "made", "us", [*made[1:]]), Line(part, "the answer is known", "us", [*known[1:]], KNOWN)]


PARTS: dict[str, Callable[[int, int], list[Line]]] = {
    "small": small,
    "idle": idle,
    "million": million,
    "collect": collect,
    "advance": advance,
    "checkpoint": checkpoint,
    "calls": calls,
    "large": large,
    "mesa": mesa,
    "local": local,
}


def main() -> None:
    """Measure, and print the table or JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", action="append", choices=PARTS, help="one of the parts; may be repeated")
    parser.add_argument("--steps", type=int, default=30, help="steps of a turn (1,000,000 agents: a tenth)")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--envs", type=Path, default=FOLDER, help="folder with the environment of Mesa")
    parser.add_argument("--json", action="store_true")
    plan = parser.parse_args()
    envs = plan.envs.expanduser()
    measures = PARTS | {"mesa": partial(mesa, envs=envs), "local": partial(local, envs=envs)}
    wanted, lines = plan.part or [*measures], []
    with nullcontext() if wanted == ["local"] else cluster():
        for name in wanted:
            lines += measures[name](plan.steps, plan.rounds)
    if plan.json:
        print(as_json(lines))
    else:
        show(lines, "ms of one step, and ratios")


if __name__ == "__main__":
    main()
