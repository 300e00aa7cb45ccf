"""Questions about deferred rows: few, and asked again of the next interceptor."""

import asyncio

import pytest
from support.contracts import WAIT_S, fetch_all
from support.interceptors import Held, interceptor_with

from ray_messaging import Outgoing, rules
from ray_messaging.interception.interceptor import slow_rule_runner as deferral
from ray_messaging.sending import deferred_rows as deferred


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


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(deferral, "PATIENCE_S", 0.02)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("stale", [False, True])
async def test_a_new_interceptor_is_asked_about_deferred_messages(messagers, interceptor_of, store, stale):
    old, new = Held("slow", at_once=fast_check), Held("slow", rules.block("new"), at_once=fast_check)
    sender, receiver = await messagers(interceptor_of(old, epoch=1)), await messagers(host=[1])
    await store.set_interceptor(1)
    sending = asyncio.create_task(sender.send_messages([*messages([(5, 1)], slow=True), *messages([(5, 1)] * 2)]))
    await old.called(1)
    sender.set_message_interceptor(interceptor_of(new, epoch=2))
    await store.set_interceptor(2)
    if stale:
        old.release()  # its verdict arrives, and is ignored
    await new.called(1)
    new.release()
    receipts = await asyncio.wait_for(sending, WAIT_S)
    assert receipts.fates.tolist() == ["blocked", "delivered", "delivered"]
    assert receipts[0].reason == "new"
    assert [message.payload["n"] for message in await fetch_all(receiver, 2)] == [0, 1]


@pytest.mark.usefixtures("impatient")
async def test_deferred_messages_pass_when_the_interceptor_is_removed(messagers, interceptor_of):
    slow = Held("slow", rules.block("no"), at_once=fast_check)
    sender, receiver = await messagers(interceptor_of(slow)), await messagers(host=[1])
    sending = asyncio.create_task(sender.send_messages(messages([(5, 1)] * 2, slow=True)))
    await slow.called(2)
    sender.set_message_interceptor(None)
    assert (await asyncio.wait_for(sending, WAIT_S)).counts()["delivered"] == 2
    assert [message.payload["n"] for message in await fetch_all(receiver, 2)] == [0, 1]


async def test_many_deferred_messages_share_a_question(messagers, interceptor_of, slow, monkeypatch):
    monkeypatch.setattr(deferred, "_GATHER_S", 0.1)  # a busy machine takes longer than the usual 5 ms for one send
    interceptor = interceptor_of(slow)
    patient, most = set(), []
    wait = interceptor._wait

    async def counted(batch):
        patient.add(batch)
        most.append(len(patient))
        try:
            return await wait(batch)
        finally:
            patient.discard(batch)

    interceptor._wait = counted
    sender, receiver = await messagers(interceptor), await messagers(host=[1, 2, "bob"])
    sending = []
    for n in range(300):  # each in a batch of its own
        sender.step = None if n % 3 else n
        by, to = f"a{n}" if n % 2 else n, "bob" if n % 5 else 1
        sending.append(asyncio.create_task(sender.send_message(sender.get_agent_chat_channel(to), {"slow": 1}, by)))
        await slow.called(n + 1)
    assert max(most) < 150
    slow.release()
    assert {receipt.fate for receipt in await asyncio.wait_for(asyncio.gather(*sending), WAIT_S)} == {"delivered"}
    found = await fetch_all(receiver, 300)
    wanted = {(f"a{n}" if n % 2 else n, "bob" if n % 5 else 1, None if n % 3 else n) for n in range(300)}
    assert {(message.from_id, message.to_id, message.step) for message in found} == wanted
