"""Delegated rules that senders hold: what ends them, and what does not; snapshots that come late."""

import asyncio
import time
from contextlib import AsyncExitStack

import pytest
from support.contracts import WAIT_S, until
from support.delegation import Actor, InterceptorEpoch, delegate_at_once, passed, send
from support.interceptors import batch

from ray_messaging import rules
from ray_messaging.common.backoff import RetryPolicy
from ray_messaging.errors import ConnectionFailed, MailboxFull
from ray_messaging.interception import delegated_rules
from ray_messaging.interception.interceptor import rule_delegation
from ray_messaging.interception.rule_snapshot import SnapshotRequest, decode_snapshot, encode_snapshot_request
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


async def test_broadcasts_pass_whole_where_there_are_no_rules(interceptor_epoch, exp_id):
    actor = await Actor(interceptor_epoch, exp_id).begin()
    client = RemoteVerdictClient(actor, WAIT_S, exp_id, delegate_rules=True)
    async with AsyncExitStack() as stack:
        for each in (actor, client):
            stack.push_async_callback(each.close)
        assert await client.pass_whole(batch([{}])) is not None
        asked = actor.asked
        assert await client.pass_whole(batch([{}])) is not None
        assert actor.asked == asked


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
    # It requests the new rules, and gets none before the old number is revoked.
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
    assert await send(sender, (7, 1)) == "b"
    successor = await interceptor_epoch.take()
    assert not await interceptor_epoch.advance_delegation(actor.interceptor.epoch, old + 5)
    assert successor > actor.interceptor.epoch


async def test_a_sender_that_has_the_rules_asks_nothing_however_long_it_pauses(actor, sender):
    actor.silent, asked = True, actor.asked  # as a suspended interceptor: whoever asks it waits
    for pause_s in (0.0, 0.15, 0.3):  # a messager held rules for 0.1 s when they ended by time
        await asyncio.sleep(pause_s)
        assert await send(sender, (1, 1)) == "d"
    assert (actor.asked, len(actor.lane.calls)) == (asked, 1)


@pytest.mark.parametrize("senders", [1, 5])
async def test_a_change_reaches_the_next_send_of_each_who_paused_over_its_own_lane(actor, messagers, senders):
    several = [await messagers(actor) for _ in range(senders)]
    await messagers(host=[1])
    for sender in several:
        await passed(sender)
    for number in range(7, 10):
        opened = len(actor.lane.calls)
        await actor.interceptor.change(lambda number=number: actor.interceptor.black_list.add((number, 1)))
        # The first send after the change tells each that its number is old.
        fates = await asyncio.gather(*(send(sender, (number, 1), (1, 1)) for sender in several))
        assert fates == ["bd"] * senders
        for sender in several:
            await passed(sender)  # the new rules are delegated, too
        assert len(actor.lane.calls) == opened == senders


async def test_a_change_and_a_successor_while_a_sender_pauses(actor, sender):
    old, opened = actor.interceptor, len(actor.lane.calls)
    await actor.interceptor.change(lambda: actor.interceptor.black_list.add((7, 1)))
    await actor.begin(rules.BlackList([(8, 1)]))  # the old one still runs, with an open lane
    assert await send(sender, (8, 1), (2, 1)) == "bd"
    assert len(actor.lane.calls) == opened + 1  # the server told the sender that there is another interceptor
    await old.close()


@pytest.mark.parametrize("behind_ns", [0, 7200 * 10**9], ids=["same clock", "two hours behind"])
async def test_a_successors_epoch_is_above_all_numbers_of_its_predecessor(actor, sender, monkeypatch, behind_ns):
    now = time.time_ns()
    monkeypatch.setattr("ray_messaging.transports.transport_values.time.time_ns", lambda: now - behind_ns)
    for _ in range(3):
        old = actor.interceptor
        assert old.delegation.number > old.epoch
        await actor.begin(rules.BlackList([(-1, None)]))
        await passed(sender)
        assert actor.interceptor.epoch > old.delegation.number
        await old.close()


async def test_a_cut_lane_ends_the_use_of_delegated_rules_at_once(actor, sender):
    client = sender.engine.accumulator.send_loop.verdict_client
    lane, actor.address, before = client._lane, None, sender.stats()["delegated"]
    await actor.server.close()
    await until(lambda: not lane.alive)
    sending = asyncio.create_task(send(sender, (1, 1)))
    await asyncio.wait({sending}, timeout=0.05)
    assert not sending.done()
    await actor.begin()
    assert await sending == "d"
    assert sender.stats()["delegated"] == before


async def test_a_report_without_an_answer_leaves_the_rules(actor, sender, monkeypatch):
    monkeypatch.setattr(delegated_rules, "_PATIENCE_S", 0.01)
    held = sender.engine.accumulator.send_loop.verdict_client._delegated_rules
    actor.silent, asked_at, before = True, held._asked_at, sender.stats()["delegated"]
    assert await send(sender, (1, 1)) == "d"
    await until(lambda: held._asked_at > asked_at and held._asking is None)
    assert await send(sender, (1, 1)) == "d"
    assert sender.stats()["delegated"] == before + 2


@pytest.mark.parametrize(("messagers_there", "stretch"), [(32, 1), (320, 10), (100_000, 20)])
async def test_many_messagers_report_less_often(actor, messagers, messagers_there, stretch):
    actor.messagers = messagers_there
    sender, _ = await messagers(actor), await messagers(host=[1])
    await passed(sender)
    assert sender.engine.accumulator.send_loop.verdict_client._delegated_rules._stretch == stretch


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
