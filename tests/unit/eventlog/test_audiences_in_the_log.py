"""Agents and hearers that a log keeps: files that fail, mailboxes that have changed, more than memory holds."""

import asyncio
from collections import Counter

import numpy as np
import pytest
from support.audience_society import AGENTS, HOSTS, LOST, Society, rows_of
from support.contracts import WAIT_S
from support.log_writing import Crash, failed

from ray_messaging.addressing import directory
from ray_messaging.audiences.folding import agents_digest
from ray_messaging.audiences.source import LocalFolder
from ray_messaging.errors import LogError
from ray_messaging.eventlog.writing import hearers
from ray_messaging.model.agent_sets import AgentSet


@pytest.fixture
async def opened(server, exp_id, tmp_path):
    async with Society(server, exp_id, tmp_path / "log") as found:
        yield found


@pytest.fixture
async def society(opened):
    await opened.begin()
    await opened.befriend("friends", np.random.default_rng(11).integers(0, AGENTS, (600, 2)))
    return opened


async def test_the_log_waits_until_the_agents_of_a_mailbox_can_be_kept(society):
    await society.gather("all", range(AGENTS))
    taken = [society.folder / f"_agents-{agents_digest(AgentSet.of(each)).hex()}.bin" for each in HOSTS]
    for folder in taken:
        folder.mkdir()
    await society.broadcast("all", [0], [{"n": 1}])
    with pytest.raises(LogError, match="stands still"):
        await society.log_writer.caught_up()
    assert "IsADirectoryError" in society.log_writer.stats()["error"]
    for folder in taken:
        folder.rmdir()
    assert await society.log_writer.wait_beyond(0, WAIT_S)
    log = await society.log()
    assert society.log_writer.stats()["error"] is None
    assert log.balance(expand=True).fates["delivered"] == AGENTS - LOST - 1


async def test_a_log_that_lags_knows_the_agents_of_mailboxes_that_have_changed_or_ended_since(opened, monkeypatch):
    monkeypatch.setattr(directory, "_MOST_CHANGES", 1)
    opened.interceptor = None
    society = await opened.begin(crash=Crash("checked"), segment_age_s=0.0)
    await society.gather("all", range(AGENTS))
    guest = await society.messager(audiences=LocalFolder(society.folder / "audiences"))
    await guest.host_agents([AGENTS - 1], ["agent-chat"])
    await society.broadcast("all", [0], [{"n": 0}])
    await failed(society.log_writer)
    for n in range(1, 5):
        await society.messagers[0].move_agents([n], to="east")
        await society.broadcast("all", [0], [{"n": n}])
    await guest.fetch_messages(timeout=WAIT_S)
    await guest.close()
    society.log_writer = await society.writer()
    log = await society.log()
    assert Counter(rows_of(log.query(expand=True))) == society.fates
    assert log.balance(expand=True).fates["delivered"] == 5 * (AGENTS - LOST)
    assert not await society.store.log.agent_digests()


async def test_a_set_of_agents_that_the_server_has_is_not_written_again(society):
    first, second, other = (AgentSet.of(range(n, n + 3)) for n in (1000, 2000, 3000))
    await society.store.keep_agents({b"one": first})
    await society.store.keep_agents({b"one": second, b"other": other})
    assert [await society.store.log.agents(digest) for digest in (b"one", b"other")] == [first, other]


async def test_broadcasts_to_more_audiences_than_are_kept_in_memory_have_their_hearers(society, monkeypatch):
    monkeypatch.setattr(hearers, "_KEPT", 1)
    names = [f"circle-{n}" for n in range(4)]
    for name in names:
        await society.gather(name, [0, 1, 40])
    await asyncio.gather(*(society.messagers[0].broadcast_columns([0], name, [{"n": 1}]) for name in names))
    assert (await society.log()).balance(expand=True).fates["delivered"] == 2 * len(names)
