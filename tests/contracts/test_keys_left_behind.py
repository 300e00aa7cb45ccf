"""Keys that messagers leave on the server at their end: only mailboxes of names that may come again."""

from support.contracts import fetch_all
from support.server_side import remove_mailbox


async def test_a_nameless_messager_leaves_nothing(messagers, store):
    stays = await messagers(name="group", host=[1])
    for _ in range(3):
        visitor = await messagers(listen=["news"])
        await visitor.send_message("news", {"n": 1})
        await visitor.send_message(visitor.get_agent_chat_channel(1), {"n": 2})
        await visitor.close()
    await fetch_all(stays, 3)
    assert set(await store.senders()) == {"group"}
    assert await store.mailboxes() == {"group"}


async def test_a_named_sender_without_a_mailbox_leaves_its_epoch_for_a_day(messagers, store):
    await messagers(name="group", host=[1])
    for n in (1, 2):
        sender = await messagers(name="loud")
        await sender.send_message(sender.get_agent_chat_channel(1), {"n": n})
        assert await store.client.pttl(store.keys.sender("loud")) == -1
        await sender.close()
        assert 0 < await store.client.pttl(store.keys.sender("loud")) <= 24 * 3600 * 1000


async def test_a_named_mailbox_keeps_the_state_for_its_successor(messagers, store):
    first = await messagers(name="bank", host=[1])
    await first.send_message(first.get_agent_chat_channel(1), {"n": 1})
    await first.close()
    assert await store.senders() == {"bank": {"bank"}}
    silent = await messagers(name="bank")  # it sends under the name, and has no mailbox
    await silent.send_message(silent.get_agent_chat_channel(1), {"n": 2})
    await silent.close()
    assert set(await store.senders()) == {"bank"}
    second = await messagers(name="bank", host=[1])
    assert [message.payload["n"] for message in await fetch_all(second, 2)] == [1, 2]


async def test_a_fenced_messager_does_not_remove_its_successors_state(messagers, store):
    receiver = await messagers(name="group", host=[1])
    first, second = await messagers(name="loud"), await messagers(name="loud")
    await first.send(None, 1, {"n": 1})
    await second.send(None, 1, {"n": 2})
    await first.close()
    await second.send(None, 1, {"n": 3})
    assert [message.payload["n"] for message in await fetch_all(receiver, 3)] == [1, 2, 3]
    assert await store.senders() == {"group": set(), "loud": {"group"}}


async def test_a_reused_name_gets_each_message_once(messagers):
    sender = await messagers()
    for number in range(5):
        guest = await messagers(name="guest", listen=["guest"])
        await sender.send_message("guest", {"n": number})
        await sender.send_message("guest", {"n": number})
        assert [message.payload["n"] for message in await fetch_all(guest, 2)] == [number] * 2
        await guest.ack()
        await guest.close()
        await remove_mailbox(sender, "guest")
        await sender.send_message("nobody", {})
