"""Standing verdicts: rules that look at ids alone are granted to messagers, and no change of them is escaped."""

import asyncio

import pytest
from support.contracts import WAIT_S, fetch_all, until
from support.delegation import Actor, Throne

from ray_messaging import ConnectionFailed, InterceptorUnavailable, MailboxFull, Outgoing
from ray_messaging.addressing.channels import Keys
from ray_messaging.common.backoff import RetryPolicy
from ray_messaging.interception.client import delegated_rules as granted
from ray_messaging.interception.rules import AllowGraph, BlackList, MaxLength
from ray_messaging.interception.server import rule_delegation as standing
from ray_messaging.interception.server.interceptor import Interceptor
from ray_messaging.interception.wire.rule_snapshot import SnapshotRequest, decode_snapshot, encode_snapshot_request
from ray_messaging.transports.memory import MemoryServer


@pytest.fixture(params=["memory", "valkey", pytest.param("redis", marks=pytest.mark.long)])
def server(request):
    return MemoryServer() if request.param == "memory" else request.getfixturevalue(f"{request.param}_config")


@pytest.fixture(autouse=True)
def calm(monkeypatch):
    """Grant at once, and for long: what a loaded machine does to leases is not asked here."""
    monkeypatch.setattr(standing, "CALM_S", 0.0)
    monkeypatch.setattr(granted, "LEASE_S", 60.0)
    monkeypatch.setattr(granted, "SNAPSHOT_RETRY", RetryPolicy(0.0, 0.0))


@pytest.fixture
async def throne(server, exp_id, messagers):
    await messagers()  # the memory's experiment is there from then on
    made = Throne(server, exp_id)
    yield made
    await made.close()


@pytest.fixture
async def actor(throne, exp_id):
    made = await Actor(throne, exp_id).begin(BlackList([(-1, None)]))
    yield made
    await made.close()


async def send(sender, *pairs):
    """Send a message for each pair in one batch; return the fates' first letters."""
    receipts = await sender.send_messages([Outgoing.to_agent(to, {}, from_id=by) for by, to in pairs])
    return "".join(fate[0] for fate in receipts.fates)


async def passed(sender, pair=(1, 1)):
    """Send until a message has passed by granted rules; return how many were sent."""
    before, sent = sender.stats()["delegated"], 0
    async with asyncio.timeout(WAIT_S):
        while sender.stats()["delegated"] == before:
            assert await send(sender, pair) == "d"
            sent += 1
    return sent


async def test_what_passes_by_granted_rules_is_not_asked_about(actor, messagers):
    sender, receiver = await messagers(actor), await messagers(host=[1, 2])
    await passed(sender)
    asked, before = actor.asked, sender.stats()["delegated"]
    for _ in range(20):
        assert await send(sender, (1, 1), (1, 2), (None, 1)) == "ddd"
    assert (actor.asked, sender.stats()["delegated"]) == (asked, before + 60)
    assert sender.stats()["interceptor"] == "lane"
    assert len(await fetch_all(receiver, 60)) >= 60


async def test_a_batch_with_a_row_that_would_be_blocked_is_asked_about(actor, messagers):
    sender, _ = await messagers(actor), await messagers(host=[1])
    await passed(sender)
    asked, before = actor.asked, sender.stats()["delegated"]
    receipts = await sender.send_messages([Outgoing.to_agent(1, {}, from_id=by) for by in (1, -1)])
    assert [(receipt.fate, receipt.rule) for receipt in receipts] == [("delivered", None), ("blocked", "black_list")]
    assert receipts[1].reason == "agent -1 may not write to any agent"
    assert (actor.asked, sender.stats()["delegated"]) == (asked + 1, before)
    assert (actor.interceptor.blocked, dict(actor.interceptor.violations)) == (1, {-1: 1})
    assert await send(sender, (1, 1)) == "d"
    assert actor.asked == asked + 1


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
        # All four held a grant of the rules as they were.
        assert await asyncio.gather(*(send(sender, (7, 1)) for sender in senders)) == ["b"] * 4
        told["forbidden"] = None
        await actor.interceptor.change(lambda: listed.remove((7, None)))
        told["rounds"] += 1
        await receiver.fetch_messages()
    await asyncio.wait_for(asyncio.gather(*flooding), WAIT_S)
    assert told["escaped"] == 0


async def test_a_change_returns_only_when_the_server_knows(actor, throne, messagers):
    sender, _ = await messagers(actor), await messagers(host=[1])
    await passed(sender)
    throne.gate.clear()
    change = asyncio.create_task(actor.interceptor.change(lambda: actor.interceptor.black_list.add((7, 1))))
    await asyncio.wait({change}, timeout=0.05)
    assert not change.done()
    throne.gate.set()
    await change
    assert await send(sender, (7, 1)) == "b"


async def test_a_change_that_cannot_be_told_raises(actor, throne, messagers):
    sender, _ = await messagers(actor), await messagers(host=[1])
    await passed(sender)
    throne.failure = RuntimeError("broken")
    with pytest.raises(RuntimeError, match="broken"):
        await actor.interceptor.change(lambda: actor.interceptor.black_list.add((7, 1)))
    throne.failure = None
    await actor.interceptor.change(lambda: None)  # what is owed is told by the next one
    assert await send(sender, (7, 1)) == "b"


@pytest.mark.parametrize("failure", [ConnectionFailed("away", host="h", port=1), MailboxFull("full", mailbox="")])
async def test_a_change_waits_for_a_server_that_is_away(actor, throne, messagers, monkeypatch, failure):
    monkeypatch.setattr(standing, "RULE_STATE_RETRY", RetryPolicy(0.001, 0.001))
    sender, _ = await messagers(actor), await messagers(host=[1])
    await passed(sender)
    throne.failure = failure
    change = asyncio.create_task(actor.interceptor.change(lambda: actor.interceptor.black_list.add((7, 1))))
    await asyncio.wait({change}, timeout=0.05)
    assert await send(sender, (1, 1)) == "d"
    await (
        sender.engine.accumulator.verdict_client._delegated_rules.close()
    )  # it asks for the new rules, and gets none before the old ended
    assert await send(sender, (1, 1)) == "d"
    await asyncio.wait({change}, timeout=0.05)
    assert not change.done()
    throne.failure = None
    await change
    assert await send(sender, (7, 1)) == "b"


@pytest.mark.parametrize("first", ["change", "end"])
async def test_a_grant_under_way_does_not_hide_a_change(actor, throne, messagers, monkeypatch, first):
    monkeypatch.setattr(standing, "RULE_STATE_RETRY", RetryPolicy(0.001, 0.001))
    sender, _ = await messagers(actor), await messagers(host=[1])
    await passed(sender)
    throne.failure = ConnectionFailed("away", host="h", port=1)
    asked = actor.interceptor.snapshot(
        encode_snapshot_request(SnapshotRequest(0))
    )  # another messager's, which is answered in a moment
    change = asyncio.create_task(actor.interceptor.change(lambda: actor.interceptor.black_list.add((7, 1))))
    if first == "end":
        await asyncio.sleep(0)
    granting = asyncio.create_task(asked)
    await asyncio.wait({change}, timeout=0.05)
    assert not change.done()
    throne.failure = None
    await change
    assert await send(sender, (7, 1)) == "b"
    assert decode_snapshot(await granting).number == 0


async def test_changes_that_nobody_holds_a_grant_of_cost_the_server_nothing(actor, throne, messagers):
    sender, _ = await messagers(actor), await messagers(host=[1])
    for pair in ((7, 1), (8, 1)):
        await actor.interceptor.change(lambda pair=pair: actor.interceptor.black_list.add(pair))
    assert throne.written == []
    await passed(sender)
    written = len(throne.written)
    for pair in ((9, 1), (10, 1)):
        await actor.interceptor.change(lambda pair=pair: actor.interceptor.black_list.add(pair))
    assert len(throne.written) == written + 1
    await actor.interceptor.change(actor.interceptor.new_round)
    await actor.interceptor.change(actor.interceptor.violations.clear)
    assert len(throne.written) == written + 1


async def test_rules_changed_past_the_interceptor_are_noticed(actor, messagers):
    sender, _ = await messagers(actor), await messagers(host=[1])
    await passed(sender)
    number = actor.interceptor.delegation.number
    actor.interceptor.black_list.add((7, 1))  # as a rule of one's own may
    assert actor.interceptor.delegation.offer != number
    await actor.interceptor.change(lambda: None)
    assert await send(sender, (7, 1)) == "b"


async def test_a_write_that_comes_late_brings_nothing_back(actor, throne, messagers):
    sender, _ = await messagers(actor), await messagers(host=[1])
    await passed(sender)
    old = actor.interceptor.delegation.number
    await actor.interceptor.change(lambda: actor.interceptor.black_list.add((7, 1)))
    assert await throne.stand(actor.interceptor.epoch, old)  # an attempt over an older connection
    sender.engine.accumulator.verdict_client._delegated_rules._until = 0.0
    assert await send(sender, (7, 1)) == "b"
    successor = await throne.enthrone()
    assert not await throne.stand(actor.interceptor.epoch, old + 5)
    assert successor > actor.interceptor.epoch


async def test_a_server_that_went_back_to_an_older_number_gets_the_newer_one_again(actor, throne, messagers, exp_id):
    sender, _ = await messagers(actor), await messagers(host=[1])
    await passed(sender)
    old = actor.interceptor.delegation.number
    await actor.interceptor.change(lambda: actor.interceptor.black_list.add((7, 1)))
    if throne.link is None:
        throne.server.experiments[exp_id].standing = old
    else:
        await throne.link.command("HSET", Keys(exp_id).meta, "standing", old)
    await actor.interceptor.renew()
    if throne.link is None:
        now = throne.server.experiments[exp_id].standing
    else:
        now = int(await throne.link.command("HGET", Keys(exp_id).meta, "standing"))
    assert now == actor.interceptor.delegation.number > old


async def test_a_successor_ends_what_was_granted(actor, messagers):
    sender, _ = await messagers(actor), await messagers(host=[1])
    await passed(sender)
    old = actor.interceptor
    await actor.begin(BlackList([(1, 1)]))  # the old one lives on, and its lane is open
    assert await send(sender, (1, 1), (2, 1)) == "bd"
    await old.close()


async def test_an_interceptor_that_was_fenced_lets_nothing_pass(actor, throne, messagers):
    sender, _ = await messagers(actor, interceptor_timeout_s=1.0), await messagers(host=[1])
    await passed(sender)
    await throne.enthrone()
    with pytest.raises(InterceptorUnavailable):
        await sender.send_message(sender.get_agent_chat_channel(1), {}, 1)


async def test_a_lane_that_is_cut_ends_the_grant_at_once(actor, messagers):
    sender, _ = await messagers(actor, interceptor_timeout_s=WAIT_S), await messagers(host=[1])
    await passed(sender)
    lane, actor.address = sender.engine.accumulator.verdict_client._lane, None
    await actor.server.close()

    async def noticed():
        return not lane.alive

    await until(noticed)
    before = sender.stats()["delegated"]
    sending = asyncio.create_task(send(sender, (1, 1)))
    await asyncio.wait({sending}, timeout=0.05)
    assert not sending.done()
    await actor.begin()
    assert await sending == "d"
    assert sender.stats()["delegated"] == before


async def test_an_interceptor_that_stands_still_stops_its_senders(actor, messagers, monkeypatch):
    monkeypatch.setattr(granted, "LEASE_S", 0.25)
    sender, receiver = await messagers(actor), await messagers(host=[1])
    await passed(sender)
    actor.silent = True
    while not actor.questions.empty():
        actor.questions.get_nowait()

    async def go_on():
        while True:
            await send(sender, (1, 1))
            await receiver.fetch_messages()

    going = asyncio.create_task(go_on())
    async with asyncio.timeout(WAIT_S):
        await actor.questions.get()  # the lease is over: it is asked, and does not answer
    before = sender.stats()["delegated"]
    await asyncio.wait({going}, timeout=0.05)
    assert sender.stats()["delegated"] == before
    going.cancel()
    await asyncio.gather(going, return_exceptions=True)
    actor.silent = False
    for caller in list(actor.server.connections):  # as when its process has died
        caller.refuse("closing")
    assert await send(sender, (1, 1)) == "d"


async def test_the_lease_is_renewed_while_messages_pass_and_by_answers(actor, messagers, monkeypatch):
    monkeypatch.setattr(granted, "_ASK_AGAIN_S", 0.0)
    sender, receiver = await messagers(actor), await messagers(host=[1])
    await passed(sender)
    grant = sender.engine.accumulator.verdict_client._delegated_rules

    async def renewed(until):
        await send(sender, (1, 1))
        await receiver.fetch_messages()
        return grant._until > until

    until_now = grant._until
    await until(lambda: renewed(until_now))
    grant._until, before = 0.0, sender.stats()["delegated"]
    assert await send(sender, (1, 1)) == "d"  # asked: its answer renews
    assert sender.stats()["delegated"] == before
    assert await send(sender, (1, 1)) == "d"
    assert sender.stats()["delegated"] == before + 1


async def test_what_has_passed_is_counted(actor, messagers):
    sender, receiver = await messagers(actor), await messagers(host=[1])
    count = await passed(sender)
    for _ in range(50):
        assert await send(sender, (1, 1), (2, 1)) == "dd"
    count += 100

    async def counted():
        return actor.interceptor.judged == count

    await until(counted)  # soon after the last, nobody sends any more
    assert await send(sender, (1, 1)) == "d"
    await actor.interceptor.change(lambda: actor.interceptor.black_list.add((7, 1)))
    assert await send(sender, (1, 1), (7, 1)) == "db"  # what passed, and is asked about after all, counts once
    count += 3
    count += await passed(sender)
    await sender.close()
    assert actor.interceptor.judged == count
    await receiver.fetch_messages()


async def test_what_waits_and_passes_twice_counts_once(actor, messagers):
    sender, receiver = await messagers(actor), await messagers(host=[1], mailbox_messages=10)
    count, waiting = await passed(sender) + 30, []
    begun = sender.engine.accumulator.batches

    async def posted(number):
        return sender.engine.accumulator.batches >= begun + number

    for number in range(1, 31):  # a batch each, of which most wait for room
        waiting.append(asyncio.create_task(send(sender, (1, 1))))
        await until(lambda number=number: posted(number))
    await actor.interceptor.change(lambda: actor.interceptor.black_list.add((7, 1)))
    async with asyncio.timeout(WAIT_S):
        while not all(fate.done() for fate in waiting):
            await receiver.fetch_messages()
    await sender.engine.accumulator.verdict_client._delegated_rules.close()
    assert actor.interceptor.judged == count


async def test_a_transaction_passes_by_granted_rules_and_escapes_no_change(actor, messagers):
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


async def test_other_rules_are_asked_about_each_batch(actor, messagers):
    sender, _ = await messagers(actor), await messagers(host=[1])
    await passed(sender)
    await actor.interceptor.change(lambda: actor.interceptor.rules.insert(MaxLength(20)))
    channel = sender.get_agent_chat_channel(1)
    before = sender.stats()["delegated"]
    for _ in range(3):
        assert (await sender.send_message(channel, {"text": "x" * 50}, 1)).rule == "max_length"
        assert await sender.send_message(channel, {}, 1)
    assert sender.stats()["delegated"] == before
    await actor.interceptor.change(lambda: actor.interceptor.rules.pop("max_length"))
    await passed(sender)
    graph = AllowGraph([(1, 1)])
    await actor.interceptor.change(lambda: actor.interceptor.rules.insert(graph))
    await passed(sender)
    assert await send(sender, (1, 1), (2, 1)) == "db"


async def test_many_pairs_are_granted_too(actor, messagers):
    sender, _ = await messagers(actor), await messagers(host=[1])
    await actor.interceptor.change(lambda: actor.interceptor.black_list.set([(by, 1) for by in range(1000, 4000)]))
    await passed(sender)
    before = sender.stats()["delegated"]
    assert await send(sender, (3999, 1), (4000, 1)) == "bd"
    assert await send(sender, (999, 1), (4000, 1)) == "dd"
    assert sender.stats()["delegated"] == before + 2


async def test_who_does_not_want_them_gets_none(actor, messagers):
    sender, _ = await messagers(actor, delegate_rules=False), await messagers(host=[1])
    for number in range(1, 5):
        assert await send(sender, (1, 1)) == "d"
        assert actor.asked == number
    assert sender.stats()["delegated"] == 0


async def test_an_interceptor_in_this_process_grants_nothing(messagers):
    sender, _ = await messagers(Interceptor("x")), await messagers(host=[1])
    assert await send(sender, (1, 1)) == "d"
    assert sender.stats()["delegated"] == 0
