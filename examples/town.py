"""A small town decides where to meet: each evening its agents ask their friends, and a model makes up their minds.

python examples/town.py --model gpt-4o-mini needs the extra [llm] and OPENAI_API_KEY; without --model words are counted.
"""

import argparse
import asyncio
import re
from collections import Counter

import numpy as np
import ray

from ray_messaging import Messaging

PLACES = ("cafe", "market", "park")


async def think(model, prompt):
    """Return the place that a model answers; without a model the one that the prompt names most often."""
    if model is None:
        await asyncio.sleep(0.01)  # a language model takes longer
        return Counter(re.findall("|".join(PLACES), prompt)).most_common(1)[0][0]
    from openai import AsyncOpenAI  # noqa: PLC0415 - an extra

    found = await AsyncOpenAI().chat.completions.create(model=model, messages=[{"role": "user", "content": prompt}])
    return re.search("|".join(PLACES), found.choices[0].message.content.lower())[0]


@ray.remote(num_cpus=0)
class Quarter:
    """Some agents of the town; `plans` has the place of each for every evening so far."""

    async def open(self, messaging, name, plans, friends, model):
        """Move in, and answer from now on."""
        self.plans, self.friends, self.model = {agent: [place] for agent, place in plans.items()}, friends, model
        self.messager = await messaging.open_messager(name, [*plans])
        self.serving = asyncio.create_task(self.messager.serve(self.answer))

    async def answer(self, message):
        """Tell a friend where an agent goes."""
        return {"place": self.plans[message.to_id][message.payload["evening"]]}

    async def talk(self, evening):
        """Have all agents ask their friends and decide about the next evening; count who goes where."""
        chosen = await asyncio.gather(*(self.decide(agent, evening) for agent in self.plans))
        for agent, place in zip(self.plans, chosen, strict=True):
            self.plans[agent].append(place)
        return Counter(chosen)

    async def decide(self, agent, evening):
        """Ask three friends at once, then the model."""
        asked = (self.messager.ask(agent, friend, {"evening": evening}) for friend in self.friends[agent])
        heard = ", ".join([answer.payload["place"] for answer in await asyncio.gather(*asked)])
        return await think(self.model, f"Your friends go to: {heard}. Where do you go? Name one of these places.")


def main(evenings=6):
    """Let the town talk for some evenings, and print who goes where."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agents", type=int, default=60)
    parser.add_argument("--model", help="a model of OpenAI, or behind an API like it")
    count, model = (options := parser.parse_args()).agents, options.model
    rng, quarters = np.random.default_rng(7), {"west": range(count // 2), "east": range(count // 2, count)}
    plans = rng.choice(PLACES, count).tolist()
    friends = [rng.choice(count, 3, replace=False).tolist() for _ in plans]
    with Messaging.start("town") as messaging:
        actors = {name: Quarter.remote() for name in quarters}
        homes = {name: {agent: plans[agent] for agent in agents} for name, agents in quarters.items()}
        ray.get([actors[name].open.remote(messaging, name, homes[name], friends, model) for name in quarters])
        print(f"evening  {'  '.join(PLACES)}")
        for evening in range(evenings):
            counts = sum(ray.get([actor.talk.remote(evening) for actor in actors.values()]), Counter())
            print(f"{evening + 1:>7}  {'  '.join(f'{counts[place]:>{len(place)}}' for place in PLACES)}")


if __name__ == "__main__":
    main()
