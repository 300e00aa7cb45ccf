"""A small town decides where to meet: its agents tell their friends, and a model makes up their minds.

Without --model a fake counts words. python examples/town.py --model gpt-4o-mini needs [llm] and OPENAI_API_KEY.
All groups share one limit of calls. With --log-dir a run goes on where it ended, and asks nothing twice.
"""

import argparse
import re
from collections import Counter

import numpy as np

from ray_messaging import Calls, Count, Messaging, Steps

PLACES = ("cafe", "market", "park")


async def citizen(me, inbox):
    """Hear where friends go, let the language model decide, and tell friends."""
    if heard := ", ".join(message.payload["place"] for message in inbox):
        prompt = f"Your friends go to: {heard}. Where do you go? Name one of these places."
        me.state["place"] = await me.remember(ask, prompt, model=me.shared) or me.state["place"]
    for friend in me.neighbours:
        me.send(friend, {"place": me.state["place"]})


async def ask(prompt, *, model):
    """Return the place that a language model names. Without one, this is a fake that counts the words of the prompt."""
    if model is None:
        return Counter(re.findall("|".join(PLACES), prompt)).most_common(1)[0][0]
    from openai import AsyncOpenAI  # noqa: PLC0415 - an extra

    found = await AsyncOpenAI().chat.completions.create(model=model, messages=[{"role": "user", "content": prompt}])
    return next(iter(re.findall("|".join(PLACES), found.choices[0].message.content.lower())), None)


def main():
    """Let the town talk for some evenings, and print how many go where."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agents", type=int, default=60)
    parser.add_argument("--model", help="a model of OpenAI, or behind an API like it; without it a fake one")
    parser.add_argument("--per-minute", type=int, default=6000, help="the most calls a minute")
    parser.add_argument("--calls", type=int, default=1000, help="the most calls in all")
    parser.add_argument("--log-dir")
    plan = parser.parse_args()
    friends = np.random.default_rng(7).integers(0, plan.agents, (3 * plan.agents, 2))
    started = Messaging.start(
        "town", steps=Steps(seed=7), calls=Calls(rate_per_minute=plan.per_minute, retries=5, budget=plan.calls),
        log_dir=plan.log_dir, on_existing="resume",
    )  # fmt: skip
    with started as messaging:
        print("asking", plan.model or "a fake model, which counts words")
        result = messaging.run(
            citizen, agents=plan.agents, groups=2, until=6, graph=friends,
            start=lambda me: {"place": str(me.rng.choice(PLACES))}, collect=Count("place"),
            shared=plan.model, concurrency=20, timeout=600,
        )  # fmt: skip
    print(result.series.to_string())


if __name__ == "__main__":
    main()
