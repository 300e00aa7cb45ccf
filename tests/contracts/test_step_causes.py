"""`why` and `effects` against what the agents of a run in steps themselves had in hand, and in which order."""

import asyncio
import json
from collections import defaultdict
from contextlib import aclosing
from itertools import count

import numpy as np
import pytest
from support.patience import WAIT_S
from support.step_society import AGENTS, SEED, LoggedGroups, sealed
from support.stepped import befriend, begin_steps

from ray_messaging import EventLog, rules

UNTIL, NOBODY = 7, 10**6


class Warden(rules.StepRule):
    """A rule that rewrites a message of each step, and adds one in the name of agent 5."""

    async def check_step(self, number, batch, exp_id):
        row = len(batch) // 2
        changed = {row: rules.rewrite(json.loads(batch.lines.row(row)) | {"changed": True}, "mended")}
        return rules.StepVerdicts(changed, [rules.Added(7, {"added": number}, from_id=5)])


class Run(LoggedGroups):
    """A run whose agents keep what they had in hand, and what they sent: {(agent, step): ids} and {key: question}."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.hands, self.sent = {}, {}

    async def run(self, interceptor, act, *, judged=False):
        self.act = act
        store = await begin_steps(self, seed=SEED, groups=2, lag=4)
        if judged:
            await self.supervise(interceptor)
        await befriend(self, "friends", np.random.default_rng(1).choice(AGENTS, (300, 2)))
        writer = await self.writer()
        groups = await self.groups(2, interceptor)
        user = await self.messager(interceptor, name="outside")
        await user.send_message(user.get_agent_chat_channel(3), {"outside": 1}, to_id=3)
        await user.send_message(user.get_agent_chat_channel(3), {"outside": 2}, to_id=3)
        async with asyncio.timeout(WAIT_S):
            await asyncio.gather(*map(self._drive, groups))
            await sealed(store, UNTIL - 1)
            await writer.close()
        return EventLog.open(self.folder)

    async def _drive(self, messager):
        async with aclosing(messager.steps(until=UNTIL)) as steps:
            async for step in steps:
                for agent, inbox in step.by_agent():
                    self.hands[agent, step.number] = [message.id for message in inbox]
                    self._send(step, agent, inbox)

    def _send(self, step, agent, inbox):
        number = count()

        def payload(question=None):
            key = step.number, agent, next(number)
            self.sent[key] = question
            return {"key": key}

        for message in inbox:
            if message.expects_answer and (agent + step.number) % 3:
                step.reply(message, payload(message.id))
        self.act(step, agent, payload)


@pytest.fixture
async def run(server, exp_id, tmp_path):
    async with Run(server, exp_id, tmp_path / "log") as found:
        yield found


def anything(step, agent, payload):
    """Send, ask and say something by chance, some of it for a later step."""
    chance = step.rng(agent)
    for _ in range(chance.integers(0, 4)):
        later = step.number + int(chance.integers(1, 3))
        send = step.ask if chance.random() < 0.3 else step.send
        send(agent, int(chance.choice([*range(12), NOBODY])), payload(), deliver_at=later)


def anything_and_broadcasts(step, agent, payload):
    anything(step, agent, payload)
    if (agent + step.number) % 10 == 0:
        step.broadcast(agent, "friends", payload())


@pytest.mark.parametrize("judged", [False, True])  # a rule that sees whole steps goes without broadcasts
async def test_both_are_what_the_agents_had_in_hand(run, judged):
    banned = [(a, b) for a in range(AGENTS) for b in range(12) if (a * b) % 5 == 1]
    interceptor = run.judge(rules.BlackList(banned), *([Warden()] if judged else []))
    log = await run.run(interceptor, anything if judged else anything_and_broadcasts, judged=judged)
    assert {"delivered", "blocked", "undeliverable"} <= {*log.count(by="fate")["fate"].to_pylist()}
    assert any(log.query()["pairs"].to_pylist()) != judged
    assert bool(len(log.query(rule="warden"))) == judged
    check(run, log)


def check(run, log):
    """Compare `why` and `effects` of some messages with what the agents had in hand."""
    table, ids = log.query(text=True), {}
    for message_id, text in zip(table["message_id"].to_pylist(), table["payload"].to_pylist(), strict=True):
        payload = json.loads(text)
        ids[message_id] = tuple(payload["key"]) if "key" in payload else None
    assert {key for key in ids.values() if key is not None} <= run.sent.keys()  # a broadcast may have no hearer
    read = defaultdict(list)
    for (agent, step), hand in run.hands.items():
        read[step] += [(agent, each) for each in hand]
    asked = [*np.random.default_rng(4).choice([*ids], 10, replace=False)]
    asked += [each for each, key in ids.items() if key is None][:5]
    asked += [each for each, key in ids.items() if key and run.sent[key]][:10]
    for message_id in map(str, asked):
        assert as_tree(log.why(message_id, most=4)) == tree(run, ids, message_id, 3, 4)
        found = log.effects(message_id, depth=4).agents.to_pylist()
        expected = moved(read, ids, message_id, 4)
        assert {row["agent"]: row["step"] for row in found if row["step"] < UNTIL} == expected


def as_tree(found):
    return found.message.message_id, [as_tree(each) for each in found.causes], found.more


def tree(run, ids, message_id, depth, most):
    key = ids[message_id]
    if not depth or key is None:  # from outside, or of the rule
        return message_id, [], 0
    step, agent, _ = key
    hand, question = run.hands[agent, step], run.sent[key]
    first = [] if question is None else [question]
    shown = [*first, *(each for each in hand if each not in first)][:most]
    return message_id, [tree(run, ids, each, depth - 1, most) for each in shown], len({*hand} - {*shown})


def moved(read, ids, message_id, depth):
    """Return {agent: first step in which a message could have moved it}. Args: read is {step: [(agent, id)]}."""
    first = min((step for step, pairs in read.items() if message_id in {each for _, each in pairs}), default=None)
    since = dict.fromkeys((agent for agent, each in read.get(first, ()) if each == message_id), first)
    for step in range(first + 1, first + depth) if since else ():
        for agent, each in read[step]:
            if (key := ids[each]) is not None and since.get(key[1], step) <= key[0]:
                since.setdefault(agent, step)
    return since
