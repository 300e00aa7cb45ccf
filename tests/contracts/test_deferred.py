"""Deferred rows: messages that wait for a slow rule delay only later messages of their own pair."""

import asyncio
import random
from collections import defaultdict

import numpy as np
import pytest
from support.contracts import WAIT_S, ended, fetch_all, held_rows, take_in, until
from support.frames import relayed
from support.interceptors import Held, interceptor_with
from support.log_writing import begin_log
from support.rules import Only

from ray_messaging import EventLog, Outgoing, rules
from ray_messaging.errors import Closed, InterceptorUnavailable, MailboxFull
from ray_messaging.wire.frames import decode, encode


def fast_check(message):
    """A first check that passes ordinary messages at once."""
    return None if message.payload.get("slow") else rules.ALLOW


@pytest.fixture
async def interceptor_of(messagers):
    """Make interceptors; release their waiting messages at the end."""
    made = []

    def make(*rules, **options):
        made.append(interceptor_with(*rules, **options))
        return made[-1]

    yield make
    for each in made:
        for rule in each.rules:
            if isinstance(rule, Held):
                rule.release()
        await each.close()


@pytest.fixture
def slow():
    """Give a slow rule that passes ordinary messages at once."""
    return Held("slow", at_once=fast_check)


def messages(pairs, **payload):
    return [Outgoing.to_agent(to, payload | {"n": n}, from_id=by) for n, (by, to) in enumerate(pairs)]


async def test_500_deferred_messages_delay_no_other_pair(messagers, interceptor_of):
    slow = Held("slow", rules.label("seen"), at_once=fast_check)
    sender, receiver = await messagers(interceptor_of(slow)), await messagers(host=[1, 2])
    waiting = asyncio.create_task(sender.send_messages(messages([(1000 + n, 1) for n in range(500)], slow=True)))
    await slow.called(500)
    for n in range(100):
        assert (await sender.send(n, 1, {"n": n})).fate == "delivered"
    assert (await sender.send_messages(messages([(n, 2) for n in range(400)]))).counts()["delivered"] == 400
    assert len(await fetch_all(receiver, 500)) == 500
    assert not waiting.done()
    assert sender.stats()["deferred"] == sender.stats()["outbox"] == 500
    slow.release()
    assert (await asyncio.wait_for(waiting, WAIT_S)).counts()["delivered"] == 500
    found = await fetch_all(receiver, 500)
    assert {message.labels for message in found} == {("seen",)}
    assert sorted(message.payload["n"] for message in found) == list(range(500))
    assert sender.stats()["deferred"] == sender.stats()["outbox"] == 0


class Script(Held):
    """A slow rule that follows instructions in the payload, and waits for each message separately."""

    def __init__(self):
        super().__init__("script")
        self.gates = {}

    def at_once(self, message):
        return None if message.payload["kind"].startswith("slow") else said(message)

    async def judge(self, message):
        gate = self.gates[message.payload["n"]] = asyncio.Event()
        self.seen.append(message.payload)
        self._news.set()
        if not self._open.is_set():
            await gate.wait()
        return said(message)

    def release(self):
        super().release()
        for gate in self.gates.values():
            gate.set()


def said(message):
    kind, payload = message.payload["kind"].removeprefix("slow "), message.payload
    if kind == "block":
        return rules.block("as it says")
    if kind == "rewrite":
        return rules.rewrite({"n": payload["n"], "kind": "rewritten"}, "changed")
    return rules.label("tag") if kind == "label" else rules.ALLOW


KINDS = ["allow", "allow", "block", "rewrite", "label", "slow allow", "slow block", "slow rewrite", "slow label"]


@pytest.mark.parametrize("seed", range(2))
async def test_each_pair_keeps_its_order_beside_deferred_messages(messagers, interceptor_of, seed):
    dice = random.Random(seed)
    rule = Script()
    sender = await messagers(interceptor_of(rule), mailbox_messages=1_000_000)
    boxes = {agents: await messagers(host=agents) for agents in ((1, 2), (3, "bob"))}
    sends, sent = [], []
    for _ in range(40):
        entries = []
        for _ in range(dice.choice([1, 1, 2, 5, 20])):
            sent.append((dice.choice([5, "ann", None]), dice.choice([1, 2, 3, "bob"]), dice.choice(KINDS)))
            by, to, kind = sent[-1]
            entries.append(Outgoing.to_agent(to, {"n": len(sent) - 1, "kind": kind}, from_id=by))
        sends.append(asyncio.create_task(sender.send_messages(entries)))
        for _ in range(dice.choice([0, 1, 5, 30])):
            await asyncio.sleep(0)
        for gate in dice.sample(sorted(rule.gates), len(rule.gates) // 3):
            rule.gates[gate].set()
    await take_in(boxes[1, 2], 0)
    rule.release()
    async with asyncio.timeout(WAIT_S):
        receipts = [receipt for part in await asyncio.gather(*sends) for receipt in part]
    expected, got = defaultdict(list), defaultdict(list)
    for n, (by, to, kind) in enumerate(sent):
        is_blocked = kind.endswith("block")
        assert (receipts[n].fate, receipts[n].rule) == (("blocked", "script") if is_blocked else ("delivered", None))
        if not is_blocked:
            word = kind.removeprefix("slow ")
            tags = {"rewrite": ("changed",), "label": ("tag",)}.get(word, ())
            expected[by, to].append((n, "rewritten" if word == "rewrite" else kind, tags, receipts[n].message_id))
    for agents, box in boxes.items():
        for message in await fetch_all(box, sum(len(each) for (_, to), each in expected.items() if to in agents)):
            tag = message.payload["n"], message.payload["kind"], message.labels, message.id
            got[message.from_id, message.to_id].append(tag)
    assert got == expected
    assert sender.stats()["outbox"] == 0


async def test_a_bulk_send_has_receipts_of_all_fates(messagers, interceptor_of, store):
    rule = Script()
    sender, receiver = await messagers(interceptor_of(rule)), await messagers(host=[1])
    get = await store.subscribe("news")
    kinds = ["allow", "slow block", "slow allow", "block", "slow rewrite", "slow allow", "slow block", "allow"]
    to = [1, 1, 1, 1, 1, 77, 77, 77]
    bulk = [Outgoing.to_agent(agent, {"n": n, "kind": kind}, from_id=n) for n, (agent, kind) in
            enumerate(zip(to, kinds, strict=True))]  # fmt: skip
    bulk += [Outgoing("news", {"n": 8, "kind": "slow rewrite"}, from_id=8)]
    sending = asyncio.create_task(sender.send_messages(bulk))
    await rule.called(6)
    assert not sending.done()
    rule.release()
    receipts = await asyncio.wait_for(sending, WAIT_S)
    assert "".join(fate[0] for fate in receipts.fates) == "dbdbdubup"
    assert receipts.blocked_by() == {"script": 3}
    assert await get() == ("news", b'{"n":8,"kind":"rewritten"}')
    assert sorted(message.payload["n"] for message in await fetch_all(receiver, 3)) == [0, 2, 4]


async def test_flush_and_close_wait_for_deferred_messages_also_of_a_cancelled_send(messagers, interceptor_of, slow):
    sender, receiver = await messagers(interceptor_of(slow)), await messagers(host=[1])
    sending = asyncio.create_task(sender.send_messages(messages([(5, 1)] * 3, slow=True)))
    gone = asyncio.create_task(sender.send_messages(messages([(6, 1)], slow=True)))
    await slow.called(4)
    await ended(gone)
    flushing, closing = asyncio.create_task(sender.flush()), asyncio.create_task(sender.close())
    assert (await asyncio.wait({flushing, closing}, timeout=0))[0] == set()
    slow.release()
    await asyncio.wait_for(asyncio.gather(flushing, closing), WAIT_S)
    assert sending.done()
    found = await fetch_all(receiver, 4)
    assert [message.payload["n"] for message in found if message.from_id == 5] == [0, 1, 2]


async def test_a_cancelled_close_fails_deferred_sends(messagers, interceptor_of, slow):
    sender, receiver = await messagers(interceptor_of(slow)), await messagers(host=[1])
    mixed = [*messages([(5, 1)], slow=True), *messages([(6, 1), (5, 1)])]
    sending = asyncio.create_task(sender.send_messages(mixed))
    await slow.called(1)
    assert len(await fetch_all(receiver, 1)) == 1
    await until(lambda: sender.stats()["outbox"] == 2)  # the sender may not have the receipt yet
    closing = asyncio.create_task(sender.close())
    assert (await asyncio.wait({closing}, timeout=0))[0] == set()
    closing.cancel()
    with pytest.raises(Closed) as caught:
        await asyncio.wait_for(sending, WAIT_S)
    assert [receipt and receipt.fate for receipt in caught.value.receipts] == [None, "delivered", None]
    await asyncio.gather(closing, return_exceptions=True)
    await receiver.ack()
    assert len(await receiver.fetch_messages()) == 0


async def test_deferred_messages_wait_for_a_full_mailbox(messagers, interceptor_of, slow):
    sender = await messagers(interceptor_of(slow))
    receiver = await messagers(host=[1], mailbox_messages=4, inbox_messages=1)
    sends = [asyncio.create_task(sender.send(5, 1, {"n": n} | ({"slow": 1} if n in {2, 7} else {}))) for n in range(10)]
    await slow.called(2)
    slow.release()
    found = []
    async with asyncio.timeout(WAIT_S):
        while len(found) < 10:
            found += await receiver.fetch_messages(timeout=WAIT_S, limit=2)
    assert [message.payload["n"] for message in found] == list(range(10))
    assert {(await send).fate for send in sends} == {"delivered"}


async def test_a_deferred_message_gives_up_at_a_full_mailbox(messagers, interceptor_of, slow):
    sender = await messagers(interceptor_of(slow), send_timeout_s=0.1)
    await messagers(host=[1], mailbox_messages=4)
    await messagers(host=[2])
    assert (await sender.send_messages(messages([(6, 1)] * 4))).counts()["delivered"] == 4
    sending = asyncio.create_task(sender.send_messages(messages([(5, 1), (5, 2)], slow=True)))
    await slow.called(2)
    slow.release()
    with pytest.raises(MailboxFull) as caught:
        await asyncio.wait_for(sending, WAIT_S)
    assert [receipt and receipt.fate for receipt in caught.value.receipts] == [None, "delivered"]
    assert sender.stats()["outbox"] == 0


async def test_the_next_interceptor_may_defer_a_message_that_passed_before(messagers, interceptor_of, store):
    sender = await messagers(interceptor_of(epoch=1))
    await store.set_interceptor(1)
    receiver = await messagers(host=[1], mailbox_messages=4)
    await sender.send_messages(messages([(6, 1)] * 4))
    sends = [asyncio.create_task(sender.send(5, 1, {"n": n, "slow": n < 6})) for n in (4, 5)]

    await until(lambda: held_rows(sender, receiver.name) == 2)
    slow = Held("slow", at_once=fast_check)
    sender.set_message_interceptor(interceptor_of(slow, epoch=2))
    await store.set_interceptor(2)
    assert len(await fetch_all(receiver, 4)) == 4
    await receiver.ack()
    await slow.called(2)
    sends += [asyncio.create_task(sender.send(5, 1, {"n": n})) for n in (6, 7)]
    assert (await sender.send(7, 1, {"n": 9})).fate == "delivered"
    assert not any(send.done() for send in sends)
    slow.release()
    found = [message.payload["n"] for message in await fetch_all(receiver, 1, limit=1)]
    found += [message.payload["n"] for message in await fetch_all(receiver, 4)]
    assert found == [9, 4, 5, 6, 7]
    assert {(await asyncio.wait_for(send, WAIT_S)).fate for send in sends} == {"delivered"}


async def test_a_directory_change_keeps_the_order_of_each_pair(messagers, interceptor_of):
    """Route rows of one batch again while they wait at two full mailboxes since different times."""
    rule = Script()
    sender = await messagers(interceptor_of(rule))
    boxes = [await messagers(host=[agent], mailbox_messages=4) for agent in (1, 2)]
    fill = [Outgoing.to_agent(agent, {"n": -1, "kind": "allow"}, from_id=6) for agent in (1, 2) for _ in range(4)]
    assert (await sender.send_messages(fill)).counts()["delivered"] == 8
    bulk = [(2, "allow"), (1, "slow allow"), (2, "slow allow"), (2, "allow")]
    sending = asyncio.create_task(
        sender.send_messages(
            [Outgoing.to_agent(to, {"n": n, "kind": kind}, from_id=5) for n, (to, kind) in enumerate(bulk)]
        )
    )

    await rule.called(2)
    rule.release()
    await until(lambda: [held_rows(sender, box.name) for box in boxes] == [1, 3])
    await messagers(host=[3])  # the directory changes
    for box in boxes:
        assert len(await fetch_all(box, 4)) == 4
        await box.ack()
    assert [message.payload["n"] for message in await fetch_all(boxes[1], 3)] == [0, 2, 3]
    assert (await asyncio.wait_for(sending, WAIT_S)).counts()["delivered"] == 4


async def test_a_deferred_message_reaches_every_listener_of_a_channel(messagers, interceptor_of):
    rule = Script()
    sender = await messagers(interceptor_of(rule))
    boxes = [await messagers(listen=["news"]) for _ in range(3)]
    kinds = ["slow rewrite", "allow", "slow block", "slow allow", "rewrite"]
    sending = asyncio.create_task(
        sender.send_messages([Outgoing("news", {"n": n, "kind": kind}, from_id=5) for n, kind in enumerate(kinds)])
    )
    await rule.called(3)
    rule.gates[3].set()
    rule.gates[2].set()
    rule.gates[0].set()
    assert "".join(fate[0] for fate in (await asyncio.wait_for(sending, WAIT_S)).fates) == "ddbdd"
    for box in boxes:
        found = [(message.payload["n"], message.payload["kind"]) for message in await fetch_all(box, 4)]
        assert found == [(0, "rewritten"), (1, "allow"), (3, "slow allow"), (4, "rewritten")]


def censor(message):
    """Take a word out, and block another one."""
    text = message.payload["text"]
    if "worse" in text:
        return rules.block("worse")
    return rules.rewrite({"text": text.replace("rude", "***")}, "censored") if "rude" in text else rules.ALLOW


TEXTS = ["fine", "a rude word", "worse", "rude again"]  # no hex: a frame holds its sender's name


async def test_relayed_batches_bring_no_labels(messagers, store):
    sender, receiver = await messagers(), await messagers(host=[1])
    forged = decode(relayed(5, [1, 1], {"n": 0})[0])
    forged.labels, forged.noted = {"forged": np.array([0], np.uint32)}, np.array([1], np.uint32)
    assert (await sender.relay([encode(forged)])).counts()["delivered"] == 2
    (frame,) = await store.entries(receiver.name)
    assert (decode(frame).labels, decode(frame).noted) == ({}, None)
    assert {message.labels for message in await fetch_all(receiver, 2)} == {()}


async def test_the_log_keeps_the_original_payload_and_the_mailbox_does_not(
    messagers, interceptor_of, store, exp_id, tmp_path
):
    slow = Held("slow", is_open=True, at_once=lambda message: None if message.from_id == 8 else rules.ALLOW)
    receiver = await messagers(host=[1])
    writer = await begin_log(receiver, tmp_path / "log", exp_id, segment_age_s=1e9)
    sender = await messagers(interceptor_of(Only(censor, needs_payload=True), slow))
    assert await sender.send_message(sender.get_agent_chat_channel(1), {"text": "fine"})  # it notices the log
    bulk = [Outgoing.to_agent(1, {"text": text}, from_id=5) for text in TEXTS]
    bulk += [Outgoing.to_agent(1, {"text": "rude and slow"}, from_id=8), Outgoing("news", {"text": "rude news"})]
    receipts = await sender.send_messages(bulk)
    entries = b"".join(await store.entries(receiver.name))
    assert [text in entries for text in (b"***", b"rude", b"worse")] == [True, False, False]
    await writer.close()
    rows = EventLog.open(tmp_path / "log").query().to_pylist()
    assert len(rows) == 1 + len(bulk)  # those that were rewritten are in a note and in the mailbox
    names = "fate", "payload", "payload_before", "labels"
    found = {row["message_id"]: tuple(row[name] for name in names) for row in rows}
    assert [found[each] for each in receipts.message_ids] == [
        ("delivered", '{"text":"fine"}', None, None),
        ("delivered", '{"text":"a *** word"}', '{"text":"a rude word"}', ["censored"]),
        ("blocked", '{"text":"worse"}', None, None),
        ("delivered", '{"text":"*** again"}', '{"text":"rude again"}', ["censored"]),
        ("delivered", '{"text":"*** and slow"}', '{"text":"rude and slow"}', ["censored"]),
        ("undeliverable", '{"text":"*** news"}', '{"text":"rude news"}', ["censored"]),
    ]


# -- deferred messages cost others nothing ----------------------------------------------------------------------------


async def test_a_deferred_message_does_not_hold_the_bytes_of_its_batch(messagers, interceptor_of, slow):
    sender, receiver = await messagers(interceptor_of(slow), outbox_bytes=50_000), await messagers(host=[1, 2])
    big = {"text": "x" * 90_000}
    waiting = asyncio.create_task(
        sender.send_messages([Outgoing.to_agent(1, {"slow": 1}, from_id=7), Outgoing.to_agents([2, 2], big, from_id=8)])
    )
    await slow.called(1)
    assert len(await fetch_all(receiver, 2)) == 2
    for n in range(3):
        assert await asyncio.wait_for(sender.send(n, 2, big), WAIT_S)
    slow.release()
    assert await waiting
    assert sender.stats()["outbox"] == 0


@pytest.mark.parametrize("behind", [0, 3])
async def test_close_waits_for_a_slow_rule_only_up_to_a_limit(messagers, interceptor_of, slow, behind):
    interceptor = interceptor_of(slow)
    sender = await messagers(interceptor, send_timeout_s=0.3, interceptor_timeout_s=0.3)
    receiver = await messagers(host=[1, 2])
    pairs = [(7, 1)] * (1 + behind)
    waiting = asyncio.create_task(sender.send_messages(messages(pairs, slow=True)))
    await slow.called(1 + behind)
    assert await sender.send_message(sender.get_agent_chat_channel(2), {"n": 9}, from_id=7)
    await asyncio.wait_for(sender.close(), WAIT_S)
    with pytest.raises(InterceptorUnavailable, match=r"was closed, and a slow rule gave no verdict") as caught:
        await waiting
    assert len(caught.value.message_ids) == 1 + behind
    assert [message.payload for message in await fetch_all(receiver, 1)] == [{"n": 9}]


async def test_close_does_not_wait_for_messages_deferred_after_it_gave_up(messagers, interceptor_of, slow):
    sender = await messagers(interceptor_of(slow), send_timeout_s=0.05, interceptor_timeout_s=0.05, outbox_messages=1)
    await messagers(host=[1])
    waiting = [
        asyncio.create_task(sender.send_messages(messages([(n, 1)], slow=True))) for n in range(3)
    ]  # the second and third get room when the first is given up
    await slow.called(1)
    await asyncio.wait_for(sender.close(), WAIT_S)
    for task in waiting:
        with pytest.raises((InterceptorUnavailable, Closed)):
            await task
