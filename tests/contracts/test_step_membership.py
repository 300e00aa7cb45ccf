"""Groups that come and go while others run: a message reaches its group or is undeliverable, whichever process dies."""

import asyncio
import itertools
import json

import pytest
from support.patience import WAIT_S
from support.step_faults import Chaos, FailAt, Killed, Process, Repeat, disturb
from support.step_society import LoggedGroups
from support.stepped import begin_steps, fates_in
from support.steps_on_the_server import state_of_group

from ray_messaging.errors import AlreadyExists, StepAborted

AGENTS, ENDS = {"stays": 0, "goes": 1, "comes": 2}, {"stays": 7, "goes": 3, "comes": 7}
# "goes" ends after step 2. "comes" joins in step 1, so it counts from step 3, and step 2 is the first that sends to it.
HEARD = {
    "stays": [[1, "stays", "goes"], [2, "stays", "goes"], [3, "stays", "goes"]]
    + [[step, "stays", "comes"] for step in (4, 5, 6)],
    "goes": [[0], [1, "stays", "goes"], [2, "stays", "goes"]],
    "comes": [[3, "stays", "goes"], *([step, "stays", "comes"] for step in (4, 5, 6))],
}
HEARD["stays"].insert(0, [0])
FATES = {"delivered": 2, "undeliverable": 1}
SHORT = {"valkey"}  # the others have a quarter of the calls


class Town(LoggedGroups):
    """Two groups from the start, one of which ends early, and a third one that comes later."""

    def __init__(self, server, exp_id, faults=None):
        super().__init__(server, exp_id)
        self.faults, self.joined = faults, asyncio.Event()

    async def open(self, name):
        messager = await self.messager(name=name)
        await messager.host_agents([AGENTS[name]], ["agent-chat"])
        return messager, Process() if self.faults is None else disturb(messager, self.faults)

    async def live(self, name):
        """Drive a group to its end; a new process follows one that died."""
        messager, process = await self.open(name)
        while True:
            if process.dead:
                messager, process = await self.open(name)
            try:
                async for step in messager.steps(until=ENDS[name], leave=name == "goes"):
                    if (name, step.number) == ("stays", 1) and not self.joined.is_set():
                        await self.open("comes")
                        self.joined.set()
                    self.live_step(name, step)
            except (Killed, StepAborted, AlreadyExists):
                continue
            return

    def live_step(self, name, step):
        heard = json.loads(step.state or b"[]")
        heard.append([step.number, *(message.payload["by"] for message in step.messages)])
        step.state = json.dumps(heard).encode()
        for agent in AGENTS.values():
            step.send(AGENTS[name], agent, {"by": name})

    async def come(self):
        await self.joined.wait()
        await self.live("comes")

    async def run(self):
        """Run all groups to their ends; return what each heard, and the fates of what it sent in each step."""
        store = await begin_steps(self, groups=2)
        async with asyncio.timeout(WAIT_S):
            await asyncio.gather(self.live("stays"), self.live("goes"), self.come())
        if self.faults is not None:
            self.faults.end()
            self.faults = None
        heard = {name: json.loads(await self.state(name)) for name in ENDS}
        return heard, [fates for step in range(7) for fates in (await fates_in(store, step)).values()]

    async def state(self, name):
        messager, _ = await self.open(name)
        loop = messager.steps(until=ENDS[name], leave=name == "goes")
        assert [step async for step in loop] == []
        return await state_of_group(messager, name)


async def proves(town):
    async with town:
        heard, fates = await town.run()
    assert heard == HEARD
    assert fates == [FATES] * (7 + 3 + 4)


@pytest.mark.parametrize("faults", [None, Repeat()], ids=["", "each call comes twice, and late"])
async def test_groups_that_come_and_go(server, exp_id, faults):
    await proves(Town(server, exp_id, faults))


@pytest.mark.parametrize("deadly", [True, pytest.param(False, marks=pytest.mark.long)])
@pytest.mark.parametrize("side", ["before", pytest.param("after", marks=pytest.mark.long)])
async def test_the_nth_call_of_the_protocol_fails(request, server, exp_id, side, deadly):
    layout = request.node.callspec.params["server"]
    for nth in itertools.count(1, 12 if layout in SHORT else 24):
        faults = FailAt(nth, side, deadly=deadly)
        await proves(Town(server, f"{exp_id}-{nth}", faults))
        if faults.met is None:
            break
    assert nth > 40


@pytest.mark.long
async def test_any_call_fails_kills_comes_twice_or_late(server, exp_id):
    for seed in range(12):
        await proves(Town(server, f"{exp_id}-{seed}", Chaos(seed)))
