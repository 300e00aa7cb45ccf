"""A server that loses its data while the log is written: read rows are in a file, and missing ones are reported."""

import asyncio

import pytest
from support.contracts import client_of, until
from support.embedded_server import client
from support.log_writing import logged

from ray_messaging import Steps
from ray_messaging.addressing.server_keys import Keys
from ray_messaging.cluster.actors.log_host import LogHost
from ray_messaging.cluster.spec import Experiment
from ray_messaging.config import MessagingConfig
from ray_messaging.errors import AlreadyExists, ConfigError, Fenced, LogError, Unbalanced
from ray_messaging.eventlog.event_log import EventLog
from ray_messaging.eventlog.folder import Folder
from ray_messaging.eventlog.folder_records import claim, read_account
from ray_messaging.eventlog.log_schema import SCHEMA, VERSION
from ray_messaging.eventlog.writing import writer as writing
from ray_messaging.eventlog.writing.writer import LogWriter


@pytest.fixture(autouse=True)
def short_reads(monkeypatch):
    """Let a read of an idle server end soon: a writer that closes waits for it."""
    monkeypatch.setattr(writing, "_BLOCK_S", 0.2)


@pytest.fixture
def local(own_server):
    """Give a server for the test to flush."""
    return own_server.config


@pytest.fixture
async def flush(local):
    async with client_of(local) as client:
        yield client.flushall


@pytest.fixture
def hosts(local, tmp_path):
    """Return a function that makes a run's log process, which takes the experiment by default."""

    def host(run, on_existing="error", *, takes=True, steps=None, **settings):
        if takes:
            with client(local) as server:
                server.hset(Keys("exp").meta, "start:run", run)
        experiment = Experiment(
            "exp", run, MessagingConfig(**settings), str(tmp_path / "log"), steps=steps, redis=local
        )
        return LogHost(experiment, on_existing)

    return host


async def begin(society, host, **columns):
    """Let a log process read some rows; a query has seen them, and no file has them."""
    await host.start()
    await society.send("a", 5, **columns)
    assert await host.ask("end", {}) == 4
    return host


def missing_in(where):
    return read_account(Folder(where)).missing


async def test_a_writer_at_rest_notices_the_loss_by_itself(society, writers, flush, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(writing, "_BLOCK_S", 0.02)
    monkeypatch.setattr(LogWriter, "_patience", lambda _: 0.02)
    writer = await writers()
    await society.send("a", 10)
    await writer.caught_up()
    await flush()
    await until(lambda: writer.error)
    assert logged(tmp_path / "log") == society.written
    assert "all 10 rows" in writer.stats()["error"]
    assert writer.stats()["lost"]
    assert "lost the data" in caplog.text
    with pytest.raises(LogError, match="lost the data"):
        await writer.caught_up()
    with pytest.raises(LogError, match="lost the data"):  # whoever ends it last hears of it once more
        await writer.close()


async def test_a_file_that_is_due_finds_the_loss_and_is_written(society, writers, flush, tmp_path):
    def flushed(point):
        if point == "checked" and not task:
            task.append(asyncio.ensure_future(flush()))

    task = []
    writer = await writers(segment_rows=4, crash=flushed)
    await society.send("a", 4)
    await until(lambda: task and task[0].done() and not writer._busy)
    with pytest.raises(LogError, match="lost the data"):
        await writer.close()
    assert writer.stats()["lost"]
    assert logged(tmp_path / "log") == society.written


async def test_an_old_runs_writer_writes_nothing_into_a_folder_that_a_new_run_has(society, hosts, flush, tmp_path):
    old = await begin(society, hosts("old"))
    await flush()
    new = hosts("new")
    await new.start()
    await society.mailbox("a")
    before = list(society.written)
    society._epoch, society._seq = None, {}
    await society.send("a", 2)
    with pytest.raises(LogError, match=r"5 rows.*in no file.*newer run"):
        await old.close()
    await new.close()
    assert logged(tmp_path / "log") == society.written[len(before) :]
    assert missing_in(tmp_path / "log") == ()


async def test_an_old_runs_writer_with_the_new_runs_epoch_writes_nothing_into_its_folder(
    society, writers, flush, tmp_path
):
    old = await writers(run="old", segment_rows=4)
    await flush()
    new = await writers(run="new")
    old._segments.epoch = new._segments.epoch  # as those of two runs that count from one
    await society.mailbox("a")
    society._epoch, society._seq = None, {}
    old._streams.update(*await old._reader.list_streams())
    await society.send("a", 4)
    await until(lambda: old.error)
    assert "newer run" in str(old.error)
    assert logged(tmp_path / "log") == []
    await new.close()
    assert logged(tmp_path / "log") == society.written


async def test_a_writer_replaced_by_a_new_run_elsewhere_writes_its_rows_to_its_own_folder(
    society, hosts, flush, tmp_path
):
    old = await begin(society, hosts("old"))
    await flush()
    new = hosts("new")
    new._folder = new._writer.folder = new._writer._segments._folder = Folder(tmp_path / "other")
    await new.start()
    with pytest.raises(LogError, match="all 5 rows"):
        await old.close()
    await new.close()
    assert logged(tmp_path / "log") == society.written
    assert logged(tmp_path / "other") == []


async def test_a_successor_on_a_flushed_server_reports_the_loss(society, hosts, flush, tmp_path):
    first = await begin(society, hosts("run", mailbox_messages=10))  # a file for each five rows
    await first._writer._written()
    await society.send("a", 2)
    assert await first.ask("end", {}) == 6
    first._writer._read_task.cancel()  # it is killed
    await asyncio.gather(first._writer._read_task, return_exceptions=True)
    await first.abandon()
    await flush()
    for _ in range(2):  # it tries again and again
        successor = hosts("run", takes=False)
        with pytest.raises(LogError, match=r"process died.*lost the data.*has 5 rows") as caught:
            await successor.start()
        await successor.abandon()
    assert caught.value.lost
    assert missing_in(tmp_path / "log") == (str(caught.value),)
    assert logged(tmp_path / "log") == society.written[:5]
    with pytest.raises(Unbalanced, match="not complete"):
        EventLog.open(tmp_path / "log").balance()


async def test_a_successor_in_a_resumed_run_with_steps_reports_the_loss_too(hosts, tmp_path):
    folder = Folder(tmp_path / "log")
    folder.prepare("exp")
    claim(folder, "run/dead", "exp")  # by the process before it; a flushed server has nothing
    successor = hosts("run", "resume", takes=False, steps=Steps())
    with pytest.raises(LogError, match=r"process died.*lost the data") as caught:
        await successor.start()
    await successor.abandon()
    assert missing_in(folder.where) == (str(caught.value),)


async def test_an_old_runs_log_that_starts_again_leaves_a_new_run_alone(society, hosts, flush):
    await end_of(await begin(society, hosts("old")), flush)
    new = hosts("new", "resume")
    await new.start()
    again = hosts("old", takes=False)
    with pytest.raises(Fenced, match="started anew"):
        await again.start()
    await again.abandon()
    await new.ask("end", {})
    await new.close()


async def end_of(host, flush):
    await flush()
    with pytest.raises(LogError, match=r"lost the data.*all 5 rows.*resume") as caught:
        await host.close()
    assert caught.value.lost
    assert missing_in(host._folder.where) == (str(caught.value),)


async def test_a_new_run_continues_in_the_folder_and_only_a_reset_clears_missing_rows(society, hosts, flush, tmp_path):
    await end_of(await begin(society, hosts("one")), flush)
    refused = hosts("two")
    with pytest.raises(AlreadyExists):
        await refused.start()
    await refused.abandon()
    resumed = hosts("two", "resume")
    await resumed.start()
    assert await resumed.ask("end", {}) == 4
    with pytest.raises(Unbalanced, match="all 5 rows"):
        await resumed.ask("balance", {})
    await resumed.close()
    assert logged(tmp_path / "log") == society.written
    reset = hosts("three", "reset")
    await reset.start()
    assert (await reset.ask("balance", {})).rows == 0
    await reset.close()
    assert missing_in(tmp_path / "log") == ()


OTHER_FILE = "events-00000001-9-1.parquet"  # of version 5, where segments could have several


@pytest.mark.parametrize("other", [{"version": 4}, {"version": VERSION + 1}, {"version": 5, "others": [OTHER_FILE]}])
async def test_a_folder_of_another_schema_is_left_alone_but_by_a_reset(hosts, tmp_path, other):
    facts = {"exp_id": "exp", "epoch": 1, "first_row": 0, "cursors": {}} | other
    Folder(tmp_path / "log").prepare("exp")
    Folder(tmp_path / "log").write(1, SCHEMA.empty_table(), facts | {"rows": 9 if "others" in other else 0})
    (tmp_path / "log" / OTHER_FILE).write_bytes(b"rows")
    before = {path.name: path.read_bytes() for path in (tmp_path / "log").iterdir()}
    for number, on_existing in enumerate(("error", "resume")):
        host = hosts(f"run{number}", on_existing)
        with pytest.raises(ConfigError, match=rf"has schema {other['version']}, .*, which its _run\.json names"):
            await host.start()
        await host.abandon()
    assert {path.name: path.read_bytes() for path in (tmp_path / "log").iterdir() if path.name != "_lock"} == before
    host = hosts("run2", "reset")
    await host.start()
    assert not [*(tmp_path / "log").glob("*.parquet")]
    await host.close()
