"""Groups in this process that live through a rumour, and follow themselves after each failure."""

import asyncio
import functools
import json
import random
from dataclasses import dataclass

from ray_messaging.errors import AlreadyExists, StepAborted, TransitError, UnknownName
from ray_messaging.steps.step_loop import step_loop
from ray_messaging.transports.step_values import StepSettings, WaitFor
from support.rumour import live_step, sequential
from support.step_faults import FaultyStore, Process
from support.step_society import LoggedGroups, digests_of

_FAILED = (StepAborted, TransitError, AlreadyExists)


@dataclass(frozen=True)
class Moves:
    """Agents that move between groups, up to `count` at a time, with at most `rest_s` seconds between two moves."""

    chance: random.Random
    count: int = 5
    rest_s: float = 0.02


class RumourGroups(LoggedGroups):
    """Groups of a rumour.

    Args: `faults` come between the groups and their step store; `messaging` are the settings of their messagers.
    """

    def __init__(self, server, exp_id, rumour, count, *, senders=False, faults=None, messaging=None):
        super().__init__(server, exp_id)
        self.rumour, self.faults, self.messaging = rumour, faults, messaging
        self.parts = {f"group{n}": part for n, part in enumerate(rumour.parts(count, senders=senders))}
        wait_for = WaitFor.SENDERS if senders else WaitFor.ALL
        self.settings = StepSettings(groups=count, digest=True, wait_for=wait_for)
        self.now = {}  # the messager of each group
        self.moved = 0  # agents, from one group to another

    async def __aenter__(self):
        self.store = (await self.transport()).steps
        await self.store.begin(self.settings)
        senders = self.settings.wait_for == WaitFor.SENDERS
        await self.store.declare(self.rumour.hears(self.parts) if senders else dict.fromkeys(self.parts))
        return self

    async def open(self, name):
        """Open a process of a group; return its messager, and the process as faults know it."""
        messager, process = await self.messager(name=name, settings=self.messaging), Process()
        try:
            await messager.host_agents(self.parts[name], ["agent-chat"])
        except AlreadyExists:  # some have moved: the directory knows which ones are here
            await messager.host_agents([], ["agent-chat"])
        self.now[name] = messager
        if self.faults is not None:
            transport = messager.engine.transport
            transport.steps = FaultyStore(transport.steps, process, self.faults)
        return messager, process

    async def live(self, name, messager, process):
        """Drive a group through the rumour; a new process follows one that died."""
        while True:
            try:
                if process.dead:
                    messager, process = await self.open(name)
                async for step in messager.steps(until=self.rumour.steps):
                    live_step(self.rumour, step)
            except _FAILED:
                continue
            return

    async def wander(self, moves):
        """Move agents between the groups, again and again."""
        while True:
            source, target = moves.chance.sample(sorted(self.parts), 2)
            messager = self.now[source]
            hosted = sorted(messager.subscription.hosted)
            some = moves.chance.sample(hosted, min(moves.count, len(hosted) // 2))
            try:
                await messager.move_agents(some, to=target)
                self.moved += len(some)
            except TransitError:  # nobody knows whether they have
                continue
            except UnknownName:  # they have: the next move looks at the directory
                continue
            await asyncio.sleep(moves.chance.random() * moves.rest_s)  # any moment will do

    async def run(self, within_s=60.0, *, begins=lambda: None, ends=lambda: None, moves=None):
        """Drive all groups to the end; return the states of all agents, and the digest of each step.

        Args: `begins` is called when all groups are there, `ends` when they have ended; meanwhile agents make `moves`.
        """
        async with asyncio.timeout(within_s):
            opened = [(name, *await self.open(name)) for name in self.parts]  # all are there before the first step
            begins()
            async with asyncio.TaskGroup() as tasks:
                wandering = None if moves is None else tasks.create_task(self.wander(moves))
                await asyncio.gather(*(self.live(*each) for each in opened))
                if wandering is not None:
                    wandering.cancel()
            if self.faults is not None:
                self.faults.end()
                self.faults = None
            ends()
            return await self.states(), await digests_of(self.store, self.rumour.steps)

    async def states(self):
        """Return the committed states of all agents, each from the one group that has it."""
        found, count = {}, 0
        for name in self.parts:
            messager, _ = await self.open(name)
            loop = step_loop(messager.engine)
            assert [step async for step in loop.steps(self.rumour.steps)] == []
            left = json.loads(loop.state)
            count += len(left)
            found |= {int(agent): state for agent, state in left.items()}
        assert count == len(found)
        return found


async def proves(groups, **how):
    """Run groups; fail unless states and digests are those of one loop."""
    async with groups:
        states, digests = await groups.run(**how)
    wanted = _one_loop(groups.rumour)
    differ = [step for step, (mine, its) in enumerate(zip(digests, wanted[1], strict=True)) if mine != its]
    assert not differ, f"the digests of steps {differ} differ"
    assert states == wanted[0], "the states differ"


@functools.cache
def _one_loop(rumour):
    return sequential(rumour)
