"""AgentSociety 1.5's Messager on our engine, with the published package where it is installed, else by its shape."""

import importlib
import importlib.util
import random
import sys
import types
from importlib import metadata
from pathlib import Path
from unittest.mock import MagicMock

import pytest
from support.interceptors import interceptor_with

from ray_messaging import rules
from ray_messaging.compat.supervisor import Message, MessageKind


class ShapedMessager:
    """The Messager of AgentSociety 1.5, by its shape."""

    def __init__(self, exp_id):
        self.exp_id, self._pending, self._received = exp_id, [], []

    async def send_message(self, message):
        self._pending.append(message)

    async def fetch_pending_messages(self):
        found, self._pending = self._pending, []
        return found

    async def set_received_messages(self, messages):
        self._received = messages

    async def fetch_received_messages(self):
        found, self._received = self._received, []
        return found

    def get_user_payback_channel(self):
        return f"exps:{self.exp_id}:user-payback"


def shaped():
    """Make a module of the shape of `agentsociety.message`."""
    module = types.ModuleType("agentsociety.message")
    module.Message, module.MessageKind, module.Messager = Message, MessageKind, ShapedMessager
    return module


def published(monkeypatch):
    """Import `agentsociety.message` without what it does not use here; skip where it is absent."""
    found = importlib.util.find_spec("agentsociety")
    if found is None:
        pytest.skip("AgentSociety is not here: pip install --no-deps --group agentsociety")
    for name in ("agentsociety.llm", "agentsociety.logger", "agentsociety.utils"):
        monkeypatch.setitem(sys.modules, name, MagicMock())
    decorators = MagicMock(lock_decorator=lambda method: method)
    monkeypatch.setitem(sys.modules, "agentsociety.utils.decorators", decorators)
    package = types.ModuleType("agentsociety")
    package.__path__ = [str(Path(found.origin).parent)]
    monkeypatch.setitem(sys.modules, "agentsociety", package)
    return importlib.import_module("agentsociety.message")


@pytest.fixture(params=["shaped", "published"])
def theirs(request, monkeypatch):
    """Give the module `agentsociety.message`."""
    module = shaped() if request.param == "shaped" else published(monkeypatch)
    version = metadata.version
    monkeypatch.setattr(metadata, "version", lambda name: "1.5.7" if name == "agentsociety" else version(name))
    monkeypatch.setitem(sys.modules, "agentsociety.message", module)
    monkeypatch.setitem(sys.modules, "agentsociety", sys.modules.get("agentsociety", types.ModuleType("agentsociety")))
    yield module
    for name in [
        each for each in sys.modules if each.startswith("agentsociety.") or each.endswith("compat.agentsociety")
    ]:
        sys.modules.pop(name)


@pytest.fixture
async def new_messager(theirs, server, exp_id):
    """Make our messagers, which are closed at the end."""
    made = []

    def make(**options):
        made.append(importlib.import_module("ray_messaging.compat.agentsociety").Messager(exp_id, server, **options))
        return made[-1]

    yield make
    for messager in made:
        await messager.close()


def sent(theirs, rng, number):
    """Build a message of an agent: a chat, or a registration at an area."""
    kind = rng.choice([theirs.MessageKind.AGENT_CHAT, theirs.MessageKind.AOI_MESSAGE_REGISTER])
    payload = {"content": f"müßig {number}", "type": "social"}
    return theirs.Message(
        from_id=rng.randrange(20), to_id=rng.randrange(20), day=1, t=number / 7, kind=kind, payload=payload
    )


class Supervisor:
    """A supervisor that finds every third chat invalid, and adds a warning."""

    async def forward(self, messages):
        return {one: place % 3 > 0 for place, one in enumerate(messages)}, messages[:1]


async def judged(messager, theirs, seed):
    """Run rounds as AgentSociety's simulation does; return what each hands out."""
    rng, rounds = random.Random(seed), []
    interceptor = getattr(theirs, "MessageInterceptor", lambda _: None)(None)
    if interceptor:
        await interceptor.set_supervisor(Supervisor())
    for _ in range(3):
        for number in range(30):
            await messager.send_message(sent(theirs, rng, number))
        messages = await messager.fetch_pending_messages()
        if interceptor:
            messages = await interceptor.forward(messages)
        await messager.set_received_messages(messages)
        rounds.append([one.model_dump(exclude={"created_at"}) for one in await messager.fetch_received_messages()])
        assert await messager.fetch_received_messages() == []
    return rounds


async def test_a_supervised_run_hands_out_the_same_messages_in_the_same_order(theirs, new_messager):
    assert isinstance(ours := new_messager(), theirs.Messager)
    assert await judged(ours, theirs, seed=3) == await judged(theirs.Messager("x"), theirs, seed=3)


async def test_messages_that_a_process_did_not_handle_wait_for_its_successor_and_come_as_they_were(
    theirs, new_messager
):
    rng = random.Random(5)
    messages = [sent(theirs, rng, number) for number in range(10)]
    messages.append(messages[0].model_copy(update={"to_id": None, "from_id": None, "extra": {"survey": [1]}}))
    dead = new_messager()
    await dead.set_received_messages(messages)
    successor = new_messager()
    found = await successor.fetch_received_messages()
    assert found == messages
    assert [*map(hash, found)] == [*map(hash, messages)]


async def test_our_rules_judge_the_messages(theirs, new_messager, exp_id):
    messager = new_messager(interceptor=interceptor_with(rules.BlackList([(1, 2)])))
    blocked = sent(theirs, random.Random(1), 0).model_copy(update={"from_id": 1, "to_id": 2})
    passed = blocked.model_copy(update={"to_id": 3})
    await messager.set_received_messages([blocked, passed])
    assert await messager.fetch_received_messages() == [passed]
