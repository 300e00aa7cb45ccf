"""Delegated rules: senders apply rules on ids themselves, and no send escapes a change of the rules."""

import asyncio

import pytest
from support.contracts import WAIT_S, fetch_all, until
from support.delegation import Actor, InterceptorEpoch, delegate_at_once, passed, send

from ray_messaging import Outgoing, rules
from ray_messaging.errors import Fenced, InterceptorUnavailable


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


async def test_messages_passed_by_delegated_rules_cause_no_question(actor, messagers):
    sender, receiver = await messagers(actor), await messagers(host=[1, 2])
    await passed(sender)
    asked, before = actor.asked, sender.stats()["delegated"]
    for _ in range(20):
        assert await send(sender, (1, 1), (1, 2), (None, 1)) == "ddd"
    assert (actor.asked, sender.stats()["delegated"]) == (asked, before + 60)
    assert sender.stats()["interceptor"] == "lane"
    assert len(await fetch_all(receiver, 60)) >= 60


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


async def test_a_change_that_cannot_be_stored_raises(actor, interceptor_epoch, sender):
    interceptor_epoch.failure = RuntimeError("broken")
    with pytest.raises(RuntimeError, match="broken"):
        await actor.interceptor.change(lambda: actor.interceptor.black_list.add((7, 1)))
    interceptor_epoch.failure = None
    await actor.interceptor.change(lambda: None)  # the next change stores this one, too
    assert await send(sender, (7, 1)) == "b"


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


async def test_a_server_restored_to_an_older_number_gets_the_newer_one(actor, interceptor_epoch, sender):
    old = actor.interceptor.delegation.number
    await actor.interceptor.change(lambda: actor.interceptor.black_list.add((7, 1)))
    link, meta = interceptor_epoch.link, interceptor_epoch.keys.meta
    await link.command("HSET", meta, "start:standing", old)
    await actor.interceptor.renew()
    assert int(await link.command("HGET", meta, "start:standing")) == actor.interceptor.delegation.number > old


async def test_a_successor_ends_earlier_delegations(actor, sender):
    old = actor.interceptor
    await actor.begin(rules.BlackList([(1, 1)]))  # the old one still runs, with an open lane
    assert await send(sender, (1, 1), (2, 1)) == "bd"
    await old.close()


async def test_a_successor_is_found_beside_a_fenced_interceptor_whose_lane_can_be_opened(actor, sender):
    old = actor.interceptor
    await actor.begin(rules.BlackList([(1, 1)]))
    old.fence(Fenced("it has a successor", name="interceptor", epoch=old.epoch))  # which it hears first
    assert await send(sender, (-1, 1), (1, 1)) == "db"
    await old.close()


async def test_a_fenced_interceptor_passes_nothing(actor, interceptor_epoch, messagers):
    sender, _ = await messagers(actor, interceptor_timeout_s=1.0), await messagers(host=[1])
    await passed(sender)
    await interceptor_epoch.take()
    with pytest.raises(InterceptorUnavailable):
        await sender.send_message(sender.get_agent_chat_channel(1), {}, 1)


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
    await actor.interceptor.change(lambda: actor.interceptor.rules.insert(rules.MaxLength(20)))
    before = sender.stats()["delegated"]
    for _ in range(3):
        assert (await sender.send(1, 1, {"text": "x" * 50})).rule == "max_length"
        assert await sender.send(1, 1, {})
    assert sender.stats()["delegated"] == before
    await actor.interceptor.change(lambda: actor.interceptor.rules.pop("max_length"))
    await passed(sender)
    graph = rules.AllowGraph([(1, 1)])
    await actor.interceptor.change(lambda: actor.interceptor.rules.insert(graph))
    await passed(sender)
    assert await send(sender, (1, 1), (2, 1)) == "db"


async def test_delegation_can_be_turned_off(actor, messagers):
    sender, _ = await messagers(actor, delegate_rules=False), await messagers(host=[1])
    for number in range(1, 5):
        assert await send(sender, (1, 1)) == "d"
        assert actor.asked == number
    assert sender.stats()["delegated"] == 0


async def test_senders_of_changed_rules_ask_over_the_lanes_that_they_have(actor, messagers):
    senders, _ = [await messagers(actor) for _ in range(4)], await messagers(host=[1])
    await asyncio.gather(*(passed(sender) for sender in senders))
    opened = len(actor.lane.calls)
    await actor.interceptor.change(lambda: actor.interceptor.black_list.add((7, None)))
    assert await asyncio.gather(*(send(sender, (7, 1)) for sender in senders)) == ["b"] * 4
    assert len(actor.lane.calls) == opened
