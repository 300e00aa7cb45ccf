"""The event log of a transport without readable mailboxes: each row gets a note once its fate is known."""

import asyncio
from collections import Counter

import pytest
from support.patience import WAIT_S

from ray_messaging.errors import OutcomeUnknown
from ray_messaging.eventlog.writing.rows.entries import decode_entry
from ray_messaging.interception.rules import BlackList, Rule, rewrite
from ray_messaging.interception.server.interceptor import Interceptor
from ray_messaging.outgoing import Outgoing
from ray_messaging.receipt import FATES
from ray_messaging.transports.memory import MemoryServer, MemoryTransport
from ray_messaging.transports.transport import LOG_STREAM, Limits

LIMITS = Limits(1_000, 2**20, 30.0, leased=False)


@pytest.fixture
def apart(monkeypatch):
    monkeypatch.setattr(MemoryTransport, "logs_apart", True)
    return MemoryServer()


@pytest.fixture
async def log(apart, exp_id):
    transport = MemoryTransport(apart, exp_id)
    await transport.log.register(LIMITS)
    return transport.log


async def told(log):
    """Return the rows of the log stream: fate, mailbox, from, to, payload."""
    found = []
    for item in await log.read({LOG_STREAM: "0-0"}, 1_000, 0):
        if item.frame:
            part = decode_entry(item).part
            fates = part.fates if not isinstance(part.fates, int) else [part.fates] * len(part.batch)
            found += [
                (FATES[fate], part.mailbox, part.batch.from_ids[row], part.batch.to_ids[row], part.batch.lines.row(row))
                for row, fate in enumerate(fates)
            ]
    return found


async def test_each_row_is_noted_once_with_its_fate(opener, apart, log):
    sender = await opener(apart, Interceptor("x", [BlackList([(5, 9)])]))
    first, second = await opener(apart, name="first", host=[1]), await opener(apart, name="second", listen=["news"])
    third = await opener(apart, name="third", listen=["news"])
    apart.subscribe(["open"], [], lambda _: None)
    chats = [sender.get_agent_chat_channel(agent) for agent in (1, 9, 77)]
    receipts = await sender.send_messages(
        [Outgoing(channel, {"n": n}, from_id=5) for n, channel in enumerate([*chats, "news", "open", chats[0]])]
    )
    assert [receipt.fate for receipt in receipts] == [
        "delivered", "blocked", "undeliverable", "delivered", "published", "delivered",
    ]  # fmt: skip
    assert Counter(await told(log)) == Counter(
        [
            ("delivered", "first", 5, 1, b'{"n":0}'),
            ("blocked", None, 5, 9, b'{"n":1}'),
            ("undeliverable", None, 5, 77, b'{"n":2}'),
            ("delivered", "second", 5, None, b'{"n":3}'),
            ("delivered", "third", 5, None, b'{"n":3}'),
            ("published", None, 5, None, b'{"n":4}'),
            ("delivered", "first", 5, 1, b'{"n":5}'),
        ]
    )
    assert [len(await box.fetch_messages(timeout=WAIT_S)) for box in (first, second, third)] == [2, 1, 1]


async def test_a_rewritten_row_is_noted_with_its_original_payload(opener, apart, log):
    class Polite(Rule):
        name = "polite"
        needs_payload = True

        def check(self, message):
            return rewrite({"text": "..."})

    sender, receiver = await opener(apart, Interceptor("x", [Polite()])), await opener(apart, host=[1])
    await sender.send_message(sender.get_agent_chat_channel(1), {"text": "damn"}, 5)
    (item,) = [item for item in await log.read({LOG_STREAM: "0-0"}, 10, 0) if item.frame]
    part = decode_entry(item).part
    assert part.batch.lines.row(0) == b'{"text":"..."}'
    assert (part.note.why[0].rule, part.note.before[0].line) == ("polite", b'{"text":"damn"}')
    (message,) = await receiver.fetch_messages(timeout=WAIT_S)
    assert message.payload == {"text": "..."}


async def test_a_receipt_waits_for_its_note_and_nothing_is_sent_twice(opener, apart, log):
    first = await log.register(LIMITS._replace(messages=1))
    sender, receiver = await opener(apart), await opener(apart, host=[1])
    channel = sender.get_agent_chat_channel(1)
    await sender.send_message(channel, {"n": 0}, 5)
    sending = asyncio.create_task(sender.send_message(channel, {"n": 1}, 5))
    assert [m.payload["n"] for m in await fetched(receiver, 2)] == [0, 1]
    assert not sending.done()
    late = await opener(apart, host=[2])  # the directory changes meanwhile: what waits for the log stays as it is
    epoch = await log.register(LIMITS)
    assert (await asyncio.wait_for(sending, WAIT_S)).fate == "delivered"
    assert [row[4] for row in await told(log)] == [b'{"n":0}', b'{"n":1}']
    assert len(await receiver.fetch_messages()) == len(await late.fetch_messages()) == 0
    assert epoch > first


async def test_a_log_that_stays_full_is_named_in_the_error_of_sent_messages(opener, apart, log):
    await log.register(LIMITS._replace(messages=1))
    sender, receiver = await opener(apart, send_timeout_s=0.1), await opener(apart, host=[1])
    channel = sender.get_agent_chat_channel(1)
    await sender.send_message(channel, {"n": 0}, 5)
    with pytest.raises(OutcomeUnknown, match="were sent and may have been read"):
        await sender.send_message(channel, {"n": 1}, 5)
    assert [m.payload["n"] for m in await fetched(receiver, 2)] == [0, 1]
    assert sender.stats()["outbox"] == 0


async def fetched(receiver, count):
    found = []
    async with asyncio.timeout(WAIT_S):
        while len(found) < count:
            found += await receiver.fetch_messages(timeout=WAIT_S)
    return found
