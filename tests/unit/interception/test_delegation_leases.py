"""Leases of delegated rules: how long they are, what renews and what ends them, and snapshots that come late."""

import asyncio
from contextlib import AsyncExitStack
from functools import partial

import pytest
from support.contracts import WAIT_S, until
from support.delegation import Actor, InterceptorEpoch, delegate_at_once, passed, send
from support.interceptors import batch

from ray_messaging import ConnectionFailed, InterceptorUnavailable, MailboxFull, rules
from ray_messaging.common.backoff import RetryPolicy
from ray_messaging.interception import delegated_rules
from ray_messaging.interception.rule_snapshot import SnapshotRequest, decode_snapshot, encode_snapshot_request
from ray_messaging.interception.server import rule_delegation
from ray_messaging.interception.verdict_client import RemoteVerdictClient


@pytest.fixture(autouse=True)
def calm(monkeypatch):
    """Delegate at once."""
    delegate_at_once(monkeypatch)


@pytest.fixture
async def interceptor_epoch(server, exp_id):
    made = InterceptorEpoch(server, exp_id)
    yield made
    await made.close()


@pytest.fixture
async def actor(interceptor_epoch, exp_id):
    made = await Actor(interceptor_epoch, exp_id).begin(rules.BlackList([(-1, None)]))
    yield made
    await made.close()


@pytest.fixture
async def sender(actor, messagers):
    """Open a sender to which the rules are delegated; agent 1 hears it."""
    found, _ = await messagers(actor), await messagers(host=[1])
    await passed(found)
    return found


class Leases:
    """Lengths of the next leases, one after the other; then long ones."""

    def __init__(self, *lengths_s):
        self.lengths_s = list(lengths_s)

    def __rmul__(self, stretch):
        return self

    def __radd__(self, asked_at):
        return asked_at + (self.lengths_s.pop(0) if self.lengths_s else 60.0)


async def test_broadcasts_pass_whole_though_answers_come_late(interceptor_epoch, exp_id, monkeypatch):
    leases = Leases(0.0, 0.0, 0.0)
    monkeypatch.setattr(delegated_rules, "LEASE_S", leases)
    actor = await Actor(interceptor_epoch, exp_id).begin()
    client = RemoteVerdictClient(actor, WAIT_S, exp_id, delegate_rules=True)
    hasty = RemoteVerdictClient(actor, 1.0, exp_id, delegate_rules=True)
    async with AsyncExitStack() as stack:
        for each in (actor, client, hasty):
            stack.push_async_callback(each.close)
        assert await client.pass_whole(batch([{}])) is not None
        assert leases.lengths_s == []
        monkeypatch.setattr(delegated_rules, "LEASE_S", 0.0)
        with pytest.raises(InterceptorUnavailable, match="came too late"):
            await hasty.pass_whole(batch([{}]))


async def test_broadcasts_do_not_pass_whole_where_there_are_rules(actor, exp_id):
    client = RemoteVerdictClient(actor, WAIT_S, exp_id, delegate_rules=True)
    assert await client.pass_whole(batch([{}])) is None
    await client.close()


FAILURES = [None, ConnectionFailed("away", host="h", port=1), MailboxFull("full", mailbox="")]


@pytest.mark.parametrize("failure", FAILURES, ids=["slow", "away", "full"])
async def test_a_change_returns_only_when_the_server_has_it(actor, interceptor_epoch, sender, monkeypatch, failure):
    monkeypatch.setattr(rule_delegation, "RULE_STATE_RETRY", RetryPolicy(0.001, 0.001))
    interceptor_epoch.failure = failure
    if failure is None:
        interceptor_epoch.gate.clear()
    change = asyncio.create_task(actor.interceptor.change(lambda: actor.interceptor.black_list.add((7, 1))))
    await asyncio.wait({change}, timeout=0.05)
    assert await send(sender, (1, 1)) == "d"
    # It requests the new rules, and gets none before the old lease ends.
    await sender.engine.accumulator.send_loop.verdict_client._delegated_rules.close()
    assert await send(sender, (1, 1)) == "d"
    await asyncio.wait({change}, timeout=0.05)
    assert not change.done()
    interceptor_epoch.failure = None
    interceptor_epoch.gate.set()
    await change
    assert await send(sender, (7, 1)) == "b"


@pytest.mark.parametrize("first", ["change", "end"])
async def test_a_snapshot_in_flight_does_not_hide_a_change(actor, interceptor_epoch, sender, monkeypatch, first):
    monkeypatch.setattr(rule_delegation, "RULE_STATE_RETRY", RetryPolicy(0.001, 0.001))
    interceptor_epoch.failure = ConnectionFailed("away", host="h", port=1)
    asked = actor.interceptor.snapshot(
        encode_snapshot_request(SnapshotRequest(0))
    )  # another messager's request, answered at once
    change = asyncio.create_task(actor.interceptor.change(lambda: actor.interceptor.black_list.add((7, 1))))
    if first == "end":
        await asyncio.sleep(0)
    granting = asyncio.create_task(asked)
    await asyncio.wait({change}, timeout=0.05)
    assert not change.done()
    interceptor_epoch.failure = None
    await change
    assert await send(sender, (7, 1)) == "b"
    assert decode_snapshot(await granting).number == 0


async def test_a_late_write_does_not_restore_an_older_number(actor, interceptor_epoch, sender):
    old = actor.interceptor.delegation.number
    await actor.interceptor.change(lambda: actor.interceptor.black_list.add((7, 1)))
    assert await interceptor_epoch.advance_delegation(actor.interceptor.epoch, old)  # an attempt on an older connection
    sender.engine.accumulator.send_loop.verdict_client._delegated_rules._until = 0.0
    assert await send(sender, (7, 1)) == "b"
    successor = await interceptor_epoch.take()
    assert not await interceptor_epoch.advance_delegation(actor.interceptor.epoch, old + 5)
    assert successor > actor.interceptor.epoch


async def test_a_silent_interceptor_leaves_the_lease_and_a_cut_lane_ends_it_at_once(actor, messagers, monkeypatch):
    monkeypatch.setattr(delegated_rules, "_ASK_AGAIN_S", 0.0)
    monkeypatch.setattr(delegated_rules, "_PATIENCE_S", 0.05)
    sender, _ = await messagers(actor, interceptor_timeout_s=WAIT_S), await messagers(host=[1])
    await passed(sender)
    actor.silent, grant = True, sender.engine.accumulator.send_loop.verdict_client._delegated_rules

    async def asked_in_vain(since):
        assert await send(sender, (1, 1)) == "d"
        return grant._asking is None and grant._asked_at > since

    await until(partial(asked_in_vain, grant._asked_at))
    lease = grant._until
    await until(partial(asked_in_vain, grant._asked_at))
    assert grant._until == lease  # only an answer renews it
    lane, actor.address = sender.engine.accumulator.send_loop.verdict_client._lane, None
    await actor.server.close()
    await until(lambda: not lane.alive)
    before = sender.stats()["delegated"]
    sending = asyncio.create_task(send(sender, (1, 1)))
    await asyncio.wait({sending}, timeout=0.05)
    assert not sending.done()
    actor.silent = False
    await actor.begin()
    assert await sending == "d"
    assert sender.stats()["delegated"] == before


async def test_the_lease_is_renewed_by_passing_messages_and_by_answers(sender, monkeypatch):
    monkeypatch.setattr(delegated_rules, "_ASK_AGAIN_S", 0.0)
    grant = sender.engine.accumulator.send_loop.verdict_client._delegated_rules

    async def renewed(until):
        await send(sender, (1, 1))
        return grant._until > until

    until_now = grant._until
    await until(lambda: renewed(until_now))
    grant._until, before = 0.0, sender.stats()["delegated"]
    assert await send(sender, (1, 1)) == "d"  # asked: its answer renews
    assert sender.stats()["delegated"] == before
    assert await send(sender, (1, 1)) == "d"
    assert sender.stats()["delegated"] == before + 1


@pytest.mark.parametrize(("messagers_there", "stretch"), [(32, 1), (320, 10), (100_000, 20)])
async def test_many_messagers_ask_less_often(actor, messagers, messagers_there, stretch):
    actor.messagers = messagers_there
    sender, _ = await messagers(actor), await messagers(host=[1])
    began = asyncio.get_running_loop().time()
    await passed(sender)
    grant = sender.engine.accumulator.send_loop.verdict_client._delegated_rules
    ended = asyncio.get_running_loop().time()
    assert began + 60.0 * stretch <= grant._until <= ended + 60.0 * stretch


async def test_a_message_checked_twice_counts_once(actor, messagers):
    sender, receiver = await messagers(actor), await messagers(host=[1], mailbox_messages=10)
    count, waiting = await passed(sender) + 30, []
    begun = sender.engine.accumulator.send_loop.batches

    async def posted(number):
        return sender.engine.accumulator.send_loop.batches >= begun + number

    for number in range(1, 31):  # a batch each; most wait for room
        waiting.append(asyncio.create_task(send(sender, (1, 1))))
        await until(lambda number=number: posted(number))
    await actor.interceptor.change(lambda: actor.interceptor.black_list.add((7, 1)))
    async with asyncio.timeout(WAIT_S):
        while not all(fate.done() for fate in waiting):
            await receiver.fetch_messages()
    await sender.engine.accumulator.send_loop.verdict_client._delegated_rules.close()
    assert actor.interceptor.judged == count
