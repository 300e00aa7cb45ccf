"""The folder of a log that an earlier ray_messaging wrote.

`LogWriter` of the commit before schema 2 (cf53eed, 2026-11-21) wrote `written_before/schema_1`, from a memory server:
two messages of step 3, the second with a label; a blocked one; three of the senders 1, "Ann" and the user; and one that
a rule rewrote.
"""

import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.log_writing import batch_of

from ray_messaging.eventlog.event_log import EventLog
from ray_messaging.eventlog.folder import Folder
from ray_messaging.eventlog.schema import ADDED, OF_BROADCASTS, SCHEMA
from ray_messaging.eventlog.writing.rows.columns import Part, record_batch
from ray_messaging.eventlog.writing.writer import LogWriter
from ray_messaging.model.extension import Extension
from ray_messaging.receipt import DELIVERED
from ray_messaging.transports.memory import MemoryServer, MemoryTransport


@pytest.fixture
def where(tmp_path):
    return shutil.copytree(Path(__file__).with_name("written_before") / "schema_1", tmp_path / "log")


def test_it_answers_as_it_did_and_new_columns_are_null(where):
    log = EventLog.open(where)
    rows = log.query().to_pylist()
    assert [row["message_id"] for row in rows] == ["s-1-2", "s-1-6", "s-1-0", "s-1-1", "s-1-3", "s-1-4", "s-1-5"]
    assert [row["fate"] for row in rows] == ["blocked", *["delivered"] * 6]
    assert [row["step"] for row in rows] == [None, None, 3, 3, None, None, None]
    assert [(row["from_id"], row["to_id"]) for row in rows[4:]] == [("1", "2"), ("Ann", "2"), (None, "Ann")]
    assert [row["payload_before"] for row in rows] == [None, '{"text":"before"}', *[None] * 5]
    assert [row["labels"] for row in rows] == [None, None, None, ["odd"], None, None, None]
    assert all(row[name] is None for row in rows for name in (*ADDED, "pairs"))
    assert [row.message_id for row in log.tail(from_id="Ann", after=-1)] == ["s-1-4"]
    assert log.count(["rule", "audience"]).num_rows == 3
    assert log.query(step=3)["ordinal"].to_pylist() == [None, None]
    log.balance()


def test_a_segment_of_this_version_may_follow(where, tmp_path):
    batch = batch_of(2, first=7, step=4, extension=Extension(attempt=1, deliver=5))
    facts = {"exp_id": "exp", "epoch": 2, "first_row": 7, "cursors": {}}
    table = record_batch("exp", [Part(batch, None, "6-0", "m", DELIVERED)])
    Folder(where).write(2, pa.Table.from_batches([table]), facts)
    log = EventLog.open(where)
    assert log.query()["step_read"].to_pylist() == [*[None] * 7, 5, 5]
    assert log.query(step=[3, 4])["step_read"].to_pylist() == [None, None, 5, 5]
    assert log.export(tmp_path / "all.parquet") == 9
    assert pq.read_table(tmp_path / "all.parquet")["step_read"].null_count == 7


async def test_a_writer_goes_on_in_it(where):
    writer = LogWriter(MemoryTransport(MemoryServer(), "exp"), Folder(where), "exp")
    await writer.start()
    try:
        assert writer.rows == 7
    finally:
        await writer.close()


def test_the_file_is_of_the_schema_before():
    file = Path(__file__).with_name("written_before") / "schema_1" / "events-00000001.parquet"
    assert pq.read_schema(file).names == [name for name in SCHEMA.names if name not in (*ADDED, *OF_BROADCASTS)]
