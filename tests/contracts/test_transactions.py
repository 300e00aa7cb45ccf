"""Transactions: fetched messages, sends and state are committed together, or not at all."""

import asyncio
import contextlib

import pytest
from support.contracts import WAIT_S, fetch_all, full_memory, numbers, take_in, until, vanish
from support.interceptors import Held, interceptor_with
from support.log_notes import keep_notes, notes_of
from support.rules import Only, allow
from support.sending_faults import break_send, cut, each_send_twice, instead, room_taken, take_epoch, without_epochs
from support.server_side import remove_mailbox

from ray_messaging import Message, Outgoing, rules
from ray_messaging.errors import (
    ConfigError,
    ConnectionFailed,
    Fenced,
    InterceptorUnavailable,
    InvalidAddress,
    InvalidColumns,
    InvalidPayload,
    MailboxFull,
    NotListening,
    OutcomeUnknown,
    PayloadTooLarge,
    TransactionError,
)


@pytest.fixture
async def bank(messagers):
    """Open a messager for transactions: agent 1."""
    return await messagers(name="bank", host=[1], send_timeout_s=0.3)


@pytest.fixture
async def shop(messagers):
    """Open a messager that receives the bank's messages: agents 2 and 3."""
    return await messagers(host=[2, 3])


async def feed(shop, *numbers):
    for n in numbers:
        await shop.send_message(shop.get_agent_chat_channel(1), {"n": n}, 2, 1)


def to(messager, agent):
    return messager.get_agent_chat_channel(agent)


async def step(bank, count, **options):
    """Fetch some numbers in a transaction, and send each on."""
    async with bank.transaction() as tx:
        found = await held(tx, count)
        for n in found:
            tx.send_message(to(bank, 2), {"n": n}, 1)
        tx.state = b"%d" % sum(found)
    return tx


async def held(tx, count):
    found = []
    async with asyncio.timeout(WAIT_S):
        while len(found) < count:
            found += numbers(await tx.fetch_messages(limit=count - len(found), timeout=WAIT_S))
    return found


async def untouched(bank, *expected, state=None):
    """Check that a transaction has left no trace: the same messages come again, with the former state."""
    async with bank.transaction() as tx:
        assert tx.state == state
        assert await held(tx, len(expected)) == list(expected)


async def silent(messager):
    await messager.ack()
    return not len(await messager.fetch_messages(timeout=0.05))


# -- guarantees --------------------------------------------------------------------------------------------------------


async def test_cursor_sends_and_state_go_together_also_in_a_crash(bank, shop, store, messagers):
    await feed(shop, 1, 2, 3, 4)
    tx = await step(bank, 3)
    assert tx.receipts.fates.tolist() == ["delivered"] * 3
    assert tx.state == b"6"
    assert await store.waiting("bank") == 1
    tx = bank.transaction()
    await tx.__aenter__()
    assert await held(tx, 1) == [4]
    tx.send_message(to(bank, 2), {"n": 99}, 1)
    tx.state = b"lost"
    await vanish(bank)
    successor = await messagers(name="bank", host=[1])
    await untouched(successor, 4, state=b"6")
    assert numbers(await fetch_all(shop, 3)) == [1, 2, 3]
    assert await silent(shop)
    assert await store.waiting("bank") == 0


@pytest.mark.parametrize("error", [ZeroDivisionError, asyncio.CancelledError])
async def test_an_exception_undoes_a_transaction(bank, shop, error):
    await feed(shop, 1, 2, 3)
    await step(bank, 1)
    with pytest.raises(error):  # noqa: PT012 - the block is what is tested
        async with bank.transaction() as tx:
            assert await held(tx, 1) == [2]
            tx.send_message(to(bank, 3), {"n": 99})
            tx.state = b"lost"
            raise error
    with pytest.raises(TransactionError, match="receipts"):
        tx.receipts  # noqa: B018 - raises
    await untouched(bank, 2, 3, state=b"1")
    assert numbers(await fetch_all(shop, 1)) == [1]
    assert await silent(shop)


async def test_returned_messages_come_again_in_order(bank, shop, store):
    await shop.send_messages([Outgoing.to_agent(1, {"n": n}, from_id=2) for n in range(10)])
    await take_in(bank, 10)
    for sizes in ([3], [1, 4], [10], [2, 2, 2]):
        with contextlib.suppress(KeyError):
            async with bank.transaction() as tx:
                expected = iter(range(10))
                for size in sizes:
                    assert await held(tx, size) == [next(expected) for _ in range(size)]
                raise KeyError
    assert await step_numbers(bank, 4) == [0, 1, 2, 3]
    assert await store.waiting("bank") == 6
    assert numbers(await bank.fetch_messages(limit=2)) == [4, 5]
    assert await step_numbers(bank, 4) == [6, 7, 8, 9]
    assert await store.waiting("bank") == 0
    assert not await store.entries("bank")


async def step_numbers(bank, count):
    async with bank.transaction() as tx:
        return await held(tx, count)


async def test_opening_a_transaction_commits_earlier_fetches(bank, shop, store):
    await feed(shop, 1, 2)
    assert numbers(await fetch_all(bank, 1, limit=1)) == [1]
    with pytest.raises(KeyError):  # noqa: PT012 - the block is what is tested
        async with bank.transaction():
            assert await store.waiting("bank") == 1
            raise KeyError
    await untouched(bank, 2)


async def test_the_state_stays_until_it_is_removed_or_the_mailbox_is(bank, messagers):
    async with bank.transaction() as tx:
        tx.state = b""
    await bank.host_agents([7], ["agent-chat"])
    async with bank.transaction() as tx:
        assert tx.state == b""
        tx.state = None
    async with bank.transaction() as tx:
        assert tx.state is None
        tx.state = b"rest"
    await remove_mailbox(bank, "bank")
    await vanish(bank)
    await untouched(await messagers(name="bank", host=[1]), state=None)


async def test_an_empty_transaction_makes_no_server_call(bank):
    async def never(_real):
        pytest.fail("the server was asked")

    instead(bank, never)
    async with bank.transaction() as tx:
        assert len(await tx.fetch_messages()) == 0
    assert len(tx.receipts) == 0


async def test_sends_before_and_after_keep_their_order(bank, shop):
    before = [asyncio.create_task(bank.send_message(to(bank, 2), {"n": n}, 1)) for n in range(5)]
    await asyncio.sleep(0)
    async with bank.transaction() as tx:
        tx.send_message(to(bank, 2), {"n": 5}, 1)
        tx.send_messages([Outgoing.to_agents([2, 2], {"n": 6}, from_id=1)])
        tx.send_columns(1, [2, 2], [{"n": 7}, {"n": 8}])
        leaving = asyncio.create_task(bank.send_message(to(bank, 2), {"n": "meanwhile"}, 1))
        await leaving
    after = [asyncio.create_task(bank.send_message(to(bank, 2), {"n": n}, 1)) for n in (9, 10)]
    await asyncio.gather(*before, *after)
    assert numbers(await fetch_all(shop, 13)) == [0, 1, 2, 3, 4, "meanwhile", 5, 6, 6, 7, 8, 9, 10]
    assert len(tx.receipts) == 5
    assert len(set(tx.receipts.message_ids)) == 5
    assert room_taken(bank) == (0, 0)
    assert [row["payload"]["n"] for row in bank.get_log_list()][6:11] == [5, 6, 6, 7, 8]


async def test_a_transaction_reaches_several_mailboxes_and_foreign_clients(bank, shop, messagers, store):
    twin = await messagers(listen=[to(bank, 2)])
    news = await store.subscribe("news", "weather")
    async with bank.transaction() as tx:
        tx.send_message(to(bank, 2), {"n": 1}, 1)
        tx.send_message("news", {"n": 2}, 1)
        tx.send_message("nobody", {"n": 3}, 1)
        tx.send_message("weather", {"n": 4}, 1)
        tx.send_message(to(bank, 1), {"n": 5}, 1)
    assert tx.receipts.fates.tolist() == ["delivered", "published", "undeliverable", "published", "delivered"]
    assert numbers(await fetch_all(shop, 1)) == numbers(await fetch_all(twin, 1)) == [1]
    assert [await news(), await news()] == [("news", b'{"n":2}'), ("weather", b'{"n":4}')]
    assert numbers(await fetch_all(bank, 1)) == [5]


async def test_sends_of_a_transaction_carry_the_step(bank, shop):
    bank.step = 3
    async with bank.transaction() as tx:
        tx.send_message(to(bank, 2), {"n": 1})
        bank.step = 4
    [message] = await fetch_all(shop, 1)
    assert isinstance(message, Message)
    assert message.step == 4


@pytest.mark.parametrize(("begins", "ends"), [(3, 3), (3, 4), (None, 4), (4, None)])
async def test_messages_of_several_kinds_in_a_transaction_get_the_step_of_its_end(bank, shop, begins, ends):
    bank.step = begins
    async with bank.transaction() as tx:
        tx.send_message(to(bank, 2), {"n": 0})
        tx.send_messages([Outgoing(to(bank, 2), {"n": 1})])
        tx.send_columns(1, 2, [{"n": 2}])
        bank.step = ends
        tx.send_message(to(bank, 2), {"n": 3})
    found = await fetch_all(shop, 4)
    assert [(message.payload["n"], message.step) for message in found] == [(n, ends) for n in range(4)]


async def test_handled_messages_make_room_for_sends_to_itself(messagers, shop):
    bank = await messagers(name="bank", host=[1], mailbox_messages=4, send_timeout_s=0.3)
    await feed(shop, 1, 2, 3, 4)
    for _ in range(3):
        async with bank.transaction() as tx:
            for n in await held(tx, 4):
                tx.send_message(to(bank, 1), {"n": n + 10}, 1)
    assert numbers(await fetch_all(bank, 4)) == [31, 32, 33, 34]


# -- refusals: nothing is done -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limit", "error", "says"),
    [
        ({"mailbox_messages": 1}, MailboxFull, "stayed full"),
        ({"mailbox_bytes": 1024}, PayloadTooLarge, "cannot hold"),
    ],
    ids=["full", "too small"],
)
async def test_one_mailbox_without_room_refuses_the_whole_transaction(bank, shop, messagers, limit, error, says):
    tight = await messagers(host=[9], **limit)
    await shop.send_message(to(bank, 9), {"n": 0}, 2)
    await feed(shop, 1)
    with pytest.raises(error, match=says) as caught:  # noqa: PT012 - the block is what is tested
        async with bank.transaction() as tx:
            await held(tx, 1)
            for agent in (2, 9, 3):
                tx.send_message(to(bank, agent), {"n": "x" * 5000}, 1)
            tx.state = b"lost"
    if error is MailboxFull:
        assert (list(caught.value.receipts), len(caught.value.message_ids)) == ([None] * 3, 3)
    assert await silent(shop)
    await untouched(bank, 1)
    assert numbers(await fetch_all(tight, 1)) == [0]
    await tight.ack()
    async with bank.transaction() as tx:
        tx.send_message(to(bank, 9), {"n": 1}, 1)
    assert tx.receipts.fates.tolist() == ["delivered"]


@pytest.mark.parametrize("fenced", [False, True])
async def test_a_transaction_without_the_experiments_interceptor_is_refused(messagers, shop, store, fenced):
    own = interceptor_with(epoch=1) if fenced else None
    bank = await messagers(own, name="bank", host=[1], interceptor_timeout_s=0.1)
    await feed(shop, 1)
    await store.set_interceptor(7)
    with pytest.raises(InterceptorUnavailable if fenced else ConfigError, match="interceptor"):  # noqa: PT012 - as above
        async with bank.transaction() as tx:
            await held(tx, 1)
            tx.send_message(to(bank, 2), {"n": 99}, 1)
    await untouched(bank, 1)
    assert await silent(shop)


async def test_a_transaction_asks_again_after_a_rejected_verdict(messagers, shop, store):
    rule = Only(allow)
    bank = await messagers(interceptor_with(rule, epoch=1), name="bank", host=[1])
    await store.set_interceptor(2)

    async def leave():
        async with bank.transaction() as tx:
            tx.send_messages([Outgoing.to_agent(2, {"n": n}, from_id=n) for n in (1, 13)])
        return tx.receipts

    leaving = asyncio.create_task(leave())
    await until(lambda: len(rule.asked) >= 2)
    bank.set_message_interceptor(interceptor_with(rules.BlackList([(13, None)]), epoch=2))
    assert (await leaving).fates.tolist() == ["delivered", "blocked"]
    assert numbers(await fetch_all(shop, 1)) == [1]
    assert await silent(shop)


async def test_a_transaction_follows_a_changed_directory(bank, shop, messagers, store):
    async with bank.transaction() as tx:
        tx.send_message(to(bank, 8), {"n": 1}, 1)
        tx.send_message(to(bank, 2), {"n": 2}, 1)
        late = await messagers(host=[8])
    assert tx.receipts.fates.tolist() == ["delivered"] * 2
    assert numbers(await fetch_all(late, 1)) == [1]
    await vanish(late)
    await store.expire(late.name)
    async with bank.transaction() as tx:
        tx.send_message(to(bank, 8), {"n": 3}, 1)
        tx.send_message(to(bank, 2), {"n": 4}, 1)
    assert tx.receipts.fates.tolist() == ["undeliverable", "delivered"]
    assert numbers(await fetch_all(shop, 2)) == [2, 4]


async def test_a_lagging_log_refuses_the_whole_transaction(bank, shop):
    await keep_notes(shop, messages=2)
    await shop.send_message("news", {"n": 0})
    messages = [Outgoing.to_agent(2, {"n": 1}, from_id=1), Outgoing("news", {"n": 2}), Outgoing("news", {"n": 3})]
    with pytest.raises(MailboxFull, match="event log"):
        async with bank.transaction() as tx:
            tx.send_messages(messages)
    assert await silent(shop)
    async with bank.transaction() as tx:
        tx.send_messages(messages[:2])
    assert tx.receipts.fates.tolist() == ["delivered", "undeliverable"]


async def test_the_log_has_a_transaction_once(messagers, shop, store):
    rewriting = Only(
        lambda m: rules.rewrite({"n": "even"}) if m.payload["n"] == "odd" else rules.ALLOW, needs_payload=True
    )
    interceptor = interceptor_with(rules.BlackList([(13, None)]), rewriting, epoch=1)
    bank = await messagers(interceptor, name="bank", host=[1], send_timeout_s=0.3)
    await store.set_interceptor(1)
    await keep_notes(shop)
    full = await messagers(host=[9], mailbox_messages=1)
    messages = [
        Outgoing.to_agent(2, {"n": 1}, from_id=13),
        Outgoing.to_agent(2, {"n": "odd"}, from_id=1),
        Outgoing("news", {"n": 3}, from_id=1),
        Outgoing("weather", {"n": 4}, from_id=1),
        Outgoing.to_agent(9, {"n": 5}, from_id=1),
    ]
    for _ in range(2):
        tx = bank.transaction()
        with contextlib.suppress(MailboxFull):
            async with tx:
                tx.send_messages(messages)
    with pytest.raises(TransactionError):
        tx.receipts  # noqa: B018 - raises
    assert sorted(await notes_of(shop)) == [("blocked", None), ("delivered", None), ("published", [0, 0])]
    assert numbers(await fetch_all(shop, 1)) == ["even"]
    assert len(await store.entries(full.name)) == 1


async def test_blocked_messages_of_a_transaction_have_receipts(messagers, shop, store):
    bank = await messagers(interceptor_with(rules.BlackList([(13, None)])), name="bank", host=[1])
    await feed(shop, 1)
    async with bank.transaction() as tx:
        await held(tx, 1)
        tx.send_messages([Outgoing.to_agent(2, {"n": n}, from_id=n) for n in (13, 5, 13)])
    assert tx.receipts.fates.tolist() == ["blocked", "delivered", "blocked"]
    assert tx.receipts[0].rule == "black_list"
    async with bank.transaction() as tx:
        tx.send_message(to(bank, 2), {"n": 0}, 13)
        tx.state = b"all blocked"
    assert tx.receipts.fates.tolist() == ["blocked"]
    async with bank.transaction() as tx:
        assert tx.state == b"all blocked"
    assert numbers(await fetch_all(shop, 1)) == [5]
    assert await store.waiting("bank") == 0


async def test_a_transaction_waits_for_slow_rules(messagers, shop):
    slow = Held("slow", only=lambda message: message.payload["n"] == 2)
    bank = await messagers(interceptor_with(slow), name="bank", host=[1])

    async def leave():
        async with bank.transaction() as tx:
            tx.send_messages([Outgoing.to_agent(2, {"n": n}, from_id=1) for n in (1, 2, 3)])
        return tx.receipts

    leaving = asyncio.create_task(leave())
    await slow.called(1)
    after = asyncio.create_task(bank.send_message(to(bank, 2), {"n": 4}, 1))
    assert await silent(shop)
    slow.release()
    assert (await leaving).fates.tolist() == ["delivered"] * 3
    assert (await after).fate == "delivered"
    assert numbers(await fetch_all(shop, 4)) == [1, 2, 3, 4]


# -- unknown outcomes --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("before", [True, False], ids=["request lost", "answer lost"])
@pytest.mark.parametrize("next_one", ["transaction", "fetch", "ack", "iterate"])
async def test_the_next_call_resolves_an_unknown_outcome(bank, shop, before, next_one):
    await feed(shop, 1, 2)
    await break_send(bank, before=before)
    with pytest.raises(OutcomeUnknown):
        await step(bank, 1)
    if next_one == "ack":
        await bank.ack()
    if next_one == "iterate":
        async for message in bank:
            assert numbers([message]) == [1 if before else 2]
            break
    elif next_one == "fetch":
        assert numbers(await fetch_all(bank, 1, limit=1)) == [1 if before else 2]
    else:
        async with bank.transaction() as tx:
            assert tx.state == (None if before else b"1")
            assert await held(tx, 2 if before else 1) == ([1, 2] if before else [2])
    await bank.send_message(to(bank, 2), {"n": 100}, 1)
    assert numbers(await fetch_all(shop, 1 if before else 2)) == ([100] if before else [1, 100])


async def test_a_late_commit_of_an_unknown_outcome_has_no_effect(bank, shop):
    await feed(shop, 1)
    late = []

    async def send(real):
        late.append(real)
        raise cut()

    instead(bank, send)
    with pytest.raises(OutcomeUnknown):
        await step(bank, 1)
    await untouched(bank, 1)
    await late[0]()
    assert await silent(shop)
    tx = await step(bank, 0)
    assert tx.state == b"0"
    await late[0]()
    assert await silent(shop)


async def test_a_repeated_commit_has_its_effect_once(bank, shop, store):
    """A transport repeats calls that a cut connection left open."""
    await feed(shop, 1, 2)
    news = await store.subscribe("news")
    async with each_send_twice(bank):
        for n in (1, 2):
            async with bank.transaction() as tx:
                assert await held(tx, 1) == [n]
                tx.send_messages([Outgoing.to_agent(2, {"n": n}, from_id=1), Outgoing("news", {"n": n})])
                tx.send_messages([Outgoing("nobody", {"n": n}), Outgoing("news", {"n": -n})])
                tx.state = b"%d" % n
            assert tx.receipts.fates.tolist() == ["delivered", "published", "undeliverable", "published"]
    assert numbers(await fetch_all(shop, 2)) == [1, 2]
    assert [(await news())[1] for _ in range(4)] == [b'{"n":%d}' % n for n in (1, -1, 2, -2)]
    await untouched(bank, state=b"2")
    assert await silent(shop)


@pytest.mark.parametrize("taken", [True, False], ids=["answered", "lost"])
async def test_a_commit_continues_when_its_caller_is_cancelled(bank, shop, taken):
    await feed(shop, 1, 2)
    sending, go_on = asyncio.Event(), asyncio.Event()

    async def send(real):
        sending.set()
        await go_on.wait()
        if not taken:
            raise cut()
        return await real()

    instead(bank, send)
    leaving = asyncio.create_task(step(bank, 1))
    await sending.wait()
    leaving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaving
    coming = asyncio.create_task(step(bank, 1))
    await asyncio.sleep(0)
    go_on.set()
    assert (await coming).state == (b"2" if taken else b"1")
    assert numbers(await fetch_all(shop, 2 if taken else 1)) == ([1, 2] if taken else [1])


async def test_no_fetch_returns_messages_of_an_unresolved_commit(bank, shop):
    await feed(shop, 1)
    await break_send(bank, before=False)
    async with without_epochs(bank):
        with pytest.raises(OutcomeUnknown):
            await step(bank, 1)
        for again in (bank.fetch_messages, bank.ack, bank.transaction().__aenter__):
            with pytest.raises(ConnectionFailed):
                await again()
    await untouched(bank, state=b"1")


async def test_a_stopped_sender_does_not_end_its_successor(bank, shop, messagers):
    await bank.send_message(to(bank, 2), {"n": 0}, 1)
    successors = []

    async def send(_real):
        successors.append(await messagers(name="bank", host=[1]))
        raise cut()  # it stood still for too long

    instead(bank, send)
    with pytest.raises(OutcomeUnknown):
        await step(bank, 0)
    with pytest.raises(Fenced):
        await bank.send_message(to(bank, 2), {"n": 99}, 1)
    with pytest.raises(Fenced):
        await bank.fetch_messages()
    assert (await successors[0].send_message(to(bank, 2), {"n": 1}, 1)).fate == "delivered"
    assert (await step(successors[0], 0)).state == b"0"
    assert numbers(await fetch_all(shop, 2)) == [0, 1]


@pytest.mark.parametrize("fences", [True, False])
async def test_a_server_that_lost_a_transaction_accepts_no_other(bank, shop, store, messagers, fences):
    await feed(shop, 1, 2, 3)
    await step(bank, 1)
    await step(bank, 1)
    await store.client.hset(store.keys.sender("bank"), "transactions", 1)
    if fences:
        await take_epoch(bank)
    for _ in range(2):
        with pytest.raises(TransactionError, match="restored from a backup"):
            await step(bank, 1)
    assert numbers(await fetch_all(shop, 2)) == [1, 2]
    await bank.close()
    successor = await messagers(name="bank", host=[1])
    assert (await step(successor, 1)).state == b"3"


async def test_a_transaction_skips_unreadable_frames(bank, shop, store):
    await store.write("bank", b"garbage")
    async with bank.transaction() as tx:
        found = asyncio.create_task(tx.fetch_messages(timeout=WAIT_S))
        await asyncio.sleep(0)
        await feed(shop, 1)
        assert numbers(await found) == [1]
    assert await store.waiting("bank") == 0


# -- permitted callers -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sends", [True, False])
async def test_a_fenced_reader_commits_no_transaction(bank, shop, messagers, sends):
    await feed(shop, 1)
    with pytest.raises(Fenced):  # noqa: PT012 - the block is what is tested
        async with bank.transaction() as tx:
            await held(tx, 1)
            if sends:
                tx.send_message(to(bank, 2), {"n": 99}, 1)
                tx.state = b"lost"
            successor = await messagers(name="bank", host=[1])
    with pytest.raises(Fenced):
        await bank.fetch_messages()
    assert await silent(shop)
    await untouched(successor, 1)


async def test_a_mailbox_that_was_removed_commits_nothing(bank, shop):
    await feed(shop, 1)
    with pytest.raises(Fenced, match="gone from the server"):  # noqa: PT012 - the block is what is tested
        async with bank.transaction() as tx:
            await held(tx, 1)
            tx.send_message(to(bank, 2), {"n": 99}, 1)
            await remove_mailbox(bank, "bank")
    assert await silent(shop)
    assert (await bank.send_message(to(bank, 2), {"n": 1}, 1)).fate == "delivered"


async def test_transactions_need_a_name_and_a_subscription(messagers, server, opener):
    nameless = await messagers(host=[5])
    with pytest.raises(ConfigError, match="name"):
        async with nameless.transaction():
            pass
    deaf = await messagers(name="deaf")
    with pytest.raises(NotListening, match="subscribe_and_start_listening"):
        async with deaf.transaction():
            pass


async def test_one_transaction_is_open_at_a_time(bank, shop):
    await feed(shop, 1)
    async with bank.transaction() as tx:
        for other in (bank.transaction().__aenter__, bank.fetch_messages, bank.ack, bank.__aiter__().__anext__):
            with pytest.raises(TransactionError, match="open"):
                await other()
        assert await held(tx, 1) == [1]
        with pytest.raises(TransactionError, match="begun"):
            await tx.__aenter__()
    with pytest.raises(TransactionError, match="is not open"):
        await tx.fetch_messages()
    for use in (lambda: tx.send_message("news", {}), lambda: setattr(tx, "state", b"")):
        with pytest.raises(TransactionError, match="is not open"):
            use()
    assert len(await bank.fetch_messages()) == 0


async def test_a_transaction_takes_no_messages_from_a_waiting_fetch(bank, shop):
    waiting = asyncio.create_task(bank.fetch_messages(timeout=WAIT_S))
    await asyncio.sleep(0)
    with pytest.raises(TransactionError, match="is waiting"):
        async with bank.transaction():
            pass
    await feed(shop, 1)
    assert numbers(await waiting) == [1]
    async with bank.transaction() as tx:
        assert len(await tx.fetch_messages()) == 0


async def test_a_transaction_works_inside_async_for(bank, shop):
    await feed(shop, 1, 2)
    found = []
    async for message in bank:
        async with bank.transaction() as tx:
            found += numbers([message])
            tx.send_message(to(bank, 2), message.payload, 1)
        if len(found) == 2:
            break
    assert numbers(await fetch_all(shop, 2)) == found == [1, 2]


# -- limits ------------------------------------------------------------------------------------------------------------


async def test_the_state_is_bytes_up_to_a_limit(messagers):
    bank = await messagers(name="bank", host=[1], state_bytes=10)
    async with bank.transaction() as tx:
        with pytest.raises(InvalidPayload, match="bytes or None, not dict"):
            tx.state = {"a": 1}
        with pytest.raises(PayloadTooLarge, match="state_bytes") as caught:
            tx.state = b"x" * 11
        assert (caught.value.size, caught.value.limit) == (11, 10)
        tx.state = b"x" * 10
    async with bank.transaction() as tx:
        assert tx.state == b"x" * 10


async def test_bad_sends_are_refused_at_once_and_leave_the_rest(bank, shop):
    async with bank.transaction() as tx:
        with pytest.raises(InvalidAddress):
            tx.send_message(to(bank, 2), {}, to_id=3)
        with pytest.raises(InvalidPayload):
            tx.send_message(to(bank, 2), "text")
        with pytest.raises(InvalidColumns):
            tx.send_columns([1, 2], [2], [{}])
        with pytest.raises(InvalidPayload):
            tx.send_messages([Outgoing.to_agent(2, {"n": 0}), Outgoing.to_agent(2, {"n": {1, 2}.__iter__})])
        tx.send_message(to(bank, 2), {"n": 1})
    assert numbers(await fetch_all(shop, 1)) == [1]
    assert await silent(shop)


async def test_a_transaction_is_bounded_in_messages_and_bytes(messagers, shop):
    bank = await messagers(name="bank", host=[1])
    async with bank.transaction() as tx:
        tx.send_columns(range(16_384), [2] * 16_384, {"n": 1})
        with pytest.raises(TransactionError, match="16,384"):
            tx.send_message(to(bank, 2), {"n": 2})
    assert tx.receipts.counts()["delivered"] == 16_384
    assert room_taken(bank) == (0, 0)
    async with bank.transaction() as tx:
        for _ in range(4):
            tx.send_message(to(bank, 3), {"n": "x" * (8 * 2**20 - 100)})
        with pytest.raises(PayloadTooLarge, match="bytes of payload"):
            tx.send_message(to(bank, 3), {"n": "x" * 500})
    assert len(await fetch_all(shop, 16_388)) == 16_388


# -- a full server -----------------------------------------------------------------------------------------------------


async def test_a_transaction_without_sends_drains_a_full_server(bank, shop, store):
    await feed(shop, 1, 2, 3)
    async with full_memory(store.client):
        with pytest.raises(MailboxFull, match="maxmemory"):
            await step(bank, 1)
        async with bank.transaction() as tx:
            assert tx.state is None
            assert await held(tx, 2) == [1, 2]
            tx.state = b"3"
    await untouched(bank, 3, state=b"3")
    assert await silent(shop)
