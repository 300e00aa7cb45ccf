"""The reader asks for as much as may be copied in one go, and leaves the loop to others while it decodes."""

import asyncio
import tracemalloc

import pytest
from support.batches import batch_to

from ray_messaging.audiences.cache import AudienceCache
from ray_messaging.errors import Closed
from ray_messaging.model.columns import PayloadColumn
from ray_messaging.receiving import reader as module
from ray_messaging.receiving.inbox import Inbox
from ray_messaging.receiving.reader import Reader
from ray_messaging.receiving.unfolder import Unfolder
from ray_messaging.transports.cursors import START
from ray_messaging.wire.frames import decode, encode


def frame(nbytes, first=0):
    lines = PayloadColumn.of([b'"' + b"x" * nbytes + b'"'])
    return encode(batch_to([1], first=first, lines=lines))


class Scripted:
    """A transport with prepared answers to reads, then empty ones."""

    waited_s = 0.0

    def __init__(self, *replies):
        self.replies = [*replies]
        self.counts = []
        self.over = asyncio.Event()

    async def read(self, mailbox, after, count, block_s):
        self.counts.append(count)
        if self.replies:
            return self.replies.pop(0)
        self.over.set()
        return await asyncio.Event().wait()


@pytest.fixture
async def read_all():
    readers = []

    async def run(transport, inbox):
        unfolder = Unfolder(AudienceCache(None))
        readers.append(Reader(transport, "box", inbox, START, 1, unfolder, asyncio.Event().wait))
        await transport.over.wait()

    yield run
    for made in readers:
        made.stop(Closed("the test is over"))
        await made.close()


async def test_after_large_frames_it_asks_for_few_at_a_time(read_all):
    large, small = [(f"1-{n}", frame(1_000_000, n)) for n in range(3)], [("2-1", frame(10))]
    transport, inbox = Scripted([("0-1", frame(10))], large, small, [("3-1", frame(3_000_000))]), Inbox(1000)
    await read_all(transport, inbox)
    many = transport.counts[1]  # after a small one
    assert many > 3
    assert transport.counts[2:] == [2, many, 1]  # of larger ones than a reply one alone
    assert inbox.size == 6


async def test_others_go_on_while_many_frames_are_decoded(read_all, monkeypatch):
    monkeypatch.setattr(module, "_TURN_S", -1.0)  # each frame takes too long
    inbox, seen = Inbox(1000), []

    async def look():
        while True:
            seen.append(inbox.size)
            await asyncio.sleep(0)

    other = asyncio.create_task(look())
    transport = Scripted([(f"1-{n}", frame(10, n)) for n in range(8)])
    await read_all(transport, inbox)
    other.cancel()
    assert {1, 2, 3, 4, 5, 6, 7} <= set(seen)


def test_a_batch_keeps_no_copy_of_its_frames_payloads():
    data = frame(4_000_000)
    tracemalloc.start()
    try:
        batch = decode(data)
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 100_000
    assert batch.lines.nbytes == 4_000_003
    assert batch.lines.blob == batch.lines.list[0] + b"\n"
    assert encode(batch) == data


@pytest.mark.parametrize(("waits", "reads"), [(True, 1), (False, 2)], ids=["waits", "comes later"])
async def test_what_a_waiting_fetch_causes_goes_before_the_next_read(read_all, waits, reads):
    transport, inbox = Scripted([("0-1", frame(10))]), Inbox(1000)
    handled, sent = asyncio.Event(), []

    async def handle():
        handled.set()

    async def fetch():
        if waits:
            await inbox.arrival()
        else:
            while not inbox.size:  # noqa: ASYNC110 - it polls, as a fetch without a timeout does
                await asyncio.sleep(0)
        await asyncio.create_task(handle())

    async def send():
        await handled.wait()
        sent.append(len(transport.counts))

    tasks = [asyncio.create_task(fetch()), asyncio.create_task(send())]
    await asyncio.sleep(0)
    await read_all(transport, inbox)
    await asyncio.gather(*tasks)
    assert sent == [reads]
