"""agentsociety2's social space in one order, with the published package where it is installed, else by its shape."""

import asyncio
import importlib
import json
import random
import sys
import types
import warnings
from collections import Counter, defaultdict
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta
from importlib import metadata
from pathlib import Path

import pytest
from pydantic import BaseModel
from support.interceptors import Held

from ray_messaging import LocalServer, Messager, Messaging, rules
from ray_messaging.interception.interceptor.interceptor import Interceptor

START, HOUR = datetime(2026, 1, 1, 8, tzinfo=UTC), timedelta(hours=1)
AGENTS = [(1, "Ann"), (2, "Bob"), (3, "Eve"), (4, "Dan")]


class EnvMeta(type):
    """What makes environments of agentsociety2, by its shape; so is all up to `shaped`."""

    def __new__(cls, name, bases, namespace):
        made = super().__new__(cls, name, bases, namespace)
        made._registered_tools = {key: value for key, value in namespace.items() if hasattr(value, "tool")}
        made._readonly_tools, made._tool_kinds = {}, {}
        return made


def tool(readonly, kind=None):
    def mark(function):
        function.tool = readonly, kind
        return function

    return mark


class Message(BaseModel):
    sender_id: int
    content: str
    timestamp: datetime
    message_id: int
    group_id: int | None = None


class Group(BaseModel):
    group_id: int
    name: str
    members: list[int]


class SimpleSocialSpace(metaclass=EnvMeta):
    def __init__(self, agent_id_name_pairs):
        self.t, self._workspace_root, self._lock = START, None, asyncio.Lock()
        self._agent_names = {int(agent): str(name) for agent, name in agent_id_name_pairs}
        self._mailboxes, self._groups = defaultdict(list), {}
        self._next_group_id = self._next_message_id = 1
        self._step_counter = self._total_messages_sent = 0

    @classmethod
    def init_description(cls):
        return "- agent_id_name_pairs"

    @tool(readonly=False)
    async def send_message(self, sender_id, receiver_id, content):
        message = Message(sender_id=sender_id, content=content, timestamp=self.t, message_id=self._next_message_id)
        self._next_message_id += 1
        self._mailboxes[receiver_id].append(message)

    @tool(readonly=True, kind="observe")
    async def receive_messages(self, agent_id):
        found, self._mailboxes[agent_id] = self._mailboxes[agent_id], []
        told = [
            {
                "type": "personal" if each.group_id is None else "group",
                "sender_id": each.sender_id,
                "sender_name": self._agent_names[each.sender_id],
                "content": each.content,
                "timestamp": each.timestamp.isoformat(),
            }
            for each in found
        ]
        return types.SimpleNamespace(messages=told)

    def _bind_workspace(self, path):
        self._workspace_root = Path(path)

    async def restore(self, path):
        self._bind_workspace(path)
        if not (path / "state/ENV_STATE.json").is_file():
            return False
        state = json.loads((path / "state/ENV_STATE.json").read_text())
        for to, box in state["mailboxes"].items():
            self._mailboxes[int(to)] = [Message(**each) for each in box]
        self._groups = {int(number): Group(**group) for number, group in state["groups"].items()}
        counters = ("next_group_id", "next_message_id", "step_counter", "total_messages_sent")
        vars(self).update({f"_{name}": state[name] for name in counters})
        return True

    async def step(self, tick, t):
        self.t = t
        self._groups = {number: group for number, group in self._groups.items() if group.members}
        self._step_counter += 1


def atomic_write_text(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def shaped():
    """Make the modules of agentsociety2 that the adapter imports, by their shape."""
    kinds = ("SendMessage", "ReceiveMessages", "CreateGroup", "JoinGroup", "LeaveGroup", "SendGroupMessage")
    social = {"Message": Message, "Group": Group, "SimpleSocialSpace": SimpleSocialSpace}
    social |= {f"{kind}Response": types.SimpleNamespace for kind in kinds}
    return {
        "": {},
        ".contrib": {},
        ".contrib.env": {},
        ".contrib.env.simple_social_space": social,
        ".env": {},
        ".env.base": {"EnvMeta": EnvMeta, "tool": tool},
        ".storage": {},
        ".storage.workspace_state": {"atomic_write_text": atomic_write_text},
    }


@pytest.fixture(params=["shaped", "published"])
def spaces(request, monkeypatch):
    """Give our social space, and the one that it replaces."""
    if request.param == "published":
        monkeypatch.setenv("AGENTSOCIETY_LLM_API_KEY", "none")  # without one it cannot be imported
        with warnings.catch_warnings(action="ignore"):  # those of what it imports
            pytest.importorskip(
                "agentsociety2.contrib.env", reason="AgentSociety 2 is not here: pip install --group agentsociety2"
            )
    else:
        for name, members in shaped().items():
            module = types.ModuleType(f"agentsociety2{name}")
            vars(module).update(members)
            monkeypatch.setitem(sys.modules, module.__name__, module)
        version = metadata.version
        monkeypatch.setattr(metadata, "version", lambda name: "2.9.3" if name == "agentsociety2" else version(name))
    monkeypatch.delitem(sys.modules, "ray_messaging.compat.agentsociety2", raising=False)
    ours = importlib.import_module("ray_messaging.compat.agentsociety2")
    yield ours.OrderedSocialSpace, ours.SimpleSocialSpace
    sys.modules.pop("ray_messaging.compat.agentsociety2")


async def day(space, act, hours=range(3)):
    """Run steps as AgentSociety does, with agents that take their turns in a random order; return what each heard."""
    heard = defaultdict(list)

    async def live(agent, hour):
        for _ in range(random.randrange(9)):
            await asyncio.sleep(0)
        heard[agent].append((await space.receive_messages(agent)).messages)
        await act(space, agent, hour)

    for hour in hours:
        space.t = START + hour * HOUR
        await asyncio.gather(*[live(agent, hour) for agent, _ in random.sample(AGENTS, 4)])
        await space.step(3600, space.t)
    return dict(heard)


async def talk(space, agent, hour):
    """Greet all others twice, and pause in between."""
    for number in range(2):
        for other, _ in AGENTS:
            await space.send_message(agent, other, f"{agent} to {other} at {hour}, {number}")
            await asyncio.sleep(0)


async def test_a_run_hears_the_same_again_whatever_the_order_of_its_agents(spaces):
    ours, theirs = spaces
    once, again = await day(ours(AGENTS), talk), await day(ours(AGENTS), talk)
    assert once == again
    assert [(each["sender_name"], each["content"]) for each in once[1][1]] == [
        (name, f"{agent} to 1 at 0, {number}") for agent, name in AGENTS for number in range(2)
    ]
    assert len({json.dumps(await day(theirs(AGENTS), talk), sort_keys=True) for _ in range(5)}) > 1


async def clubs(space, agent, hour):
    """Found a club in the first step, join that of agent 2 in the second, and write to it in the third."""
    if hour == 0:
        space.founded[agent] = (await space.create_group(agent, f"club {agent}", [agent])).group_id
        alone = await space.send_group_message(agent, space.founded[agent], f"{agent} is alone")
        assert alone.recipient_count == 1
    elif hour == 1:
        await space.join_group(agent, space.founded[2])
        await space.leave_group(agent, space.founded[agent])
    else:
        told = await space.send_group_message(agent, space.founded[2], f"{agent} is here")
        assert told.recipient_count == (0 if agent == 2 else 3)


async def test_groups_have_the_same_numbers_and_members_whoever_comes_first(spaces):
    days, founded = [], []
    for _ in range(3):
        space = spaces[0](AGENTS)
        space.founded = {}
        days.append(await day(space, clubs, range(3)) | {"last": (await space.receive_messages(3)).messages})
        founded.append(space.founded)
    assert days[0] == days[1] == days[2]
    assert founded == [{1: 1, 2: 2, 3: 3, 4: 4}] * 3
    assert [each["content"] for each in days[0][3][1]] == ["3 is alone"]
    assert [each["content"] for each in days[0]["last"]] == ["1 is here", "3 is here", "4 is here"]
    assert (await space.create_group(3, "later", [])).group_id == 7
    assert (await space.create_group(3, "next", [])).group_id == 11
    with pytest.raises(ValueError, match="agent 9 cannot create a group"):
        await space.create_group(9, "nowhere", [])


async def test_a_space_that_is_restored_in_the_middle_of_a_step_goes_on_as_if_it_had_not_ended(spaces, tmp_path):
    whole, part = spaces[0](AGENTS), spaces[0](AGENTS)
    for space in (whole, part):
        await day(space, talk, range(1))
        await space.send_message(2, 1, "a last one")
        await space.join_group(1, (await space.create_group(1, "a club", [2])).group_id)
    await part.to_workspace(tmp_path)
    restored = spaces[0](AGENTS)
    assert await restored.restore(tmp_path)
    assert not await spaces[0](AGENTS).restore(tmp_path / "empty")
    found = [await day(space, talk, range(1, 4)) for space in (whole, restored)]
    assert found[0] == found[1]
    assert "a last one" in [each["content"] for each in found[1][1][1]]
    assert (await restored.send_group_message(2, 1, "hello")).recipient_count == 2


class Experiment:
    """What the space uses of an experiment, without Ray."""

    def __init__(self, judge):
        self.server, self.judge = LocalServer(), judge

    async def open_messager(self, name, agents, *, subtopics):
        messager = Messager(self.server, "town", self.judge, name=name)
        await messager.init()
        await messager.host_agents([*agents], subtopics)
        return messager


class Counted(rules.Rule):
    """A rule that counts what it sees."""

    needs_payload = True

    def __init__(self):
        self.seen = Counter()

    def check(self, message):
        self.seen[message.payload["content"]] += 1
        return rules.ALLOW


@pytest.mark.parametrize("saved", [0, 2])
async def test_rules_judge_each_message_once_and_a_restored_space_hands_out_none_twice(
    spaces, monkeypatch, tmp_path, saved
):
    counted = Counted()
    town = Experiment(Interceptor("town", [counted, rules.BlackList([(2, 1)])]))
    monkeypatch.setattr(Messaging, "connect", lambda exp_id: town if exp_id == "town" else None)
    free, first, second = spaces[0](AGENTS), *(spaces[0](AGENTS, experiment="town") for _ in range(2))
    free_first, free_then = await day(free, talk, range(saved)), await day(free, talk, range(saved, saved + 2))
    assert not await first.restore(tmp_path)
    ruled = await day(first, talk, range(saved))
    if saved:
        await first.to_workspace(tmp_path)
    await day(first, talk, range(saved, saved + 1))  # it dies before it has saved this step, which runs again
    await first.close()
    assert await second.restore(tmp_path)
    again = await day(second, talk, range(saved, saved + 2))
    for expected, found in ((free_first, ruled), (free_then, again)):
        if expected:
            expected[1] = [[each for each in inbox if each["sender_id"] != 2] for inbox in expected[1]]
        assert found == expected
    assert len(counted.seen) == 2 * 4 * 4 * (saved + 2)
    assert {*counted.seen.values()} == {1}
    await second.to_workspace()
    await second.close()


async def test_what_is_too_much_for_one_transaction_is_sent_all_the_same(spaces, monkeypatch):
    monkeypatch.setattr(Messaging, "connect", lambda _: Experiment(None))
    space = spaces[0](AGENTS, experiment="town")
    group = await space.create_group(1, "all", [2, 3, 4])
    for number in range(5000):
        await space.send_group_message(1, group.group_id, str(number))
    await space.step(3600, START)
    for agent, _ in AGENTS:
        found = (await space.receive_messages(agent)).messages
        assert [each["content"] for each in found] == [str(number) for number in range(5000)]
    await space.close()


request = ContextVar("envrouter_trace_ctx_1")  # as agentsociety2's router names it


async def test_an_agent_whose_process_dies_acts_once_in_a_step(spaces, tmp_path, caplog):
    space = spaces[0](AGENTS)
    await space.restore(tmp_path)
    for number in range(2):  # what an agent does between steps is no attempt at one
        request.set((f"asked {number}", None, 1))
        await space.send_message(1, 2, f"asked {number}")
    space.t = START
    request.set(("first", None, 2))
    await space.send_message(2, 1, "hello")
    await space.step(3600, START)
    space.t = START + HOUR
    for attempt in ("second", "third"):
        request.set((attempt, None, 2))
        assert [each["content"] for each in (await space.receive_messages(2)).messages] == ["asked 0", "asked 1"]
        assert (await space.receive_messages(2)).messages == []
        group = await space.create_group(2, attempt, [1])
        await space.send_group_message(2, group.group_id, attempt)
        request.set((attempt, None, 1))
        await space.send_message(1, 3, "once")
    assert caplog.messages == [
        f"agent {agent} begins its step at {space.t} again: what it did before in this step is undone"
        for agent in (2, 1)
    ]
    request.set(("second", None, 2))
    with pytest.raises(RuntimeError, match="agent 2 has begun this step again"):
        await space.send_message(2, 1, "late")
    await space.step(3600, START + HOUR)
    with pytest.raises(RuntimeError, match="agent 2 has begun this step again"):
        await space.send_message(2, 1, "later")
    request.set((None, None, None))
    found = [[each["content"] for each in (await space.receive_messages(agent)).messages] for agent in (1, 2, 3)]
    assert found == [["hello", "third"], ["third"], ["once"]]


async def test_a_slow_rule_changes_no_order(spaces, monkeypatch):
    slow = Held("slow", at_once=lambda message: None if message.from_id == 1 else rules.ALLOW)
    monkeypatch.setattr(Messaging, "connect", lambda _: Experiment(Interceptor("town", [slow])))
    ruled = spaces[0](AGENTS, experiment="town")
    running = asyncio.create_task(day(ruled, talk))
    await slow.called(8)  # all that agent 1 has sent in the first step
    slow.release()
    assert await running == await day(spaces[0](AGENTS), talk)
    await ruled.close()


def test_a_subclass_has_all_tools(spaces):
    class Own(spaces[0]):
        pass

    tools = {"send_message", "receive_messages", "create_group", "join_group", "leave_group", "send_group_message"}
    assert set(Own._registered_tools) == set(spaces[0]._registered_tools) == tools


def test_another_version_than_the_tested_one_is_warned_of(spaces, monkeypatch):
    monkeypatch.setattr(metadata, "version", lambda _: "3.0.0")
    with pytest.warns(UserWarning, match=r"agentsociety2 3\.0\.0 is installed, .* tested with 2\.9"):
        spaces[0](AGENTS)
