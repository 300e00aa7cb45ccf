"""OASIS' channel over messages: a platform in one process, agents in another, and each result to its agent."""

import asyncio
import importlib.util
import json
import logging
import random
import sqlite3
import sys
import types
from contextlib import closing
from pathlib import Path
from unittest.mock import MagicMock

import pytest
from support.contracts import WAIT_S, kill_platform
from support.interceptors import interceptor_with

from ray_messaging import rules
from ray_messaging.compat.oasis import Channel
from ray_messaging.errors import InvalidPayload, NoAnswer, QuestionBlocked, UnknownName

ACTIONS = ("sign_up", "create_post", "odd_result")


@pytest.fixture
async def channels(server, exp_id):
    """Open channels, each as another process does, and run platforms on them."""
    opened, running = [], []

    def open_one(interceptor=None, **options):
        opened.append(Channel(server, exp_id, interceptor, **{"actions": ACTIONS, "timeout": WAIT_S} | options))
        return opened[-1]

    async def run(platform):
        """Run a platform until it listens."""
        running.append(asyncio.create_task(platform.running()))
        while await acted(platform.channel, None, "sign_up") != "sign_up":
            pass
        return running[-1]

    open_one.run = run
    yield open_one
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
    for channel in opened:
        await channel.close()
    assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("ray_messaging")]


class Platform:
    """A platform with the loop of OASIS', which keeps what it has done."""

    def __init__(self, channel):
        self.channel, self.done, self.gate = channel, [], asyncio.Event()
        self.gate.set()

    async def running(self):
        while True:
            message_id, (agent, message, action) = await self.channel.receive_from()
            if action == "exit":
                return
            if message == "break":
                raise ValueError("broken")
            await self.gate.wait()
            self.done.append((agent, message))
            await self.channel.send_to((message_id, agent, object() if action == "odd_result" else action))


async def acted(channel, agent, action, message=None):
    """Let an agent act as OASIS' agents do; return its result."""
    message_id = await channel.write_to_receive_queue((agent, message, action))
    found = await channel.read_from_send_queue(message_id)
    assert found[:2] == (message_id, agent)
    return found[2]


async def test_each_agent_gets_its_results_and_its_actions_keep_their_order(channels):
    platform = Platform(channels())
    await channels.run(platform)
    agents = channels()

    async def live(agent):
        written = [await agents.write_to_receive_queue((agent, n, "create_post")) for n in range(3)]
        return [await agents.read_from_send_queue(message_id) for message_id in reversed(written)]

    results = await asyncio.gather(*(live(agent) for agent in [*range(200), "ann"]))
    assert [{agent for _, agent, _ in found} for found in results] == [{agent} for agent in [*range(200), "ann"]]
    for agent in (0, 199, "ann"):
        assert [n for by, n in platform.done if by == agent] == [0, 1, 2]
    with pytest.raises(UnknownName, match="was read before"):
        await agents.read_from_send_queue("1")
    with pytest.raises(UnknownName, match="waits for its result"):
        await platform.channel.send_to(("1", 1, None))


async def test_what_cannot_be_done_or_sent_ends_nothing(channels):
    platform = Platform(channels())
    await channels.run(platform)
    agents = channels()
    unknown, unsendable, odd, good = await asyncio.gather(
        acted(agents, 1, "dance"),
        acted(agents, 2, "create_post", object()),
        acted(agents, 3, "odd_result"),
        acted(agents, 4, "create_post"),
        return_exceptions=True,
    )
    assert unknown == {
        "success": False,
        "error": "the platform knows no action 'dance': it knows create_post, odd_result, sign_up",
    }
    assert isinstance(unsendable, InvalidPayload)
    assert str(unsendable).startswith("action 'create_post' of agent 2 has no result: ")
    assert isinstance(odd, NoAnswer)
    assert str(odd).startswith("action 'odd_result' of agent 3 has no result: its result cannot be sent: ")
    assert good == "create_post"


@pytest.mark.parametrize("end", ["by an error", "by exit"])
async def test_a_platform_that_ends_tells_all_that_wait_and_another_goes_on(channels, end):
    platform = Platform(channels())
    task = await channels.run(platform)
    agents = channels()
    platform.gate.clear()
    first = asyncio.create_task(acted(agents, 1, "create_post"))
    await asyncio.sleep(0.05)
    last = ("create_post", "break") if end == "by an error" else ("exit", None)
    ending = asyncio.create_task(acted(agents, 2, *last))
    await asyncio.sleep(0.05)
    waiting = asyncio.create_task(acted(agents, 3, "create_post"))
    platform.gate.set()
    async with asyncio.timeout(WAIT_S):
        assert await first == "create_post"
        if end == "by exit":
            assert await ending is None
        else:
            with pytest.raises(NoAnswer, match=r"'create_post' of agent 2 .*the platform has ended: ValueError"):
                await ending
        with pytest.raises(NoAnswer, match="action 'create_post' of agent 3 has no result: "):
            await waiting
        await asyncio.wait([task])
        with pytest.raises(NoAnswer, match="action 'create_post' of agent 4 has no result: "):
            await acted(agents, 4, "create_post")
    await channels.run(Platform(channels()))
    assert await acted(agents, 5, "create_post") == "create_post"


async def test_a_successor_of_a_killed_platform_does_the_rest_and_nothing_twice(channels):
    killed, agents = Platform(channels(window=2)), channels(timeout=8)
    await channels.run(killed)
    killed.gate.clear()
    actions = [asyncio.create_task(acted(agents, n, "create_post")) for n in range(20)]
    await kill_platform(killed.channel)
    successor = Platform(channels())
    running = asyncio.create_task(successor.running())
    results = await asyncio.gather(*actions, return_exceptions=True)
    running.cancel()
    assert results[2:] == ["create_post"] * 18
    assert [agent for agent, _ in successor.done] == [*range(2, 20)]
    for n, error in enumerate(results[:2]):
        assert isinstance(error, NoAnswer)
        assert str(error).startswith(
            f"action 'create_post' of agent {n} has no result: platform 'platform' gave no result"
        )


async def test_rules_judge_actions_and_results(channels, exp_id):
    interceptor = interceptor_with(rules.BlackList([(1, "platform"), ("platform", 2)]))
    await channels.run(Platform(channels(interceptor)))
    agents = channels(interceptor)
    with pytest.raises(QuestionBlocked, match="action 'create_post' of agent 1"):
        await acted(agents, 1, "create_post")
    assert await acted(agents, 3, "create_post") == "create_post"


@pytest.fixture
def oasis(tmp_path, monkeypatch):
    """Import OASIS' agents, channel and platform, without the models of its recommender; skip where it is absent."""
    found = importlib.util.find_spec("oasis")
    if found is None:
        pytest.skip("OASIS is not here: pip install --no-deps --group oasis")
    monkeypatch.chdir(tmp_path)  # it writes logs
    for package, *parts in (
        ("torch",),
        ("transformers",),
        ("sentence_transformers",),
        ("camel", "embeddings", "types", "toolkits"),
        ("sklearn", "feature_extraction", "feature_extraction.text", "metrics", "metrics.pairwise"),
    ):
        for name in (package, *(f"{package}.{part}" for part in parts)):
            monkeypatch.setitem(sys.modules, name, MagicMock())
    for name in ("oasis", "oasis.social_agent"):  # without what they import
        monkeypatch.setitem(sys.modules, name, module := types.ModuleType(name))
        module.__path__ = [str(Path(found.origin).parent.joinpath(*name.split(".")[1:]))]
    platform = importlib.import_module("oasis.social_platform.platform")
    yield importlib.import_module("oasis.social_agent.agent_action").SocialAction, platform.Channel, platform.Platform
    for name in [each for each in sys.modules if each.startswith("oasis.")]:
        sys.modules.pop(name)
    for handler in logging.getLogger("social.twitter").handlers:
        handler.close()


async def script(agent, step):
    """Act twice, as a random number says; return the results."""
    rng = random.Random(1000 * step + agent.agent_id)
    deeds = (
        (agent.create_post, f"post of {agent.agent_id}"),
        (agent.like_post, rng.randrange(1, 200)),
        (agent.follow, rng.randrange(200)),
        (agent.create_comment, rng.randrange(1, 200), "well"),
        (agent.repost, rng.randrange(1, 200)),
        (agent.refresh,),
    )
    return [await act(*arguments) for act, *arguments in rng.sample(deeds, 2)]


@pytest.mark.one_server("OASIS itself is what is compared")
async def test_an_oasis_platform_writes_the_same_database_as_on_its_own_channel(channels, oasis):
    """200 agents act in 5 rounds."""
    new_agent, their_channel, new_platform = oasis

    async def run(channel, path):
        random.seed(7)
        running = asyncio.create_task(new_platform(path, channel=channel, recsys_type="twitter").running())
        agents = [new_agent(number, channel) for number in range(200)]
        results = [await asyncio.gather(*(agent.sign_up(f"u{agent.agent_id}", "name", "bio") for agent in agents))]
        results += [await asyncio.gather(*(script(agent, step) for agent in agents)) for step in range(5)]
        assert channel is theirs or not (await agents[0].perform_action(None, "dance"))["success"]
        await channel.write_to_receive_queue((None, None, "exit"))
        await running
        with closing(sqlite3.connect(path)) as database:
            return json.loads(json.dumps(results)), [*database.iterdump()]

    theirs = their_channel()
    assert await run(channels(actions=None), "ours.db") == await run(theirs, "theirs.db")
