"""Conversations beside peers, by turns in one run.

    python -m benchmarks.conversations               # all parts: about 10 minutes
    python -m benchmarks.conversations --part game   # the number game, beside plain Ray and AgentScope
    python -m benchmarks.conversations --part ask    # one question at a time, and 2,000 at once
    python -m benchmarks.conversations --rounds 3 --agents 100000

A value is the median of the rounds, with the lowest and the highest. A ratio is that of two sides in the same round.
The rate of a game is its answers in a second.
"""

import argparse
from collections.abc import Callable
from pathlib import Path

from benchmarks.axes.society.society import cluster
from benchmarks.conversations import ask as asking
from benchmarks.conversations import game as games
from benchmarks.reports.lines import Line, as_json, ratios, show
from benchmarks.setup.environments import FOLDER

ROUND_S, TIMES, ASK, ALL_S = 1.5, 100.0, 2.3, 0.25
LONE = 500  # messages of a turn


def game(plan: argparse.Namespace) -> list[Line]:
    """Measure the number game: ours with very many agents, the peers with few, all of them round by round."""
    ours, few, ray = games.Ours(plan.agents), games.Ours(games.FEW), games.PlainRay(games.FEW)
    sides = {
        f"{plan.agents:,} by columns": ours.rounds_s,
        f"{games.FEW:,} by columns": few.rounds_s,
        f"{games.FEW:,}, plain Ray": ray.rounds_s,
        f"{games.FEW:,}, AgentScope": lambda rounds: games.agentscope_s(plan.envs, games.FEW, rounds),
    }
    values = {name: play(plan.rounds + 1)[1:] for name, play in sides.items()}  # the first round warms up
    for side in (ours, few, ray):
        side.shutdown()
    mine, _, *theirs = values
    lines = [Line("a round", name, "s", took, ROUND_S if name == mine else None) for name, took in values.items()]
    rates = [plan.agents / seconds for seconds in values[mine]]
    for name in theirs:
        faster = ratios(rates, [games.FEW / seconds for seconds in values[name]])
        lines.append(Line("answers in a second", f"{mine} / {name}", "x", faster, least=TIMES))
    return lines


def ask(plan: argparse.Namespace) -> list[Line]:
    """Measure questions between two agents, and 2,000 at once."""
    pair, ray = asking.Pair(), asking.PlainRay()
    pair.all_s(), ray.all_s()
    lone, asked, at_once, by_ray = [], [], [], []
    for _ in range(plan.rounds):
        lone.append(pair.lone_ms(LONE))
        asked.append(pair.ask_ms(LONE))
        at_once.append(pair.all_s())
        by_ray.append(ray.all_s())
    pair.shutdown()
    ray.shutdown()
    many = f"{len(asking.ASKED):,} at once, a model of {1000 * asking.MODEL_S:g} ms"
    return [
        Line("p50, one at a time", "a lone message", "ms", lone),
        Line("p50, one at a time", "a question and its answer", "ms", asked),
        Line("p50, one at a time", "question / lone message", "x", ratios(asked, lone), ASK),
        Line(many, "ask", "s", at_once, ALL_S),
        Line(many, "plain Ray", "s", by_ray),
        Line(many, "ask / plain Ray", "x", ratios(at_once, by_ray)),
    ]


PARTS: dict[str, Callable[[argparse.Namespace], list[Line]]] = {"game": game, "ask": ask}


def main() -> None:
    """Measure, and print the table or JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", action="append", choices=PARTS, help="one of the parts; may be repeated")
    parser.add_argument("--agents", type=int, default=games.MANY, help="of the number game by columns")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--envs", type=Path, default=FOLDER, help="folder with the environment of AgentScope")
    parser.add_argument("--json", action="store_true")
    plan = parser.parse_args()
    plan.envs = plan.envs.expanduser()
    with cluster():
        lines = [line for name in plan.part or PARTS for line in PARTS[name](plan)]
    if plan.json:
        print(as_json(lines))
    else:
        show(lines, "Conversations")


if __name__ == "__main__":
    main()
