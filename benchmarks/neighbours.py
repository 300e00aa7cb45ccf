"""A town whose agents wait for their neighbours alone, beside waiting for all, by turns, at one fake server.

    python -m benchmarks.neighbours --rounds 2

1,000 agents live in 25 places. In each step five agents of a place talk: each makes so many calls, one after the other,
as its place's conversation has turns, a number that is lognormal by place and step. The median call takes `--call-ms`,
so that a step of seconds takes a tenth of them. In the part `slow` one agent also makes 40 calls in a row, which
stand for a minute, in each tenth step. In the part `one` all agents are one neighbourhood, so that nobody can begin
early. With `--groups 4` the places are in groups, and some neighbours are in different ones.
"""

import argparse
import asyncio
import json
import sys
import time
from collections import deque
from functools import lru_cache
from random import Random
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import numpy as np

from benchmarks.fake_openai import Served, served
from ray_messaging import Calls, run

AGENTS, PLACES, SPEAKERS, SLOTS, TOKENS = 1000, 25, 5, 64, 8
AT_ONCE = SLOTS + SLOTS // 8  # so many calls at once, so that a slot that becomes free has its next call already


class Client:
    """A client of one server, as small as it can be: what is measured is the engine, not a library's client."""

    def __init__(self, url: str) -> None:
        self._url = urlsplit(url)
        self._idle: deque[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = deque()

    def __reduce__(self) -> tuple[Any, ...]:
        return Client, (self._url.geturl(),)

    def __deepcopy__(self, _memo: object) -> "Client":
        return Client(self._url.geturl())

    async def ask(self, prompt: str, tokens: int | None = None) -> str:
        """Return the answer of the server."""
        asked: dict[str, Any] = {"model": "fake", "messages": [{"role": "user", "content": prompt}]}
        body = json.dumps(asked | ({} if tokens is None else {"max_tokens": tokens})).encode()
        reader, writer = (
            self._idle.pop()
            if self._idle
            else await asyncio.open_connection(self._url.hostname, self._url.port, limit=2**20)
        )
        head = f"POST {self._url.path}/chat/completions HTTP/1.1\r\ncontent-length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        lines = (await reader.readuntil(b"\r\n\r\n")).decode().lower().split("\r\n")
        size = next(int(line.partition(":")[2]) for line in lines if line.startswith("content-length:"))
        answer = json.loads(await reader.readexactly(size))
        self._idle.append((reader, writer))
        return str(answer["choices"][0]["message"]["content"])


@lru_cache(10_000)
def conversation(step: int, place: int) -> tuple[int, frozenset[int]]:
    """Return how many turns the conversation of a place has in a step, and who of the place speaks."""
    chance = Random(f"{step} {place}")
    turns = min(40, max(1, round(chance.lognormvariate(0.5, 1.0))))
    return turns, frozenset(chance.sample(range(AGENTS // PLACES), SPEAKERS))


async def citizen(me: Any, inbox: Any) -> None:
    """Hear what was said in the own place; who speaks now makes a call for each turn, and tells the place."""
    client, part = me.shared
    size = AGENTS // PLACES
    place = me.id // size
    turns, speakers = conversation(me.step, place)
    said = me.state.get("said", "") + " ".join(message.payload["text"] for message in inbox)
    me.state["said"] = said = said[-200:]
    if part == "slow" and me.id == 0 and me.step % 10 == 5:
        for turn in range(40):  # a call that is as long as so many others, which stands for a minute
            said = await me.remember(client.ask, f"{me.id} thinks in {me.step}, {turn}: {said}")
    if me.id % size in speakers:
        for turn in range(turns):
            said = await me.remember(client.ask, f"{me.id} in {me.step}, {turn}: {said}")
        for friend in me.neighbours if part != "one" else range(place * size, place * size + size):
            me.send(friend, {"text": said[:20]})


def edges(part: str) -> Any:
    """Return who may hear whom."""
    ids = np.arange(AGENTS)
    if part == "one":  # a ring and a few chords would do, too; with all pairs, each agent waits for each other agent
        return np.stack(np.meshgrid(ids, ids), -1).reshape(-1, 2)
    size = AGENTS // PLACES
    pairs = np.stack(np.meshgrid(np.arange(size), np.arange(size)), -1).reshape(-1, 2)
    return np.concatenate([pairs + place * size for place in range(PLACES)])


class Took(NamedTuple):
    """One run: its seconds, the part of them in which the server's slots were busy, and what it has come to."""

    seconds: float
    busy: float
    calls: int
    unused: int
    digests: dict[int, str]
    states: dict[Any, Any]


def live(server: Served, part: str, steps: int, how: dict[str, Any], groups: int = 1) -> Took:
    """Let the town live once."""
    before, began = server.counts(), time.perf_counter()
    result = run(
        citizen, agents=AGENTS, until=steps, graph=edges(part), shared=(Client(server.base_url), part), seed=7,
        concurrency=AGENTS, groups=groups, calls=Calls(concurrency=AT_ONCE), progress=False, **how,
    )  # fmt: skip
    seconds = time.perf_counter() - began
    used = server.counts() - before
    busy = used["busy_us"] / 1e6 / SLOTS / seconds
    return Took(seconds, busy, used["requests"], result.calls.unused, result.digests, result.states)


def main() -> None:
    """Measure the parts by turns, and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--call-ms", type=float, default=160.0)
    parser.add_argument("--ahead", type=int, default=16)
    parser.add_argument("--groups", type=int, default=1)
    parser.add_argument("--parts", nargs="+", choices=["town", "slow", "one"], default=["town", "slow", "one"])
    plan = parser.parse_args()
    ways: list[dict[str, Any]] = [{}, {"wait_for": "neighbours", "ahead": plan.ahead}]
    with served(slots=SLOTS, output_ms=plan.call_ms / TOKENS, median_tokens=TOKENS) as server:
        for part in plan.parts:
            for turn in range(plan.rounds):
                took = [
                    live(server, part, plan.steps, how, plan.groups) for how in (ways if turn % 2 == 0 else ways[::-1])
                ]
                everybody, near = took if turn % 2 == 0 else took[::-1]
                same = everybody.digests == near.digests and everybody.states == near.states
                print(
                    f"{part}: all {everybody.seconds:.1f} s ({everybody.busy:.0%} busy), neighbours "
                    f"{near.seconds:.1f} s ({near.busy:.0%} busy), {everybody.seconds / near.seconds:.2f} times as "
                    f"fast; {near.calls:,} calls, {near.unused} in vain; {'equal' if same else 'NOT EQUAL'}",
                    flush=True,
                )
                if not same:
                    sys.exit(1)


if __name__ == "__main__":
    main()
