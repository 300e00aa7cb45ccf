"""Delegated rules: senders apply rules on ids themselves, and no send escapes a change of the rules."""

import asyncio
from contextlib import AsyncExitStack
from functools import partial

import pytest
from support.contracts import WAIT_S, fetch_all, until
from support.delegation import Actor, InterceptorEpoch
from support.interceptors import batch

from ray_messaging import ConnectionFailed, InterceptorUnavailable, MailboxFull, Outgoing
from ray_messaging.common.backoff import RetryPolicy
from ray_messaging.interception import delegated_rules
from ray_messaging.interception.rule_snapshot import SnapshotRequest, decode_snapshot, encode_snapshot_request
from ray_messaging.interception.rules import AllowGraph, BlackList, MaxLength
from ray_messaging.interception.server import rule_delegation
from ray_messaging.interception.verdict_client import RemoteVerdictClient


@pytest.fixture(autouse=True)
def calm(monkeypatch):
    """Delegate at once, with long leases: a loaded machine must not end them."""
    monkeypatch.setattr(rule_delegation, "CALM_S", 0.0)
    monkeypatch.setattr(delegated_rules, "LEASE_S", 60.0)
    monkeypatch.setattr(delegated_rules, "SNAPSHOT_RETRY", RetryPolicy(0.0, 0.0))


@pytest.fixture
async def interceptor_epoch(server, exp_id):
    made = InterceptorEpoch(server, exp_id)
    yield made
    await made.close()


@pytest.fixture
async def actor(interceptor_epoch, exp_id):
    made = await Actor(interceptor_epoch, exp_id).begin(BlackList([(-1, None)]))
    yield made
    await made.close()


async def send(sender, *pairs):
    """Send a message for each pair in one batch; return the fates' first letters."""
    receipts = await sender.send_messages([Outgoing.to_agent(to, {}, from_id=by) for by, to in pairs])
    return "".join(fate[0] for fate in receipts.fates)


async def passed(sender, pair=(1, 1)):
    """Send until a message has passed by delegated rules; return the number of sends."""
    before, sent = sender.stats()["delegated"], 0
    async with asyncio.timeout(WAIT_S):
        while sender.stats()["delegated"] == before:
            assert await send(sender, pair) == "d"
            sent += 1
    return sent


@pytest.fixture
async def sender(actor, messagers):
    """Open a sender to which the rules are delegated; agent 1 hears it."""
    found, _ = await messagers(actor), await messagers(host=[1])
    await passed(found)
    return found


async def test_messages_passed_by_delegated_rules_cause_no_question(actor, messagers):
    sender, receiver = await messagers(actor), await messagers(host=[1, 2])
    await passed(sender)
    asked, before = actor.asked, sender.stats()["delegated"]
    for _ in range(20):
        assert await send(sender, (1, 1), (1, 2), (None, 1)) == "ddd"
    assert (actor.asked, sender.stats()["delegated"]) == (asked, before + 60)
    assert sender.stats()["interceptor"] == "lane"
    assert len(await fetch_all(receiver, 60)) >= 60


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


async def test_a_batch_with_a_blocked_row_causes_a_question(actor, messagers):
    sender, _ = await messagers(actor), await messagers(host=[1])
    many = [(-1, None), *((by, 1) for by in range(1000, 4000))]
    await actor.interceptor.change(lambda: actor.interceptor.black_list.set(many))
    await passed(sender)
    asked, before = actor.asked, sender.stats()["delegated"]
    receipts = await sender.send_messages([Outgoing.to_agent(1, {}, from_id=by) for by in (1, -1)])
    assert [(receipt.fate, receipt.rule) for receipt in receipts] == [("delivered", None), ("blocked", "black_list")]
    assert receipts[1].reason == "agent -1 may not write to any agent"
    assert (actor.asked, sender.stats()["delegated"]) == (asked + 1, before)
    assert (actor.interceptor.blocked, dict(actor.interceptor.violations)) == (1, {-1: 1})
    assert await send(sender, (3999, 1), (4000, 1)) == "bd"
    assert await send(sender, (999, 1), (4000, 1)) == "dd"
    assert (actor.asked, sender.stats()["delegated"]) == (asked + 2, before + 2)


@pytest.mark.parametrize("rounds", [15, pytest.param(200, marks=pytest.mark.long)])
async def test_no_send_escapes_a_change_that_has_returned(actor, messagers, rounds):
    senders = [await messagers(actor) for _ in range(4)]
    receiver = await messagers(host=[1, 2])
    listed = actor.interceptor.black_list
    told = {"forbidden": None, "rounds": 0, "escaped": 0, "blocked": 0}

    async def flood(sender):
        while told["rounds"] < rounds:
            forbidden = told["forbidden"]
            fate = await send(sender, (7, 2))
            if forbidden is not None and told["forbidden"] == forbidden:
                told["escaped"] += fate != "b"
                told["blocked"] += 1
            await receiver.fetch_messages()

    flooding = [asyncio.create_task(flood(sender)) for sender in senders[:2]]
    for number in range(rounds):
        await asyncio.gather(*(passed(sender) for sender in senders))
        await actor.interceptor.change(lambda: listed.add((7, None)))
        told["forbidden"] = number
        # All four had the former rules delegated.
        assert await asyncio.gather(*(send(sender, (7, 1)) for sender in senders)) == ["b"] * 4
        told["forbidden"] = None
        await actor.interceptor.change(lambda: listed.remove((7, None)))
        told["rounds"] += 1
        await receiver.fetch_messages()
    await asyncio.wait_for(asyncio.gather(*flooding), WAIT_S)
    assert told["escaped"] == 0


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


async def test_a_change_that_cannot_be_stored_raises(actor, interceptor_epoch, sender):
    interceptor_epoch.failure = RuntimeError("broken")
    with pytest.raises(RuntimeError, match="broken"):
        await actor.interceptor.change(lambda: actor.interceptor.black_list.add((7, 1)))
    interceptor_epoch.failure = None
    await actor.interceptor.change(lambda: None)  # the next change stores this one, too
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


async def test_a_change_without_delegated_senders_costs_no_server_call(actor, interceptor_epoch, messagers):
    sender, _ = await messagers(actor), await messagers(host=[1])
    for pair in ((7, 1), (8, 1)):
        await actor.interceptor.change(lambda pair=pair: actor.interceptor.black_list.add(pair))
    assert interceptor_epoch.written == []
    await passed(sender)
    written = len(interceptor_epoch.written)
    for pair in ((9, 1), (10, 1)):
        await actor.interceptor.change(lambda pair=pair: actor.interceptor.black_list.add(pair))
    assert len(interceptor_epoch.written) == written + 1
    await actor.interceptor.change(actor.interceptor.new_round)
    await actor.interceptor.change(actor.interceptor.violations.clear)
    assert len(interceptor_epoch.written) == written + 1


async def test_rules_changed_in_place_are_noticed(actor, sender):
    number = actor.interceptor.delegation.number
    actor.interceptor.black_list.add((7, 1))  # a user's rule may do so
    assert actor.interceptor.delegation.offer != number
    await actor.interceptor.change(lambda: None)
    assert await send(sender, (7, 1)) == "b"


async def test_a_late_write_does_not_restore_an_older_number(actor, interceptor_epoch, sender):
    old = actor.interceptor.delegation.number
    await actor.interceptor.change(lambda: actor.interceptor.black_list.add((7, 1)))
    assert await interceptor_epoch.advance_delegation(actor.interceptor.epoch, old)  # an attempt on an older connection
    sender.engine.accumulator.send_loop.verdict_client._delegated_rules._until = 0.0
    assert await send(sender, (7, 1)) == "b"
    successor = await interceptor_epoch.take()
    assert not await interceptor_epoch.advance_delegation(actor.interceptor.epoch, old + 5)
    assert successor > actor.interceptor.epoch


async def test_a_server_restored_to_an_older_number_gets_the_newer_one(actor, interceptor_epoch, sender):
    old = actor.interceptor.delegation.number
    await actor.interceptor.change(lambda: actor.interceptor.black_list.add((7, 1)))
    link, meta = interceptor_epoch.link, interceptor_epoch.keys.meta
    await link.command("HSET", meta, "standing", old)
    await actor.interceptor.renew()
    assert int(await link.command("HGET", meta, "standing")) == actor.interceptor.delegation.number > old


async def test_a_successor_ends_earlier_delegations(actor, sender):
    old = actor.interceptor
    await actor.begin(BlackList([(1, 1)]))  # the old one still runs, with an open lane
    assert await send(sender, (1, 1), (2, 1)) == "bd"
    await old.close()


async def test_a_fenced_interceptor_passes_nothing(actor, interceptor_epoch, messagers):
    sender, _ = await messagers(actor, interceptor_timeout_s=1.0), await messagers(host=[1])
    await passed(sender)
    await interceptor_epoch.take()
    with pytest.raises(InterceptorUnavailable):
        await sender.send_message(sender.get_agent_chat_channel(1), {}, 1)


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


async def test_passed_messages_are_counted(actor, messagers):
    sender, receiver = await messagers(actor), await messagers(host=[1])
    count = await passed(sender)
    for _ in range(50):
        assert await send(sender, (1, 1), (2, 1)) == "dd"
    count += 100
    await until(lambda: actor.interceptor.judged == count)  # soon after the last send
    assert await send(sender, (1, 1)) == "d"
    await actor.interceptor.change(lambda: actor.interceptor.black_list.add((7, 1)))
    assert await send(sender, (1, 1), (7, 1)) == "db"  # a message that passed, and is then asked about, counts once
    count += 3
    count += await passed(sender)
    await sender.close()
    assert actor.interceptor.judged == count
    await receiver.fetch_messages()


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


async def test_a_transaction_passes_by_delegated_rules_and_escapes_no_change(actor, messagers):
    sender, _ = await messagers(actor, name="bank", host=[9]), await messagers(host=[1])

    async def transact(by):
        async with sender.transaction() as step:
            step.send_message(sender.get_agent_chat_channel(1), {}, by)
        return step.receipts.fates.tolist()

    await passed(sender)
    before = sender.stats()["delegated"]
    assert await transact(7) == ["delivered"]
    assert sender.stats()["delegated"] == before + 1
    await actor.interceptor.change(lambda: actor.interceptor.black_list.add((7, 1)))
    assert await transact(7) == ["blocked"]


async def test_other_rules_are_not_delegated(actor, sender):
    await actor.interceptor.change(lambda: actor.interceptor.rules.insert(MaxLength(20)))
    before = sender.stats()["delegated"]
    for _ in range(3):
        assert (await sender.send(1, 1, {"text": "x" * 50})).rule == "max_length"
        assert await sender.send(1, 1, {})
    assert sender.stats()["delegated"] == before
    await actor.interceptor.change(lambda: actor.interceptor.rules.pop("max_length"))
    await passed(sender)
    graph = AllowGraph([(1, 1)])
    await actor.interceptor.change(lambda: actor.interceptor.rules.insert(graph))
    await passed(sender)
    assert await send(sender, (1, 1), (2, 1)) == "db"


async def test_delegation_can_be_turned_off(actor, messagers):
    sender, _ = await messagers(actor, delegate_rules=False), await messagers(host=[1])
    for number in range(1, 5):
        assert await send(sender, (1, 1)) == "d"
        assert actor.asked == number
    assert sender.stats()["delegated"] == 0
