"""Unsafe servers are refused, and health checks find problems: real servers, no Ray."""

import asyncio
import gc
import os
import pickle
import signal
import time
from contextlib import ExitStack

import pytest
import redis
from support.contracts import until

from ray_messaging import Outgoing, RedisConfig
from ray_messaging.addressing.channels import Keys
from ray_messaging.config import MessagingConfig
from ray_messaging.errors import ConfigError, ServerRefused
from ray_messaging.messager import Messager
from ray_messaging.observability.health.mailbox_checks import check_kept
from ray_messaging.observability.health.server_checks import check_server
from ray_messaging.transports import server_probe as probe
from ray_messaging.transports.server_probe import ask_server, client_of


@pytest.fixture
def client(redis_process):
    with redis_process.client() as client:
        yield client


def problems(config, **options):
    findings = check_server(ask_server(config), **options)
    assert all(finding.remedy for finding in findings if finding.level != "ok")
    return {finding.what: finding.level for finding in findings if finding.level != "ok"}


async def opens(config, exp_id):
    async with Messager(config, exp_id):
        pass


# -- refused servers ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["allkeys-lru", "volatile-ttl"])
async def test_an_evicting_server_is_refused_unless_that_is_allowed(redis_process, client, exp_id, policy):
    config = redis_process.config
    client.config_set("maxmemory-policy", policy)
    await opens(config, exp_id)  # without a limit nothing is evicted
    client.config_set("maxmemory", "100mb")
    with pytest.raises(ConfigError, match="CONFIG SET maxmemory-policy noeviction") as caught:
        await opens(config, exp_id)
    assert policy in str(caught.value)
    assert "allow_eviction=True" in str(caught.value)
    assert not isinstance(caught.value, ServerRefused)
    await opens(config.model_copy(update={"allow_eviction": True}), exp_id)
    await opens(f"redis://:{config.password}@{config.server}:{config.port}?allow_eviction=1", exp_id)
    client.config_set("maxmemory-policy", "noeviction")
    await opens(config, exp_id)


def test_allow_eviction_in_a_url():
    assert RedisConfig.from_url("redis://host?allow_eviction=1").allow_eviction
    assert RedisConfig.from_url("unix:///redis.sock?db=2&allow_eviction=true").allow_eviction
    assert not RedisConfig.from_url("redis://host?allow_eviction=0").allow_eviction
    assert not RedisConfig.from_url("redis://host").allow_eviction
    with pytest.raises(ConfigError, match="allow_eviction=1"):
        RedisConfig.from_url("redis://host?allow_eviction=perhaps")


async def test_a_replica_is_refused_with_its_primarys_address(redis_process, client, exp_id):
    client.execute_command("REPLICAOF", "primary.example", "7")
    with pytest.raises(ConfigError, match=r"replica.*primary\.example:7"):
        await opens(redis_process.config, exp_id)
    assert problems(redis_process.config)["server role"] == "critical"
    client.execute_command("REPLICAOF", "NO", "ONE")
    await opens(redis_process.config, exp_id)


# -- findings -------------------------------------------------------------------------------------------------------


async def test_a_healthy_server_has_no_findings(server, exp_id):
    facts = ask_server(server, exp_id)
    assert facts.error == ""
    assert 0 < facts.round_trip_ms < 1000
    assert abs(facts.skew_s) < 60
    assert facts.settings["appendfsync"] in {"always", "everysec", "no"}
    assert facts.kept.mailboxes == []
    # Its clock is this machine's: the difference shows only the machine's load.
    findings = check_server(facts, embedded=True)  # it may leave disk writes to the system
    found = {finding.what for finding in findings if finding.level != "ok"}
    assert found <= {"server round trip", "server clock", "server memory"}, findings
    assert pickle.loads(pickle.dumps(facts)) == facts


def test_missing_persistence_is_found(redis_process, client):
    client.config_set("appendfsync", "no")
    assert problems(redis_process.config)["server persistence"] == "warning"
    client.config_set("appendonly", "no")
    found = [f for f in check_server(ask_server(redis_process.config)) if f.what == "server persistence"]
    assert [(finding.level, finding.value) for finding in found] == [("warning", "none")]
    client.config_set("save", "60 1")
    found = [f for f in check_server(ask_server(redis_process.config)) if f.what == "server persistence"]
    assert [finding.value for finding in found] == ["snapshots only"]


@pytest.mark.parametrize(("room", "level"), [(1.12, "warning"), (1.01, "critical")])
def test_nearly_full_memory_is_found(redis_process, client, room, level):
    client.setbit("filler", 8 * 50_000_000, 1)  # beside which what a connection takes is nothing
    used = client.info("memory")["used_memory"]
    client.config_set("maxmemory", int(used * room))
    assert problems(redis_process.config) == {"server memory": level}


def test_eviction_is_found(redis_process, client):
    client.config_set("maxmemory-policy", "allkeys-lru")
    assert problems(redis_process.config) == {"server eviction": "warning"}
    client.config_set("maxmemory", client.info("memory")["used_memory"] + 10_000_000)
    assert problems(redis_process.config)["server eviction"] == "critical"
    assert problems(redis_process.config, allow_eviction=True)["server eviction"] == "warning"
    for number in range(20):
        client.set(f"filler {number}", b"x" * 1_000_000)
    assert client.info("stats")["evicted_keys"] > 0
    assert problems(redis_process.config, allow_eviction=True)["server eviction"] == "critical"


def test_scarce_connections_are_found(redis_process, client):
    client.config_set("maxclients", 10)
    with ExitStack() as stack:
        for _ in range(7):
            stack.enter_context(redis_process.client()).ping()
        assert problems(redis_process.config) == {"server connections": "warning"}


def test_missing_rights_are_found(redis_process, client):
    client.execute_command("ACL", "SETUSER", "managed", "on", ">pw", "~rm:*", "&*", "+@all", "-config")
    config = redis_process.config.model_copy(update={"username": "managed", "password": "pw"})
    facts = ask_server(config, "exp")
    assert (facts.settings, facts.error) == ({}, "")
    assert problems(config) == {}
    client.execute_command("ACL", "SETUSER", "managed", "-info")
    facts = ask_server(config)
    assert facts.refused
    assert "'info'" in facts.error
    assert problems(config) == {"server": "critical"}


def test_a_dead_or_stopped_server_is_found(redis_process, monkeypatch):
    monkeypatch.setattr(probe.client_of, "__defaults__", (0.3,))
    os.kill(redis_process.pid, signal.SIGSTOP)
    try:
        assert problems(redis_process.config) == {"server": "critical"}
    finally:
        os.kill(redis_process.pid, signal.SIGCONT)
    redis_process.kill()
    assert problems(redis_process.config, embedded=True) == {"server": "critical"}


def test_the_process_collects_garbage_while_a_server_is_asked(redis_process, monkeypatch):
    ping, collects = redis.Redis.ping, []
    monkeypatch.setattr(redis.Redis, "ping", lambda client: collects.append(gc.isenabled()) or ping(client))
    assert ask_server(redis_process.config).round_trip_ms > 0
    assert all(collects)


def test_a_wrong_clock_is_found(redis_process, monkeypatch):
    class LateClock:
        perf_counter = staticmethod(time.perf_counter)

        @staticmethod
        def time():
            return time.time() - 100

    monkeypatch.setattr(probe, "time", LateClock)
    facts = ask_server(redis_process.config)
    assert 95 < facts.skew_s < 105
    assert problems(redis_process.config) == {"server clock": "warning"}


# -- mailboxes and tasks --------------------------------------------------------------------------------------------


def mailbox_problems(config, exp_id):
    findings = check_kept(ask_server(config, exp_id).kept)
    return {finding.what: finding.level for finding in findings if finding.level != "ok"}


@pytest.mark.parametrize(("sent", "level"), [(7, None), (8, "warning"), (10, "critical")])
async def test_a_filling_mailbox_is_found(valkey_config, opener, exp_id, sent, level):
    receiver = await opener(valkey_config, name="box", host=[1], mailbox_messages=10)
    sender = await opener(valkey_config)
    for number in range(sent):
        await sender.send_message(sender.get_agent_chat_channel(1), {"n": number})
    found = await asyncio.to_thread(mailbox_problems, valkey_config, exp_id)
    assert found == ({"mailbox 'box'": level} if level else {})
    (box,) = (await asyncio.to_thread(ask_server, valkey_config, exp_id)).kept.mailboxes
    assert (box.messages, box.max_messages, box.leased) == (sent, 10, False)
    assert 0 <= box.oldest_s < 30
    assert 0 < box.lease_s <= MessagingConfig().lease_s
    while len(await receiver.fetch_messages(timeout=10)):
        if receiver.engine.receiving.inbox.size == 0:
            break
    await receiver.ack()


async def test_unread_messages_and_dead_letters_are_found(valkey_config, opener, exp_id):
    receiver = await opener(valkey_config, name="box", host=[1])
    sender = await opener(valkey_config)
    await receiver.close()  # a named mailbox stays
    while (await asyncio.to_thread(ask_server, valkey_config, exp_id)).kept.mailboxes[0].lease_s is not None:
        pass
    assert await asyncio.to_thread(mailbox_problems, valkey_config, exp_id) == {"mailbox 'box'": "warning"}
    await sender.send_message(sender.get_agent_chat_channel(1), {"n": 1})
    assert await asyncio.to_thread(mailbox_problems, valkey_config, exp_id) == {"mailbox 'box'": "warning"}
    await sender.engine.transport.remove("box", None)
    assert await asyncio.to_thread(mailbox_problems, valkey_config, exp_id) == {"dead letters": "warning"}


async def test_uncounted_messages_are_found_waiting(valkey_config, opener, exp_id):
    sender = await opener(valkey_config)
    await opener(valkey_config, name="box", host=[1], inbox_messages=1)
    await sender.send_messages([Outgoing(sender.get_agent_chat_channel(1), {"n": n}) for n in range(3)])
    with client_of(valkey_config, Keys(exp_id)) as client:
        client.hset(Keys(exp_id).state("box"), "messages", -1)  # as after foreign frames
    (mailbox,) = (await asyncio.to_thread(ask_server, valkey_config, exp_id)).kept.mailboxes
    assert (mailbox.messages, mailbox.oldest_s is not None) == (1, True)


def by_name(messager):
    return {loop.name: loop for loop in messager.engine.loops()}


async def test_idle_tasks_are_healthy_and_a_stuck_one_is_found(redis_process, opener):
    receiver = await opener(redis_process.config, name="box", host=[1], inbox_messages=1, lease_s=1.0)
    sender = await opener(redis_process.config)
    channel = sender.get_agent_chat_channel(1)
    await sender.send_messages([Outgoing(channel, {"n": n}) for n in range(3)])
    assert {name: loop.alive for name, loop in by_name(receiver).items()} == dict.fromkeys(
        ("outbox", "reader", "lease"), True
    )
    assert not by_name(sender)["outbox"].busy
    await until(lambda: not by_name(receiver)["reader"].busy)  # until its inbox is full
    redis_process.pause()
    try:
        sending = asyncio.ensure_future(sender.send_message(channel, {"n": 3}))
        await until(lambda: by_name(sender)["outbox"].age_s > 0.2)
        assert by_name(sender)["outbox"].busy
        assert not by_name(receiver)["reader"].busy
        await until(lambda: by_name(receiver)["lease"].stuck)
        assert by_name(receiver)["lease"].alive
    finally:
        redis_process.resume()
    assert (await sending).fate == "delivered"
    assert not by_name(sender)["outbox"].busy


async def test_an_ended_task_is_found_with_its_reason(valkey_config, opener):
    old = await opener(valkey_config, name="box", host=[1], lease_s=0.1)
    await opener(valkey_config, name="box", host=[1])
    await until(lambda: not by_name(old)["reader"].alive)
    assert "taken over 'box'" in by_name(old)["reader"].error
    await until(lambda: not by_name(old)["lease"].alive)
    assert by_name(old)["outbox"].alive
