"""The restart of a group's actor, without Ray."""

import asyncio
import logging
from types import SimpleNamespace

import pytest
import ray

from ray_messaging.cluster.actors import group_actor as module
from ray_messaging.errors import MessagingError, ServerRefused


class Host:
    """A host that a server refuses once; then it meets an error that nobody expects."""

    made: list["Host"]

    def __init__(self, *_):
        self.made.append(self)
        self.closed = asyncio.Event()

    async def resume(self):
        raise ServerRefused("no memory") if len(self.made) == 1 else ValueError("a bug")

    async def close(self):
        self.closed.set()


@pytest.fixture
async def actor(monkeypatch):
    Host.made = []
    context = SimpleNamespace(get_actor_id=lambda: "7")
    monkeypatch.setattr(ray, "get_runtime_context", lambda: context)
    monkeypatch.setattr(ray, "get_actor", lambda *_, **__: None)
    for name, value in (("GroupHost", Host), ("restarted", lambda: True), ("tune_process", lambda: None)):
        monkeypatch.setattr(module, name, value)
    monkeypatch.setattr(module, "ACTOR_START_RETRY", SimpleNamespace(first_s=0.0))
    actor = module.GroupActor.__new__(module.GroupActor)
    await actor.__init__(SimpleNamespace(interceptor_name="i", run="r", metrics=False), "east")
    return actor


async def test_an_unexpected_error_of_a_restart_is_what_the_group_says(actor, caplog):
    with caplog.at_level(logging.ERROR):
        await asyncio.wait_for(actor._retrying, 10)
    with pytest.raises(MessagingError, match=r"group 'east' cannot start again \(ValueError: a bug\)"):
        await actor.ready()
    assert "a bug" in (await actor.health()).error
    assert "a bug" in caplog.text
    assert [host.closed.is_set() for host in Host.made] == [True, True]
    await actor.close()
