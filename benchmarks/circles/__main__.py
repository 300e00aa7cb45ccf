"""The circles model: a million agents that tell their places to those near them, beside numpy alone and Mesa 3.

python -m benchmarks.circles                                  # 1,000,000 agents, 10 steps, two groups; 20,000 in Mesa
python -m benchmarks.circles --agents 100000 --steps 5 --mesa-agents 0    # without Mesa
"""

import argparse
import json
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.circles.ours import ours
from benchmarks.circles.plain import Round, plain
from benchmarks.reports.lines import Line, as_json, show
from benchmarks.setup import environments

_MESA, _MESA_STEPS = "mesa", 3


def mesa(envs: Path, agents: int) -> dict[str, Any]:
    """Run some steps in Mesa; return its version and seconds. Raises ValueError where its places are not numpy's."""
    environments.build(envs, [_MESA], say=lambda _: None)
    with tempfile.TemporaryDirectory() as folder:
        file = f"{folder}/places.npy"
        command = [
            environments.python(envs, _MESA),
            "-m",
            "benchmarks.circles.mesa_side",
            str(agents),
            str(_MESA_STEPS),
        ]
        done = subprocess.run([*command, file], stdout=subprocess.PIPE, text=True, check=True, timeout=900)
        found: dict[str, Any] = json.loads(done.stdout)
        _compare("Mesa", np.load(file), plain(agents, _MESA_STEPS)[1])
    return found


def _compare(side: str, places: Any, wanted: Any) -> None:
    if not np.allclose(places, wanted, rtol=0, atol=1e-9):
        raise ValueError(f"the places of {side} differ from numpy's by up to {np.abs(places - wanted).max():g}")


def _lines(part: str, side: str, rounds: list[Round], index: str) -> list[Line]:
    return [
        Line(part, f"{side}: a step", "s", [each.index_s + each.step_s for each in rounds]),
        Line(part, f"{side}: {index}, of it", "s", [each.index_s for each in rounds]),
        Line(part, f"{side}: the rest of it", "s", [each.step_s for each in rounds]),
        Line(part, f"{side}: processor time of a step", "s", [each.cpu_s for each in rounds]),
    ]


def measure(agents: int, groups: int, steps: int, mesa_agents: int, envs: Path) -> list[Line]:
    """Run all sides; raise ValueError where their places differ."""
    part = f"{agents:,} agents"
    found = ours(agents, groups, steps)
    rounds, places = plain(agents, steps)
    _compare("the groups", found.places, places)
    part += f", {found.pairs / agents:.1f} neighbours"
    lines = [Line(part, "ours: start, without pairs", "s", [found.setup_s])]
    lines.append(Line(part, "ours: the first audience", "s", [found.audience_s]))
    lines += _lines(part, "ours", found.rounds, "change of the audience")
    lines.append(Line(part, "ours: memory of all processes", "GiB", [found.memory]))
    lines += _lines(part, "numpy and cKDTree", rounds, "the pairs")
    each = [1e6 * (one.index_s + one.step_s) / agents for one in found.rounds]
    lines.append(Line("an agent and step", "ours", "us", each))
    each = [1e6 * (one.index_s + one.step_s) / agents for one in rounds]
    lines.append(Line("an agent and step", "numpy and cKDTree", "us", each))
    if mesa_agents:
        beside = mesa(envs, mesa_agents)
        side = f"Mesa {beside['version']}, {mesa_agents:,} agents"
        lines.append(Line("an agent and step", side, "us", [1e6 * value / mesa_agents for value in beside["steps"]]))
    return lines


def main() -> None:
    """Measure, and print the table or JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agents", type=int, default=1_000_000)
    parser.add_argument("--groups", type=int, default=2)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--mesa-agents", type=int, default=20_000, help="agents in Mesa, 0: none")
    parser.add_argument("--envs", type=Path, default=environments.FOLDER, help="folder with the environment of Mesa")
    parser.add_argument("--json", action="store_true")
    plan = parser.parse_args()
    lines = measure(plan.agents, plan.groups, plan.steps, plan.mesa_agents, plan.envs.expanduser())
    if plan.json:
        print(as_json(lines))
    else:
        show(lines, f"Circles, {plan.steps} steps")


if __name__ == "__main__":
    main()
