"""The reader asks for as much as may be copied in one go, and leaves the loop to others while it decodes."""

import asyncio
import tracemalloc
from types import SimpleNamespace

import pytest
from support.batches import batch_to

from ray_messaging.audiences.cache import AudienceCache
from ray_messaging.errors import Closed, Fenced
from ray_messaging.model.columns import PayloadColumn
from ray_messaging.receiving import reader as module
from ray_messaging.receiving.commits import InFlight
from ray_messaging.receiving.inbox import Inbox
from ray_messaging.receiving.reader import Reader, ReadSize
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


def size_after(*reads):
    """Return how many small frames a read takes after full reads, of which each is (seconds waited, seconds came)."""
    size = ReadSize(1)
    size.note(1, 100)
    for waited_s, came_s in reads:
        size.adapt(waited_s, came_s)
    return size.frames(10**6)


def test_a_read_takes_more_only_while_the_wait_is_longer_than_the_bytes_come():
    near = size_after()
    assert size_after((0.1, 0.01)) == 2 * near
    assert size_after(*[(0.1, 0.01)] * 9) == 8 * near
    assert size_after((0.1, 0.01), (0.1, 0.3)) == 2 * near
    assert size_after((0.1, 0.01), (0.1, 0.5)) == near
    assert size_after(*[(0.1, 3.0)] * 9) == near  # a narrow link


def test_late_answers_of_a_near_server_do_not_make_reads_larger():
    assert size_after((0.001, 0.01), *[(0.1, 0.01)] * 7) == size_after()


class Far:
    """A transport of a far server that has so many frames, of one message each, and writes them only as they are read.

    `reads` has, for each read, how many frames it got, and how many messages were in the inbox when it began.
    """

    waited_s = 0.1

    def __init__(self, inbox, frames):
        self.inbox, self.left = inbox, frames
        self.reads = []
        self.over, self.ended = asyncio.Event(), False

    async def read(self, mailbox, after, count, block_s):
        size, last = self.inbox.size, int(after.partition("-")[0])
        got = min(count, self.left)
        self.left -= got
        self.reads.append((got, size))
        await asyncio.sleep(0)
        if got or not block_s:
            return [(f"{last + n + 1}-0", frame(10, n)) for n in range(got)]
        self.over.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.ended = True


async def test_from_a_far_server_the_next_read_begins_before_the_frames_of_the_last_one_are_decoded(read_all):
    inbox = Inbox(1000)
    transport = Far(inbox, 32 + 64 + 128)
    await read_all(transport, inbox)
    # The next to last read has found the end, because it began after all frames were in the inbox. The last one waits.
    assert transport.reads == [(32, 0), (64, 0), (128, 32), (0, 96), (0, 224), (0, 224)]
    assert (inbox.size, inbox.read_to, inbox.behind) == (224, "224-0", False)


async def test_from_a_far_server_a_reader_has_at_most_twice_as_many_messages_as_its_inbox(read_all):
    inbox = Inbox(100)
    transport = Far(inbox, 1000)
    unfinished = asyncio.create_task(read_all(transport, inbox))
    for _ in range(1000):
        await asyncio.sleep(0)
    assert inbox.size == 100
    assert 1000 - transport.left <= 200
    entries = []
    flight = InFlight(START, [])
    while len(entries) < 1000:
        entries += [part.batch.origin.entry for part in inbox.take(None, flight)]
        await asyncio.sleep(0)
    assert entries == [f"{n + 1}-0" for n in range(1000)]
    await unfinished


async def test_a_reader_whose_reads_all_begin_early_is_not_stuck(monkeypatch):
    inbox, now, ages = Inbox(10_000), [0.0], []
    transport = Far(inbox, 2_000)
    transport.waited_s, read = 0.5, transport.read

    async def take_a_second(*asked):
        now[0] += 1.0
        ages.append(reader.loop().age_s)
        return await read(*asked)

    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    transport.read = take_a_second
    reader = Reader(transport, "box", inbox, START, 1, Unfolder(AudienceCache(None)), asyncio.Event().wait)
    await transport.over.wait()
    await reader.close()
    assert len(ages) > 10
    assert max(ages) < 3.0


async def test_a_read_that_has_begun_early_ends_with_its_reader():
    inbox = Inbox(1000)
    transport, began = Far(inbox, 32 + 64), asyncio.Event()
    read = transport.read

    async def hang(*asked):
        if not transport.left:
            began.set()
            await asyncio.Event().wait()
        return await read(*asked)

    transport.read = hang
    reader = Reader(transport, "box", inbox, START, 1, Unfolder(AudienceCache(None)), asyncio.Event().wait)
    await began.wait()
    await reader.close()
    assert [task.get_name() for task in asyncio.all_tasks() if "box" in task.get_name()] == []


async def test_an_error_of_a_read_that_has_begun_early_comes_after_its_predecessors_frames():
    inbox = Inbox(1000)
    transport = Far(inbox, 32)
    read, stopped = transport.read, asyncio.Event()
    inbox.on_news = lambda: stopped.set() if inbox.error else None

    async def fail(*asked):
        if not transport.left:
            raise Fenced("fenced", name="box")
        return await read(*asked)

    transport.read = fail
    reader = Reader(transport, "box", inbox, START, 1, Unfolder(AudienceCache(None)), asyncio.Event().wait)
    await stopped.wait()
    await reader.close()
    assert inbox.size == 32
    assert isinstance(inbox.error, Fenced)


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
