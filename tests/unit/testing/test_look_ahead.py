"""Agents that wait for their neighbours alone: the same results as if all waited for all, with the calls made early."""

import asyncio
import random
from collections import Counter

import pytest

from ray_messaging import Calls, Count, StepFailed, run

FEATURES = ("sends", "later", "asks", "stops", "idle", "moves", "strangers", "outcasts", "twice", "errors")
UNKNOWN = {"asks", "moves", "strangers"}  # messages on ways that the graph does not have


class Oracle:
    """A language model whose answers take a while, and depend on what it was asked alone."""

    def __init__(self, seed):
        self.seed, self.asked, self.under_way, self.most = seed, Counter(), 0, 0

    async def ask(self, prompt):
        draw = random.Random(f"{self.seed} {prompt}")
        self.asked[prompt] += 1
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        for _ in range(int(draw.lognormvariate(1, 1.2))):
            await asyncio.sleep(0)
        await asyncio.sleep(draw.choice([0, 0, 0, 0.001, 0.01]))
        self.under_way -= 1
        return f"answer {draw.randrange(1000)}"


def society(seed, oracle):
    """Return a model, and the arguments of a run, drawn from a seed."""
    draw = random.Random(f"look-ahead {seed}")
    has = {name for name in FEATURES if draw.random() < 0.5}
    count = draw.randint(4, 12)
    agents = [*range(count), *(["ann", "bob"] if draw.random() < 0.5 else [])]
    edges = sorted({(draw.choice(agents), draw.choice(agents)) for _ in range(draw.randint(1, 2 * count))}, key=str)
    groups = {f"g{n}": [] for n in range(draw.randint(1, 4))}
    for agent in agents:
        groups[draw.choice([*groups])].append(agent)
    groups = {name: ids for name, ids in groups.items() if ids}
    until = draw.randint(3, 12)

    async def person(me, inbox):
        heard = [
            (m.from_id, m.payload["t"], m.subtopic, m.id, m.step, m.expects_answer, m.in_reply_to, m.to_id)
            for m in inbox
        ]
        me.state["heard"] = f"{me.state.get('heard', '')[-60:]} {heard}"
        if me.rng.random() < 0.6:
            told = await me.remember(oracle.ask, f"{me.id!r} in {me.step}: {me.state['heard']}")
            if "twice" in has and me.step_rng.random() < 0.5:
                told += str(await asyncio.gather(*(me.remember(oracle.ask, f"{me.id!r}: {told}") for _ in range(2))))
            me.state["told"] = told
        for message in inbox:
            if message.expects_answer and me.rng.random() < 0.7:
                me.reply(message, {"t": f"re {me.state.get('told')}"})
        for friend in me.neighbours:
            if "sends" in has and me.rng.random() < 0.7:
                topic = str(me.rng.choice(["agent-chat", "user-chat"]))
                later = int(me.rng.integers(1, 4)) if "later" in has else 1
                me.send(friend, {"t": me.state.get("told", "?")}, subtopic=topic, deliver_at=me.step + later)
            if "asks" in has and me.rng.random() < 0.3:
                me.state["question"] = me.ask(friend, {"t": "well?"})
        if "strangers" in has and me.rng.random() < 0.1:
            me.send(agents[int(me.rng.integers(len(agents)))], {"t": "hello"})
        if "outcasts" in has and me.rng.random() < 0.1:
            me.send("nobody", {"t": "hello"})
        if "errors" in has and me.rng.random() < 0.2:
            try:
                me.send(3, {"t": object()})
            except Exception as error:  # noqa: BLE001 - any is part of what the agent knows
                me.state["error"] = type(error).__name__
        if "moves" in has and me.rng.random() < 0.1:
            me.move(str(me.rng.choice([*groups])))
        if "stops" in has and me.rng.random() < 0.05:
            me.stop()
        if "idle" in has and me.rng.random() < 0.5:
            me.stay_active()

    return has, person, {
        "agents": agents, "groups": groups, "graph": edges, "until": until, "seed": seed, "only_active": "idle" in has,
        "collect": [Count("told")] if draw.random() < 0.5 else lambda me: {"n": len(me.state["heard"])},
        "start": lambda me: {"told": f"start {me.id}", "heard": ""}, "progress": False,
        "concurrency": draw.choice([1, 3, 100]),
    }  # fmt: skip


def seen(result):
    return result.states, result.digests, result.fates, result.steps, result.series.to_csv()


@pytest.mark.parametrize("seed", range(40))
def test_to_wait_for_neighbours_changes_nothing_that_anybody_can_see(seed):
    found = []
    for how in ({}, {"wait_for": "neighbours", "ahead": 1 + seed % 9}):
        oracle = Oracle(seed)
        has, model, given = society(seed, oracle)
        result = run(model, **given, **how)
        found.append((*seen(result), result.calls.model))
        if has.isdisjoint(UNKNOWN):  # what agents hear is known ahead, so no call is made in vain
            assert (sum(oracle.asked.values()), result.calls.unused) == (result.calls.model, 0)
        else:
            assert sum(oracle.asked.values()) >= result.calls.model + result.calls.unused
    assert found[0] == found[1]
