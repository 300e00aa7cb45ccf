"""Compare our runner of agent-framework's workflows with its own, by turns.

    pip install "ray_messaging[agent-framework]"
    python -m benchmarks.compat.agent_framework_runners [--rounds 7] [--kills]

In one process the executors do nothing. In two groups on Ray each computes for 5 ms. Beside this, the speed of two bare
loops in two processes says how much of two cores the machine had. With --kills a workflow of 1,000 executors runs in 4
groups instead, and in each superstep a process is killed.
"""

import argparse
import asyncio
import gc
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from itertools import pairwise
from pathlib import Path

from agent_framework import Executor, WorkflowBuilder, WorkflowContext, handler

from benchmarks.reports.lines import Line, ratios, show
from ray_messaging import Messaging, Steps
from ray_messaging.compat.agent_framework import RayWorkflowRunner

WIDE, LONG, WORKED_S = 200, 90, 0.005
LOOP_S = 0.5
LOOP = f"""
import sys, time
print("ready", flush=True)
sys.stdin.readline()
begun, end = time.perf_counter(), time.process_time() + {LOOP_S}
while time.process_time() < end:
    pass
print(time.perf_counter() - begun)
"""
LAYERS, IN_A_LAYER = 10, 99  # with one that joins each layer, and one that begins: 1,001 executors


class Passes(Executor):
    """An executor that computes for some time, and passes a text on."""

    def __init__(self, name, seconds=0.0, folder=None, *, dies=False):
        super().__init__(name)
        self.seconds, self.folder, self.dies = seconds, folder, dies

    async def work(self):
        end = time.process_time() + self.seconds
        while time.process_time() < end:
            pass
        if self.folder is not None:
            mark = self.folder / f"{self.id} died"
            if self.dies and not mark.exists():
                # Those that have ended are kept by then: each of them must run once.
                calls = {task for task in asyncio.all_tasks() if task.get_name() == "ray_messaging remembered call"}
                await asyncio.gather(*(calls - {asyncio.current_task()}))
                mark.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            with (self.folder / "ran").open("a") as file:
                file.write(f"{self.id}\n")

    @handler
    async def hear(self, text: str, ctx: WorkflowContext[str]) -> None:
        await self.work()
        await ctx.send_message(text)

    @handler
    async def join(self, texts: list[str], ctx: WorkflowContext[str, str]) -> None:
        await self.work()
        await ctx.send_message(texts[0])
        await ctx.yield_output(str(len(texts)))


def wide(seconds=0.0):
    """Make a workflow of which all but two executors run in one superstep."""
    first, many, last = Passes("first"), [Passes(f"wide{n}", seconds) for n in range(WIDE)], Passes("last")
    return WorkflowBuilder(start_executor=first).add_fan_out_edges(first, many).add_fan_in_edges(many, last).build()


def chain():
    """Make a workflow of which one executor runs in each superstep."""
    steps = [Passes(f"step{n}") for n in range(LONG)]
    built = WorkflowBuilder(start_executor=steps[0])
    for one, other in pairwise(steps):
        built.add_edge(one, other)
    return built.build()


def layers(folder):
    """Make a workflow of 1,001 executors; one of each layer kills its process."""
    before = Passes("begin", folder=folder)
    built = WorkflowBuilder(start_executor=before, max_iterations=2 * LAYERS + 2)
    for layer in range(LAYERS):
        many = [Passes(f"{layer}-{n}", folder=folder, dies=n == IN_A_LAYER // 2) for n in range(IN_A_LAYER)]
        after = Passes(f"join{layer}", folder=folder, dies=True)
        built.add_fan_out_edges(before, many).add_fan_in_edges(many, after)
        before = after
    return built.build()


def seconds(run):
    """Return how long a run of a workflow takes."""

    async def timed():
        begun = time.perf_counter()
        result = await run("x")
        took = time.perf_counter() - begun
        assert result.get_final_state().value == "IDLE"
        return took

    return asyncio.run(timed())


def bare_loops():
    """Return how many seconds of processor time two loops in two processes get in a second."""
    command = [sys.executable, "-S", "-c", LOOP]
    loops = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    for loop in loops:
        assert loop.stdout.readline() == "ready\n"
    for loop in loops:
        loop.stdin.write("go\n")
        loop.stdin.flush()
    return 2 * LOOP_S / max(float(loop.communicate()[0]) for loop in loops)


def by_turns(rounds, make, runner, *more):
    """Return the times of both runners, and the results of further functions."""
    theirs, mine = make(), runner.attach(make())
    found = [(seconds(mine.run), seconds(theirs.run), *(each() for each in more)) for _ in range(rounds + 1)][1:]
    return [list(side) for side in zip(*found, strict=True)]


def compare(rounds):
    gc.freeze()
    # Ray gives its processes the niceness 15. With it, other programs would slow down one side only.
    os.environ.setdefault("RAY_worker_niceness", "0")
    lines = []
    for make in (wide, chain):
        with RayWorkflowRunner() as runner:
            mine, theirs = by_turns(rounds, make, runner)
        lines += [Line(make.__name__, "ours, one process", "s", mine), Line(make.__name__, "its own", "s", theirs)]
        lines.append(Line(make.__name__, "ratio", "x", ratios(mine, theirs), most=1.3))
    with Messaging.start("runners", steps=Steps()) as messaging, RayWorkflowRunner(messaging, groups=2) as runner:
        mine, theirs, bare = by_turns(rounds, lambda: wide(WORKED_S), runner, bare_loops)
    lines += [Line("5 ms each", "ours, two groups", "s", mine), Line("5 ms each", "its own", "s", theirs)]
    lines.append(Line("5 ms each", "two bare loops", "x", bare))
    lines.append(Line("5 ms each", "ratio", "x", ratios(theirs, mine), least=1.7))
    show(lines, f"runners for agent-framework, {WIDE} executors at once or {LONG} in a chain")


def kill_them():
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        with Messaging.start("killed", steps=Steps()) as messaging, RayWorkflowRunner(messaging, groups=4) as runner:
            begun = time.perf_counter()
            outputs = asyncio.run(_outputs(runner, folder))
            took = time.perf_counter() - begun
        ran = Counter((folder / "ran").read_text().split())
        died = len([*folder.glob("* died")])
    assert outputs == [str(IN_A_LAYER)] * LAYERS, outputs
    assert len(ran) == LAYERS * (IN_A_LAYER + 1) + 1
    again = {name: count for name, count in ran.items() if count > 1}
    print(f"{len(ran)} executors in {took:.1f} s, {died} processes killed, {len(again)} executors ran again {again}")


async def _outputs(runner, folder):
    return (await runner.run(layers(folder), "x")).get_outputs()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--kills", action="store_true")
    given = parser.parse_args()
    kill_them() if given.kills else compare(given.rounds)
