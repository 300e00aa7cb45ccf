"""Messagers that broadcast under rules, in steps or without them, and a ledger of what each pair must have got."""

import asyncio
from collections import Counter
from contextlib import aclosing

import numpy as np

from ray_messaging import EventLog, MessagingConfig, rules
from ray_messaging.audiences.building import build_edges
from ray_messaging.audiences.member_edges import MemberEdges
from ray_messaging.audiences.source import LocalFolder
from ray_messaging.model.agent_sets import AgentSet
from ray_messaging.model.columns import IdColumn
from ray_messaging.model.fates import FATES
from ray_messaging.observability.health.actor_checks import check_actor
from ray_messaging.observability.health.findings import ActorFacts, Report
from ray_messaging.steps.digests import history_digest
from ray_messaging.steps.step_account import StepCounts, digest_of, messages_of, sealed_counts
from ray_messaging.transports.step_values import StepSettings
from support.contracts import WAIT_S
from support.step_society import LoggedGroups, digests_of

AGENTS = 60
LOST = 3  # the last agents, which nobody hosts
HOSTS = range(AGENTS // 2), range(AGENTS // 2, AGENTS - LOST)


class Society(LoggedGroups):
    """Two messagers with an interceptor, audiences in files, and the event log; a ledger of receipts and arrivals."""

    def __init__(self, server, exp_id, folder):
        super().__init__(server, exp_id, folder)
        self.black_list = rules.BlackList()
        self.interceptor = self.judge(self.black_list, rules.MaxLength(100), rules.RateLimit(per_round=100))
        self.fates = Counter()
        self.arrived = Counter()

    async def begin(self, steps=None, **of_writer):
        """Open all; `steps` are the settings of steps."""
        self.store = await self.transport()
        if steps is not None:
            await self.store.steps.begin(StepSettings(**steps))
        self.log_writer = await self.writer(**of_writer)
        settings = MessagingConfig(strict_senders=False, mailbox_messages=2**22, inbox_messages=2**22)
        options = {"settings": settings, "audiences": LocalFolder(self.audiences)}
        for name, host in zip(("west", "east"), HOSTS, strict=True):
            await (await self.messager(self.interceptor, name=name, **options)).host_agents(host, ["agent-chat"])
        return self

    async def befriend(self, name, pairs):
        """Make an audience from an array of pairs of sender and hearer."""
        await self.create(name, build_edges([pairs]))

    async def gather(self, name, members):
        """Make an audience whose members hear each other."""
        await self.create(name, MemberEdges.among(AgentSet.of([*members])))

    def pairs(self):
        """Return the pairs of sender and hearer of the newest audience."""
        rows, hearers = self.edges.expand(IdColumn.of([*range(AGENTS)]))
        return [*zip(rows.tolist(), hearers.tolist(), strict=True)]

    def findings(self):
        """Return what a check of health finds about the log."""
        return [*check_actor(ActorFacts("log", Report(0.0, stats=self.log_writer.stats())))]

    async def __aexit__(self, *_):
        for messager in self.messagers:
            await messager.close()
        await self.log_writer.close()
        await super().__aexit__()

    async def create(self, name, edges):
        await super().create(name, edges)
        self.edges = edges

    async def broadcast(self, name, senders, payloads):
        """Send broadcasts, and note the fate of each pair."""
        receipts = await self.messagers[0].broadcast_columns(senders, name, payloads)
        rows, hearers = self.edges.expand(IdColumn.of(senders))
        ends = [senders[row] for row in rows.tolist()], hearers.tolist()
        self.fates.update(zip(receipts.message_ids, *ends, receipts.fates.tolist(), strict=True))
        return receipts

    async def send(self, from_id, to_id, payload):
        """Send one message, and note its fate."""
        (receipt,) = await self.messagers[0].send_columns([from_id], [to_id], payload)
        self.fates[receipt.message_id, from_id, to_id, receipt.fate] += 1

    async def fetch(self, expected):
        """Fetch so many messages, and see that no more come."""
        async with asyncio.timeout(WAIT_S):
            while self.arrived.total() < expected:
                await self._fetch(WAIT_S / 100)
        await self._fetch(0.0)

    async def _fetch(self, timeout_s):
        for messager in self.messagers:
            found = await messager.fetch_messages(timeout=timeout_s)
            self.arrived.update((message.id, message.from_id, message.to_id, "delivered") for message in found)

    async def log(self):
        """Return the log of all that was sent."""
        await self.log_writer.close()
        return EventLog.open(self.folder)


def rows_of(table):
    return [*zip(*(table[name].to_pylist() for name in ("message_id", "from_id", "to_id", "fate")), strict=True)]


async def agrees_with_steps(society, until=6):
    """Return the log of a society in steps; fail unless its digests and counts are those of its groups."""
    log = await society.log()
    assert [log.digest(step) for step in range(until)] == await digests_of(society.store.steps, until)
    counts = Counter()
    for step in range(until):
        for closed in (await society.store.steps.closed_step(step)).values():
            counts.update(StepCounts.decode(closed.counts).fates)
    for expand in (False, True):
        assert Counter(log.balance(expand=expand).fates) == Counter(dict.fromkeys(FATES, 0)) | counts
    assert Counter(log.query(expand=True)["fate"].to_pylist()) == counts
    return log


class Broadcasters(LoggedGroups):
    """Groups in steps, and a user, that broadcast; some agents listen to a subtopic of their own."""

    async def run(self, count, *listed):
        """Run three steps on so many groups; return the digests of the server and those of the log."""
        transport = await self.transport()
        await transport.steps.begin(StepSettings(seed=1, groups=count, digest=True))
        writer = await self.writer()
        await self.create("friends", build_edges([np.random.default_rng(5).integers(0, AGENTS, (400, 2))]))
        await self.create("plaza", MemberEdges.among(AgentSet.of([*range(0, AGENTS, 3), "guest"])))
        judge = self.judge(rules.BlackList(listed)) if listed else None
        groups = await self.groups(count, judge, [*range(AGENTS - 1), "guest"])
        for number, group in enumerate(groups):
            await group.host_agents([*range(AGENTS // 2)][number::count], ["news"])
        user = await self.messager(judge, audiences=LocalFolder(self.audiences))
        async with asyncio.timeout(WAIT_S):
            for step in range(3):
                await asyncio.gather(*(self.drive(group, step + 1) for group in groups))
                await self.speak(user)
                if step == 1:
                    if count > 1:
                        await groups[0].move_agents([0, 12], to=groups[-1].name)
                    await self.speak(user)
            await asyncio.gather(*(self.drive(group, 4) for group in groups))
            await writer.close()
        log, store = EventLog.open(self.folder), transport.steps
        history = b""
        for step in range(4):
            counts = await sealed_counts(store, step)
            history = history_digest(history, step, messages_of(counts), digest_of(counts))
        assert log.history_digest(3) == history
        return await digests_of(store, 4), [log.digest(step) for step in range(4)]

    async def drive(self, messager, until):
        async with aclosing(messager.steps(until=until)) as steps:
            async for step in steps:
                for agent in (each for each in step.places if each in {1, 2, 7, "guest"}):
                    step.broadcast(agent, "*", {"n": step.number})
                    step.broadcast(agent, "*", {"n": step.number}, subtopic="news")
                    step.broadcast(agent, "plaza", {"n": agent})

    async def speak(self, user):
        for number, (name, subtopic) in enumerate(TOLD):
            await user.broadcast(None, name, {"n": number})
            await user.send(None, number, {"n": number})
            await user.broadcast(number, name, {"n": number}, subtopic=subtopic)
            await user.send(None, 7, {"n": number})
            await user.broadcast(None, name, {"n": number})


TOLD = [("*", "agent-chat"), ("friends", "news"), ("plaza", "agent-chat"), ("*", "news"), ("plaza", "news")]
