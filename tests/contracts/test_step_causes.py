"""`why` and `effects` against what the agents of a run in steps themselves had in hand, and in which order."""

import asyncio
import json
from collections import defaultdict
from contextlib import aclosing

import numpy as np
import pytest
from support.patience import WAIT_S
from support.step_society import AGENTS, SEED, LoggedGroups

from ray_messaging import EventLog
from ray_messaging.audiences.building import build_edges
from ray_messaging.audiences.files import version_folder, write_edges
from ray_messaging.audiences.records import AudienceFacts, Kind, encode_facts
from ray_messaging.audiences.source import LocalFolder
from ray_messaging.common.task_health import end
from ray_messaging.interception.rules import Added, BlackList, StepRule, StepVerdicts, rewrite
from ray_messaging.interception.server.interceptor import Interceptor
from ray_messaging.interception.server.step_judge import RuleReviewer
from ray_messaging.interception.verdicts import FOREIGN
from ray_messaging.steps.supervisor import Supervisor
from ray_messaging.transports.step_values import SUPERVISOR, StepSettings

UNTIL, NOBODY = 7, 10**6


class Warden(StepRule):
    """A rule that rewrites a message of each step, and adds one in the name of agent 5."""

    async def check_step(self, number, batch, exp_id):
        row = len(batch) // 2
        changed = {row: rewrite(json.loads(batch.lines.row(row)) | {"changed": True}, "mended")}
        return StepVerdicts(changed, [Added(7, {"added": number}, from_id=5)])


class Run(LoggedGroups):
    """A run whose agents keep what they had in hand, and what they sent: {(agent, step): ids} and {key: question}."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.hands, self.sent = {}, {}
        self.judging = None

    async def close(self):
        if self.judging is not None:
            await end(self.judging)
        await super().close()

    async def run(self, interceptor, *, broadcasts):
        self.broadcasts = broadcasts
        transport, source = await self.transport(), LocalFolder(self.folder / "audiences")
        settings = StepSettings(seed=SEED, groups=2, lag=4)
        await transport.steps.begin(settings)
        if not broadcasts:
            await transport.steps.join(SUPERVISOR)
            reviewer = RuleReviewer(interceptor, settings.horizon)
            supervisor = Supervisor(transport, transport.steps, settings, reviewer, FOREIGN)
            self.judging = asyncio.create_task(supervisor.run())
        edges = build_edges([np.random.default_rng(1).integers(0, AGENTS, (300, 2))])
        write_edges(version_folder(self.folder / "audiences", "friends", 1), edges)
        facts = AudienceFacts(Kind.GRAPH, edges.pairs, edges.digest.hex())
        await transport.set_audience("friends", 1, encode_facts(facts))
        writer = await self.writer()
        groups = [await self.messager(interceptor, name=f"group{n}", audiences=source) for n in range(2)]
        for number, group in enumerate(groups):
            await group.host_agents(range(number, AGENTS, 2), ["agent-chat"])
        user = await self.messager(interceptor, name="outside")
        await user.send_message(user.get_agent_chat_channel(3), {"outside": 1}, to_id=3)
        await user.send_message(user.get_agent_chat_channel(3), {"outside": 2}, to_id=3)
        async with asyncio.timeout(WAIT_S):
            await asyncio.gather(*map(self._drive, groups))
            while (progress := await transport.steps.progress()).sealed < UNTIL - 1:
                await transport.steps.wait(progress.news, WAIT_S)
            await writer.close()
        return EventLog.open(self.folder)

    async def _drive(self, messager):
        async with aclosing(messager.steps(until=UNTIL)) as steps:
            async for step in steps:
                for agent, inbox in step.by_agent():
                    self.hands[agent, step.number] = [message.id for message in inbox]
                    self._act(step, agent, inbox, step.rng(agent))

    def _act(self, step, agent, inbox, chance):
        number = iter(range(100))

        def payload(question=None):
            key = step.number, agent, next(number)
            self.sent[key] = question
            return {"key": key}

        for message in inbox:
            if message.expects_answer and chance.random() < 0.7:
                step.reply(message, payload(message.id))
        for _ in range(chance.integers(0, 4)):
            later = step.number + int(chance.integers(1, 3))
            to = int(chance.choice([*range(12), NOBODY]))
            if chance.random() < 0.3:
                step.ask(agent, to, payload(), deliver_at=later)
            else:
                step.send(agent, to, payload(), deliver_at=later)
        if self.broadcasts and chance.random() < 0.1:
            step.broadcast(agent, "friends", payload())


@pytest.fixture
async def run(server, exp_id, tmp_path):
    found = Run(server, exp_id, tmp_path / "log")
    yield found
    await found.close()


@pytest.mark.parametrize("broadcasts", [True, False])  # a rule that sees a whole step goes without broadcasts
async def test_both_are_what_the_agents_had_in_hand(run, exp_id, broadcasts):
    banned = [(a, b) for a in range(AGENTS) for b in range(12) if (a * b) % 5 == 1]
    interceptor = Interceptor(exp_id, [BlackList(banned), *([] if broadcasts else [Warden()])])
    try:
        log = await run.run(interceptor, broadcasts=broadcasts)
    finally:
        await interceptor.close()
    ids = {}
    for row in log.query().to_pylist():
        payload = json.loads(row["payload"])
        ids[row["message_id"]] = tuple(payload["key"]) if "key" in payload else None
    assert {key for key in ids.values() if key is not None} <= run.sent.keys()  # a broadcast may have no hearer
    counts = log.count(by="fate")
    assert {"delivered", "blocked", "undeliverable"} <= {*counts["fate"].to_pylist()}
    assert any(log.query()["pairs"].to_pylist()) == broadcasts
    assert bool(len(log.query(rule="warden"))) != broadcasts
    chance = np.random.default_rng(4)
    asked = [*chance.choice([*ids], 20, replace=False), *(each for each, key in ids.items() if key is None)]
    asked += [each for each, key in ids.items() if key and run.sent[key]][:10]
    for message_id in asked:
        assert as_tree(log.why(message_id, most=4)) == tree(run, ids, message_id, 3, 4)
        found = log.effects(message_id, depth=4).agents.to_pylist()
        assert {row["agent"]: row["step"] for row in found if row["step"] < UNTIL} == moved(run, ids, message_id, 4)


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


def moved(run, ids, message_id, depth):
    """Return {agent: first step in which a message could have moved it}."""
    read = defaultdict(list)
    for (agent, step), hand in run.hands.items():
        read[step] += [(agent, each) for each in hand]
    first = min((step for step, pairs in read.items() if message_id in {each for _, each in pairs}), default=None)
    if first is None:
        return {}
    since = dict.fromkeys((agent for agent, each in read[first] if each == message_id), first)
    for step in range(first + 1, first + depth):
        for agent, each in read[step]:
            if (key := ids[each]) is not None and since.get(key[1], UNTIL) <= key[0]:
                since.setdefault(agent, step)
    return since
