"""MQTT topics and filters between messagers and foreign clients, and the documented limits of MQTT."""

import contextlib
import re
from pathlib import Path

import pytest
from support.contracts import fetch_all

from ray_messaging import InvalidAddress, MqttConfig, Outgoing


@pytest.fixture
def server(mosquitto_config) -> MqttConfig:
    return mosquitto_config


def test_the_docs_list_the_promises_that_mqtt_cannot_keep(request):
    folder = request.config.rootpath
    used = set()
    for path in Path(__file__).parent.glob("test_*.py"):
        used.update(re.findall(r"beyond_mqtt\(\"([a-z-]+)\"\)", path.read_text()))
    section = (folder / "docs" / "mqtt.md").read_text().split("## What MQTT can promise")[1].split("\n## ")[0]
    told = re.findall(r"^\| `([a-z-]+)` \|", section, re.MULTILINE)
    assert used == set(told)
    assert len(told) == len(used)


async def test_a_filter_receives_our_messages_and_foreign_ones(messagers, store, exp_id):
    sender, receiver = await messagers(), await messagers(listen=[f"exps/{exp_id}/agents/+/agent-chat", "town/#"])
    receipts = await sender.send_messages(
        [
            Outgoing.to_agents([1, "ann"], {"n": 1}, from_id=5),
            Outgoing("town/square", {"n": 2}),
            Outgoing("townhall", {"n": 3}),
            Outgoing(sender.get_user_chat_channel(1), {"n": 4}),
        ]
    )
    assert receipts.fates.tolist() == ["delivered"] * 3 + ["undeliverable"] * 2
    assert await store.publish(sender.get_agent_chat_channel(7), b'{"n":5}') == 1
    assert await store.publish("town", b'{"n":6}') == 1
    assert await store.publish("townhall", b'{"n":7}') == 0
    found = await fetch_all(receiver, 5)
    assert [(message.payload["n"], message.to_id) for message in found] == [
        (1, 1), (1, "ann"), (2, None), (5, 7), (6, None)
    ]  # fmt: skip
    assert [message.from_id for message in found] == [5, 5, None, None, None]
    assert found[4].channel == "town"


async def test_a_topic_covered_by_a_filter_is_delivered_once(messagers, store):
    receiver = await messagers(listen=["town/square", "town/hall"])
    await receiver.subscribe_and_start_listening(["town/+", "town/#"])
    for n in range(3):
        await store.publish("town/square", b'{"n":%d}' % n)
    await store.publish("town/a/b", b'{"n":"end"}')
    assert [message.payload["n"] for message in await fetch_all(receiver, 4)] == [0, 1, 2, "end"]


async def test_our_publications_do_not_return(messagers, store):
    both = await messagers(mirror=True, listen=["#"])
    get = await store.subscribe("town/square")
    await both.send_message("town/square", {"n": 1})
    assert await get() == ("town/square", b'{"n":1}')
    await store.publish("end", b'{"n":2}')
    assert [message.payload["n"] for message in await fetch_all(both, 2)] == [1, 2]
    assert len(await both.fetch_messages()) == 0


async def test_a_retained_message_is_delivered_once(messagers, store, exp_id):
    topic = f"town/{exp_id}"
    await store.publish(topic, b'{"n":1}', retain=True)
    first = await messagers(listen=[topic], name="first")
    assert [message.payload["n"] for message in await fetch_all(first, 1)] == [1]
    await first.close()
    second = await messagers(listen=[topic], name="first")  # goes on with its session
    await store.publish(topic, b'{"n":2}')
    await store.publish(topic, b"", retain=True)
    assert [message.data for message in await fetch_all(second, 2)] == [b'{"n":2}', b""]


async def test_a_named_messager_gets_foreign_messages_published_while_it_was_away(messagers, store):
    first = await messagers(listen=["town/#", "hall"], name="first")
    await first.close()
    for n, topic in enumerate(["town/a", "hall", "town/b"]):
        assert await store.publish(topic, b'{"n":%d}' % n) == 1
    second = await messagers(listen=["town/#"], name="first")  # no hall any more
    assert [message.payload["n"] for message in await fetch_all(second, 2)] == [0, 2]


async def test_uncommitted_foreign_messages_come_again(messagers, store):
    first = await messagers(listen=["town"], name="first")
    for n in range(10):
        await store.publish("town", b'{"n":%d}' % n)
    got = []
    while len(got) < 3:
        got += await first.fetch_messages(limit=3 - len(got), timeout=10)
    await first.ack()
    await first.fetch_messages(timeout=10)
    with contextlib.suppress(ZeroDivisionError):
        async with first:
            raise ZeroDivisionError  # leaving by an exception leaves the last fetch unhandled
    second = await messagers(listen=["town"], name="first")
    assert [message.payload["n"] for message in await fetch_all(second, 7)] == list(range(3, 10))


async def test_our_messages_on_bare_topics_name_their_sender(messagers, store):
    sender = await messagers()
    get = await store.client("bare/+")
    sender.step = 4
    receipt = await sender.send_message("bare/topic", {"n": 1}, from_id="ann", to_id=7)
    assert receipt.fate == "published"
    message = await anext(get.messages)
    told = dict(message.properties.UserProperty)
    assert (message.payload, message.qos) == (b'{"n":1}', 1)
    assert (told["rm-id"], told["rm-from"], told["rm-to"], told["rm-step"]) == (receipt.message_id, "ann", "7", "4")


@pytest.mark.parametrize("bad", ["town/+", "#", "ray_messaging/x", "$SYS/uptime", "a/+b"])
async def test_invalid_topics_are_refused(messagers, bad):
    sender = await messagers()
    with pytest.raises(InvalidAddress) as caught:
        await sender.send_message(bad, {})
    assert caught.value.value == bad


@pytest.mark.parametrize("bad", ["town/#/x", "a+", "ray_messaging/#", "$share/g/town"])
async def test_invalid_filters_are_refused(messagers, bad):
    receiver = await messagers()
    with pytest.raises(InvalidAddress) as caught:
        await receiver.subscribe_and_start_listening([bad])
    assert caught.value.value == bad
    await receiver.subscribe_and_start_listening(["town"])  # the refused filter is not remembered
