"""AgentScope 1's MsgHub over processes: each agent observes what it does in AgentScope's own hub."""

import asyncio
import os
import pickle
import sys
from pathlib import Path

import pytest
from support.contracts import until

if not hasattr(pytest.importorskip("agentscope.agent", reason="AgentScope 1 is not here"), "AgentBase"):
    pytest.skip("AgentScope 1 is not here: see CONTRIBUTING.md", allow_module_level=True)

from agentscope import pipeline
from agentscope.agent import AgentBase
from agentscope.message import Msg

from ray_messaging import Messager, rules
from ray_messaging.compat import agentscope_hub
from ray_messaging.compat.agentscope_hub import MsgHub
from ray_messaging.errors import NoAnswer
from ray_messaging.interception.interceptor.interceptor import Interceptor
from ray_messaging.messager import GroupMessager


class Person(AgentBase):
    def __init__(self, name):
        super().__init__()
        self.name, self.heard = name, []

    async def observe(self, msg):
        if getattr(self, "fails", False):
            raise ValueError("deaf")
        self.heard += [(each.name, each.content) for each in (msg if isinstance(msg, list) else [msg])]

    async def reply(self, text):
        return Msg(self.name, text, "assistant")

    async def handle_interrupt(self, *args, **options):
        raise AssertionError


def people():
    return [Person(name) for name in ("ann", "team/1:2", "@carl:example.org")]


async def talk(say, hub, ann, bob, carl):
    await say(ann, "I am Ann")
    await say(bob, "I am Bob")
    await hub.broadcast([Msg("user", "one", "user"), Msg("user", "two", "user")])
    await known(hub.delete(carl))
    await say(bob, "without Carl")
    await known(hub.add([carl]))
    hub.set_auto_broadcast(False)
    await say(ann, "to myself")
    hub.set_auto_broadcast(True)
    await say(ann, "bye")


async def known(change):
    if change is not None:  # AgentScope's own is known at once
        await change


async def say(agent, text):
    await agent(text)


HELLO = Msg("user", "hello", "user")


async def test_all_observe_what_they_do_in_agentscopes_own_hub(local):
    theirs, ours = people(), people()
    async with pipeline.MsgHub(theirs, HELLO) as hub:
        await talk(say, hub, *theirs)
    ann, bob, carl = ours
    interceptor = Interceptor("x", [])
    async with Messager(local, "e", interceptor, name="west") as west, Messager(local, "e", name="east") as east:
        entering = asyncio.create_task(MsgHub(west, [ann, bob.name, carl], HELLO).__aenter__())
        await asyncio.sleep(0.1)  # the hub waits for those who are not there yet
        async with MsgHub(east, [ann.name, bob, carl.name]) as there:
            here = await entering
            await talk(say, here, ann, bob, carl)
            assert there.participants == here.participants == [ann.name, bob.name, carl.name]
        await here.__aexit__(None, None, None)
    assert [person.heard for person in ours] == [person.heard for person in theirs]
    assert len(carl.heard) == 6


async def test_rules_block_and_errors_and_strangers_are_told(local, monkeypatch):
    ann, bob, carl = people()
    interceptor = Interceptor("x", [rules.BlackList([(ann.name, bob.name)])])
    messager = GroupMessager(local, "e", interceptor, name="all")
    async with messager, MsgHub(messager, [ann, bob, carl], timeout=2) as hub:
        await ann("psst")
        assert (bob.heard, carl.heard) == ([], [("ann", "psst")])
        carl.fails = True
        with pytest.raises(NoAnswer, match="deaf"):
            await bob("hello")
        carl.fails = False
        hub.add("nobody")
        with pytest.raises(NoAnswer, match="no process hosts agent 'nobody'"):
            await ann("hello")
        hub.delete("nobody")
        await ann("bye")
        assert carl.heard[1:] == [("ann", "bye")]
    monkeypatch.setattr("importlib.metadata.version", lambda name: "1.9.9")
    with pytest.warns(UserWarning, match=rf"1\.9\.9 is installed, .* tested with {agentscope_hub.TESTED}"):
        MsgHub(messager, [ann])


OTHER = """
import asyncio, pickle, sys
from ray_messaging import Messager
from ray_messaging.compat.agentscope_hub import MsgHub
from test_agentscope_hub import Person

class Slow(Person):
    async def observe(self, msg):
        if msg.content == sys.argv[1]:
            print("stopped", flush=True)
            await asyncio.sleep(3600)
        print(msg.content, flush=True)

async def main():
    async with Messager(pickle.load(sys.stdin.buffer), "e", name="east") as east, MsgHub(east, ["ann", Slow("bob")]):
        await asyncio.sleep(3600)

asyncio.run(main())
"""


async def test_a_killed_participant_observes_the_rest_when_it_is_back(local):
    async def other(stops_at):
        path = os.pathsep.join(map(str, (Path(__file__).parent, Path(__file__).parents[2])))
        pipes = {"stdin": asyncio.subprocess.PIPE, "stdout": asyncio.subprocess.PIPE}
        command = (sys.executable, "-c", OTHER, stops_at)
        process = await asyncio.create_subprocess_exec(*command, env=os.environ | {"PYTHONPATH": path}, **pipes)
        process.stdin.write(pickle.dumps(local))
        process.stdin.close()
        return process

    async def heard(process):
        return (await process.stdout.readline()).decode().strip()

    ann = Person("ann")
    victim = await other("2")
    async with Messager(local, "e", name="west") as west, MsgHub(west, [ann, "bob"], timeout=30):
        speaking = asyncio.create_task(talk_of(ann))
        assert [await heard(victim) for _ in range(3)] == ["0", "1", "stopped"]
        victim.kill()
        await victim.wait()
        again = await other("none")
        assert [await heard(again) for _ in range(3)] == ["2", "3", "4"]
        await speaking
        again.kill()
        await again.wait()
    await until(lambda: speaking.done())


async def talk_of(agent):
    for number in range(5):
        await agent(str(number))
