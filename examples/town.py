"""A town of 200 agents decides where to meet. Agents tell their friends where they go, and a language model decides.

Without --url a fake server answers, in a process of its own. A real server is OpenAI's, or a similar one such as vLLM:
python examples/town.py --url http://localhost:8000/v1 --model Qwen/Qwen3-8B. The program needs the extra [llm]. A real
server may need OPENAI_API_KEY. With --log-dir the program continues a run that has ended early, such as by its budget,
and pays no call twice.
"""

import argparse
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import numpy as np
from pydantic import BaseModel

from ray_messaging import Calls, Count, Messaging, Price, Steps
from ray_messaging.models import Chat

PLACES = ("cafe", "market", "park")
RULES = "You live in a small town, and like to be where your friends are. You answer with one place, and a reason."


class Choice(BaseModel):
    """An answer of the language model: a place, with the reason."""

    place: Literal[PLACES]
    reason: str


async def citizen(me, inbox):
    """Hear where friends go, let the language model decide, and tell friends."""
    if heard := ", ".join(message.payload["place"] for message in inbox):
        prompt = f"Your friends go to: {heard}. Where do you go?"
        me.state["place"] = (await me.remember(me.shared, prompt))["place"]
    for friend in me.neighbours:
        me.send(friend, {"place": me.state["place"]})


@contextmanager
def fake_server():
    """Run the fake server of the benchmarks; yield its address."""
    command = [sys.executable, "-m", "benchmarks.fake_openai", "--until-eof", "--output-ms", "1"]
    pipe = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, cwd=Path(__file__).parents[1], text=True, **pipe) as server:
        yield server.stdout.readline().strip()
        server.stdin.close()


def main():
    """Let the town talk for some evenings; print how many agents go where, and what the calls have cost."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agents", type=int, default=200)
    parser.add_argument("--url", help="the address of a real server; without --url a fake server answers")
    parser.add_argument("--model", default="gpt-4o-mini")
    parser.add_argument(
        "--budget", default="1 USD", help="the most money that the run may spend, by the prices of gpt-4o-mini"
    )
    parser.add_argument("--log-dir")
    plan = parser.parse_args()
    if plan.url:
        live(plan, plan.url)
    else:
        with fake_server() as url:
            live(plan, url)


def live(plan, url):
    """Run the town with the model of a server."""
    friends = np.random.default_rng(7).integers(0, plan.agents, (3 * plan.agents, 2))
    chat = Chat(model=plan.model, base_url=url, form=Choice, system=RULES, seed=7)
    calls = Calls(cost=Price(input="0.15", cached="0.075", output="0.60"), budget=plan.budget)
    started = Messaging.start(
        "town", steps=Steps(seed=7, wait_for="neighbours"), calls=calls, log_dir=plan.log_dir, on_existing="resume",
    )  # fmt: skip
    with started as messaging:
        print("asking", plan.model, "at", url if plan.url else "a fake server")
        result = messaging.run(
            citizen, agents=plan.agents, groups=2, until=6, graph=friends,
            start=lambda me: {"place": str(me.rng.choice(PLACES))}, collect=Count("place"),
            shared=chat, timeout=600,
        )  # fmt: skip
        print(result.series.to_string())
        print(result.calls)
        if plan.log_dir:
            print(messaging.log.calls(by="step").to_pandas().to_string())


if __name__ == "__main__":
    main()
