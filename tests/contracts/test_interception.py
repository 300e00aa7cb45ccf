"""An interceptor in this process: rules in order, failing rules block, each message is judged once."""

import asyncio

import pytest
from support.contracts import fetch_all, until
from support.interceptors import Foreign, interceptor_with
from support.patience import AT_ONCE_S
from support.rules import Only, Whole, allow

from ray_messaging import Outgoing, Rule, rules
from ray_messaging.errors import ConfigError, InterceptorUnavailable, RuleError


async def send(sender, pairs, **payload):
    """Send a message for each pair in one batch; return the fates' first letters."""
    receipts = await sender.send_messages([Outgoing.to_agent(to, payload, from_id=by) for by, to in pairs])
    return "".join(fate[0] for fate in receipts.fates)


async def test_messages_without_ids_do_not_bypass_rules(messagers):
    sender = await messagers(interceptor_with(rules.BlackList([(1, 2)])))
    await messagers(host=[2])
    channel = sender.get_agent_chat_channel(2)
    assert (await sender.send_message(channel, {}, from_id=1)).fate == "blocked"
    assert (await sender.send_message(channel, {}, from_id="1")).fate == "blocked"
    assert (await sender.send_messages([Outgoing(channel, {}, 1)]))[0].fate == "blocked"


@pytest.mark.parametrize(
    ("judge", "says"),
    [
        (lambda _: rules.block("too rude"), "too rude"),
        (lambda _: rules.block("odd \ud800"), "odd "),
        (lambda message: rules.block(str(message.payload)), "needs_payload"),  # which it would need to get one
    ],
    ids=["a reason", "no text", "no payload"],
)
async def test_the_receipt_names_rule_and_reason(messagers, judge, says):
    sender = await messagers(interceptor_with(Only(judge, name="manners")))
    for _ in range(2):
        receipt = await sender.send_message("news", {"text": "secret"}, from_id=1)
        assert (receipt.fate, receipt.rule, bool(receipt)) == ("blocked", "manners", False)
        assert says in receipt.reason
        assert "manners" in repr(receipt)


async def test_max_length_asks_for_payloads(messagers):
    interceptor = interceptor_with()
    sender = await messagers(interceptor)
    await messagers(host=[1])
    long = "x" * 100
    assert await send(sender, [(1, 1)], text=long) == "d"
    interceptor.rules.insert(rules.MaxLength(50), 0)
    assert await send(sender, [(1, 1)], text=long) == "b"
    assert await send(sender, [(1, 1)], text="x") == "d"
    receipts = await sender.send_columns([1] * 3, [1] * 3, [{}, {"text": long}, {}])
    assert receipts.fates.tolist() == ["delivered", "blocked", "delivered"]
    assert receipts[1].reason == "payload of 111 bytes, the limit is 50"
    receipts = await sender.send_messages([Outgoing.to_agents([1, 1], {"text": long}), Outgoing.to_agent(1, {})])
    assert receipts.fates.tolist() == ["blocked", "blocked", "delivered"]
    interceptor.rules.pop()
    assert await send(sender, [(1, 1)], text=long) == "d"


async def test_a_rule_sees_the_message(messagers):
    seen = []

    def look(message):
        seen.append((message.channel, message.payload, message.from_id, message.to_id, message.step, message.id))
        return rules.ALLOW

    sender = await messagers(interceptor_with(Only(look, needs_payload=True)))
    sender.step = 3
    receipt = await sender.send_message(sender.get_user_chat_channel(5), {"n": 1}, from_id="ann")
    assert seen == [("exps:x:agents:5:user-chat", {"n": 1}, "ann", 5, 3, receipt.message_id)]


def crash(_):
    raise ValueError("boom")


@pytest.mark.parametrize("rule", [Only(crash, on_error="allow"), Whole(crash, on_error="allow")], ids=["one", "batch"])
async def test_a_rule_may_pass_messages_on_error(messagers, rule):
    sender = await messagers(interceptor_with(rule, rules.BlackList([(2, 1)])))
    await messagers(host=[1])
    assert await send(sender, [(1, 1), (2, 1)]) == "db"


async def test_the_first_block_wins_and_later_rules_get_the_remaining_rows(messagers):
    early = Only(lambda message: rules.block("early") if message.from_id == 2 else rules.ALLOW, name="early")
    late = Only(lambda message: rules.block("late") if message.from_id in {2, 4} else rules.ALLOW, name="late")
    last = Only(allow, name="last")
    sender = await messagers(interceptor_with(early, Whole(lambda _: {0: rules.block("first of all")}), late, last))
    await messagers(host=[9])
    receipts = await sender.send_columns([1, 2, 3, 4, 5], [9] * 5, {})
    assert [receipt.rule for receipt in receipts] == ["whole", "early", None, "late", None]
    assert [pair[0] for pair in late.asked] == [3, 4, 5]
    assert [pair[0] for pair in last.asked] == [3, 5]


async def test_the_interceptor_can_be_replaced_at_run_time(messagers):
    sender = await messagers(interceptor_with(rules.BlackList([(None, None)])))
    await messagers(host=[1])
    assert await send(sender, [(1, 1)]) == "b"
    assert sender.stats()["interceptor"] == "local"
    sender.set_message_interceptor(None)
    assert await send(sender, [(1, 1)]) == "d"
    assert sender.stats()["interceptor"] == "none"
    sender.set_message_interceptor(interceptor := interceptor_with(Only(lambda _: rules.block("no"))))
    assert sender.message_interceptor is interceptor
    assert await send(sender, [(1, 1)]) == "b"


async def test_forward_works_as_in_agentsociety():
    interceptor = interceptor_with(rules.BlackList([(1, 2)]), rules.MaxLength(50))
    assert await interceptor.forward(1, 3, "hello") is True
    assert await interceptor.forward(1, 2, "hello") is False
    assert await interceptor.forward("1", "2", {"content": "hello"}) is False
    assert await interceptor.forward(None, 3, {"content": "x" * 50}) is False
    assert await interceptor.forward(None, None, {}) is True
    assert (interceptor.judged, interceptor.blocked) == (5, 3)


def test_invalid_rules_are_refused():
    with pytest.raises(RuleError, match="not a rule"):
        interceptor_with(object())
    with pytest.raises(RuleError, match="black_list"):
        interceptor_with(rules.BlackList(), rules.BlackList())
    interceptor_with(rules.BlackList(), rules.BlackList(name="second"))


async def test_a_rejected_verdict_of_a_fenced_interceptor_is_requested_again(messagers, store):
    sender, receiver = await messagers(old := interceptor_with(epoch=1)), await messagers(host=[1])
    await store.set_interceptor(1)
    assert await send(sender, [(1, 1)]) == "d"
    await store.set_interceptor(2)  # a successor has taken over
    waiting = asyncio.create_task(send(sender, [(1, 1), (13, 1)]))
    await until(lambda: old.judged >= 3)
    assert not waiting.done()
    sender.set_message_interceptor(new := interceptor_with(rules.BlackList([(13, 1)]), epoch=2))
    assert await waiting == "db"
    assert new.judged == 2
    assert len(await fetch_all(receiver, 2)) == 2
    assert await send(sender, [(1, 1)]) == "d"


async def test_verdicts_of_a_fenced_interceptor_are_rejected_until_the_timeout(messagers, store):
    sender = await messagers(interceptor_with(epoch=1), interceptor_timeout_s=0.1)
    await messagers(host=[1])
    await store.set_interceptor(2)
    with pytest.raises(InterceptorUnavailable) as caught:
        await send(sender, [(1, 1)])
    assert len(caught.value.message_ids) == 1
    assert list(caught.value.receipts) == [None]
    sender.set_message_interceptor(interceptor_with(epoch=2))
    assert await send(sender, [(1, 1)]) == "d"


class UnencodableName(Rule):
    """A rule that blocks all messages with a reason, under a name that no message can carry."""

    def check_batch(self, batch, exp_id):
        self.name = "bad \ud800 name"
        return dict.fromkeys(range(len(batch)), rules.block("why"))


async def test_verdicts_that_cannot_be_encoded_block_without_delay(messagers):
    sender = await messagers(interceptor_with(rules.BlackList([(3, 1)]), UnencodableName()))
    await messagers(host=[1])
    async with asyncio.timeout(AT_ONCE_S):
        for _ in range(2):
            receipts = await sender.send_messages([Outgoing.to_agents([1, 1], {}, from_id=2)])
            assert receipts.fates.tolist() == ["blocked"] * 2
            assert {receipt.rule for receipt in receipts} == {"interceptor"}
            assert all("failed" in receipt.reason for receipt in receipts)


async def test_a_messager_without_the_experiments_interceptor_is_refused(messagers, store):
    sender, receiver = await messagers(), await messagers(host=[1])
    channel = sender.get_agent_chat_channel(1)
    assert (await sender.send_message(channel, {"n": 0}, 5)).fate == "delivered"
    await store.set_interceptor(3)
    for address in (channel, "news"):
        with pytest.raises(ConfigError, match=r"pass messaging\.interceptor"):
            await sender.send_message(address, {"n": 1}, 5)
    with pytest.raises(ConfigError, match=r"pass messaging\.interceptor") as caught:
        await sender.send_columns([5] * 3, [1, 1, 9], {"n": 2})
    assert caught.value.receipts == [None] * 3
    sender.set_message_interceptor(interceptor_with(epoch=3))
    assert (await sender.send_message(channel, {"n": 3}, 5)).fate == "delivered"
    assert [message.payload["n"] for message in await fetch_all(receiver, 2)] == [0, 3]
    assert sender.stats()["outbox"] == 0


async def test_a_users_own_interceptor_replaces_the_experiments_one(messagers, store):
    sender, _ = await messagers(Foreign(lambda from_id, *_: from_id != 6)), await messagers(host=[1])
    await store.set_interceptor(3)
    assert await send(sender, [(5, 1), (6, 1)]) == "db"


def loud(message):
    """Put agents' texts in capitals, and block the user's messages."""
    return rules.block("hush") if message.from_id is None else rules.rewrite({"text": message.payload["text"].upper()})
