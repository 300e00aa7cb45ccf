"""Fetching: commits, limits, claims, successors, leases, dead letters."""

import asyncio
import contextlib
import pickle

import pytest
from support.batches import frame_of
from support.contracts import ended, fetch_all, numbers, send_numbers, take_in, until, vanish
from support.patience import AT_ONCE_S, WAIT_S
from support.receivers import waits_for_room
from support.server_side import remove_mailbox

from ray_messaging import Outgoing
from ray_messaging.errors import AlreadyExists, Closed, ConfigError, Fenced, MailboxFull, NotListening, PayloadTooLarge

# -- claims -----------------------------------------------------------------------------------------------------------


async def test_two_groups_cannot_claim_one_agent(messagers):
    first = await messagers(name="first", host=[1, 2])
    second = await messagers(name="second")
    with pytest.raises(AlreadyExists) as caught:
        await second.host_agents([2, 3], ["agent-chat"])
    assert (caught.value.kind, caught.value.value, caught.value.owner) == ("agent", 2, first.name)
    assert pickle.loads(pickle.dumps(caught.value)).owner == "first"
    await second.host_agents([3], ["agent-chat"])  # the refused claim is not remembered
    await send_numbers(first, 1, to=3)
    assert numbers(await fetch_all(second, 1)) == [1]


async def test_a_live_owner_keeps_its_mailbox_and_its_sends(messagers):
    first = await messagers(name="group", host=[1], owner="actor-1")
    await send_numbers(first, 1)
    with pytest.raises(AlreadyExists) as caught:
        await messagers(name="group", host=[1], owner="actor-2")
    assert (caught.value.kind, caught.value.value, caught.value.owner) == ("group", "group", "actor-1")
    await send_numbers(first, 2)
    successor = await messagers(name="group", host=[1], owner="actor-1")
    assert numbers(await fetch_all(successor, 2)) == [1, 2]


async def test_after_a_close_another_owner_takes_over(messagers):
    first = await messagers(name="group", host=[1], owner="actor-1")
    await first.close()
    second = await messagers(name="second")

    async def taken():
        try:
            await (await messagers(name="group")).host_agents([1], ["agent-chat"], owner="actor-2")
        except AlreadyExists:
            return False
        return True

    await until(taken)
    await send_numbers(second, 1)


async def test_a_named_mailbox_waits_for_another_owner_after_its_lease(messagers, store):
    first, second = await messagers(name="group", host=[1], owner="actor-1"), await messagers()
    await vanish(first)
    await send_numbers(second, 1)
    await store.expire("group")
    await send_numbers(second, 2)
    successor = await messagers(name="group", host=[1], owner="actor-2")
    assert numbers(await fetch_all(successor, 2)) == [1, 2]


# -- commits ----------------------------------------------------------------------------------------------------------


async def test_the_next_fetch_commits(messagers, store):
    sender, first = await messagers(), await messagers(name="group", host=[1])
    await send_numbers(sender, 1, 2)
    await fetch_all(first, 2)
    assert await store.waiting("group") == 2
    assert len(await first.fetch_messages()) == 0
    assert await store.waiting("group") == 0
    assert await store.entries("group") == []


async def test_close_commits_but_an_exception_does_not(messagers):
    sender, first = await messagers(), await messagers(name="group", host=[1])
    await send_numbers(sender, 1)
    await fetch_all(first, 1)
    await first.close()
    second = await messagers(name="group", host=[1])
    await send_numbers(sender, 2)
    with contextlib.suppress(ZeroDivisionError):
        async with second:
            assert numbers(await fetch_all(second, 1)) == [2]
            raise ZeroDivisionError
    third = await messagers(name="group", host=[1])
    assert numbers(await fetch_all(third, 1)) == [2]


async def test_successors_resume_in_the_middle_of_a_frame(messagers, store):
    sender, receiver = await messagers(), await messagers(name="group", host=[1])
    await send_numbers(sender, *range(10))
    await send_numbers(sender, *range(10, 20))
    for low in (0, 6, 12):
        assert await store.waiting("group") == 20 - low
        await take_in(receiver, 20 - low)
        assert numbers(await receiver.fetch_messages(limit=6)) == [*range(low, low + 6)]
        assert numbers(await receiver.fetch_messages(limit=6)) == [*range(low + 6, min(low + 12, 20))]
        await vanish(receiver)
        receiver = await messagers(name="group", host=[1])
    assert numbers(await fetch_all(receiver, 2)) == [18, 19]
    await receiver.ack()
    assert (await store.waiting("group"), await store.entries("group")) == (0, [])


async def test_async_for(messagers):
    sender, first = await messagers(), await messagers(name="group", host=[1])
    await send_numbers(sender, *range(5))
    got = []
    async with asyncio.timeout(WAIT_S):
        async for message in first:
            got.append(message.payload["n"])
            if len(got) == 3:
                break
    assert got == [0, 1, 2]
    await vanish(first)
    second = await messagers(name="group", host=[1])
    assert numbers(await fetch_all(second, 3))[-3:] == [2, 3, 4]  # the third was not committed yet


async def test_an_iteration_goes_on_after_a_request_that_was_cancelled(messagers):
    sender, receiver = await messagers(), await messagers(host=[1])
    messages = aiter(receiver)
    for n in range(2):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(messages), 0.01)
        await send_numbers(sender, n)
        assert (await asyncio.wait_for(anext(messages), WAIT_S)).payload == {"n": n}


# -- waiting ----------------------------------------------------------------------------------------------------------


async def test_a_cancelled_fetch_loses_nothing(messagers):
    sender, receiver = await messagers(), await messagers(host=[1])
    waiting = asyncio.create_task(receiver.fetch_messages(timeout=None))
    await asyncio.sleep(0)
    await ended(waiting)
    await send_numbers(sender, 1)
    assert numbers(await fetch_all(receiver, 1)) == [1]


async def test_two_fetches_at_once_share_the_messages(messagers):
    sender, receiver = await messagers(), await messagers(host=[1])
    fetches = [asyncio.create_task(receiver.fetch_messages(limit=1, timeout=None)) for _ in range(2)]
    await send_numbers(sender, 1, 2)
    found = await asyncio.wait_for(asyncio.gather(*fetches), WAIT_S)
    assert sorted(numbers(found[0]) + numbers(found[1])) == [1, 2]


# -- bad input --------------------------------------------------------------------------------------------------------


async def test_fetching_before_listening_and_a_limit_that_cannot_be(messagers):
    messager, receiver = await messagers(), await messagers(host=[1])
    assert len(await messager.fetch_messages()) == 0
    for call in (lambda: messager.fetch_messages(timeout=1.0), messager.ack, lambda: anext(aiter(messager))):
        with pytest.raises(NotListening, match="subscribe_and_start_listening"):
            await call()
    for limit in (0, -1):
        with pytest.raises(ConfigError, match="limit"):
            await receiver.fetch_messages(limit=limit)


# -- successors -------------------------------------------------------------------------------------------------------


async def test_a_reader_with_a_successor_is_fenced(messagers, store):
    sender, first = await messagers(), await messagers(name="group", host=[1])
    await send_numbers(sender, 1)
    held = await fetch_all(first, 1, commit="acked")
    epoch = int(await store.client.hget(store.keys.state("group"), "epoch"))
    second = await messagers(name="group", host=[1])
    for call in (lambda: first.ack(held), first.fetch_messages):
        with pytest.raises(Fenced) as caught:
            await call()
    assert (caught.value.name, caught.value.epoch) == ("group", epoch)
    assert pickle.loads(pickle.dumps(caught.value)).name == "group"
    await first.close()  # as the error says; that must not raise it again
    assert numbers(await fetch_all(second, 1)) == [1]


async def test_an_idle_reader_with_a_successor_is_fenced_when_it_renews(messagers):
    first = await messagers(name="group", host=[1], lease_s=0.03)
    await messagers(name="group", host=[1])
    with pytest.raises(Fenced):
        await first.fetch_messages(timeout=10)
    with pytest.raises(Fenced):
        await first.fetch_messages()


@pytest.mark.parametrize("listens", [False, True], ids=["it sends", "it listens"])
async def test_a_sender_with_a_successor_is_fenced(messagers, listens):
    first, receiver = await messagers(name="group"), await messagers(host=[1])
    await send_numbers(first, 1)
    second = await messagers(name="group", host=[2] if listens else ())
    if not listens:
        await send_numbers(second, 3)  # from its first call
    for _ in range(2):
        with pytest.raises(Fenced, match="group"):
            await first.send_message(first.get_agent_chat_channel(1), {"n": 2})
    assert numbers(await fetch_all(receiver, 1 if listens else 2)) == ([1] if listens else [1, 3])


async def test_a_successor_continues_the_frame_numbers(messagers):
    receiver = await messagers(host=[1])
    ids = []
    for n in range(3):
        sender = await messagers(name="group")
        ids += (await send_numbers(sender, n, 10 + n)).message_ids
        await sender.close()
    assert len(set(ids)) == 6
    assert numbers(await fetch_all(receiver, 6)) == [0, 10, 1, 11, 2, 12]


# -- leases -----------------------------------------------------------------------------------------------------------


async def test_close_ends_waiting_fetches(messagers):
    async def iterate(messager):
        async for _ in messager:
            pass

    for wait in (lambda messager: messager.fetch_messages(timeout=None), iterate):
        messager = await messagers(listen=["news"])
        waiting = asyncio.create_task(wait(messager))
        await asyncio.sleep(0)  # so that it waits
        await messager.close()
        with pytest.raises(Closed, match="closed"):
            await waiting


async def test_a_messager_without_a_name_is_removed_when_it_closes(messagers, store):
    sender, receiver = await messagers(), await messagers(host=[1])
    await send_numbers(sender, 1, 2)
    await take_in(receiver, 2)
    await receiver.fetch_messages(limit=1)
    await receiver.ack()
    await receiver.close()
    assert (await sender.send(None, 1, {})).fate == "undeliverable"
    ((mailbox, reason, _),) = await store.dead()
    assert (mailbox, reason) == (receiver.name, "the mailbox was removed")
    assert receiver.name not in await store.mailboxes()


async def test_a_messager_without_a_name_is_removed_when_its_lease_is_not_renewed(messagers, store):
    sender = await messagers()
    gone, there = await messagers(host=[1], lease_s=0.3), await messagers(host=[2], lease_s=0.3)
    await send_numbers(sender, 1)
    await vanish(gone)
    await send_numbers(sender, 2)

    async def left():
        return not await sender.send(0, 1, {"n": 3})

    await until(left)
    reasons = {(mailbox, reason) for mailbox, reason, _ in await store.dead()}
    assert reasons == {(gone.name, "the lease of its messager has expired")}
    assert there.name in await store.mailboxes()


async def test_a_removed_mailbox_stops_listening(messagers, store):
    sender, receiver = await messagers(), await messagers(host=[1], listen=["news", "n*"], lease_s=0.03)
    channel = sender.get_agent_chat_channel(1)
    await remove_mailbox(receiver, receiver.name)
    with pytest.raises(NotListening, match="removed"):
        await receiver.fetch_messages(timeout=10)

    async def nobody():
        fates = [(await sender.send_message(name, {})).fate for name in (channel, "news", "nobody")]
        return fates == ["undeliverable"] * 3

    await until(nobody)  # not published to a messager that will never deliver it
    assert await store.publish(channel, b"{}") == 0


# -- limits -----------------------------------------------------------------------------------------------------------


LARGE = pytest.mark.parametrize("text", ["", "x" * 100_000], ids=["small frames", "large frames"])


@LARGE
async def test_a_full_mailbox_makes_senders_wait_until_it_is_drained(messagers, text):
    sender, receiver = await messagers(), await messagers(host=[1], mailbox_messages=8, inbox_messages=8)
    await send_numbers(sender, *range(8), text=text)
    more = asyncio.create_task(send_numbers(sender, *range(8, 40), text=text))
    other = await messagers(host=[2])
    await send_numbers(sender, 100, to=2)  # a full mailbox does not hold the others up
    assert numbers(await fetch_all(other, 1)) == [100]
    assert not more.done()
    assert numbers(await fetch_all(receiver, 40)) == list(range(40))
    await more


@LARGE
async def test_sends_do_not_wait_for_a_removed_mailbox(messagers, text):
    sender, receiver = await messagers(), await messagers(host=[1], mailbox_messages=4)
    await send_numbers(sender, *range(4), text=text)
    waiting = asyncio.create_task(sender.send(0, 1, {"n": 4, "text": text}))
    await until(lambda: sender.stats()["outbox"] == 1)
    await receiver.close()
    # The server may still have its subscription.
    assert (await asyncio.wait_for(waiting, AT_ONCE_S)).fate in {"undeliverable", "published"}


@LARGE
async def test_sends_to_a_mailbox_that_stays_full_raise(messagers, text):
    sender, receiver = await messagers(send_timeout_s=0.5), await messagers(host=[1], mailbox_messages=8)
    first = await send_numbers(sender, *range(8))
    with pytest.raises(MailboxFull) as caught:
        await sender.send_message(sender.get_agent_chat_channel(1), {"n": 8, "text": text})
    error = caught.value
    assert error.mailbox == receiver.name
    assert list(error.receipts) == [None]
    assert len(error.message_ids) == 1
    assert "inbox" not in str(error)
    copy = pickle.loads(pickle.dumps(error))
    assert (copy.mailbox, copy.receipts, copy.message_ids) == (error.mailbox, error.receipts, error.message_ids)
    with pytest.raises(MailboxFull) as caught:
        await sender.send_messages([Outgoing.to_agents([99, 1, 98], {"n": 9})])
    fates = [receipt if receipt is None else receipt.fate for receipt in caught.value.receipts]
    assert fates == ["undeliverable", None, "undeliverable"]
    assert len(caught.value.message_ids) == 1
    rows = sender.get_log_list()
    assert [row["fate"] for row in rows] == ["delivered"] * 8 + [None, "undeliverable", None, "undeliverable"]
    assert sender.stats()["outbox"] == 0
    got = await fetch_all(receiver, 8)
    assert [message.id for message in got] == first.message_ids  # nothing that was accepted is lost
    await receiver.ack()
    await send_numbers(sender, 10)
    assert numbers(await fetch_all(receiver, 1)) == [10]


async def test_two_full_mailboxes_on_one_channel(messagers):
    sender = await messagers(send_timeout_s=1)
    both = [await messagers(listen=["news"], mailbox_messages=4) for _ in range(2)]
    for n in range(4):
        await sender.send_message("news", {"n": n})
    with pytest.raises(MailboxFull):
        await sender.send_message("news", {"n": 4})
    assert sender.stats()["outbox"] == 0
    assert len(sender.get_log_list()) == 5
    for receiver in both:
        assert numbers(await fetch_all(receiver, 4)) == list(range(4))
        await receiver.ack()
    assert (await sender.send_message("news", {"n": 5})).fate == "delivered"
    assert sender.stats()["outbox"] == 0
    for receiver in both:
        assert numbers(await fetch_all(receiver, 1)) == [5]


async def test_the_error_of_a_full_mailbox_names_mailboxes_that_have_the_message(messagers):
    sender, free = await messagers(send_timeout_s=1), await messagers(listen=["news"], name="free")
    full = await messagers(listen=["news"], mailbox_messages=4, name="full")
    for n in range(4):
        await sender.send_message("news", {"n": n})
    with pytest.raises(MailboxFull, match=r"other listeners.*free") as caught:
        await sender.send_message("news", {"n": 4})
    assert caught.value.mailbox == "full"
    assert numbers(await fetch_all(free, 5)) == list(range(5))
    assert numbers(await fetch_all(full, 4)) == list(range(4))


async def test_a_small_mailbox_takes_batches_with_long_names(messagers, store):
    names = [f"{n:03}-{'x' * 190}" for n in range(100)]
    sender = await messagers(send_timeout_s=5)
    receiver = await messagers(name="group", host=names, mailbox_bytes=20_000)
    draining = asyncio.create_task(fetch_all(receiver, 400))
    for _ in range(2):
        assert (await sender.send_columns(names, names, {})).sent.all()
        assert (await sender.send_messages([Outgoing.to_agents(names, {}, from_id=1)])).sent.all()
    messages = await draining
    assert [message.to_id for message in messages] == names * 4


async def test_a_mailbox_is_bounded_in_bytes(messagers):
    sender, receiver = await messagers(send_timeout_s=1), await messagers(host=[1], mailbox_bytes=20_000)
    payload = {"text": "x" * 4000}
    for _ in range(4):
        await sender.send(None, 1, payload)
    with pytest.raises(MailboxFull):
        await sender.send(None, 1, payload)
    with pytest.raises(PayloadTooLarge, match=receiver.name) as caught:  # this one has no room in an empty one, too
        await asyncio.wait_for(sender.send(None, 1, {"text": "x" * 30_000}), AT_ONCE_S)
    assert caught.value.size > caught.value.limit > 0
    await fetch_all(receiver, 4)
    await receiver.ack()
    assert await sender.send(None, 1, payload)


async def test_a_receiver_that_never_fetches_keeps_to_its_limit(messagers, store):
    sender, receiver = await messagers(), await messagers(name="group", host=[1], inbox_messages=40)
    for low in range(0, 400, 20):
        await send_numbers(sender, *range(low, low + 20))
    await take_in(receiver, 31)
    for _ in range(20):
        await send_numbers(sender, 0)
        assert receiver.stats()["inbox"] <= 40
    assert await store.waiting("group") == 420
    assert numbers(await fetch_all(receiver, 420))[:400] == list(range(400))
    await receiver.ack()
    assert await store.waiting("group") == 0


async def test_close_while_a_mailbox_is_full(messagers):
    sender, receiver = await messagers(send_timeout_s=1), await messagers(host=[1], mailbox_messages=4)
    await send_numbers(sender, *range(4))
    waiting = asyncio.create_task(sender.send_message(sender.get_agent_chat_channel(1), {"n": 4}))
    await asyncio.sleep(0)
    await sender.close()
    with pytest.raises(MailboxFull):
        await waiting
    await fetch_all(receiver, 4)


# -- garbage ----------------------------------------------------------------------------------------------------------


def frame(rows=1):
    return frame_of([1] * rows, b'{"n":5}')


@pytest.mark.parametrize(
    "garbage",
    [
        *(b"", b"RM", b"no frame at all", frame()[:-1], frame() + b"x"),
        frame_of([1]),
    ],
    ids=["empty", "short", "text", "truncated", "longer", "no payloads"],
)
async def test_a_frame_that_cannot_be_read_becomes_a_dead_letter(messagers, store, garbage):
    sender, receiver = await messagers(), await messagers(name="group", host=[1])
    await send_numbers(sender, 1)
    await store.write("group", garbage)
    await send_numbers(sender, 2)
    assert numbers(await fetch_all(receiver, 2)) == [1, 2]
    assert receiver.stats()["unreadable"] == 1
    ((mailbox, reason, data),) = await store.dead()
    assert (mailbox, data) == ("group", garbage)
    assert reason
    await receiver.close()
    second = await messagers(name="group", host=[1])
    await send_numbers(sender, 3)
    assert numbers(await fetch_all(second, 1)) == [3]


async def test_a_mailbox_of_entries_without_messages_is_emptied(messagers, store):
    receiver = await messagers(name="group", host=[1])
    await store.write("group", b"garbage")
    await store.write("group", frame(0))
    assert len(await receiver.fetch_messages(timeout=0.2)) == 0
    await until(lambda: receiver.stats()["unreadable"] == 1)
    await receiver.fetch_messages()
    await receiver.ack()
    assert await store.entries("group") == []


# -- listening at once ------------------------------------------------------------------------------------------------


async def test_concurrent_subscriptions_all_take_effect_also_of_what_is_heard_already(messagers):
    sender, receiver = await messagers(), await messagers(listen=["all"])
    async with asyncio.timeout(AT_ONCE_S):
        await asyncio.gather(*(receiver.subscribe_and_start_listening([f"news-{n}", "all"]) for n in range(5)))
        await receiver.subscribe_and_start_listening(["all"])
        await receiver.subscribe_and_start_listening([])
    names = [*(f"news-{n}" for n in range(5)), "all"]
    assert {(await sender.send_message(name, {"n": n})).fate for n, name in enumerate(names)} == {"delivered"}
    assert numbers(await fetch_all(receiver, 6)) == [*range(6)]


async def test_a_new_listener_also_gets_a_waiting_message(messagers):
    sender, full = await messagers(listen=["own"]), await messagers(listen=["news"], mailbox_messages=4)
    for n in range(4):
        await sender.send_message("news", {"n": n})
    waiting = asyncio.create_task(sender.send_message("news", {"n": 4}))
    await until(lambda: waits_for_room(sender))
    late = await messagers(listen=["news"])
    await sender.subscribe_and_start_listening(["own"])  # no new channel, but the sender's directory is reloaded
    await fetch_all(full, 4)
    await full.ack()
    assert (await waiting).fate == "delivered"
    assert numbers(await fetch_all(full, 1)) == [4]
    assert numbers(await fetch_all(late, 1)) == [4]


# -- messages as lists and dicts --------------------------------------------------------------------------------------


async def test_messages_behave_as_lists_of_dicts(messagers):
    sender, receiver = await messagers(), await messagers(host=[1])
    assert await receiver.fetch_messages() == []
    await send_numbers(sender, 1, 2)
    found = await fetch_all(receiver, 2)
    await send_numbers(sender, 3)
    batch = await receiver.fetch_messages(timeout=10)
    assert batch == list(batch) != []
    assert batch[0] == batch[0] != found[0]
    assert found[1] in found
    assert numbers(found + batch) == numbers([*found, *batch]) == [1, 2, 3]
    assert numbers(batch + found) == [3, 1, 2]
    assert len({*found, *found, *batch}) == 3
    assert dict(batch[0].items()) == dict(zip(batch[0].keys(), batch[0].values(), strict=True)) == dict(batch[0])
