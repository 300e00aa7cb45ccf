"""Variants of one town that share a store of calls, in several processes: each different call is made once.

    python -m benchmarks.variants --variants 50

Two processes run all variants at the same time, each in its own order. A third one is killed while it writes to the
store, and then runs all variants, too. The fake server counts the calls that it has answered, and how many of them
were different. Some variants also run without a store, and must end in the same states.
"""

import argparse
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.fake_openai import served
from ray_messaging import Calls, Price, run
from ray_messaging.models import Chat

AGENTS, STEPS, SEED = 40, 5, 7


def prompt_of(agent: int, step: int, heard: str, variant: int) -> str:
    """Return what an agent asks. Variants differ in the weather of the last steps, and in who hears of it."""
    news = f" It rains {variant % 5} hours." if step >= 3 and agent % 4 == variant % 4 else ""
    return f"You are citizen {agent % 20}, it is day {step}.{news} You heard: {heard}. What do you say?"


async def citizen(me: Any, inbox: Any) -> None:
    """Ask the model, and tell the next agent."""
    ask, variant = me.shared
    prompt = prompt_of(me.id, me.step, " ".join(message.payload["text"] for message in inbox), variant)
    me.state["said"] = said = (await me.remember(ask, prompt))[:60]
    me.send((me.id + 20) % AGENTS, {"text": said})


def live(url: str, store: str | None, variant: int) -> Any:
    """Run one variant."""
    calls = Calls(store=store, cost=Price(input="0.15", output="0.60"))
    chat = Chat(model="fake", base_url=url)
    return run(citizen, agents=AGENTS, until=STEPS, seed=SEED, shared=(chat, variant), calls=calls, progress=False)


def main() -> None:
    """Run the processes; print what the server has counted."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--variants", type=int, default=50)
    parser.add_argument("--child", nargs=2, metavar=("URL", "STORE"), help="run all variants in this process")
    parser.add_argument("--backwards", action="store_true")
    plan = parser.parse_args()
    variants = range(plan.variants)[:: -1 if plan.backwards else 1]
    if plan.child:
        found = [live(*plan.child, variant).calls for variant in variants]
        made, saved, tokens = (
            sum(each) for each in zip(*((c.model, c.store, c.saved_tokens) for c in found), strict=True)
        )
        print(f"{made} calls made, {saved} saved, with {tokens:,} tokens and {sum(c.saved_cost for c in found)} USD")
        return
    with served(output_ms=0.2) as reference, served(output_ms=0.2) as server, tempfile.TemporaryDirectory() as store:
        some = {variant: live(reference.base_url, None, variant) for variant in variants[:: max(1, plan.variants // 5)]}
        begun = time.perf_counter()
        command = [sys.executable, "-m", "benchmarks.variants", "--variants", str(plan.variants)]
        command += ["--child", server.base_url, store]
        ours: dict[str, Any] = {"stdout": subprocess.PIPE, "text": True}
        ours |= {"cwd": Path(__file__).parents[1]}
        children = [subprocess.Popen([*command, *more], **ours) for more in ([], ["--backwards"], [])]
        # Few variants have fewer different calls.
        while children[2].poll() is None and server.counts()["answered"] < AGENTS * STEPS:
            time.sleep(0.01)
        children[2].send_signal(signal.SIGKILL)
        children[2].wait()
        children.append(subprocess.Popen(command, **ours))
        for child in (*children[:2], children[3]):
            print(child.communicate()[0].strip())
        counts, seconds = server.counts(), time.perf_counter() - begun
        for variant, alone in some.items():
            again = live(server.base_url, store, variant)
            assert again.states == alone.states
            assert again.calls.model == 0
        print(
            f"{plan.variants} variants of {AGENTS * STEPS:,} calls in each of 3 processes, and one that was killed: "
            f"the server has answered {counts['answered']:,} calls, {counts['different']:,} different ones, in "
            f"{seconds:.1f} s; {counts['answered'] - counts['different']} were lost with the process that was killed"
        )


if __name__ == "__main__":
    main()
