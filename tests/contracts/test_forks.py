"""Forks without Ray: a twin of random groups, in which one agent may no longer write to another."""

import asyncio
import json
import uuid
from contextlib import aclosing
from hashlib import blake2b

import pyarrow.compute as pc
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from support.patience import WAIT_S
from support.step_society import LoggedGroups, digests_of, sealed

from ray_messaging import EventLog, NotRepeatable
from ray_messaging.audiences.building import build_edges
from ray_messaging.audiences.source import LocalFolder
from ray_messaging.cluster.fork import Fork
from ray_messaging.eventlog.checkpoint_files import read_checkpoint
from ray_messaging.eventlog.folder import Folder
from ray_messaging.eventlog.folder_records import FORMAT, RunRecord, write_run
from ray_messaging.eventlog.forking import copy_run, outside_of
from ray_messaging.interception.rules import BlackList
from ray_messaging.transports.step_values import StepSettings

STEPS, HEARD = 8, 3  # before step HEARD the user speaks


@st.composite
def towns(draw):
    """Return the edges of a graph of some agents, the number of its groups, and how often a checkpoint is taken."""
    agents = draw(st.integers(3, 12))
    some = st.integers(0, agents - 1)
    edges = draw(st.lists(st.tuples(some, some), min_size=2, max_size=2 * agents, unique=True))
    return agents, edges, draw(st.integers(1, 3)), draw(st.integers(1, 3))


class Town(LoggedGroups):
    """Agents on a graph, whose states are hashes of all that they have heard, in order; chance says who is told."""

    def __init__(self, server, exp_id, folder, town, seed):
        super().__init__(server, exp_id, folder)
        self.agents, self.edges, self.count, self.every = town
        self.settings = StepSettings(seed=seed, groups=self.count, digest=True)
        self.states = {}  # {(agent, step): state}

    async def first(self, transport):
        await transport.steps.begin(self.settings)
        await self.create("friends", build_edges([self.edges]))
        write_run(Folder(str(self.folder)), RunRecord(FORMAT, self.exp_id))

    async def load(self, transport, parent, step):
        copy_run(Folder(str(parent.folder)), Folder(str(self.folder)), self.exp_id, step)
        copied = [*read_checkpoint(Folder(str(self.folder)), step)]
        await transport.checkpoints.write(copied[: step % len(copied)])  # who restores dies, and another begins again
        await transport.checkpoints.write(copied)
        await transport.steps.begin(self.settings)

    async def run(self, rules=(), fork=None):
        """Run all steps, of a fork those after a checkpoint of a parent; return the log and the digests."""
        transport = await self.transport()
        self.folder.mkdir()
        await (self.first(transport) if fork is None else self.load(transport, *fork))
        writer = await self.writer(checkpoint=self.every)
        groups = await self.groups(self.count, self.judge(*rules), range(self.agents))
        user = await self.messager(audiences=LocalFolder(self.folder / "audiences"))
        async with asyncio.timeout(WAIT_S):
            await asyncio.gather(*(self.drive(group, HEARD) for group in groups))
            if fork is None:
                await self.speak_from_outside(user)
            elif fork[1] < HEARD:
                await self.repeat_from_outside(user, *fork)
            await asyncio.gather(*(self.drive(group, STEPS) for group in groups))
            await sealed(transport.steps, STEPS - 1)
            await writer.close()
        return EventLog.open(self.folder), await digests_of(transport.steps, STEPS)

    async def speak_from_outside(self, user):
        """Send, ask, and broadcast, also in the name of agents."""
        await user.send(None, 0, {"n": 1})
        await user.ask_columns(None, [0, 1, 2], {"n": 1.0}, timeout=None)
        await user.broadcast(None, "*", {"n": 2})
        for speaker in {a for a, _ in self.edges if a != self.edges[0][0]}:
            await user.broadcast(speaker, "friends", {"n": speaker})
        await user.send_columns([None, 1], [2, 1], [{"n": 1}, {"n": None}])

    async def repeat_from_outside(self, user, parent, step):
        """Send again what the user of the parent said after a step."""
        folder, log = Folder(str(parent.folder)), EventLog.open(parent.folder)
        rows = outside_of(log, slice(step + 1, None))
        assert {row.step_read for row in rows} == {HEARD}
        fork = Fork(log, step, STEPS, rows, None, checkpoints=folder.checkpoints())
        await fork.send_again(user.engine, rows)

    async def drive(self, messager, until):
        async with aclosing(messager.steps(until=until)) as steps:
            async for step in steps:
                states = json.loads(step.state) if step.state else {}
                for agent, inbox in step.by_agent():
                    heard = [states.get(str(agent)), *((message.from_id, message.payload) for message in inbox)]
                    state = blake2b(json.dumps(heard).encode(), digest_size=6).hexdigest()
                    states[str(agent)] = self.states[agent, step.number] = state
                    self.speak(step, agent, inbox, {"state": state})
                step.state = json.dumps(states).encode()

    def speak(self, step, agent, inbox, payload):
        for message in inbox:
            if message.expects_answer:
                step.reply(message, payload)
        chance = step.rng(agent)
        for friend in (b for a, b in self.edges if a == agent):
            kind = chance.choice(["send", "later", "ask", "nothing"])
            if kind != "nothing":
                send = step.ask if kind == "ask" else step.send
                send(agent, friend, payload, deliver_at=step.number + 1 + 2 * (kind == "later"))
        if chance.random() < 0.1 and agent != self.edges[0][0]:  # whose messages are banned
            step.broadcast(agent, "friends", payload)


def cone(log, banned):
    """Return {agent: the first step in which a banned message could have moved it}."""
    since = {}
    for message_id in banned:
        for row in log.effects(message_id, depth=STEPS).agents.to_pylist():
            since[row["agent"]] = min(row["step"], since.get(row["agent"], STEPS))
    return since


async def moves_its_light_cone(server, folder, town, seed, at):
    name = uuid.uuid4().hex
    async with Town(server, name, folder / name, town, seed) as parent:
        log, digests = await parent.run()
        checkpoints = Folder(str(parent.folder)).checkpoints()
        step = checkpoints[at % (len(checkpoints) - 1)]  # not the last one, after which there is no step
        edge = parent.edges[0]
        async with Town(server, f"{name}-twin", folder / f"{name}-twin", town, seed) as twin:
            assert (await twin.run(fork=(parent, step)))[1] == digests
            assert twin.states.items() <= parent.states.items()
        rules = [BlackList([edge], name="ban")]
        async with Town(server, f"{name}-ban", folder / f"{name}-ban", town, seed) as ban:
            other, changed = await ban.run(rules, fork=(parent, step))
        table = log.query(from_id=edge[0], to_id=edge[1])
        to_be_banned = table.filter(pc.greater(table["step"], step))["message_id"].to_pylist()
        first = log.diff(other)
        if not to_be_banned:
            assert first is None
            return 0, 0
        assert first.message_id == to_be_banned[0]
        assert (first.theirs.fate, first.theirs.rule) == ("blocked", "ban")
        assert changed[: first.step] == digests[: first.step]
        since = cone(log, to_be_banned)
        differ = {place for place, state in ban.states.items() if parent.states[place] != state}
        assert differ == {(a, s) for a, s in ban.states if since.get(a, STEPS) <= s}
        return len(differ), len(ban.states)


class Crier(Town):
    """Groups of which one agent tells all others what they hear in three of the next steps."""

    def speak(self, step, agent, inbox, payload):
        if agent == 0:
            for later in (1, 2, 3):
                step.broadcast(agent, "friends", payload, deliver_at=step.number + later)
        elif len(inbox):
            step.send(agent, 0, payload)


async def test_a_twin_hears_the_broadcasts_of_its_parent_and_causes_lead_to_them(valkey_config, exp_id, tmp_path):
    town = 10, [(0, agent) for agent in range(1, 10)], 2, 2
    async with Crier(valkey_config, exp_id, tmp_path / "parent", town, 7) as parent:
        log, digests = await parent.run()
        async with Crier(valkey_config, f"{exp_id}-twin", tmp_path / "twin", town, 7) as twin:
            mine, again = await twin.run(fork=(parent, Folder(str(parent.folder)).checkpoints()[1]))
    assert again == digests == [mine.digest(step) for step in range(STEPS)]
    assert [log.digest(step) for step in range(STEPS)] == digests
    assert log.diff(mine) is None
    assert log.balance(expand=True) == mine.balance(expand=True)
    assert [cause.message.message_id for cause in mine.why("7-0-3", depth=1).causes] == ["4-2-0", "5-1-0", "6-0-0"]


@pytest.mark.parametrize("examples", [2, pytest.param(15, marks=pytest.mark.long)])
def test_a_ban_moves_its_light_cone_and_nobody_else(valkey_config, tmp_path, examples):
    found = []

    @settings(max_examples=examples, derandomize=examples < 100, deadline=None, database=None,
              suppress_health_check=list(HealthCheck), phases=[Phase.generate])  # fmt: skip
    @given(towns(), st.integers(0, 2**32), st.integers(0, 99))
    def asks(town, seed, at):
        found.append(asyncio.run(moves_its_light_cone(valkey_config, tmp_path, town, seed, at)))

    asks()
    differ, states = map(sum, zip(*found, strict=True))
    assert 0 < differ < states


class Growing(Town):
    """A town whose user makes a new version of its graph before they speak."""

    async def speak_from_outside(self, user):
        await self.create("friends", build_edges([[(0, 1), (1, 2)]]), version=2)
        await user.broadcast(1, "friends", {"n": 1})


async def test_a_broadcast_to_an_audience_that_a_fork_lacks_is_named_with_the_step_that_has_it(valkey_config, tmp_path):
    name, town = uuid.uuid4().hex, (4, [(0, 1), (1, 2), (2, 3)], 1, 2)
    async with Growing(valkey_config, name, tmp_path / name, town, 1) as parent:
        await parent.run()
        async with Town(valkey_config, f"{name}-twin", tmp_path / f"{name}-twin", town, 1) as twin:
            says = r"version 2 of audience 'friends'.* version 1.*fork at step 4 or later"
            with pytest.raises(NotRepeatable, match=says) as caught:
                await twin.run(fork=(parent, 1))
        assert (caught.value.step, caught.value.agent) == (HEARD, 1)
