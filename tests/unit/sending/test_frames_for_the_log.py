"""Frames that senders write for the log: the payloads that rules have rewritten, and few bytes."""

from support.contracts import fetch_all
from support.interceptors import interceptor_with
from support.rules import Only

from ray_messaging import Outgoing, rules
from ray_messaging.sending import frame_router
from ray_messaging.transports.transport_values import LOG_STREAM, Limits
from ray_messaging.wire.frames import decode
from ray_messaging.wire.notes import decode_log_note


def loud(message):
    """Put agents' texts in capitals, and block the user's messages."""
    return rules.block("hush") if message.from_id is None else rules.rewrite({"text": message.payload["text"].upper()})


async def test_a_rewritten_broadcast_still_shares_one_payload(messagers):
    interceptor = interceptor_with(Only(loud, needs_payload=True))
    sizes = []
    judge = interceptor.judge

    async def weighed(batch):
        found = await judge(batch)
        sizes.append(len(found.encode(0, wants_payload=True)))
        return found

    interceptor.judge = weighed
    sender, receiver = await messagers(interceptor), await messagers(host=range(200))
    transport = receiver.engine.transport
    epoch = await transport.log.register(Limits(1_000_000, 2**28, 0.0, leased=False))
    await sender.send_message(sender.get_agent_chat_channel(1), {"text": "hello"}, 5)  # it learns of the log
    text = "x" * 20_000
    everybody = [*range(100), *(["nobody"] * 100)]
    receipts = await sender.send_messages([Outgoing.to_agents(everybody, {"text": text}, from_id=5)])
    assert receipts.counts() == {"delivered": 100, "published": 0, "undeliverable": 100, "blocked": 0}
    assert max(sizes) < 2 * len(text)
    found = await fetch_all(receiver, 101)
    assert {message.payload["text"] for message in found[1:]} == {text.upper()}
    streams = (await transport.log.streams()).live
    items = [item for item in await transport.log.read(dict.fromkeys(streams, "0-0"), 100, 0.1) if item.frame]
    assert len(items) == 5  # two of the first message
    assert max(len(item.frame) + len(item.note or b"") for item in items) < 3 * len(text)
    for note in [decode_log_note(item.note, 100) for item in items[-3:] if item.note]:
        [said] = note.before
        assert (len(said.rows), text.encode() in said.line) == (400, True)
    await transport.log.unregister(epoch)


async def test_rewritten_messages_without_a_mailbox_are_published_correctly(messagers, monkeypatch):
    monkeypatch.setattr(frame_router, "_UNOWNED_BYTES", 10_000)
    sender = await messagers(interceptor_with(Only(loud, needs_payload=True)))
    transport = sender.engine.transport
    epoch = await transport.log.register(Limits(1_000_000, 2**28, 0.0, leased=False))
    await sender.engine.frame_sender.reload()
    texts = [{"text": "x" * 3000 + str(n)} for n in range(20)]
    assert (await sender.send_columns(None, [1] * 20, texts)).counts()["blocked"] == 20
    assert (await sender.send_columns(7, [1] * 20, texts)).counts()["undeliverable"] == 20
    assert (await sender.send_columns(7, [1] * 20, texts[0])).counts()["undeliverable"] == 20
    items = [item for item in await transport.log.read({LOG_STREAM: "0-0"}, 100, 0.1) if item.note]
    counts = [len(decode(item.frame)) for item in items]
    assert sum(counts) == 60
    assert max(counts) <= 3
    await transport.log.unregister(epoch)
