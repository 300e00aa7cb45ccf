"""Foreign Redis clients: their publications, and the messages that they receive."""

import json
import pickle

import pytest
from support.contracts import fetch_all, numbers, take_in, until
from support.server_side import remove_mailbox

from ray_messaging import Outgoing
from ray_messaging.errors import FrameError


async def test_a_foreign_publish_reaches_its_agent_and_no_other_channel(messagers, store):
    receiver = await messagers(host=[1])
    channel = receiver.get_user_chat_channel(1)
    for other in (receiver.get_user_survey_channel(1), receiver.get_user_chat_channel(2), "other"):
        assert await store.publish(other, b"{}") == 0
    assert await store.publish(channel, b'{"text": "hi"}') == 1
    (message,) = await fetch_all(receiver, 1)
    assert message.payload == {"text": "hi"}
    assert message.data == b'{"text": "hi"}'
    assert (message.channel, message.from_id, message.to_id, message.subtopic) == (channel, None, 1, "user-chat")
    assert dict(message) == {"type": "message", "pattern": None, "channel": channel.encode(), "data": message.data}
    await receiver.ack()
    assert receiver.stats()["ingress"] == 1


@pytest.mark.parametrize(
    "data", [b"plain", b"", b"a\nb\n\nc", b"\n", b'{"a":\n1}', b"\xff\x00\xfe", b"x" * 100_000, b'"text"', b"[1]"],
    ids=["text", "empty", "newlines", "newline", "pretty", "binary", "large", "string", "list"],
)  # fmt: skip
async def test_foreign_payloads_arrive_and_pickle_unchanged(messagers, store, data, news):
    receiver = await messagers(listen=[news])
    await store.publish(news, data)
    await store.publish(news, b'{"n":1}')
    await take_in(receiver, 2)
    messages = await receiver.fetch_messages()
    copies = pickle.loads(pickle.dumps(messages))
    assert [message.data for message in copies] == [data, b'{"n":1}']
    for message in (messages[0], copies[0], pickle.loads(pickle.dumps(messages[0]))):
        assert message.data == data
        assert message["data"] == data
        try:
            expected = json.loads(data)
        except ValueError:
            with pytest.raises(FrameError, match="JSON"):
                _ = message.payload
        else:
            assert message.payload == expected
    assert messages[1].payload == {"n": 1}


async def test_overlapping_subscriptions_deliver_each_message_once(messagers, store):
    receiver = await messagers()
    channel = receiver.get_user_chat_channel(1)
    prefix = channel.removesuffix("1:user-chat")
    await receiver.subscribe_and_start_listening([channel, prefix + "*", prefix + "?:user-*"])
    await receiver.subscribe_and_start_listening([prefix + "[0-9]:*"])
    other = receiver.get_user_survey_channel(2)
    for n in range(3):
        await store.publish(channel, b'{"n":%d}' % n)
        await store.publish(other, b'{"n":%d}' % (10 + n))
    await store.publish(receiver.get_user_payback_channel(), b"{}")
    await receiver.subscribe_and_start_listening(["end"])
    await store.publish("end", b'{"n":"end"}')
    messages = await fetch_all(receiver, 7)
    assert [message.payload["n"] for message in messages] == [0, 10, 1, 11, 2, 12, "end"]
    assert [message["type"] for message in messages[:2]] == ["message", "pmessage"]
    assert messages[0]["pattern"] is None
    assert messages[1]["pattern"].decode().startswith(prefix)
    assert (messages[1].to_id, messages[1].subtopic) == (2, "user-survey")


async def test_our_messages_reach_a_pattern_through_its_mailbox_and_foreign_subscribers_without_one(messagers, store):
    sender, receiver = await messagers(), await messagers(listen=["exps:*:agents:*:agent-chat", "n?ws"])
    foreign = sender.get_user_chat_channel(2)
    get = await store.subscribe(globs=["exps:*:agents:*"])
    receipts = await sender.send_messages(
        [
            Outgoing.to_agents([1, "ann"], {"n": 1}),
            Outgoing("news", {"n": 2}),
            Outgoing("nws", {"n": 3}),
            Outgoing(foreign, {"n": 4}),
        ]
    )
    assert receipts.fates.tolist() == ["delivered"] * 3 + ["undeliverable", "published"]
    assert [message.to_id for message in await fetch_all(receiver, 3)] == [1, "ann", None]
    assert await get() == (foreign, b'{"n":4}')


@pytest.mark.parametrize(
    ("glob", "yes", "no"),
    [
        ("a[^b]c", "axc", "abc"),
        ("a[!b]c", "a!c", "axc"),
        ("a[b-d]c", "acc", "aec"),
        ("a[d-b]c", "acc", "aec"),
        (r"a\[b", "a[b", "ab"),
        ("a**c", "axxc", "axxd"),
        ("a.c*", "a.c", "axc"),
        ("a?", "ab", "a"),
        (r"[\]x]", "x", "y"),
        ("A*", "Ab", "ab"),
    ],
)
async def test_patterns_match_as_in_redis(messagers, store, glob, yes, no):
    sender, receiver = await messagers(), await messagers(listen=[glob])
    assert await store.publish(yes, b"{}") == 1
    assert await store.publish(no, b"{}") == 0
    assert [message.channel for message in await fetch_all(receiver, 1)] == [yes]
    if "[" not in yes:
        assert (await sender.send_message(yes, {})).fate == "delivered"
        assert (await sender.send_message(no, {})).fate == "undeliverable"


async def test_mirror_also_publishes_messages_for_mailboxes(messagers, store):
    sender, receiver = await messagers(mirror=True), await messagers(host=[1])
    channel = sender.get_agent_chat_channel(1)
    get = await store.subscribe(channel)
    receipt = await sender.send_message(channel, {"n": 1}, from_id=2)
    assert receipt.fate == "delivered"
    assert await get() == (channel, b'{"n":1}')
    assert await sender.send_message(channel, {"n": 2}, from_id=2)
    assert [message.payload["n"] for message in await fetch_all(receiver, 2)] == [1, 2]
    await store.publish(channel, b'{"n":3}')  # a returned message would arrive before this one
    assert [message.payload["n"] for message in await fetch_all(receiver, 1)] == [3]
    assert receiver.stats()["ingress"] == 1


async def test_our_publications_do_not_return_through_a_pattern(messagers, store):
    both = await messagers(mirror=True, listen=["a*", "ab", "other"])
    await both.send_message("ab", {"n": 1})
    await both.send_message("ax", {"n": 2})
    await both.send_message("zz", {"n": 3})
    await store.publish("ab", b'{"n":4}')
    found = [message.payload["n"] for message in await fetch_all(both, 3)]
    assert sorted(found) == [1, 2, 4]
    assert len(await both.fetch_messages()) == 0


async def test_a_pattern_for_all_channels_delivers_no_internal_messages(messagers, store, news, exp_id):
    receiver, sender = await messagers(listen=["*"]), await messagers(mirror=True)
    await sender.send_message(news, {"n": 1})
    await store.publish(f"end-{exp_id}", b'{"n":2}')
    found = []
    while not any(message.channel == f"end-{exp_id}" for message in found):
        found += await fetch_all(receiver, 1)
    found += await receiver.fetch_messages()
    ours = {message.channel: message.data for message in found if exp_id in message.channel}
    assert ours == {news: b'{"n":1}', f"end-{exp_id}": b'{"n":2}'}
    assert receiver.stats()["ingress"] == len(found) - 1  # in a cluster, publications of others may come late


@pytest.mark.parametrize(
    ("settings", "text", "kept"),
    [({"inbox_messages": 4}, b"", 4), ({"inbox_messages": 1000, "mailbox_bytes": 100_000}, 40_000 * b"x", 2)],
    ids=["messages", "bytes"],
)
async def test_a_full_inbox_drops_and_counts_foreign_messages(messagers, store, news, settings, text, kept):
    receiver = await messagers(listen=[news, "end"], **settings)
    for n in range(10):
        await store.publish(news, b'{"n":%d,"text":"%s"}' % (n, text))
    await until(lambda: receiver.stats()["ingress_dropped"] == 10 - kept)
    assert numbers(await fetch_all(receiver, kept)) == [*range(kept)]
    await store.publish("end", b'{"text":"%s"}' % (200_000 * b"x"))  # larger than all of it: there is no other
    assert len((await fetch_all(receiver, 1))[0].data) > 200_000
    await store.publish("end", b'{"n":"end"}')
    assert numbers(await fetch_all(receiver, 1)) == ["end"]
    assert receiver.stats()["ingress_dropped"] == 10 - kept


async def test_after_close_foreign_publications_have_no_subscriber(messagers, store, news):
    receiver = await messagers(listen=[news, "n*"])
    await receiver.close()
    await store.heard_by(0, news)


@pytest.mark.one_server("a cluster has one db")
async def test_an_experiment_of_the_same_name_in_another_db_is_another_one(server, opener, messagers, store):
    if server.sentinels:
        pytest.skip("its own client is of one server")
    elsewhere = server.model_copy(update={"db": 1})
    sender, listener = await messagers(name="sender"), await messagers(name="group", host=[2])
    there = await opener(elsewhere, name="group", host=[1, 2])
    channel = sender.get_user_chat_channel(1)
    assert (await sender.send_message(channel, {"n": 1})).fate == "undeliverable"
    await listener.subscribe_and_start_listening(["exps:*"])
    await there.subscribe_and_start_listening([f"exps:{store.keys.exp_id}:agents:*:user-chat"])
    assert await store.publish(channel, b'{"n":2}') == 1  # the pattern of the listener here
    assert await store.publish(channel.replace(store.keys.exp_id, f"{store.keys.exp_id}@1"), b'{"n":3}') == 3
    assert numbers(await fetch_all(there, 1)) == [3]
    found = await fetch_all(listener, 2)
    assert [(each.to_id, each.payload["n"]) for each in found] == [(1, 2), (None, 3)]
    await listener.close()
    await remove_mailbox(sender, "group")  # it tells the ears of that mailbox
    assert (await there.send_message(there.get_agent_chat_channel(2), {"n": 4}, from_id=1)).fate == "delivered"
    assert await store.publish(channel.replace(store.keys.exp_id, f"{store.keys.exp_id}@1"), b'{"n":5}') == 2
    assert sorted(numbers(await fetch_all(there, 2))) == [4, 5]
    mirrored = await opener(elsewhere, mirror=True)
    heard = await store.subscribe(channel.replace(store.keys.exp_id, f"{store.keys.exp_id}@1"))
    await mirrored.send_message(channel, {"n": 6})
    assert (await heard())[1] == b'{"n":6}'
