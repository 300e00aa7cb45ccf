"""A messager with very many channels receives those of all agents by one pattern, without visible difference."""

import pytest
from support.contracts import client_of, fetch_all
from support.receivers import cuts_of_ingress
from support.server_side import keys_of

from ray_messaging import Messager
from ray_messaging.errors import ServerRefused

MANY = range(10_001)  # with three subtopics: above the limit of single subscriptions
TOPICS = ("agent-chat", "user-chat", "user-survey")


def all_agents(exp_id):
    """Return the pattern of the channels of all agents."""
    return f"exps:{exp_id}:agents:*"


async def town(opener, server, agents=MANY, **options):
    """Open a messager of very many agents."""
    opened = await opener(server, **options)
    await opened.host_agents(agents, TOPICS)
    return opened


async def channels_of(server, exp_id):
    """Return the number of subscribed channels of an experiment's agents."""
    client = client_of(server, keys_of(exp_id))
    try:
        return len(await client.pubsub_channels(f"exps:{exp_id}:agents:*"))
    finally:
        await client.aclose()


async def test_each_message_arrives_once_at_its_mailbox(opener, server, store, exp_id):
    west, east = await town(opener, server), await town(opener, server, range(10_001, 20_002))
    assert await channels_of(server, exp_id) == 0
    names = [f"exps:{exp_id}:agents:{agent}:{topic}" for agent in (0, 10_000, 10_001, 20_001) for topic in TOPICS]
    strange = [
        f"exps:{exp_id}:agents:{rest}" for rest in ("20002:user-chat", "007:user-chat", "7:else", "7", "-0:else")
    ]
    for channel in [*strange, *names, *strange]:
        await store.publish(channel, b'{"n":1}')
    for messager, mine in ((west, names[:6]), (east, names[6:])):
        found = await fetch_all(messager, 6)
        assert [message.channel for message in found] == mine
        assert dict(found[0]) == {"type": "message", "pattern": None, "channel": mine[0].encode(), "data": b'{"n":1}'}
        assert len(await messager.fetch_messages()) == 0
        assert messager.stats()["ingress"] == 6


async def test_other_subscriptions_work_beside_the_wide_pattern(opener, server, store, exp_id):
    one = await town(opener, server)
    prefix = f"exps:{exp_id}:agents:"
    # Its own channel, another's, and patterns: one over both, and the wide pattern itself.
    await one.subscribe_and_start_listening(
        [prefix + "5:user-chat", prefix + "x:user-chat", prefix + "?:user-*", all_agents(exp_id), "news"]
    )
    for rest in ("5:user-chat", "6:user-chat", "x:user-chat", "y:user-chat", "y:other"):
        await store.publish(prefix + rest, b"{}")
    await store.publish("news", b"{}")
    found = await fetch_all(one, 6)
    patterns = [message["pattern"] for message in found]
    assert [message.channel.removeprefix(prefix) for message in found] == [
        "5:user-chat", "6:user-chat", "x:user-chat", "y:user-chat", "y:other", "news",
    ]  # fmt: skip
    assert (patterns[:3], patterns[4:]) == ([None, None, None], [all_agents(exp_id).encode(), None])
    assert patterns[3] in {all_agents(exp_id).encode(), (prefix + "?:user-*").encode()}
    assert len(await one.fetch_messages()) == 0


async def test_the_wide_pattern_is_no_subscriber_of_other_agents_channels(opener, server, store, exp_id):
    await town(opener, server)
    await town(opener, server, range(10_001, 20_002))
    sender = await opener(server)
    channels = [sender.get_agent_chat_channel(agent) for agent in (70_000, 70_001)]
    get = await store.subscribe(channels[1])
    receipts = [await sender.send_message(channel, {"n": 1}) for channel in [*channels, "news"]]
    assert [receipt.fate for receipt in receipts] == ["undeliverable", "published", "undeliverable"]
    assert await get() == (channels[1], b'{"n":1}')
    await store.subscribe(globs=[all_agents(exp_id)])
    receipts = await sender.send_columns(None, [70_000, 1, 70_001], {"n": 2})
    assert receipts.fates.tolist() == ["published", "delivered", "published"]


async def test_mirrored_messages_do_not_return(opener, server, store):
    one, sender = await town(opener, server), await opener(server, mirror=True)
    channel = sender.get_agent_chat_channel(7)
    assert (await sender.send_message(channel, {"n": 1})).fate == "delivered"
    await store.publish(channel, b'{"n":2}')
    assert sorted(message.payload["n"] for message in await fetch_all(one, 2)) == [1, 2]
    assert one.stats()["ingress"] == 1


async def test_the_wide_pattern_is_restored_after_a_cut(opener, server, store, exp_id):
    one = await town(opener, server)
    client, channel = client_of(server, keys_of(exp_id)), one.get_user_chat_channel(7)
    await client.client_kill_filter(_type="pubsub")
    await store.heard_by(1, channel)
    await client.aclose()
    assert (await fetch_all(one, 1))[0].channel == channel
    assert cuts_of_ingress(one) == 1


@pytest.fixture
async def user(redis_process, exp_id):
    """Return a function that makes a user with some channels, and returns how to connect as that user."""
    client, name = client_of(redis_process.config), f"user-{exp_id}"

    async def make(*channels):
        await client.execute_command("ACL", "SETUSER", name, "reset", "on", ">secret", "~*", "+@all", *channels)
        return redis_process.config.model_copy(update={"username": name, "password": "secret"})

    yield make
    await client.execute_command("ACL", "DELUSER", name)
    await client.aclose()


async def test_a_subscription_that_is_denied_names_its_channels(user, exp_id, caplog):
    keys = keys_of(exp_id)
    config = await user("resetchannels", f"&exps:{exp_id}:*", f"&{keys.own}")
    async with Messager(config, exp_id) as one:
        with pytest.raises(ServerRefused, match=rf"lacks a right: docs/security.md.*&{keys.ears}") as caught:
            await one.host_agents([1], TOPICS)
        assert (caught.value.host, caught.value.port) == (config.server, config.port)
    config = await user("resetchannels", f"&exps:{exp_id}:*", f"&{keys.own}", f"&{keys.ears}*")
    async with Messager(config, exp_id) as one:
        with pytest.raises(ServerRefused, match=rf"&exps:{exp_id}:agents:\*, &{keys.wide}"):
            await one.host_agents(MANY, TOPICS)
    assert [record.levelname for record in caplog.records] == ["ERROR", "ERROR"]


async def test_many_channels_are_subscribed_in_parts(redis_process, exp_id):
    client = client_of(redis_process.config)
    # The server drops a client with that much unread output: the confirmations of these channels take more.
    await client.config_set("client-output-buffer-limit", "pubsub 512kb 0 0")
    async with Messager(redis_process.config, exp_id) as one:
        await one.host_agents(MANY[:10_000], TOPICS)
        assert await channels_of(redis_process.config, exp_id) == 30_000
        assert cuts_of_ingress(one) == 0
        assert await client.publish(one.get_user_survey_channel(9_999), b"{}") == 1
        assert len(await fetch_all(one, 1)) == 1
        assert (await one.send_message(one.get_agent_chat_channel(70_000), {})).fate == "undeliverable"
    await client.aclose()
