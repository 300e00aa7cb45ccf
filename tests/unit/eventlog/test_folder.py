"""The log's folder: whole segments or none, and typed errors."""

import json
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import duckdb
import msgspec
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest
from support.log_writing import batch_of, read_segment

from ray_messaging import Mean, Messaging, run
from ray_messaging.errors import ConfigError, LogError, Unbalanced
from ray_messaging.eventlog import checkpoint_files
from ray_messaging.eventlog.event_log import EventLog
from ray_messaging.eventlog.folder import KEY, Folder
from ray_messaging.eventlog.folder_records import claim, read_account
from ray_messaging.eventlog.forking import copy_run
from ray_messaging.eventlog.log_schema import OPTIONAL, POSITION, SCHEMA, VERSION
from ray_messaging.eventlog.writing.log_columns import LoggedPart, record_batch
from ray_messaging.model.extension import Extension
from ray_messaging.model.fates import DELIVERED
from ray_messaging.transports.checkpoints import CopiedKey


def table_of(rows, first=0, **columns):
    return pa.Table.from_batches(
        [record_batch("exp", [LoggedPart(batch_of(rows, first=first, **columns), None, "17-0", "m", DELIVERED)])]
    )


def meta(first_row=0, exp_id="exp", **facts):
    return {"exp_id": exp_id, "epoch": 1, "first_row": first_row, "cursors": {"m:1": "17-0"}, **facts}


@pytest.fixture
def folder(tmp_path):
    folder = Folder(tmp_path / "a" / "log")
    folder.prepare("exp")
    return folder


def names(folder):
    return sorted(path.name for path in Path(folder.path).iterdir() if path.name != "_lock")


# -- segments ---------------------------------------------------------------------------------------------------------


def test_segments_are_listed_by_number_as_they_were_written(folder):
    facts = {"begun": {"m:1": ("18-0", 7)}, "first_s": 1.5, "last_s": 2.5}
    written = [folder.write(number, table_of(2), meta(2 * number - 2, **facts)) for number in (1, 2, 3)]
    found = folder.segments()
    assert found == written
    assert [(segment.number, segment.rows, segment.first_row) for segment in found] == [(1, 2, 0), (2, 2, 2), (3, 2, 4)]
    first = found[0]
    assert (first.exp_id, first.epoch, first.cursors) == ("exp", 1, {"m:1": "17-0"})
    assert {name: getattr(first, name) for name in facts} == facts
    assert first.size == Path(first.path).stat().st_size


@pytest.mark.parametrize(
    ("facts", "optional"),
    [({}, set()), ({"step": 3, "extension": Extension(attempt=1, deliver=4)}, {"step_read"})],
    ids=["plain", "of a step"],
)
def test_a_segment_reads_back_as_it_was_written_without_the_optional_columns_that_it_lacks(folder, facts, optional):
    table = table_of(5, **facts)
    found = read_segment(folder.write(1, table, meta()))
    absent = {*OPTIONAL} - optional
    written = [(field.name, field.type) for field in [*SCHEMA, POSITION] if field.name not in absent]
    assert [(field.name, field.type) for field in found.schema] == written
    assert found.drop_columns([POSITION.name]).to_pylist() == table.drop_columns([*absent]).to_pylist()
    assert found[POSITION.name].to_pylist() == [*range(5)]
    assert json.loads(found.schema.metadata[KEY])["version"] == VERSION


def test_segments_that_were_packed_in_another_way_are_read_beside_ours(folder, monkeypatch):
    def of_before(table):  # zstd, texts with dictionaries of Parquet's own
        return {"compression": "ZSTD", "compression_level": 1, "write_statistics": ["fate"]}

    with monkeypatch.context() as patched:
        patched.setattr("ray_messaging.eventlog.folder.parquet_options", of_before)
        folder.write(1, table_of(5), meta() | {"version": 5})  # in which a segment of one file was as it is now
    folder.write(2, table_of(5, first=5), meta(5))
    log = EventLog.open(folder.where)
    assert log.query()["message_id"].to_pylist() == [f"s-1-{number}" for number in range(10)]
    assert log.query(to_id=3)["position"].to_pylist() == [3, 8]
    assert log.count("fate").to_pylist() == [{"fate": "delivered", "count": 10}]


def test_columns_of_which_every_row_differs_are_written_too(folder):
    table = pa.Table.from_batches(
        [
            record_batch(
                "exp", [LoggedPart(batch_of(1, first=n), None, f"{n}-0", "m", DELIVERED) for n in range(5_000)]
            )
            for _ in range(2)
        ]
    )
    found = read_segment(folder.write(1, table, meta()), "entry", "message_id")
    assert found.to_pylist() == table.select(["entry", "message_id"]).to_pylist()


def test_any_reader_of_parquet_reads_segments_in_which_a_column_has_nulls_and_others_in_which_it_has_none(folder):
    table = table_of(5)
    some = pa.array([None, "m", None, "n", "m"], SCHEMA.field("mailbox").type)
    folder.write(1, table, meta())
    folder.write(2, table.set_column(table.column_names.index("mailbox"), "mailbox", some), meta(5))
    folder.stage(3, table, meta(10))  # which is no part of the log yet
    with folder.lock():
        assert pq.read_table(folder.path).num_rows == 10
    mailboxes = ["m"] * 5 + some.to_pylist()
    assert pq.read_table(folder.path)["mailbox"].to_pylist() == mailboxes
    assert pd.read_parquet(folder.path)["mailbox"].astype(object).replace({np.nan: None}).tolist() == mailboxes
    assert duckdb.sql(f"select mailbox from '{folder.path}/*.parquet'").fetchall() == [(name,) for name in mailboxes]
    assert EventLog.open(folder.where).query()["mailbox"].to_pylist() == mailboxes


def test_a_staged_segment_is_not_seen_and_replaces_that_of_its_number_whole(folder):
    folder.write(1, table_of(2), meta())
    with pq.ParquetFile(folder.segments()[0].path) as reader:
        staged = folder.stage(1, table_of(5), meta())
        assert [segment.rows for segment in folder.segments()] == [2]
        assert ds.dataset(folder.path).count_rows() == 2
        folder.publish(staged)
        assert reader.read().num_rows == 2, "who has the file open still reads the one it opened"
    assert [segment.rows for segment in folder.segments()] == [5]
    assert names(folder) == ["events-00000001.parquet"]


def test_one_file_is_written_by_many_at_a_time(folder):
    with ThreadPoolExecutor(16) as pool:
        for n in range(20):
            list(pool.map(lambda each, n=n: folder.write_file(f"_agents-{n}.bin", each), [b"same"] * 16))
            assert folder.read_file(f"_agents-{n}.bin") == b"same"
    assert len(names(folder)) == 20


def test_a_writer_that_is_fenced_and_its_successor_write_segments_of_one_number(folder):
    old = folder.stage(1, table_of(5), meta())
    assert folder.publish(folder.stage(1, table_of(7), meta())).rows == 7
    assert [segment.rows for segment in folder.segments()] == [7]
    assert folder.publish(old).rows == 5


def test_leftovers_of_a_crash_are_removed(folder):
    folder.stage(1, table_of(5), meta())
    folder.prepare("exp")
    assert names(folder) == []


def test_erase_removes_segments_and_nothing_else(folder, tmp_path):
    folder.write(1, table_of(1), meta())
    folder.stage(2, table_of(1), meta())
    (tmp_path / "a" / "log" / "notes.txt").write_text("mine")
    folder.erase()
    assert folder.segments() == []
    assert names(folder) == ["notes.txt"]


# -- other file systems -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["path", "uri", "home", "relative"])
def test_a_local_folder_can_be_written_in_any_way(form, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    where = {"path": tmp_path / "log", "uri": (tmp_path / "log").as_uri(), "home": "~/log", "relative": "log"}[form]
    folder = Folder(where)
    monkeypatch.chdir("/")  # it stays where it was when it was given
    folder.prepare("exp")
    folder.write(1, table_of(1), meta())
    assert (tmp_path / "log" / "events-00000001.parquet").exists()


def test_a_file_system_that_is_not_local_does_without_renaming():
    folder = Folder("mock:///bucket/log")
    folder.prepare("exp")
    written = [folder.write(1, table_of(3), meta()), folder.write(2, table_of(2), meta(3))]
    assert isinstance(folder.filesystem, pafs.FileSystem)
    assert folder.segments() == written
    with folder.lock() as mine:
        assert mine
    assert pq.read_table(written[1].path, filesystem=folder.filesystem).num_rows == 2
    folder.erase()
    assert folder.segments() == []


# -- who holds it -----------------------------------------------------------------------------------------------------


def test_one_at_a_time_holds_the_lock_and_the_dead_do_not(folder):
    code = (
        "import sys; from ray_messaging.eventlog.folder import Folder\n"
        "with Folder(sys.argv[1]).lock() as mine: print(mine, flush=True); sys.stdin.read()"
    )
    held = subprocess.Popen(
        [sys.executable, "-c", code, folder.path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert held.stdout.readline() == "True\n"
        with folder.lock() as mine:
            assert not mine
    finally:
        held.kill()
        held.communicate()
    with folder.lock() as mine:
        assert mine


# -- bad input --------------------------------------------------------------------------------------------------------


def test_a_folder_that_cannot_be_made_raises_with_the_remedy(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(LogError, match="another log_dir") as caught:
        Folder(tmp_path / "file" / "log").prepare("exp")
    assert caught.value.path == str(tmp_path / "file" / "log")


NOBODY = 65534


def test_a_folder_without_permission_says_so_at_once():
    with tempfile.TemporaryDirectory() as name:  # not pytest's: only root may enter that
        Path(name).chmod(0o555)
        before = os.geteuid()
        if before == 0:  # root may write anywhere
            os.seteuid(NOBODY)
        try:
            with pytest.raises(LogError, match="may write"):
                Folder(name).prepare("exp")
        finally:
            os.seteuid(before)


def test_an_unknown_file_system_says_which_there_are():
    with pytest.raises(LogError, match="s3://, gs://"):
        Folder("nope://x/y")


def test_a_folder_that_another_experiment_has_claimed_is_refused(folder):
    claim(folder, "run1", "town")
    claim(folder, "run2", "town")
    with pytest.raises(
        LogError, match="belongs to experiment 'town', but this is experiment 'city': pass another log_dir"
    ):
        claim(folder, "run3", "city")
    assert read_account(folder).writer == "run2"


def test_another_experiment_s_folder_is_refused(folder):
    folder.write(1, table_of(1), meta())
    with pytest.raises(LogError, match=r"'exp'.*'other'.*of its own"):
        folder.prepare("other")
    assert len(folder.segments()) == 1


def garble(path):
    data = bytearray(path.read_bytes())
    footer = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    data[footer : footer + 32] = bytes(32)
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda path: path.write_bytes(path.read_bytes()[:-9]), ""),
        (garble, ""),
        (lambda path: path.write_bytes(b""), ""),
        (lambda path: path.write_bytes(b"no parquet at all"), ""),
        (lambda path: shutil.copy(path.with_name("events-00000003.parquet"), path), "another segment"),
        (lambda path: pq.write_table(table_of(1), path), "lacks the metadata"),
    ],
    ids=["cut", "garbled", "empty", "no Parquet", "another segment", "of another library"],
)
def test_a_damaged_segment_is_named_and_the_others_stay_readable(folder, tmp_path, damage, words):
    for number in (1, 2, 3):
        folder.write(number, table_of(1), meta(number - 1))
    path = tmp_path / "a" / "log" / "events-00000002.parquet"
    damage(path)
    with pytest.raises(LogError, match=rf"events-00000002.parquet.*{words}.*move it away") as caught:
        folder.segments()
    assert caught.value.path == str(path)
    path.rename(tmp_path / "damaged")
    assert [segment.number for segment in folder.segments()] == [1, 3]


def test_a_damaged_page_is_not_read_as_rows(folder):
    segment = folder.write(1, table_of(2), meta())
    flip_a_bit(Path(segment.path), "to_id")
    with pytest.raises(LogError, match=r"damaged .*CRC"):
        EventLog.open(folder.where).query()


def copied(folder):
    copy_run(Folder(folder), Folder(f"{folder}-fork"), "fork", 2)


def test_a_file_that_is_gone_is_said_by_all_that_needs_every_row(tmp_path, caplog):
    """Queries go on without the rows; a balance said that all is well, and digests were those of another run."""
    folder = tmp_path / "log"
    for until in (2, 4, 6):
        how = "resume" if until > 2 else "error"
        run(counts, agents=["ann", "bob", "eve"], until=until, log_dir=folder, on_existing=how, progress=False)
    whole = EventLog.open(folder)
    assert (whole.balance().rows, caplog.text) == (54, "")
    digest = whole.history_digest(5)
    for number, missing in enumerate(["from 0 to 17", "from 18 to 35", "from 36 to 53"], 1):
        path = folder / f"events-0000000{number}.parquet"
        path.rename(tmp_path / "away")
        log = EventLog.open(folder)
        assert f"the rows at the positions {missing} are missing" in caplog.text
        with pytest.raises(Unbalanced, match=missing):
            log.balance()
        for step in (0, 5):
            with pytest.raises(LogError, match=rf"digests cannot be computed from the log: .*{missing}.*put it back"):
                log.digest(step)
            with pytest.raises(LogError, match=missing):
                log.history_digest(step)
        assert len(log.query()) == 36
        (tmp_path / "away").rename(path)
    assert EventLog.open(folder).history_digest(5) == digest


@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_fork_of_a_log_of_which_a_file_is_gone_is_refused(tmp_path, number):
    """The fork went on without the messages from outside and the rows that were in the file."""
    folder, into = tmp_path / "log", tmp_path / "fork"
    for until in (2, 4, 6):
        logged(folder, until)
    path = folder / f"events-0000000{number}.parquet"
    path.unlink()
    with pytest.raises(LogError, match=rf"cannot be forked: the rows .* because {path} is gone: put it back"):
        Messaging.fork(folder, "fork", log_dir=into)
    assert not into.exists()


@pytest.mark.parametrize("number", [0, 2, None], ids=["the first file", "the last file", "the folder"])
@pytest.mark.parametrize(("kind", "rows"), [("series", 6), ("calls", 18)])
def test_a_file_of_series_or_calls_that_is_gone_is_said(tmp_path, kind, rows, number):
    """The answers lacked the steps of the file, and a resumed or forked run went on without them."""
    folder = tmp_path / "log"
    for until in (2, 4, 6):
        logged(folder, until)
    paths = sorted(folder.glob(f"_{kind}/*/*.parquet"))
    gone = paths if number is None else [paths[number]]
    assert len(getattr(EventLog.open(folder), kind)()) == rows
    for path in gone:
        path.unlink()
    if number is None:
        shutil.rmtree(folder / f"_{kind}")
    told = rf"_{kind}/.*\.parquet is gone, which has the {kind} of the steps from .*: put it back"
    asked = [
        lambda: getattr(EventLog.open(folder), kind)(),
        lambda: Messaging.fork(folder, "fork", log_dir=tmp_path / "fork"),
        lambda: logged(folder, 8),
    ]
    if kind == "calls":
        asked.append(lambda: EventLog.open(folder).sql("select agent from calls"))
    for ask in asked:
        with pytest.raises(LogError, match=told) as caught:
            ask()
        assert caught.value.path == str(gone[0])
    assert len(EventLog.open(folder).query()) == 54
    # Whoever has lost the file for good goes on without it.
    names = msgspec.json.decode((folder / "_collected.json").read_bytes())
    left = [name for name in names if (folder / name).exists()]
    assert len(left) == len(names) - len(gone)
    (folder / "_collected.json").write_bytes(msgspec.json.encode(left))
    logged(folder, 8)
    assert len(getattr(EventLog.open(folder), kind)()) == (len(left) - 3 + 1) * rows // 3


def logged(folder, until):
    """Go on with a run up to a step; each call writes one file of each kind."""
    how = "resume" if folder.exists() else "error"
    options = {"collect": Mean("n"), "checkpoint": 2, "progress": False}
    run(counts, agents=["ann", "bob", "eve"], until=until, log_dir=folder, on_existing=how, **options)


def test_no_file_is_gone_if_a_run_ends_while_its_files_are_listed(tmp_path, caplog, monkeypatch):
    """The number of rows was that of the end, and the files were those before it, so a whole log was refused."""
    agents, listings, segments = ["ann", "bob", "eve"], [], Folder.segments

    def listed(self, **given):
        return listings.pop() if listings else segments(self, **given)

    run(counts, agents=agents, until=2, log_dir=tmp_path / "log", progress=False)
    before = Folder(tmp_path / "log").segments()
    run(counts, agents=agents, until=4, log_dir=tmp_path / "log", on_existing="resume", progress=False)
    monkeypatch.setattr(Folder, "segments", listed)
    listings.append(before)
    log = EventLog.open(tmp_path / "log")
    assert (listings, caplog.text) == ([], "")
    for ask in (lambda: log.balance().rows, lambda: len(log.history_digest(3))):
        listings.append(before)
        assert ask() > 0
        assert listings == []


@pytest.mark.parametrize(
    ("beside", "column", "read"),
    [
        ("_series/*/*.parquet", "n", lambda folder: EventLog.open(folder).series()),
        ("_calls/*/*.parquet", "result", lambda folder: EventLog.open(folder).calls()),
        ("_calls/*/*.parquet", None, lambda folder: EventLog.open(folder).sql("select agent from calls")),
        ("_checkpoints/00000002.parquet", "value", copied),
        ("events-00000001.parquet", "payload", copied),
    ],
    ids=["series", "calls", "calls that are cut, in SQL", "checkpoint", "segment, by a fork"],
)
def test_a_damaged_page_beside_the_segments_is_not_read_either(tmp_path, beside, column, read):
    """One bit of a series was another number, and one of a checkpoint or a segment another run in each fork."""
    folder = str(tmp_path / "log")
    run(counts, agents=["ann", "bob", "eve"], until=3, log_dir=folder, checkpoint=3, collect=Mean("n"), progress=False)
    (path,) = (tmp_path / "log").glob(beside)
    if column is None:
        path.write_bytes(path.read_bytes()[:-9])
    else:
        flip_a_bit(path, column)
    with pytest.raises(LogError, match="damaged") as caught:
        read(folder)
    assert caught.value.path == str(path)


async def counts(me, inbox):
    me.state["n"] = await me.remember(float, me.step + 0.25)
    for friend in ("ann", "bob", "eve"):
        me.send(friend, {"n": me.step})


def flip_a_bit(path, column):
    """Flip the last bit of a column's values."""
    data = bytearray(path.read_bytes())
    chunk = pq.read_metadata(path).row_group(0).column(pq.read_schema(path).get_field_index(column))
    first = chunk.dictionary_page_offset if chunk.has_dictionary_page else chunk.data_page_offset
    data[first + chunk.total_compressed_size - 1] ^= 1
    path.write_bytes(data)


def test_a_full_disk_does_not_change_existing_files(folder, monkeypatch):
    folder.write(1, table_of(2), meta())
    monkeypatch.setattr(secrets, "token_hex", lambda _: "0")
    # What is written to /dev/full meets a full disk.
    (Path(folder.path) / "_events-00000001.parquet.0.tmp").symlink_to("/dev/full")
    with pytest.raises(OSError, match="space"):
        folder.write(1, table_of(5), meta())
    assert names(folder) == ["events-00000001.parquet"]
    assert [segment.rows for segment in folder.segments()] == [2]
    assert folder.write(1, table_of(5), meta()).rows == 5


def test_a_checkpoint_of_another_format_is_refused(tmp_path, monkeypatch):
    folder, ours = Folder(str(tmp_path)), checkpoint_files.FORMAT
    copied = [CopiedKey("meta", "hash", [(b"directory", b"1")])]
    checkpoint_files.write_checkpoint(folder, 1, copied)
    assert [*checkpoint_files.read_checkpoint(folder, 1)] == copied
    monkeypatch.setattr(checkpoint_files, "FORMAT", ours + 1)
    with pytest.raises(
        ConfigError, match=rf"data of format {ours}, .* reads only format {ours + 1}: fork with the ver"
    ):
        next(checkpoint_files.read_checkpoint(folder, 1))


def test_a_uri_with_a_password_is_refused_and_not_shown():
    with pytest.raises(ConfigError, match="AWS_SECRET_ACCESS_KEY") as caught:
        Folder("s3://key:verysecret@bucket/log")
    assert "verysecret" not in str(caught.value)
    assert "://***@bucket/log" in str(caught.value)


def test_a_uri_that_pathlib_has_changed_is_refused():
    with pytest.raises(ConfigError, match=r"pass it as a str, 's3://bucket/town'"):
        Folder(Path("s3://bucket/town"))
