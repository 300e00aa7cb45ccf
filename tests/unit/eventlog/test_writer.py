"""The log's writer: each row once over any crash; segments by size and age; full disks."""

import asyncio
import errno
from contextlib import suppress

import numpy as np
import pyarrow.dataset as ds
import pytest
from support.contracts import RedisStore, until
from support.embedded_server import client
from support.log_writing import POINTS, Crash, logged, seen
from support.patience import WAIT_S

from ray_messaging.common.backoff import RetryPolicy
from ray_messaging.errors import Closed, ConnectionFailed, Fenced, LogError, MessagingError
from ray_messaging.eventlog.folder import Folder
from ray_messaging.eventlog.writing import segment_store as storing
from ray_messaging.model.columns import PayloadColumn
from ray_messaging.transports.cursors import Cursor
from ray_messaging.transports.log_store import RedisLog
from ray_messaging.transports.transport_values import LOG, LOG_STREAM, Conclusion


@pytest.fixture
async def store(local):
    """Give direct access to the server."""
    opened = RedisStore(local, "exp")
    yield opened
    await opened.close()


async def within(awaitable):
    async with asyncio.timeout(WAIT_S):
        return await awaitable


async def lacked(store):
    """Return the messages and bytes of mailbox a that the server counts as missing in the log."""
    return [int(part or 0) for part in await store.client.hmget(store.keys.state("a"), "unlogged", "unlogged_bytes")]


# -- what it writes ---------------------------------------------------------------------------------------------------


async def test_a_mailbox_that_went_is_read_to_its_end_and_dropped(society, writers, tmp_path, store):
    writer = await writers(segment_age_s=0.0)
    await society.send("a", 3)
    await society.transport.remove("a", society.epoch)
    await until(lambda: writer.rows == 3)

    async def none_left():
        return not (await society.transport.log.streams()).ended

    await until(none_left)
    await society.mailbox("a")  # one of the same name begins anew
    await society.send("a", 2)
    await within(writer.close())
    assert logged(tmp_path / "log") == society.written


async def test_a_frame_that_cannot_be_read_is_counted_and_said(society, writers, tmp_path, caplog):
    writer = await writers()
    await society._ship("a", 1, b"no frame")
    await society.send("a", 2)
    await within(writer.caught_up())
    assert (writer.stats()["unreadable"], seen(writer)) == (1, society.written)
    assert "entry" in caplog.text
    assert "a:" in caplog.text


async def test_lone_messages_by_the_thousand_take_little(society, writers):
    writer = await writers()
    for _ in range(2_000):
        await society.send("a", 1)
    await within(writer.caught_up())
    _, tables, _ = writer.snapshot()
    assert len(tables) < 200
    assert seen(writer) == society.written


# -- the live end -----------------------------------------------------------------------------------------------------


async def test_the_snapshot_has_the_rows_that_are_in_no_file(society, writers, tmp_path):
    writer = await writers(segment_rows=4)
    for rows in (5, 2):
        await society.send("a", rows)
        await within(writer.caught_up())
    await until(lambda: writer.stats()["segments"] == 1)
    segments, tables, first_row = writer.snapshot()
    assert ([segment.rows for segment in segments], sum(table.num_rows for table in tables), first_row) == ([5], 2, 5)
    assert seen(writer) == society.written
    assert logged(tmp_path / "log") == society.written[:5]


async def test_new_rows_wake_waiting_readers(society, writers):
    writer = await writers()
    waiting = asyncio.create_task(writer.wait_beyond(1, WAIT_S))
    await society.send("a", 1)
    await within(writer.caught_up())
    assert not waiting.done()
    await society.send("a", 1)
    assert await within(waiting)
    assert not await writer.wait_beyond(2, 0.01)


async def test_lone_messages_gather_and_a_query_does_not_wait_for_more(society, writers, monkeypatch):
    monkeypatch.setattr("ray_messaging.eventlog.writing.writer._GATHER_S", 100 * WAIT_S)
    writer = await writers()
    for _ in range(3):
        await society.send("a", 1)
        assert await writer.wait_beyond(0, WAIT_S)
        assert writer.rows == 1
    for _ in range(3):
        await society.send("a", 1)
        await within(writer.caught_up())
    assert seen(writer) == society.written


# -- segments ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("full", "rows", "columns"),
    [({"segment_rows": 10}, 2, {}), ({"segment_bytes": 99_000}, 1, {"payload": {"text": "x" * 99_000}})],
    ids=["rows", "bytes"],
)
async def test_a_full_segment_is_closed(society, writers, tmp_path, full, rows, columns):
    writer = await writers(**full)
    for _ in range(20):
        await society.send("a", rows, **columns)
        await within(writer.caught_up())
    await within(writer.close())
    segments = [segment.rows for segment in Folder(tmp_path / "log").segments()]
    assert segments == ([10] * 4 if rows == 2 else [1] * 20)


async def test_by_age_one_file_grows(society, writers, tmp_path):
    writer = await writers(segment_age_s=0.0)
    for _ in range(3):
        await society.send("a", 2)
        await until(lambda: len(logged(tmp_path / "log")) == len(society.written))
        assert [segment.number for segment in Folder(tmp_path / "log").segments()] == [1]
        assert writer.stats()["segments"] == 0
        assert seen(writer) == society.written
    assert logged(tmp_path / "log") == society.written


async def test_the_streams_are_trimmed_once_the_file_is_durable_and_not_before(society, writers, store):
    await writers(segment_rows=4, crash=(crash := Crash("renamed")))
    await society.send("a", 4)
    end = (await society.transport.end_of("a")).entry
    await society.transport.commit(Conclusion("a", society.epoch, Cursor(end, 0), 4, 0))
    await within(crash.died.wait())
    assert len(await store.entries("a")) == 1
    await writers(segment_rows=4)
    await society.send("a", 4)
    end = (await society.transport.end_of("a")).entry
    await society.transport.commit(Conclusion("a", society.epoch, Cursor(end, 0), 8, 0))

    async def trimmed():
        return not await store.entries("a")

    await until(trimmed)


async def test_markers_and_noted_rows_alone_make_no_file(society, writers, tmp_path, store):
    writer = await writers(segment_age_s=0.0)
    await society.mailbox("b")
    await society.send("a", 2, noted=np.array([0, 1], np.uint32))

    async def taken():
        return not await store.client.xlen(store.keys.stream(LOG_STREAM)) and not any(await lacked(store))

    await until(taken)
    await within(writer.close())
    assert Folder(tmp_path / "log").segments() == []


async def test_a_payload_that_many_share_is_logged_in_pieces_and_never_twice(society, writers, tmp_path, monkeypatch):
    for module in ("entries", "stream_reader"):
        monkeypatch.setattr(f"ray_messaging.eventlog.writing.{module}.PIECE_BYTES", 1_000)
    shared = PayloadColumn.of([b'"' + b"x" * 98 + b'"'], np.zeros(100, np.uint32))
    crash = Crash("written", after=2)
    await writers(segment_rows=20, crash=crash)
    await society.send("a", 100, lines=shared)
    await within(crash.died.wait())
    held = Folder(tmp_path / "log").segments()[-1]
    assert 0 < held.first_row + held.rows < 100
    assert held.begun
    writer = await writers(segment_rows=20)
    await within(writer.close())
    assert logged(tmp_path / "log") == society.written


# -- crashes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("after", [0, pytest.param(1, marks=pytest.mark.long)])
@pytest.mark.parametrize("by_age", [False, True])
@pytest.mark.parametrize("point", POINTS)
async def test_a_crash_at_any_point_neither_doubles_nor_drops_a_row(society, writers, tmp_path, point, by_age, after):
    epoch = await society.mailbox("b")
    crash = Crash(point, after)
    settings = {"segment_age_s": 0.0} if by_age else {"segment_rows": 5}
    await writers(crash=crash, **settings)
    while not crash.died.is_set():
        await society.send("a", 2)
        await society.block(1)
        await society.send("b", 3)
        await crash.near()
    await society.send("a", 2)
    await society.transport.remove("b", epoch)
    writer = await writers(**settings)
    await society.send("a", 1)
    await within(writer.caught_up())
    assert sorted(seen(writer)) == sorted(society.written)
    await within(writer.close())
    assert sorted(logged(tmp_path / "log")) == sorted(society.written)


async def test_a_segment_that_was_moved_away_leaves_the_others(society, writers, tmp_path):
    for _ in range(2):
        writer = await writers()
        await society.send("a", 2)
        await within(writer.close())
    (tmp_path / "log" / "events-00000001.parquet").unlink()
    writer = await writers()
    await society.send("a", 2)
    await within(writer.close())
    segments = Folder(tmp_path / "log").segments()
    assert [(segment.number, segment.first_row) for segment in segments] == [(2, 2), (3, 4)]


# -- one after the other ----------------------------------------------------------------------------------------------


async def test_a_writer_with_a_successor_stops_and_writes_nothing_more(society, writers, tmp_path, caplog):
    old = await writers(segment_rows=4)
    new = await writers(segment_rows=4)
    waiting = asyncio.create_task(old.wait_beyond(100, WAIT_S))
    await society.send("a", 4)
    with pytest.raises(Fenced):
        await within(waiting)
    assert isinstance(old.error, Fenced)
    assert "stops" in caplog.text
    assert "newer" in old.stats()["error"]
    with pytest.raises(Fenced):
        await old.caught_up()
    await old.close()
    await within(new.close())
    assert logged(tmp_path / "log") == society.written


@pytest.mark.parametrize("point", ["checked", "staged"])
async def test_a_writer_that_gets_a_successor_while_it_writes_names_no_file(society, writers, tmp_path, local, point):

    def overtaken(reached):  # in the thread that writes files
        with client(local) as server:
            server.hincrby(society.transport.keys.state(LOG), "epoch", int(reached == point))

    old = await writers(segment_rows=2, crash=overtaken)
    await society.send("a", 2)
    await until(lambda: old.error)
    assert isinstance(old.error, Fenced)
    assert logged(tmp_path / "log") == []
    new = await writers()
    await within(new.close())
    assert logged(tmp_path / "log") == society.written


async def test_a_successor_waits_for_a_file_that_is_being_named(society, writers, tmp_path):
    """A writer stopped after its last check of the epoch must not name its file after its successor's."""
    folder = Folder(tmp_path / "log")
    folder.prepare("exp")
    with folder.lock() as mine:
        assert mine
        starting = asyncio.create_task(writers())
        await until(society.transport.log.writer_epoch)
        await asyncio.sleep(0)
        assert not starting.done()
    writer = await within(starting)
    assert writer.error is None


async def test_a_folder_that_stays_locked_raises(writers, tmp_path, monkeypatch):
    monkeypatch.setattr(storing, "_TAKE_OVER_S", 0.05)
    folder = Folder(tmp_path / "log")
    folder.prepare("exp")
    with folder.lock(), pytest.raises(LogError, match="end that process"):
        await writers()


async def test_closing_keeps_the_log_registered_and_retiring_takes_it_out(society, writers, tmp_path):
    async def is_registered():
        return (await society.transport.load_directory(-1)).logged

    await (await writers(start=False)).close()
    assert not await is_registered()
    writer = await writers()
    await society.send("a", 2)
    await within(writer.close())
    await within(writer.close())
    assert await is_registered()
    with pytest.raises(Closed, match="read its folder"):
        await writer.caught_up()
    writer = await writers()
    await society.send("a", 2)
    await within(writer.retire())
    assert not await is_registered()
    assert logged(tmp_path / "log") == society.written


# -- trouble ----------------------------------------------------------------------------------------------------------


class Disk:
    """A folder with writes that meet a full disk."""

    def __init__(self, monkeypatch):
        self.full = False
        self.tried = 0
        stage = Folder.stage

        def maybe(folder, *args):
            if self.full:
                self.tried += 1
                raise OSError(errno.ENOSPC, "No space left on device")
            return stage(folder, *args)

        monkeypatch.setattr(Folder, "stage", maybe)


@pytest.fixture
def disk(monkeypatch):
    monkeypatch.setattr(storing, "LOG_WRITE_RETRY", RetryPolicy(0.001, 5.0))
    return Disk(monkeypatch)


async def test_a_full_disk_is_reported_once_and_loses_nothing(society, writers, tmp_path, disk, caplog):
    writer = await writers(segment_rows=2)
    disk.full = True
    await society.send("a", 2)
    await until(lambda: disk.tried > 3)
    assert "No space" in writer.stats()["error"]
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert f"cannot be written to {tmp_path / 'log'}, and is retried" in caplog.text
    assert seen(writer) == society.written
    disk.full = False
    await until(lambda: writer.stats()["segments"] == 1)
    await within(writer.close())
    assert writer.stats()["error"] is None
    assert caplog.records[-1].levelname == "WARNING"
    assert logged(tmp_path / "log") == society.written


async def test_while_the_disk_is_full_at_most_two_segments_are_in_memory(society, writers, tmp_path, disk):
    writer = await writers(segment_rows=10)
    disk.full = True
    for _ in range(2):
        await society.send("a", 10)
        await until(lambda: writer.rows == len(society.written))
    for _ in range(5):
        await society.send("a", 10)
    await until(lambda: writer.stats()["error"])
    with pytest.raises(LogError, match=r"stands still.*No space"):
        await within(fail_in_time(writer))
    assert writer.stats()["open_rows"] == 20
    disk.full = False
    await until(lambda: writer.stats()["error"] is None)
    await within(writer.close())
    assert logged(tmp_path / "log") == society.written


async def fail_in_time(writer):
    while True:
        await writer.caught_up()
        await asyncio.sleep(0)


async def test_closing_does_not_wait_for_a_full_disk(society, writers, tmp_path, disk):
    writer = await writers()
    await society.send("a", 2)
    await within(writer.caught_up())
    disk.full = True
    with pytest.raises(LogError, match=r"No space.*its last rows are still on the server"):
        await within(writer.close())
    disk.full = False
    await within((await writers()).close())
    assert logged(tmp_path / "log") == society.written


async def test_a_folder_that_cannot_be_written_registers_no_log(society, writers):
    with pytest.raises(LogError, match="cannot be written"):
        await writers(where="/proc/self")
    assert not (await society.transport.load_directory(-1)).logged


class Cut(RedisLog):
    """A connection that is cut from time to time."""

    def __init__(self, *args):
        super().__init__(*args)
        self.away = asyncio.Event()

    def _reach(self):
        if self.away.is_set():
            raise ConnectionFailed("the server is away", host="", port=0)

    async def read(self, *args):
        self._reach()
        return await super().read(*args)

    async def note_written(self, *args):
        self._reach()
        await super().note_written(*args)


@pytest.mark.parametrize("ahead", [False, True])
async def test_a_server_that_is_away_is_waited_for(
    request, society, writers, transports, tmp_path, monkeypatch, caplog, ahead
):
    if ahead:
        request.getfixturevalue("eager")
    monkeypatch.setattr("ray_messaging.eventlog.writing.stream_reader.LOG_READ_RETRY", RetryPolicy(0.001, 0.001))
    monkeypatch.setattr(storing, "LOG_WRITE_RETRY", RetryPolicy(0.001, 5.0))
    transport = await transports("exp")
    transport.log = Cut(transport.link, transport.keys)
    writer = await writers(transport, segment_rows=2)
    transport.log.away.set()
    await society.send("a", 2)
    await until(lambda: writer.stats()["error"])
    transport.log.away.clear()
    await until(lambda: writer.stats()["segments"] == 1 and writer.stats()["error"] is None)
    await within(writer.close())
    assert logged(tmp_path / "log") == society.written
    assert "away" in caplog.text


async def test_an_unforeseen_error_stops_the_writer_and_is_reported(society, writers, caplog):
    crash = Crash("staged")
    writer = await writers(crash=crash, segment_rows=1)
    await society.send("a", 1)
    await until(lambda: writer.error)
    assert "please report this" in str(writer.error)
    assert "Died" in caplog.text
    with pytest.raises(MessagingError, match="report"):
        await writer.wait_beyond(100, WAIT_S)


async def test_rows_in_a_dead_writers_files_are_not_counted_as_missing(society, writers, tmp_path, store):
    for _ in range(3):
        await writers(crash=(crash := Crash("renamed")), segment_rows=4)
        await society.send("a", 2)
        await society.send("a", 3)
        await within(crash.died.wait())
        await society.send("a", 1)
    writer = await writers()
    missing = len(society.written) - len(logged(tmp_path / "log"))
    assert (missing, (await lacked(store))[0]) == (1, 1)
    await writer.close()
    assert await lacked(store) == [0, 0]
    assert logged(tmp_path / "log") == society.written


async def test_no_segment_keeps_its_cursors_in_memory(society, writers):
    writer = await writers(segment_rows=2)
    for n in range(1, 4):
        await society.send("a", 2)
        await until(lambda n=n: len(writer.snapshot()[0]) == n)
    await writer.close()
    for each in (writer, await writers()):
        assert [bool(segment.cursors) for segment in each.snapshot()[0]] == [False, False, False]


# -- many streams -----------------------------------------------------------------------------------------------------


async def test_very_many_streams_are_read_some_at_a_time(society, writers, transports, monkeypatch):
    monkeypatch.setattr("ray_messaging.eventlog.writing.stream_cursors.READ_BYTES", 2_000)
    asked = []

    class Counting(RedisLog):
        async def read(self, cursors, count, block_s):
            items = await super().read(cursors, count, block_s)
            asked.append(len(items))
            return items

    for number in range(60):
        await society.mailbox(f"m{number}")
    for _ in range(5):
        for number in range(60):
            await society.send(f"m{number}", 3)
    transport = await transports("exp")
    transport.log = Counting(transport.link, transport.keys)
    writer = await writers(transport)
    await within(writer.caught_up())
    assert sorted(seen(writer)) == sorted(society.written)
    assert max(asked[1:]) < 60, "a read brought an entry of each stream at once"


@pytest.fixture
def eager(monkeypatch):
    """Read ahead however little there is, an entry of each stream at a time."""
    monkeypatch.setattr("ray_messaging.eventlog.writing.stream_reader._MUCH", 1)
    monkeypatch.setattr("ray_messaging.eventlog.writing.stream_cursors.READ_BYTES", 1_000)


@pytest.mark.usefixtures("eager")
async def test_rows_read_ahead_are_logged_once_and_in_order(society, writers, tmp_path):
    for name in "abc":
        await society.mailbox(name)
    writer = await writers(segment_rows=25)
    for number in range(60):
        await society.send("abc"[number % 3], 3)
        await society.block(1)
        if number == 30:
            epoch = await society.mailbox("d")
            await society.send("d", 3)
            await society.transport.remove("d", epoch)
    await within(writer.caught_up())
    assert sorted(seen(writer)) == sorted(society.written)
    await within(writer.close())
    rows = ds.dataset(tmp_path / "log").to_table(columns=["mailbox", "message_id"]).to_pylist()
    for name in "abcd":
        numbers = [int(row["message_id"].rpartition("-")[2]) for row in rows if row["mailbox"] == name]
        assert numbers == sorted(numbers)
    assert len(rows) == len(society.written)


@pytest.mark.usefixtures("eager")
async def test_a_crash_while_reading_ahead_loses_nothing(society, writers, tmp_path):
    for after in range(6):
        crash = Crash("staged", after)
        writer = await writers(segment_rows=10, crash=crash)
        for _ in range(20):
            await society.send("a", 3)
        await crash.near()
        with suppress(MessagingError):
            await within(writer.close())
    await within((await writers()).close())
    assert logged(tmp_path / "log") == society.written
