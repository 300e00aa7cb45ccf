"""A log's folder on an object store, which has no locks and no renaming: files are whole, and the last writer wins."""

import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest
from support.log_writing import batch_of
from support.object_store import BUCKET, ObjectStore

from ray_messaging import EventLog
from ray_messaging.audiences.building import build_edges
from ray_messaging.audiences.files import version_folder, write_edges
from ray_messaging.errors import LogError
from ray_messaging.eventlog.checkpoint_files import read_checkpoint, write_checkpoint
from ray_messaging.eventlog.folder import Folder
from ray_messaging.eventlog.folder_records import claim, read_account
from ray_messaging.eventlog.series_tables import read_series, series_file
from ray_messaging.eventlog.stored_audiences import StoredAudiences, audiences_of
from ray_messaging.eventlog.writing.log_columns import LoggedPart, record_batch
from ray_messaging.model.fates import DELIVERED
from ray_messaging.transports.checkpoints import CopiedKey
from ray_messaging.transports.step_values import CollectedKind


@pytest.fixture(scope="module")
def store():
    with ObjectStore() as found:
        yield found


@pytest.fixture
def bucket(store, monkeypatch, exp_id):
    """Return a URI that no other test uses."""
    for name, value in store.environment.items():
        monkeypatch.setenv(name, value)
    return f"s3://{BUCKET}/{exp_id}"


@pytest.fixture
def folder(bucket):
    found = Folder(f"{bucket}/log")
    found.prepare("exp")
    return found


def table_of(rows, first=0):
    part = LoggedPart(batch_of(rows, first=first), None, "17-0", "m", DELIVERED)
    return pa.Table.from_batches([record_batch("exp", [part])])


def meta(first_row=0, epoch=1):
    return {"exp_id": "exp", "epoch": epoch, "first_row": first_row, "cursors": {"m:1": "17-0"}}


def test_segments_checkpoints_and_records_read_back_as_they_were_written(folder):
    written = [folder.write(1, table_of(5), meta()), folder.write(2, table_of(7, first=5), meta(5))]
    assert folder.segments() == written
    copied = [CopiedKey("meta", "hash", [(b"directory", b"1")])]
    write_checkpoint(folder, 9, copied)
    assert folder.checkpoints() == [9]
    assert [*read_checkpoint(folder, 9)] == copied
    folder.write_collected(CollectedKind.SERIES, "17", (0, 9), b"series", epoch=1)
    assert [path.rpartition("/")[2] for path in folder.collected_files(CollectedKind.SERIES)] == [
        "00000000-00000009-e1.parquet"
    ]
    claim(folder, "run/writer", "exp")
    assert read_account(Folder(folder.where)).writer == "run/writer"
    log = EventLog.open(folder.where)
    assert log.query()["message_id"].to_pylist() == [f"s-1-{number}" for number in range(12)]
    assert log.count("fate").to_pylist() == [{"fate": "delivered", "count": 12}]


def test_a_staged_segment_is_not_seen_until_it_is_published(folder):
    staged = folder.stage(1, table_of(5), meta())
    assert folder.segments() == []
    assert folder.publish(staged) == folder.segments()[0]


def test_what_fails_while_a_segment_is_encoded_leaves_no_file(folder, monkeypatch):
    before = folder.write(1, table_of(5), meta())

    def fail(writer, metadata):
        raise RuntimeError("in the middle")

    monkeypatch.setattr(pq.ParquetWriter, "add_key_value_metadata", fail)
    with pytest.raises(RuntimeError, match="in the middle"):
        folder.write(1, table_of(3), meta())
    with pytest.raises(RuntimeError, match="in the middle"):
        folder.write(2, table_of(3), meta(5))
    assert folder.segments() == [before]


def test_a_writer_that_was_fenced_does_not_replace_a_segment_of_its_successor(folder):
    folder.write(1, table_of(4), meta())
    late = folder.stage(2, table_of(3, first=4), meta(4))
    theirs = folder.write(2, table_of(6, first=4), meta(4, epoch=12))
    folder.publish(late)
    assert folder.segments()[1:] == [theirs]
    assert len(EventLog.open(folder.where).query()) == 10
    assert folder.write(2, table_of(9, first=4), meta(4, epoch=12)).rows == 9  # it grows
    assert [segment.rows for segment in folder.segments()] == [4, 9]
    folder.erase()
    assert folder.filesystem.get_file_info(pafs.FileSelector(folder.path)) == []


def test_a_writer_that_was_fenced_adds_no_steps_twice_to_what_groups_collect(folder):
    def write(first, last, epoch):
        table = pa.table({"step": [*range(first, last + 1)], "heard": [epoch] * (last + 1 - first)})
        folder.write_collected(CollectedKind.SERIES, "17", (first, last), series_file(table), epoch=epoch)

    write(0, 3, 5)
    write(4, 5, 12)
    write(6, 9, 12)
    write(4, 7, 5)  # late
    heard = [{"step": step, "heard": 5 if step < 4 else 12} for step in range(10)]
    assert read_series(folder).to_pylist() == heard
    of_series = f"{folder.path}/_series/17"
    folder.filesystem.delete_file(f"{of_series}/00000004-00000007-e5.parquet")  # nobody misses it
    assert read_series(folder).to_pylist() == heard
    folder.filesystem.delete_file(f"{of_series}/00000006-00000009-e12.parquet")
    with pytest.raises(LogError, match=r"00000006-00000009-e12.parquet is gone, which has the series of the steps"):
        read_series(folder)


def test_a_file_of_several_parts_is_read_as_one(folder):
    data = np.random.default_rng(3).bytes(11 * 2**20)
    folder.write_file("_checkpoints/00000007.parquet", data)
    assert folder.read_file("_checkpoints/00000007.parquet") == data
    assert folder.checkpoints() == [7]


def test_an_audience_is_read_on_another_machine_and_after_the_run(folder, tmp_path):
    edges = build_edges([[(1, 2), (2, 3), (3, 1)]])
    write_edges(version_folder(tmp_path / "here", "friends", 1), edges)
    StoredAudiences(folder, tmp_path / "here").keep("friends", 1)
    for audiences in (StoredAudiences(folder, tmp_path / "there"), audiences_of(folder)):
        for _ in range(2):
            assert audiences.read("friends", 1).digest == edges.digest


def test_erasing_with_records_leaves_what_others_have_beside_the_log(folder):
    folder.write(1, table_of(5), meta())
    folder.write_file("_run.json", b"{}")
    folder.write_file("audiences/friends@1/audience.json", b"{}")
    folder.write_file("notes.txt", b"mine")
    folder.erase(records=True)
    found = folder.filesystem.get_file_info(pafs.FileSelector(folder.path))
    assert [info.base_name for info in found] == ["notes.txt"]


def test_a_bucket_that_does_not_exist_is_refused_with_what_is_needed(bucket):
    with pytest.raises(LogError, match=r"nowhere.* not found.*AWS_ACCESS_KEY_ID.*AWS_ENDPOINT_URL"):
        Folder("s3://nowhere/log").prepare("exp")
    with pytest.raises(LogError, match="holds no event log"):
        EventLog.open(f"{bucket}/nothing")


def test_a_store_that_refuses_a_write_keeps_the_file_before(store, folder):
    before = folder.write(1, table_of(5), meta())
    store.refused = "events"
    try:
        with pytest.raises(OSError, match="ACCESS_DENIED"):
            folder.write(1, table_of(7), meta())
    finally:
        store.refused = None
    assert folder.segments() == [before]


def test_a_store_that_lets_nobody_in_is_told_with_what_is_needed(bucket, monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "nobody")
    with pytest.raises(LogError, match=r"cannot be read.*ACCESS_DENIED.*AWS_ACCESS_KEY_ID"):
        Folder(f"{bucket}/log").segments()
