"""The checks of a server's health and of what it keeps: real servers, no Ray."""

import asyncio
import gc
import os
import pickle
import signal
import time

import pytest
import redis
from support.contracts import fetch_all, send_numbers, until

from ray_messaging import MessagingConfig, Outgoing
from ray_messaging.addressing.server_keys import Keys
from ray_messaging.observability.health.mailbox_checks import check_kept
from ray_messaging.observability.health.redis_checks import check_server
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


@pytest.mark.parametrize(
    ("setting", "found"),
    [
        (("appendfsync", "no"), {"server persistence": "warning"}),
        (("maxmemory", "1mb"), {"server memory": "critical"}),
        (("maxmemory-policy", "allkeys-lru"), {"server eviction": "warning"}),
    ],
)
def test_problems_of_a_server_are_found(redis_process, client, setting, found):
    client.config_set(*setting)
    assert problems(redis_process.config) == found


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


async def test_problems_of_a_mailbox_are_found(valkey_config, opener, exp_id):
    def found():
        return mailbox_problems(valkey_config, exp_id)

    def box():
        return ask_server(valkey_config, exp_id).kept.mailboxes[0]

    receiver = await opener(valkey_config, name="box", host=[1], mailbox_messages=10)
    sender = await opener(valkey_config)
    await send_numbers(sender, *range(8))
    filling = box()
    assert (filling.messages, filling.max_messages, filling.leased) == (8, 10, False)
    assert 0 <= filling.oldest_s < 30
    assert 0 < filling.lease_s <= MessagingConfig().lease_s
    assert found() == {"mailbox 'box'": "warning"}
    await fetch_all(receiver, 8)
    await receiver.ack()
    assert found() == {}
    await receiver.close()  # a named mailbox stays
    await until(lambda: box().lease_s is None)
    assert found() == {"mailbox 'box'": "warning"}
    await send_numbers(sender, 8)
    await sender.engine.transport.remove("box", None)
    assert found() == {"dead letters": "warning"}


async def test_uncounted_messages_are_found_waiting(valkey_config, opener, exp_id):
    sender = await opener(valkey_config)
    await opener(valkey_config, name="box", host=[1], inbox_messages=1)
    await sender.send_messages([Outgoing(sender.get_agent_chat_channel(1), {"n": n}) for n in range(3)])
    with client_of(valkey_config, Keys(exp_id)) as client:
        client.hset(Keys(exp_id).state("box"), "messages", -1)  # as after foreign frames
    (mailbox,) = ask_server(valkey_config, exp_id).kept.mailboxes
    assert (mailbox.messages, mailbox.oldest_s is not None) == (1, True)


def by_name(messager):
    return {loop.name: loop for loop in messager.engine.loops()}


async def test_idle_tasks_are_healthy_and_a_stuck_one_is_found(redis_process, opener):
    receiver = await opener(redis_process.config, name="box", host=[1], inbox_messages=1, lease_s=1.0)
    sender = await opener(redis_process.config)
    await sender.send_messages([Outgoing.to_agent(1, {"n": n}) for n in range(3)])
    assert {name: loop.alive for name, loop in by_name(receiver).items()} == dict.fromkeys(
        ("outbox", "reader", "lease"), True
    )
    assert not by_name(sender)["outbox"].busy
    await until(lambda: not by_name(receiver)["reader"].busy)  # until its inbox is full
    redis_process.pause()
    try:
        sending = asyncio.ensure_future(sender.send(None, 1, {"n": 3}))
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
    assert "taken over the name 'box'" in by_name(old)["reader"].error
    await until(lambda: not by_name(old)["lease"].alive)
    assert by_name(old)["outbox"].alive
