"""The transport's side of the event log: streams are not trimmed before the log has read them, and notes reach it."""

import asyncio
from itertools import pairwise

import pytest
from support.contracts import WAIT_S, Post, until

from ray_messaging.addressing.directory import MailboxRecord
from ray_messaging.errors import Fenced, MailboxFull
from ray_messaging.transports.cursors import Cursor
from ray_messaging.transports.log_store import LogMark, mailbox_of
from ray_messaging.transports.transport_values import (
    LOG,
    LOG_STREAM,
    Conclusion,
    FrameFate,
    Limits,
    Published,
    SendStatus,
)

WRITTEN, DUPLICATE, FULL, LOG_FULL = FrameFate.WRITTEN, FrameFate.DUPLICATE, FrameFate.FULL, FrameFate.LOG_FULL
WIDE = Limits(1_000, 2**20, 60.0, leased=False)


async def settle(transport, name="box", limits=WIDE):
    """Open a mailbox; return the reader's epoch and its stream."""
    version = (await transport.load_directory(-1)).version
    listening = await transport.listen(MailboxRecord(name, [], [name], []), version, limits, owner="", epoch=None)
    streams = [stream for stream in (await transport.log.streams()).live if mailbox_of(stream) == name]
    return listening.epoch, streams[0]


async def logged(transport, limits=WIDE):
    """Open a mailbox, and register the log; return the reader's epoch, the stream, and the writer's epoch."""
    return *(await settle(transport, limits=limits)), await transport.log.register(WIDE)


async def drain(transport, *streams, after=None):
    """Read streams to their ends; return their entries without markers."""
    cursors = dict.fromkeys(streams, "0-0") | (after or {})
    ends, items = await transport.log.ends(list(cursors)), []
    async with asyncio.timeout(WAIT_S):
        while any(cursors[stream] != end for stream, end in ends.items() if end != "0-0"):
            for item in await transport.log.read(cursors, 2, WAIT_S):
                cursors[item.stream] = item.entry
                items.append(item)
    return [item for item in items if item.frame or item.note is not None]


async def blocked(client, count):
    return (await client.info("clients"))["blocked_clients"] == count


async def frames(transport, *streams, **options):
    return [item.frame for item in await drain(transport, *streams, **options)]


@pytest.fixture
async def post(transport):
    return await Post(transport).begin()


a_server_of_its_own = pytest.mark.parametrize("server", [None], ids=["own"])  # see redis_process


# -- without a log ----------------------------------------------------------------------------------------------------


async def test_without_a_log_only_the_reader_trims_and_notes_are_dropped(transport, post, store):
    epoch, stream = await settle(transport)
    assert (await transport.load_directory(-1)).logged is False
    assert await post.send("box", b"1", note=b"n") is WRITTEN
    assert await post.send(LOG, note=b"blocked") is WRITTEN
    assert await post.send("", publish=[Published("nobody", b"x")], note=b"published") is WRITTEN
    assert await transport.log.ends([LOG_STREAM, stream]) != {LOG_STREAM: "0-0", stream: "0-0"}
    assert (await transport.log.ends([LOG_STREAM]))[LOG_STREAM] == "0-0"
    assert (await Post(transport).begin()).epoch > post.epoch
    assert (await transport.take_sender_epoch("sender", keep_s=60)).last == {"box": 1, LOG: 1, "": 1}
    [(entry, _)] = await transport.read("box", "0-0", 10, 1)
    await transport.commit(Conclusion("box", epoch, Cursor(entry, 0), 1, 1))
    assert await store.entries("box") == []
    await transport.log.register(WIDE)
    assert await transport.log.ends([LOG_STREAM, stream]) == {LOG_STREAM: "0-0", stream: "0-0"}  # nothing is to come


async def test_without_a_log_a_removed_mailbox_removes_its_stream(transport, post):
    _, stream = await settle(transport)
    await post.send("box", b"1")
    assert await transport.remove("box", None) == 1
    assert await transport.log.streams() == ([LOG_STREAM], [])
    assert await transport.log.ends([stream]) == {stream: "0-0"}


# -- registered -------------------------------------------------------------------------------------------------------


async def test_registering_the_log_makes_senders_reload_once_and_fences_earlier_writers(transport, post):
    _, stream = await settle(transport)
    old = await post.request(post.part("box", b"1"))
    first = await transport.log.register(WIDE)
    delta = await transport.load_directory(-1)
    assert (delta.logged, delta.version) == (True, old.directory_version + 1)
    assert (await transport.send(old)).status is SendStatus.STALE_DIRECTORY
    second = await transport.log.register(WIDE)
    assert second > first
    assert (await transport.load_directory(-1)).version == delta.version
    marks = {stream: LogMark("1-1", 1, 1)}
    for call in (transport.log.note_written(first, marks, []), transport.log.unregister(first)):
        with pytest.raises(Fenced, match=r"a newer writer .* lost its data: .*open the log again") as caught:
            await call
        assert (caught.value.name, caught.value.epoch) == (LOG, first)
    assert (await transport.load_directory(-1)).logged
    await transport.log.note_written(second, marks, [])
    await transport.log.unregister(second)
    await transport.log.unregister(second)
    delta = await transport.load_directory(-1)
    assert (delta.logged, delta.version) == (False, old.directory_version + 2)


@pytest.mark.parametrize("order", ["rrll", "llrr", "lrrl"])
async def test_only_entries_that_reader_and_log_have_are_trimmed(transport, post, store, order):
    epoch, stream, writer = await logged(transport)
    for frame in (b"1", b"2", b"3"):
        await post.send("box", frame)
    entries = [entry for entry, _ in await transport.read("box", "0-0", 10, 1)]
    reader = log = 0
    for who in order:
        if who == "r":
            reader += 1
            await transport.commit(Conclusion("box", epoch, Cursor(entries[reader - 1], 0), reader, reader))
        else:
            log += 1
            await transport.log.note_written(writer, {stream: LogMark(entries[log - 1], log, log)}, [])
        assert len(await store.entries("box")) == 3 - min(reader, log)
        assert await transport.waiting() == {"box": 3 - reader}
    assert await frames(transport, stream, after={stream: entries[log - 1]}) == [b"1", b"2", b"3"][log:]


async def test_the_reason_of_a_refused_frame_can_be_requested(transport, post):
    async def why(nbytes=1):
        found = await transport.still_full("box", 1, nbytes)
        return found or await post.send("box", b"x" * nbytes)  # None: the answer of `send` has the reason

    writer = await transport.log.register(WIDE)
    epoch, stream = await settle(transport, limits=Limits(2, 100, 60, leased=False))
    assert [await why(), await why(), await why()] == [WRITTEN, WRITTEN, FULL]
    assert await why(1_000) is FrameFate.TOO_LARGE
    entries = [entry for entry, _ in await transport.read("box", "0-0", 10, 1)]
    await transport.commit(Conclusion("box", epoch, Cursor(entries[-1], 0), 2, 2))
    assert await why() is LOG_FULL
    await transport.log.note_written(writer, {stream: LogMark(entries[0], 1, 1)}, [])
    assert [await why(), await why()] == [WRITTEN, LOG_FULL]
    await transport.log.note_written(writer, {stream: LogMark(entries[1], 2, 2)}, [])
    assert [await why(), await why()] == [WRITTEN, FULL]
    last = (await drain(transport, stream))[-1].entry
    await transport.log.note_written(writer, {stream: LogMark(last, 4, 4)}, [])
    assert await why() is FULL  # the reader lags alone
    assert await transport.still_full("nobody", 1, 1) is None


async def test_a_partly_handled_frame_is_not_trimmed(transport, post, store):
    epoch, stream, writer = await logged(transport)
    await post.send("box", b"1", rows=3)
    [(entry, _)] = await transport.read("box", "0-0", 10, 1)
    await transport.commit(Conclusion("box", epoch, Cursor(entry, 2), 2, 0))
    await transport.log.note_written(writer, {stream: LogMark(entry, 3, 1)}, [])
    assert await store.entries("box") == [b"1"]
    await transport.commit(Conclusion("box", epoch, Cursor(entry, 0), 3, 1))
    assert await store.entries("box") == []


async def test_entries_are_ordered_by_number(transport, store):
    epoch, stream, writer = await logged(transport)
    key = await store.stream("box")
    for entry in ("9-9", "9-10", "10-1"):
        await store.client.xadd(key, {"f": entry}, id=entry)
    await transport.commit(Conclusion("box", epoch, Cursor("10-1", 0), 0, 0))
    await transport.log.note_written(writer, {stream: LogMark("9-9", 1, 1)}, [])
    assert await store.entries("box") == [b"9-10", b"10-1"]
    await transport.log.note_written(writer, {stream: LogMark("10-1", 3, 3)}, [])
    assert await store.entries("box") == []


async def test_a_successor_continues_at_the_readers_cursor_although_the_log_lags(transport, post):
    epoch, _, _ = await logged(transport)
    await post.send("box", b"1")
    await post.send("box", b"2")
    [(entry, _)] = await transport.read("box", "0-0", 1, 1)
    await transport.commit(Conclusion("box", epoch, Cursor(entry, 0), 1, 1))
    version = (await transport.load_directory(-1)).version
    successor = await transport.listen(MailboxRecord("box", [], ["box"], []), version, WIDE, owner="", epoch=None)
    assert successor.cursor == (entry, 0)
    assert [frame for _, frame in await transport.read("box", successor.cursor.entry, 9, 1)] == [b"2"]


# -- notes ------------------------------------------------------------------------------------------------------------


async def test_notes_are_written_with_their_frames(transport, post, store):
    _, stream, _ = await logged(transport)
    get = await store.subscribe("news")
    fates = await post.ask(
        post.part("box", b"frame", note=b"rewritten"),
        post.part("box", b"without"),
        post.part("", publish=[Published("news", b"1"), Published("nobody", b"2")], note=b"published"),
        post.part(LOG, note=b"blocked"),
    )
    assert fates == [WRITTEN] * 4
    assert await get() == ("news", b"1")
    items = await drain(transport, LOG_STREAM)
    assert {item.note: (item.stream, item.frame, item.takers) for item in items} == {
        b"rewritten": (LOG_STREAM, b"of rewritten", None),
        b"published": (LOG_STREAM, b"of published", [1, 0]),
        b"blocked": (LOG_STREAM, b"of blocked", None),
    }
    assert [(i.frame, i.note, i.takers) for i in await drain(transport, stream)] == [
        (b"frame", None, None),
        (b"without", None, None),
    ]


async def test_a_repeated_call_writes_its_notes_once(transport, post):
    await logged(transport)
    request = await post.request(
        post.part("box", b"1", note=b"a"),
        post.part("", publish=[Published("nobody", b"x")], note=b"b"),
        post.part(LOG, note=b"c"),
    )
    assert (await transport.send(request)).fates == [WRITTEN] * 3
    again = await transport.send(request)
    assert (again.fates, again.takers) == ([DUPLICATE] * 3, [0])
    assert sorted(item.note for item in await drain(transport, LOG_STREAM)) == [b"a", b"b", b"c"]


async def test_a_refused_call_writes_no_notes(transport, post):
    await logged(transport, limits=Limits(2, 100, 60, leased=False))
    assert await post.send("box", b"1", rows=3, note=b"too many") is FULL
    assert await post.send("box", b"x" * 101, note=b"too large") is FrameFate.TOO_LARGE
    assert await post.send("gone", b"1", note=b"gone") is FrameFate.GONE
    assert await drain(transport, LOG_STREAM) == []


# -- backpressure -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("by_bytes", [False, True], ids=["messages", "bytes"])
async def test_a_mailbox_unread_by_the_log_fills_up(transport, post, by_bytes):
    epoch, stream, writer = await logged(
        transport, limits=Limits(9, 30, 60, False) if by_bytes else Limits(3, 999, 60, False)
    )
    for n in range(1, 4):
        assert await post.send("box", b"x" * 10) is WRITTEN
        entries = [entry for entry, _ in await transport.read("box", "0-0", 10, 1)]
        await transport.commit(Conclusion("box", epoch, Cursor(entries[-1], 0), n, 10 * n))
    assert await transport.waiting() == {"box": 0}
    refused = [post.part("box", b"x" * 10), post.part("box", b"behind")]
    assert await post.ask(*refused) == [LOG_FULL, FULL]
    for _ in range(2):  # totals: the second one counts nothing
        await transport.log.note_written(writer, {stream: LogMark(entries[0], 1, 10)}, [])
    assert await post.ask(*refused) == [WRITTEN, LOG_FULL]


@pytest.mark.parametrize("limits", [Limits(2, 999, 0, False), Limits(99, 22, 0, False)], ids=["rows", "bytes"])
async def test_a_full_log_stream_delays_only_calls_with_notes(transport, post, store, limits):
    await settle(transport)
    writer = await transport.log.register(limits)
    get = await store.subscribe("news")
    for _ in range(2):
        assert await post.send(LOG, note=b"note") is WRITTEN  # 11 bytes each
    assert await post.send(LOG, note=b"note") is LOG_FULL
    assert await post.send("box", b"1", note=b"note") is LOG_FULL
    assert await post.send("", publish=[Published("news", b"early")], note=b"note") is LOG_FULL
    assert await post.send("box", b"1") is WRITTEN
    items = await drain(transport, LOG_STREAM)
    assert len(items) == 2
    await transport.log.note_written(writer, {LOG_STREAM: LogMark(items[0].entry, 1, 11)}, [])
    assert await post.send("", publish=[Published("news", b"late")], note=b"note") is WRITTEN
    assert await get() == ("news", b"late")
    assert await post.send("box", b"2", note=b"note") is LOG_FULL
    assert len(await drain(transport, LOG_STREAM)) == 2


async def test_notes_of_one_call_are_counted_together(transport, post):
    await settle(transport)
    await transport.log.register(Limits(3, 999, 0, leased=False))
    parts = [
        post.part("", publish=[Published("nobody", b"x")], note=b"a", noted_rows=2),
        post.part("box", b"1", note=b"b"),
        post.part(LOG, note=b"c"),
    ]
    assert await post.ask(*parts) == [WRITTEN, WRITTEN, LOG_FULL]


async def test_an_empty_log_stream_accepts_a_note_above_its_limit(transport, post):
    writer = await transport.log.register(Limits(3, 999, 0, leased=False))
    assert await post.send(LOG, note=b"large", noted_rows=10) is WRITTEN
    assert await post.send(LOG, note=b"small") is LOG_FULL
    [item] = await drain(transport, LOG_STREAM)
    await transport.log.note_written(writer, {LOG_STREAM: LogMark(item.entry, 10, 99)}, [])
    assert await post.send(LOG, note=b"small") is WRITTEN


# -- writers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("told", [False, True], ids=["before its call", "after its call"])
async def test_a_restarted_writer_continues_and_corrects_the_counts(transport, post, told):
    limits = Limits(3, 999, 60, leased=False)
    epoch, stream = await settle(transport, limits=limits)
    writer, cursor, taken = await transport.log.register(WIDE), "0-0", 0
    for _ in range(3):
        for n in range(1, 4):
            assert await post.send("box", b"%d" % n) is WRITTEN
        items = await drain(transport, stream, after={stream: cursor})
        assert [item.frame for item in items] == [b"1", b"2", b"3"]
        taken += 3
        await transport.commit(Conclusion("box", epoch, Cursor(items[-1].entry, 0), taken, taken))
        assert await post.send("box", b"x") is LOG_FULL
        # Its file is durable up to here; then it dies.
        cursor = items[-1].entry
        if told:
            await transport.log.note_written(writer, {stream: LogMark(cursor, 3, 3)}, [])
        before, writer = writer, await transport.log.register(WIDE)
        assert writer > before
        await transport.log.note_written(writer, {stream: LogMark(cursor, 0, 0)}, [])


@pytest.mark.parametrize("told", [0, 1, 2], ids="told {}".format)
async def test_rows_written_but_not_reported_by_a_dead_writer_are_not_counted_for_ever(transport, post, told):
    epoch, stream = await settle(transport, limits=Limits(6, 999, 60, leased=False))
    writer, cursor, taken = await transport.log.register(WIDE), "0-0", 0
    for frame in (b"1", b"2"):
        assert await post.send("box", frame, note=b"n") is WRITTEN
    for _ in range(4):
        await transport.log.note_resumed(writer, {stream: (taken, taken), LOG_STREAM: (taken, taken)})
        before = taken
        items = await drain(transport, stream, after={stream: cursor})
        for item in items:
            taken += 1
            await transport.commit(Conclusion("box", epoch, Cursor(item.entry, 0), taken, taken))
        if told:
            mark = LogMark(items[told - 1].entry, told, told)
            await transport.log.note_written(writer, {stream: mark}, [])
            await transport.log.note_written(writer, {stream: mark}, [])
        # Its file is durable with all of them; more comes, and it dies.
        cursor = items[-1].entry
        assert taken == before + 2
        for frame in (b"1", b"2"):
            assert await post.send("box", frame, note=b"n") is WRITTEN
        writer = await transport.log.register(WIDE)
    await transport.log.note_resumed(writer, {stream: (taken, taken)})
    await transport.log.note_resumed(writer, {stream: (taken, taken)})
    for _ in range(4):
        assert await post.send("box", b"x") is WRITTEN
    taken += 2
    items = await drain(transport, stream, after={stream: cursor})
    await transport.commit(Conclusion("box", epoch, Cursor(items[1].entry, 0), taken, taken))
    assert await post.send("box", b"x") is LOG_FULL  # six that the log does not have
    await transport.log.note_written(writer, {stream: LogMark(items[0].entry, 1, 1)}, [])
    assert await post.send("box", b"x") is WRITTEN
    assert await post.send("box", b"x") is LOG_FULL
    with pytest.raises(Fenced):
        await transport.log.note_resumed(writer - 1, {stream: (0, 0)})


async def test_a_log_continued_in_another_folder_reports_its_missing_rows(transport, post):
    epoch, stream = await settle(transport, limits=Limits(3, 999, 60, leased=False))
    assert await post.send("box", b"1") is WRITTEN
    assert await post.send("box", b"2") is WRITTEN
    writer = await transport.log.register(WIDE)  # with a folder that held more before the log was registered
    await transport.log.note_resumed(writer, {stream: (7, 7)})
    writer = await transport.log.register(WIDE)  # with an empty one
    await transport.log.note_resumed(writer, {stream: (0, 0)})
    [first, second] = await drain(transport, stream)
    await transport.commit(Conclusion("box", epoch, Cursor(second.entry, 0), 2, 2))
    assert await post.send("box", b"3") is WRITTEN
    assert await post.send("box", b"4") is LOG_FULL
    await transport.log.note_written(writer, {stream: LogMark(first.entry, 1, 1)}, [])
    assert await post.send("box", b"4") is WRITTEN
    assert await post.send("box", b"5") is LOG_FULL


async def test_a_writer_that_lost_its_file_reads_the_untrimmed_entries_again(transport, post):
    epoch, stream, writer = await logged(transport, limits=Limits(3, 999, 60, leased=False))
    await post.send("box", b"1")
    await post.send("box", b"2")
    first, second = await drain(transport, stream)
    await transport.log.note_written(writer, {stream: LogMark(second.entry, 2, 2)}, [])
    writer = await transport.log.register(WIDE)
    assert await frames(transport, stream) == [b"1", b"2"]  # as the reader has neither
    await transport.log.note_written(writer, {stream: LogMark(first.entry, 1, 1)}, [])
    await transport.commit(Conclusion("box", epoch, Cursor(second.entry, 0), 2, 2))
    assert await frames(transport, stream) == [b"2"]


# -- mailboxes come and go --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["removed", "expired"])
async def test_a_stream_outlives_its_mailbox_until_the_log_has_it(transport, post, store, how):
    epoch, stream, writer = await logged(transport, limits=Limits(9, 999, 60, leased=how == "expired"))
    for frame in (b"1", b"2", b"3"):
        await post.send("box", frame)
    entries = [entry for entry, _ in await transport.read("box", "0-0", 10, 1)]
    await transport.commit(Conclusion("box", epoch, Cursor(entries[0], 0), 1, 1))
    await transport.log.note_written(writer, {}, [stream, LOG_STREAM, "never:7"])  # none of them has ended
    if how == "removed":
        assert await transport.remove("box", epoch) == 2
    else:
        await store.expire("box")
        assert (await transport.load_directory(-1)).mailboxes == []
    assert [(name, frame) for name, _, frame in await store.dead()] == [("box", b"2"), ("box", b"3")]
    assert await transport.read("box", entries[0], 10, 0.01) == []  # a dead letter is not delivered, too
    assert await transport.log.streams() == ([LOG_STREAM], [stream])
    assert await transport.waiting() == {}
    assert await transport.log.ends([stream]) == {stream: entries[2]}
    assert await frames(transport, stream) == [b"1", b"2", b"3"]
    await transport.log.note_written(writer, {stream: LogMark(entries[1], 2, 2)}, [])
    assert await frames(transport, stream) == [b"3"]
    await transport.log.note_written(writer, {stream: LogMark(entries[2], 3, 3)}, [stream])
    assert await transport.log.streams() == ([LOG_STREAM], [])
    assert await transport.log.ends([stream]) == {stream: "0-0"}


async def test_a_reused_name_gets_a_new_stream(transport, post):
    _, old, writer = await logged(transport)
    await post.send("box", b"old")
    await transport.remove("box", None)
    epoch, new = await settle(transport, limits=Limits(1, 100, 60, leased=False))
    assert old != new
    assert await post.send("box", b"new") is WRITTEN
    assert await transport.log.streams() == ([LOG_STREAM, new], [old])
    assert [frame for _, frame in await transport.read("box", "0-0", 10, 1)] == [b"new"]
    assert await frames(transport, old, new) in ([b"old", b"new"], [b"new", b"old"])
    [item] = await drain(transport, old)
    await transport.log.note_written(writer, {old: LogMark(item.entry, 1, 3)}, [old])
    assert await transport.log.streams() == ([LOG_STREAM, new], [])
    assert await frames(transport, old, new) == [b"new"]
    # The log's cursor in the old stream frees no room in the new one.
    [item] = await drain(transport, new)
    await transport.commit(Conclusion("box", epoch, Cursor(item.entry, 0), 1, 3))
    assert await post.send("box", b"newer") is LOG_FULL


async def test_the_log_reader_wakes_for_every_kind_of_entry(transport, transports, post):
    await transport.log.register(WIDE)
    reading = await transports()
    cursors = {LOG_STREAM: "0-0"}

    async def woken(by):
        task = asyncio.create_task(reading.log.read(cursors, 10, WAIT_S))
        result = await by
        items = await asyncio.wait_for(task, WAIT_S)
        cursors.update({item.stream: item.entry for item in items})
        return result, items

    (_, stream), [marker] = await woken(settle(transport))
    assert (marker.stream, marker.frame, marker.note) == (LOG_STREAM, b"", None)
    cursors[stream] = "0-0"
    assert [item.frame for item in (await woken(post.send("box", b"1")))[1]] == [b"1"]
    assert [item.note for item in (await woken(post.send(LOG, note=b"n")))[1]] == [b"n"]
    _, [marker] = await woken(transport.remove("box", None))
    assert (marker.stream, marker.frame, marker.note) == (LOG_STREAM, b"", None)
    assert await reading.log.read(cursors, 10, 0.01) == []
    assert await reading.log.read({}, 10, WAIT_S) == []


async def test_busy_streams_among_many_are_read_in_large_parts(transport, post, monkeypatch):
    monkeypatch.setattr("ray_messaging.transports.log_store._ENTRIES", 8)
    await transport.log.register(WIDE)
    streams = [(await settle(transport, f"box-{n}"))[1] for n in range(40)]
    assert (await transport.log.streams()).live == [LOG_STREAM, *streams]
    sent = {streams[place]: [b"%d of %d" % (n, place) for n in range(24)] for place in (3, 37)}
    for n in range(24):
        for place in (3, 37):
            await post.send(f"box-{place}", b"%d of %d" % (n, place))
    cursors, found, reads = dict.fromkeys(streams, "0-0"), {stream: [] for stream in sent}, 0
    while found != sent:
        items = await transport.log.read(cursors, 100, WAIT_S)
        cursors |= {item.stream: item.entry for item in items}
        for item in items:
            found[item.stream].append(item.frame)
        reads += 1
    assert reads <= 8
    waiting = asyncio.create_task(transport.log.read(cursors, 100, WAIT_S))
    for n in range(40):
        await post.send(f"box-{n}", b"late")
    items = await waiting
    while len(items) < 40:
        items += await transport.log.read(cursors | {item.stream: item.entry for item in items}, 100, WAIT_S)
    assert sorted((item.stream, item.frame) for item in items) == sorted((stream, b"late") for stream in streams)


async def test_a_reply_with_large_frames_is_bounded_in_bytes(transport, post, monkeypatch):
    monkeypatch.setattr("ray_messaging.transports.log_store._BYTES", 100)
    streams = [(await settle(transport, name))[1] for name in ("a", "b", "c")]
    for frame in (b"x" * 50, b"y" * 10, b"z" * 200):
        for _ in range(12):
            for name in ("a", "b", "c"):
                await post.send(name, frame)
    cursors, ends, sizes = dict.fromkeys(streams, "0-0"), await transport.log.ends(streams), []
    while cursors != ends:
        items = await transport.log.read(cursors, 100, WAIT_S)
        cursors.update({item.stream: item.entry for item in items})
        sizes.append([len(item.frame) for item in items])
    assert sum(map(len, sizes)) == 108
    assert max(map(len, sizes)) > 1
    assert all(sum(now) <= 100 or max(now) > max(before) or len(now) == 1 for before, now in pairwise(sizes))


async def test_a_cancelled_read_affects_no_other(transport, post, store):
    _, stream, _ = await logged(transport)
    for _ in range(3):
        await until(lambda: blocked(store.client, 0))
        task = asyncio.create_task(transport.log.read({stream: "0-0"}, 10, WAIT_S))
        await until(lambda: blocked(store.client, 1))
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    await post.send("box", b"1")
    assert await frames(transport, stream) == [b"1"]


# -- the end ----------------------------------------------------------------------------------------------------------


async def test_after_the_log_is_removed_only_readers_trim(transport, post, store):
    limits = Limits(3, 999, 60, leased=False)
    epoch, stream = await settle(transport, limits=limits)
    _, gone = await settle(transport, "gone")
    writer = await transport.log.register(WIDE)
    for frame in (b"1", b"2", b"3"):
        await post.send("box", frame, note=b"n")
    await post.send("gone", b"g")
    await transport.remove("gone", None)
    entries = [entry for entry, _ in await transport.read("box", "0-0", 10, 1)]
    await transport.commit(Conclusion("box", epoch, Cursor(entries[1], 0), 2, 2))
    assert await post.send("box", b"4") is LOG_FULL
    await transport.log.unregister(writer)
    assert await store.entries("box") == [b"3"]
    assert await transport.log.streams() == ([LOG_STREAM, stream], [])
    assert await transport.log.ends([gone]) == {gone: "0-0"}
    assert await transport.log.read({LOG_STREAM: "0-0", gone: "0-0"}, 10, 0.01) == []
    assert await post.send("box", b"4", note=b"dropped") is WRITTEN
    await transport.commit(Conclusion("box", epoch, Cursor(entries[2], 0), 3, 3))
    assert await store.entries("box") == [b"4"]
    with pytest.raises(Fenced):
        await transport.log.note_written(writer, {}, [])

    assert await transport.log.register(WIDE) > writer  # no epoch comes again
    assert await post.send("box", b"5") is WRITTEN
    assert await post.send("box", b"6", note=b"n") is WRITTEN
    assert await post.send("box", b"7") is FULL
    assert [item.note for item in await drain(transport, LOG_STREAM)] == [b"n"]
    assert await frames(transport, stream) == [b"4", b"5", b"6"]


# -- Redis alone ------------------------------------------------------------------------------------------------------


@a_server_of_its_own
async def test_a_full_server_refuses_notes_but_the_log_can_read(redis_process, transports):
    transport = await transports(redis_process.config)
    post, (epoch, stream) = await Post(transport).begin(), await settle(transport)
    writer = await transport.log.register(WIDE)
    await post.send("box", b"1", note=b"1")
    request = await post.request(post.part("", publish=[Published("news", b"x")], note=b"2"))
    hurried = await transports(redis_process.config, send_timeout_s=0.2)
    with redis_process.client() as client:
        client.config_set("maxmemory", "1mb")
        for refused in (request, await post.request(post.part(LOG, note=b"3"))):
            with pytest.raises(MailboxFull, match="maxmemory"):
                await hurried.send(refused)
        successor = await hurried.log.register(WIDE)
        assert successor > writer
        assert await hurried.log.streams() == ([LOG_STREAM, stream], [])
        [item] = await drain(hurried, LOG_STREAM)
        [frame] = await drain(hurried, stream)
        marks = {LOG_STREAM: LogMark(item.entry, 1, 5), stream: LogMark(frame.entry, 1, 1)}
        await hurried.log.note_written(successor, marks, [])
        await hurried.remove("box", epoch)
        await hurried.log.note_written(successor, {}, [stream])
        await hurried.log.unregister(successor)
        client.config_set("maxmemory", "0")
    assert (await transport.load_directory(-1)).logged is False
