"""Foreign publications below our internal topics do no harm to others."""

import time

import msgspec
import pytest
from support.contracts import MqttStore, fetch_all

from ray_messaging.addressing.directory import Record, encode_record
from ray_messaging.mqtt.wire.messages import DirectoryEntry, encode_entry

DAY_US = 86_400 * 10**6


@pytest.fixture
def server(mosquitto_config):
    return mosquitto_config


@pytest.fixture
async def stranger(server, exp_id):
    store = await MqttStore(server, exp_id, []).open()
    yield store
    await store.close()


async def say(stranger, topic, payload, *, retain=True):
    await stranger.publisher.publish(topic, payload, qos=1, retain=retain)


def numbers(messages):
    return [message.payload["n"] for message in messages]


async def send(sender, n):
    receipt = await sender.send_message(sender.get_agent_chat_channel(1), {"n": n}, from_id=0)
    assert receipt.fate == "delivered"


# -- directory records ------------------------------------------------------------------------------------------------


def card(mailbox, *, channels=(), globs=(), messages=1000, nbytes=10**6, **limits):
    record = encode_record(Record(mailbox, [], list(channels), list(globs), **limits))
    return card_of(record, messages, nbytes)


def card_of(record, messages=1000, nbytes=10**6, epoch=1):
    return encode_entry(
        DirectoryEntry(record, epoch, "", pending=False, messages=messages, nbytes=nbytes, stamp="x", reader="y")
    )


def deep_record(mailbox):
    record = msgspec.msgpack.decode(encode_record(Record(mailbox, [], ["q"], [])))
    return bytes([0x90 + len(record) + 1]) + msgspec.msgpack.encode(record)[1:] + b"\x91" * 60_000 + b"\xc0"


POISON = {
    "a malformed filter": ("zz", card("zz", globs=["a/#/b"])),
    "a filter below our own topics": ("zz", card("zz", globs=["ray_messaging/#"])),
    "a nested record": ("zz", card_of(deep_record("zz"))),
    "the log's mailbox": (":log", card(":log", channels=["q"])),
    "no name": ("", card("", channels=["q"])),
    "frames of no rows": ("zz", card("zz", channels=["q"], frame_rows=0)),
    "frames of no bytes": ("zz", card("zz", channels=["q"], frame_bytes=-5)),
    "room for no message": ("zz", card("zz", channels=["q"], messages=0)),
    "room for no byte": ("zz", card("zz", channels=["q"], nbytes=0)),
}


async def test_invalid_directory_records_are_ignored(server, opener, stranger):
    receiver, sender = await opener(server, name="group", host=[1]), await opener(server)
    await send(sender, 1)
    for mailbox, payload in POISON.values():
        await say(stranger, stranger.topics.directory(mailbox), payload)
    await send(sender, 2)
    late = await opener(server)
    await send(late, 3)
    assert numbers(await fetch_all(receiver, 3)) == [1, 2, 3]


@pytest.mark.parametrize("kind", POISON)
async def test_an_invalid_directory_record_gets_no_messages(server, opener, stranger, kind):
    mailbox, payload = POISON[kind]
    await say(stranger, stranger.topics.directory(mailbox), payload)
    sender = await opener(server)
    assert (await sender.send_message("q", {"n": 1})).fate == "undeliverable"


async def test_a_record_with_the_highest_epoch_is_ignored(server, opener, stranger):
    record = encode_record(Record("group", [], ["q"], []))
    await say(stranger, stranger.topics.directory("group"), card_of(record, epoch=2**63 - 1))
    receiver, sender = await opener(server, name="group", host=[1]), await opener(server)
    await send(sender, 1)
    assert numbers(await fetch_all(receiver, 1)) == [1]


# -- unforeseen errors in handlers ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["directory", "owner", "sender", "epoch"])
async def test_a_failing_handler_does_not_end_the_link(server, opener, stranger, caplog, kind):
    receiver, sender = await opener(server, name="group", host=[1]), await opener(server, name="west")
    control = sender.engine.transport._control
    foreseen = control._handler.on_message

    def fail(kind, name, payload):
        if payload == b"unforeseen":
            raise LookupError("nobody thought of this")
        foreseen(kind, name, payload)

    control._handler.on_message = fail
    await send(sender, 1)
    await say(stranger, getattr(stranger.topics, kind)("west"), b"unforeseen", retain=False)
    await send(sender, 2)
    assert numbers(await fetch_all(receiver, 2)) == [1, 2]
    assert "nobody thought of this" in caplog.text
    assert sender.engine.transport.error is None


# -- epochs -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("epoch", [b"9999999999999999999", b"%d" % 2**62, b"next week", b"-1", b"9" * 100_000])
async def test_an_impossible_epoch_is_ignored(server, opener, stranger, epoch):
    receiver = await opener(server, name="group", host=[1])
    await say(stranger, stranger.topics.epoch("west"), epoch)
    sender = await opener(server, name="west")
    await send(sender, 1)
    assert numbers(await fetch_all(receiver, 1)) == [1]
    await say(stranger, stranger.topics.epoch("west"), epoch)
    await send(sender, 2)
    assert numbers(await fetch_all(receiver, 1)) == [2]


async def test_an_epoch_from_a_clock_that_is_ahead_is_surpassed(server, opener, stranger):
    ahead = time.time_ns() // 1000 + DAY_US // 24
    await say(stranger, stranger.topics.epoch("west"), b"%d" % ahead)
    receiver, sender = await opener(server, name="group", host=[1]), await opener(server, name="west")
    receipt = await sender.send_message(sender.get_agent_chat_channel(1), {"n": 1}, from_id=0)
    assert receipt.message_id.split("-")[1] == str(ahead + 1)
    assert numbers(await fetch_all(receiver, 1)) == [1]
