"""Towns of random agents in steps, and their forks, without Ray: what each has heard is in its state."""

import asyncio
import json
from contextlib import aclosing
from hashlib import blake2b

from ray_messaging import EventLog
from ray_messaging.audiences.building import build_edges
from ray_messaging.audiences.source import LocalFolder
from ray_messaging.cluster.fork import Fork
from ray_messaging.eventlog.checkpoint_files import read_checkpoint
from ray_messaging.eventlog.folder import Folder
from ray_messaging.eventlog.folder_records import FORMAT, RunRecord, write_run
from ray_messaging.eventlog.forking import copy_run, outside_of
from ray_messaging.transports.step_values import StepSettings
from support.patience import WAIT_S
from support.step_society import LoggedGroups, digests_of, sealed

STEPS, HEARD = 8, 3  # before step HEARD the user speaks


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
        write_run(Folder(str(self.folder)), RunRecord(FORMAT, self.exp_id, steps={}))

    async def load(self, transport, parent, step):
        copy_run(Folder(str(parent.folder)), Folder(str(self.folder)), self.exp_id, step)
        copied = [*read_checkpoint(Folder(str(self.folder)), step)]
        await transport.checkpoints.write(copied[: step % len(copied)])  # who restores dies, and another begins again
        await transport.checkpoints.write(copied)
        await transport.steps.begin(self.settings)

    def checkpoints(self):
        """Return the steps of which there are checkpoints."""
        return Folder(str(self.folder)).checkpoints()

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
        log = EventLog.open(parent.folder)
        rows = outside_of(log, slice(step + 1, None))
        assert {row.step_read for row in rows} == {HEARD}
        fork = Fork(log, step, STEPS, rows, None, checkpoints=parent.checkpoints())
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


class Crier(Town):
    """Groups of which one agent tells all others what they hear in three of the next steps."""

    def speak(self, step, agent, inbox, payload):
        if agent == 0:
            for later in (1, 2, 3):
                step.broadcast(agent, "friends", payload, deliver_at=step.number + later)
        elif len(inbox):
            step.send(agent, 0, payload)


class Growing(Town):
    """A town whose user makes a new version of its graph before they speak."""

    async def speak_from_outside(self, user):
        await self.create("friends", build_edges([[(0, 1), (1, 2)]]), version=2)
        await user.broadcast(1, "friends", {"n": 1})
