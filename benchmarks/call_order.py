"""The order in which calls of one step are sent, measured by the prefix hits of a fake server.

    python -m benchmarks.call_order --rounds 3

Agents of some personas, of which neighbours by id have different ones, ask a model with a long prompt that begins with
their persona. The server's cache has room for a few of the personas. By turns, calls wait in the queue of `Chat`, which
sorts them by their texts, and at a semaphore in the model, which keeps the order of the agents.
"""

import argparse
import asyncio
import time
from typing import Any

from benchmarks.fake_openai import served
from ray_messaging import run
from ray_messaging.models import Chat

AGENTS, STEPS, PERSONAS, WORDS, AT_ONCE = 500, 2, 25, 400, 8
_TOLD = ("You", "have", "lived", "in", "this", "town", "for", "a", "long", "time,", "and", "know", "its", "winters.")


def prompt_of(agent: int, step: int) -> str:
    """Return a prompt whose first words are those of a persona."""
    told = " ".join(_TOLD[place % len(_TOLD)] for place in range(WORDS))
    return f"You are persona {agent % PERSONAS}. {told} You are agent {agent}, it is day {step}: what do you do?"


async def citizen(me: Any, _inbox: Any) -> None:
    """Ask the model once."""
    chat, gates = me.shared
    if gates is None:
        me.state["does"] = await me.remember(chat, prompt_of(me.id, me.step))
        return
    async with gates.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(AT_ONCE)):
        me.state["does"] = await me.remember(chat, prompt_of(me.id, me.step))


def main() -> None:
    """Run both orders by turns; print seconds, and the part of the prompts that was in the server's cache."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=1)
    states = []
    for turn in range(parser.parse_args().rounds):
        for way in ("sorted", "by agent")[:: 1 if turn % 2 == 0 else -1]:
            with served(slots=AT_ONCE, input_ms=0.05, output_ms=0.2, cache_tokens=4 * WORDS) as server:
                chat = Chat(model="fake", base_url=server.base_url, concurrency=AT_ONCE)
                began = time.perf_counter()
                result = run(
                    citizen, agents=AGENTS, until=STEPS, shared=(chat, None if way == "sorted" else {}),
                    concurrency=AGENTS, progress=False,
                )  # fmt: skip
                seconds, counts = time.perf_counter() - began, server.counts()
            states.append(result.states)
            hits = counts["cached_tokens"] / counts["prompt_tokens"]
            print(f"{way}: {counts['answered']:,} calls, {hits:.1%} of their tokens in the cache, {seconds:.2f} s")
    assert all(each == states[0] for each in states)


if __name__ == "__main__":
    main()
