"""The log of a run whose driver was killed: it says what it lacks, until it is finished from its server's data."""

import asyncio
import re

import pytest
from support.log_writing import Society, die, host_of
from typer.testing import CliRunner

from ray_messaging.cli.app import app
from ray_messaging.cluster.finishing import finish
from ray_messaging.embedded.redis_server import EmbeddedServer
from ray_messaging.errors import AlreadyExists, ConfigError, LogError, Unbalanced
from ray_messaging.eventlog.event_log import EventLog
from ray_messaging.eventlog.folder_records import read_account
from ray_messaging.eventlog.writing import writer as writing

ROWS = 7


@pytest.fixture(autouse=True)
def short_reads(monkeypatch):
    """Let a read of an idle server end soon: a writer that closes waits for it."""
    monkeypatch.setattr(writing, "_BLOCK_S", 0.2)


@pytest.fixture
def log_dir(tmp_path):
    return tmp_path / "log"


@pytest.fixture
def server(tmp_path):
    with EmbeddedServer("127.0.0.1", data_dir=str(tmp_path / "log-server"), fsync=False) as server:
        yield server


async def command(name, log_dir):
    """Run a command on the log; return its exit code, and the beginning of its output."""
    found = await asyncio.to_thread(CliRunner().invoke, app, ["log", name, str(log_dir)])
    return found.exit_code, " ".join(found.stdout.split()[:3])


@pytest.fixture
async def killed(server, log_dir, tmp_path):
    """Run an experiment of which a query has seen some rows, and no file has them; kill all of it. Return its rows."""
    config = server.start()
    host, society = host_of(config, log_dir), Society(config)
    await host.start()
    await host.note_start(["python"], [], str(tmp_path / "log-server"))
    await society.mailbox("a")
    await society.send("a", ROWS)
    assert await host.ask("end", {}) == ROWS - 1
    await die(host)
    await society.transport.close()
    return society.written


async def test_a_killed_run_says_what_it_lacks_and_is_finished_from_its_servers_data(killed, server, log_dir):
    server.stop()
    (log_dir.parent / "log-server" / "12345.sock").touch()  # as a server leaves it that was killed
    with pytest.raises(
        LogError, match=r"holds no event log: the run in .* has no recorded end.*ray-messaging log finish"
    ):
        EventLog.open(log_dir)
    assert await asyncio.to_thread(finish, str(log_dir))
    log = EventLog.open(log_dir)
    assert log.unended is None
    assert log.query()["message_id"].to_pylist() == killed
    assert log.balance().rows == ROWS
    assert [(start["killed"], start["ended"] is None) for start in log.run["starts"]] == [(True, False)]
    assert not (log_dir.parent / "log-server").exists()
    assert not await asyncio.to_thread(finish, str(log_dir))


async def test_a_log_with_some_of_its_rows_says_so_everywhere(killed, server, log_dir, caplog):
    config = server.start()
    host = host_of(config, log_dir)  # it began again, wrote a file, and was killed, too
    await host.start()
    assert await host.ask("end", {}) == ROWS - 1
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(host._writer._save(closed=False))
    await host._writer._written()
    await die(host)
    server.stop()
    log = EventLog.open(log_dir)
    assert "has no recorded end" in caplog.text
    assert re.search(r"they are in .*log-server, and `ray-messaging log finish", log.unended)
    with pytest.raises(Unbalanced, match=r"rows may be missing in the log: .* has no recorded end"):
        log.balance()
    assert await command("stats", log_dir) == (1, "7 rows, from")
    assert await command("finish", log_dir) == (0, "The log is")
    assert await command("stats", log_dir) == (0, "7 rows, from")
    assert EventLog.open(log_dir).balance().rows == ROWS


async def test_a_run_that_lives_is_not_finished(killed, server, log_dir):
    with pytest.raises(ConfigError, match="another server runs on it"):
        await asyncio.to_thread(finish, str(log_dir))


async def test_rows_whose_server_lost_them_are_noted_when_the_run_goes_on(killed, server, log_dir, valkey_config):
    server.stop()
    for path in sorted((log_dir.parent / "log-server").rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    with pytest.raises(
        LogError, match=r"cannot be completed on this machine: .*are missing in .*log-server: put them back"
    ):
        finish(str(log_dir))
    refused = host_of(valkey_config, log_dir, "two", "error")
    with pytest.raises(AlreadyExists, match="the log of a run that has no end"):
        await refused.start()
    await refused.abandon()
    again = host_of(valkey_config, log_dir, "two", "resume")
    await again.start()
    await again.note_start(["python"], [])
    await again.close()
    (missing,) = read_account(again._folder).missing
    assert "was killed, and its server's data are gone" in missing
    with pytest.raises(LogError, match="was killed, and its server's data are gone"):
        EventLog.open(log_dir)
