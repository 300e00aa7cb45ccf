"""The accumulator: turns when it is full, limits in bytes, and interrupted bulk sends."""

import asyncio
import math
from collections import defaultdict

import msgspec
import pytest
from support.contracts import fetch_all
from support.frames import frames_of_columns, frames_of_sends
from support.patience import WAIT_S

from ray_messaging.errors import (
    Closed,
    InvalidAddress,
    InvalidPayload,
    MailboxFull,
    PayloadTooLarge,
)
from ray_messaging.interception.interceptor.interceptor import Interceptor
from ray_messaging.interception.rules import MaxLength
from ray_messaging.interception.verdicts import FOREIGN, BatchVerdict
from ray_messaging.outgoing import Outgoing
from ray_messaging.sending import accumulator, pending_batch
from ray_messaging.sending import bulk_input as bulk
from ray_messaging.sending.bulk_input import (
    columns_of,
)


class Gate:
    """A verdict client that passes everything once it is open, and keeps the batches."""

    route = "gate"

    def __init__(self, *, is_open=False):
        self.opened = asyncio.Event()
        self.asked = asyncio.Event()
        self.batches = []
        if is_open:
            self.opened.set()

    async def judge(self, batch):
        self.batches.append(batch)
        self.asked.set()
        await self.opened.wait()
        return BatchVerdict(epoch=FOREIGN)

    async def close(self):
        pass


@pytest.fixture
async def pair(opener, local):
    """Open a sender whose batches pass a gate, and a receiver of agents 0 to 9; return both, and the gate."""

    async def open_two(*, is_open=False, mailbox_messages=1_000_000, **settings):
        receiver = await opener(local, host=range(10), mailbox_messages=mailbox_messages)
        sender = await opener(local, **settings)
        gate = sender.engine.accumulator.send_loop.verdict_client = Gate(is_open=is_open)
        return sender, receiver, gate

    return open_two


async def settled(condition):
    async with asyncio.timeout(WAIT_S):
        while not condition():  # noqa: ASYNC110 - what is awaited has no event
            await asyncio.sleep(0)


def empty(sender):
    """Return whether nothing waits, and nothing was counted twice."""
    room = sender.engine.accumulator.capacity
    return (room.rows, room.nbytes) == (0, 0)


# -- turns ------------------------------------------------------------------------------------------------------------

TINY = [{"outbox_messages": 1}, {"outbox_messages": 3}, {"outbox_bytes": 1}, {"outbox_bytes": 30}]


@pytest.mark.parametrize("limits", TINY, ids=repr)
async def test_every_send_call_keeps_its_turn(pair, limits):
    sender, receiver, _ = await pair(is_open=True, **limits)
    tasks, n = [], 0
    for k in range(150):
        agent = k % 3
        channel = sender.get_agent_chat_channel(agent)
        numbers = [{"n": n + j} for j in range(1 + k % 4)]
        n += len(numbers)
        if k % 5 < 3:
            numbers = numbers[:1]
            send = sender.send_message(channel, numbers[0], from_id=agent)
        elif k % 5 == 3:
            send = sender.send_messages([Outgoing(channel, payload, from_id=agent) for payload in numbers])
        else:
            send = sender.send_columns(agent, [agent] * len(numbers), numbers)
        tasks.append((agent, numbers, asyncio.create_task(send)))
        if k % 7 == 0:
            await asyncio.sleep(0)
    await asyncio.gather(*(task for _, _, task in tasks))
    expected, got = defaultdict(list), defaultdict(list)
    for agent, numbers, _ in tasks:
        expected[agent] += [payload["n"] for payload in numbers]
    for message in await fetch_all(receiver, sum(map(len, expected.values()))):
        got[message.to_id].append(message.payload["n"])
    assert got == expected
    assert empty(sender)


@pytest.mark.parametrize("limits", [{"outbox_messages": 1}, {"outbox_bytes": 1}], ids=repr)
async def test_a_cancelled_send_passes_its_turn_on(pair, limits):
    sender, receiver, gate = await pair(**limits)
    channel = sender.get_agent_chat_channel(1)
    tasks = [asyncio.create_task(sender.send_message(channel, {"n": n}, from_id=5)) for n in range(20)]
    await gate.asked.wait()
    await asyncio.sleep(0)
    for n in (1, 2, 7, 19):
        tasks[n].cancel()
    gate.opened.set()
    async with asyncio.timeout(WAIT_S):
        await asyncio.gather(*tasks, return_exceptions=True)
    kept = [n for n in range(20) if n not in (1, 2, 7, 19)]
    assert [n for n, task in enumerate(tasks) if not task.cancelled()] == kept
    assert [message.payload["n"] for message in await fetch_all(receiver, len(kept))] == kept
    assert empty(sender)


# -- messages that share a batch ---------------------------------------------------------------------------------------


async def test_a_cancelled_send_takes_no_other_receipt(pair):
    sender, receiver, gate = await pair()
    channel = sender.get_agent_chat_channel(1)
    tasks = [asyncio.create_task(sender.send_message(channel, {"n": n}, from_id=5)) for n in range(6)]
    await gate.asked.wait()
    for n in (0, 2, 3):
        tasks[n].cancel()
    gate.opened.set()
    await asyncio.wait(tasks, timeout=WAIT_S)
    assert [n for n, task in enumerate(tasks) if task.cancelled()] == [0, 2, 3]
    found = {message.payload["n"]: message.id for message in await fetch_all(receiver, 6)}
    assert {n: tasks[n].result().message_id for n in (1, 4, 5)} == {n: found[n] for n in (1, 4, 5)}
    assert empty(sender)


BAD = [
    ({"from_id": 2**63}, InvalidAddress),
    ({"from_id": -(2**63) - 1}, InvalidAddress),
    ({"from_id": True}, InvalidAddress),
    ({"to_id": 2}, InvalidAddress),
    ({"to_id": True}, InvalidAddress),
    pytest.param({"payload": {"raw": msgspec.Raw(b"[1,\n2]")}}, InvalidPayload, id="a line end"),
    pytest.param({"payload": {"of": object()}}, InvalidPayload, id="no JSON"),
    ({"payload": [1]}, InvalidPayload),
    ({"payload": {"mood": math.nan}}, InvalidPayload),
    pytest.param({"payload": {"t": "x" * 3_000}}, PayloadTooLarge, id="too large"),
    ({"channel": ["unhashable"]}, InvalidAddress),
]


@pytest.mark.parametrize(("wrong", "error"), BAD, ids=repr)
async def test_a_message_is_checked_behind_another_one_too(pair, wrong, error):
    sender, receiver, _ = await pair(is_open=True, payload_bytes=2_500)
    right = {"channel": sender.get_agent_chat_channel(1), "payload": {"n": 1}, "from_id": 5}
    fine = [right, right | {"to_id": 1}, right | {"from_id": -(2**63)}, right | {"from_id": 2**63 - 1}]
    sends = [sender.send_message(**each) for each in (right, right | wrong, *fine)]
    first, caught, *rest = await asyncio.gather(*sends, return_exceptions=True)
    assert isinstance(caught, error)
    assert [receipt.fate for receipt in (first, *rest)] == ["delivered"] * 5
    assert [message.from_id for message in await fetch_all(receiver, 5)] == [5, 5, 5, -(2**63), 2**63 - 1]
    assert empty(sender)


# -- bytes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bulk_sends", [False, True])
async def test_the_outbox_keeps_to_its_bytes(pair, monkeypatch, bulk_sends):
    monkeypatch.setattr(bulk, "BATCH_BYTES", 20_000)
    sender, receiver, gate = await pair(outbox_bytes=50_000)
    room = sender.engine.accumulator.capacity
    payloads = [{"t": "x" * 10_000}] * 20
    if bulk_sends:
        frames = frames_of_columns(columns_of(1, [3] * 20, payloads, 2**20), "agent-chat", 1)
        messages = [Outgoing.to_agent(2, payload) for payload in payloads]
        calls = [sender.send_columns(1, [1] * 20, payloads), sender.send_messages(messages), sender.relay(frames)]
    else:
        calls = [sender.send_message(sender.get_agent_chat_channel(n % 10), payloads[0]) for n in range(60)]
    sends = [asyncio.create_task(call) for call in calls]
    await gate.asked.wait()
    await settled(lambda: room.full)
    assert room.nbytes < 50_000 + 20_100
    assert bulk_sends or sender.stats()["outbox"] <= 6
    gate.opened.set()
    await asyncio.gather(*sends)
    assert empty(sender)
    assert len(await fetch_all(receiver, 60)) == 60


async def test_a_fan_out_is_counted_once_on_the_way_in_and_out(pair):
    sender, receiver, _ = await pair(is_open=True)
    sends = [Outgoing.to_agents(range(10), {"t": "x" * 5000}), Outgoing.to_agent(1, {}), Outgoing.to_agents([1], {})]
    await sender.send_messages(sends)
    assert empty(sender)
    assert len(await fetch_all(receiver, 12)) == 12


async def test_batches_of_large_payloads_are_cut_by_bytes(pair, monkeypatch):
    monkeypatch.setattr(pending_batch, "BATCH_BYTES", 50_000)
    monkeypatch.setattr(bulk, "BATCH_BYTES", 50_000)
    sender, receiver, gate = await pair()
    channel = sender.get_agent_chat_channel(1)
    payload = {"t": "x" * 10_000}
    sends = [asyncio.create_task(sender.send_message(channel, payload)) for _ in range(30)]
    sends.append(asyncio.create_task(sender.send_messages([Outgoing(channel, payload)] * 30)))
    sends.append(asyncio.create_task(sender.send_columns(1, [1] * 30, [payload] * 30)))
    await gate.asked.wait()
    gate.opened.set()
    await asyncio.gather(*sends)
    assert max(batch.lines.nbytes for batch in gate.batches) <= 50_000
    assert len(gate.batches) < 30  # they are cut, not sent one by one
    assert len(await fetch_all(receiver, 90)) == 90


@pytest.mark.long
async def test_forty_payloads_of_eight_mib_can_be_judged(opener, local):
    sender = await opener(local, Interceptor("x", [MaxLength(2**23 - 1)]))
    large, larger = {"t": "x" * (2**23 - 10)}, {"t": "x" * (2**23 - 8)}
    sends = [Outgoing.to_agent(1, large)] * 39 + [Outgoing.to_agent(1, larger)]
    receipts = await sender.send_messages(sends)
    assert receipts.counts() == {"delivered": 0, "published": 0, "undeliverable": 39, "blocked": 1}
    assert receipts[39].rule == "max_length"
    assert empty(sender)


async def test_the_local_log_keeps_to_its_bytes(pair):
    sender, _, _ = await pair(is_open=True, log_list_bytes=50_000)
    for n in range(20):
        await sender.send_message(sender.get_agent_chat_channel(1), {"n": n, "t": "x" * 10_000})
    rows = sender.get_log_list()
    assert [row["payload"]["n"] for row in rows] == [16, 17, 18, 19]
    assert sender.stats()["log_dropped"] == 16
    await sender.send_columns(1, [1] * 10, {"t": "x" * 60_000})  # shared: its text is there once, and too long
    assert sender.get_log_list() == []
    assert sender.stats()["log_dropped"] == 30
    await sender.send_message(sender.get_agent_chat_channel(1), {"n": 20})
    assert [row["payload"] for row in sender.get_log_list()] == [{"n": 20}]


async def test_the_local_log_counts_what_lone_messages_take_beside_their_payloads(pair):
    sender, _, _ = await pair(is_open=True, log_list_bytes=50_000)
    for n in range(100):
        await sender.send_message("news", {"n": n})
    rows = sender.get_log_list()
    assert 40 < len(rows) < 60
    assert rows[-1]["payload"] == {"n": 99}
    assert sender.stats()["log_dropped"] == 100 - len(rows)


# -- bulk sends that are interrupted ----------------------------------------------------------------------------------


@pytest.fixture
def small_batches(monkeypatch):
    monkeypatch.setattr(bulk, "BATCH_ROWS", 5)
    monkeypatch.setattr(accumulator, "BATCH_ROWS", 5)


def bulk_send(sender, way, rows):
    payloads = [{"n": n} for n in range(rows)]
    if way == "columns":
        return sender.send_columns(1, [1] * rows, payloads)
    messages = [Outgoing.to_agent(1, payload, from_id=1) for payload in payloads]
    if way == "messages":
        return sender.send_messages(messages)
    return sender.relay(frames_of_sends("e", messages))


WAYS = pytest.mark.parametrize("way", ["columns", "messages", "relay"])


@WAYS
@pytest.mark.usefixtures("small_batches")
async def test_close_waits_for_a_bulk_send_that_was_accepted(pair, way):
    sender, receiver, gate = await pair(outbox_messages=5)
    sending = asyncio.create_task(bulk_send(sender, way, 23))
    await gate.asked.wait()
    closing = asyncio.create_task(sender.close())
    await asyncio.sleep(0)
    gate.opened.set()
    await asyncio.wait_for(closing, WAIT_S)
    receipts = await asyncio.wait_for(sending, WAIT_S)
    assert receipts.counts()["delivered"] == 23
    found = await fetch_all(receiver, 23)
    assert [message.id for message in found] == receipts.message_ids
    assert [message.payload["n"] for message in found] == list(range(23))


@WAYS
@pytest.mark.usefixtures("small_batches")
async def test_a_full_mailbox_in_the_middle_of_a_bulk_send(pair, way):
    sender, receiver, _ = await pair(is_open=True, mailbox_messages=8, send_timeout_s=0.5)
    with pytest.raises(MailboxFull) as caught:
        await asyncio.wait_for(bulk_send(sender, way, 20), WAIT_S)
    receipts, ids = caught.value.receipts, caught.value.message_ids
    assert len(receipts) == 20
    known = [receipt.message_id for receipt in receipts if receipt is not None]
    assert {receipt.fate for receipt in receipts if receipt is not None} == {"delivered"}
    assert 5 <= len(known) <= 8
    assert len(known) + len(ids) == 20
    assert not set(known) & set(ids)
    assert [message.id for message in await fetch_all(receiver, len(known))] == known
    await receiver.ack()
    assert len(await receiver.fetch_messages()) == 0
    assert empty(sender)


@WAYS
@pytest.mark.usefixtures("small_batches")
async def test_a_bulk_send_interrupted_half_way_reports_the_known_fate_of_each_row(pair, way):
    sender, receiver, gate = await pair(is_open=True, outbox_messages=5)
    before = asyncio.all_tasks()
    sending = asyncio.create_task(bulk_send(sender, way, 23))
    await settled(lambda: len(gate.batches) == 2)
    gate.opened.clear()
    await settled(lambda: len(gate.batches) == 3 or sending.done())
    closing = asyncio.create_task(sender.close())
    await asyncio.sleep(0)
    closing.cancel()
    with pytest.raises(Closed) as caught:
        await asyncio.wait_for(sending, WAIT_S)
    await asyncio.gather(closing, return_exceptions=True)
    assert closing.cancelled()
    receipts = caught.value.receipts
    assert len(receipts) == 23
    known = [receipt for receipt in receipts if receipt is not None]
    assert len(known) in {5, 10}
    assert receipts[: len(known)] == known
    found = await fetch_all(receiver, len(known))
    assert [message.id for message in found] == [receipt.message_id for receipt in known]
    assert len(caught.value.message_ids) == 5  # what was accepted and is not there; the rest had no ids yet
    await receiver.close()
    assert not [task for task in asyncio.all_tasks() & before if task.get_name().startswith("ray_messaging")]


@pytest.mark.usefixtures("small_batches")
async def test_two_interrupted_bulk_sends_have_each_their_own_receipts(pair):
    sender, _, gate = await pair(outbox_messages=5)
    first = asyncio.create_task(bulk_send(sender, "columns", 5))
    await gate.asked.wait()
    others = [asyncio.create_task(bulk_send(sender, way, rows)) for way, rows in [("columns", 7), ("messages", 11)]]
    single = asyncio.create_task(sender.send_message("news", {}))
    await asyncio.sleep(0)
    await sender.engine.accumulator.stop(Closed("stopped"))
    errors = await asyncio.gather(first, *others, single, return_exceptions=True)
    assert [type(error) for error in errors] == [Closed] * 4
    assert [error.receipts and len(error.receipts) for error in errors] == [5, 7, 11, None]
    assert [len(error.message_ids) for error in errors] == [5, 0, 0, 0]
    with pytest.raises(Closed) as caught:
        await bulk_send(sender, "messages", 3)
    assert list(caught.value.receipts) == [None] * 3
