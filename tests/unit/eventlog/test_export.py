"""Exports: the rows of the log as files."""

import json
from datetime import UTC, datetime

import msgspec
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from support.batches import batch_to
from support.log_queries import ROWS, T0

from ray_messaging.audiences.files import write_edges
from ray_messaging.audiences.folding import agents_digest
from ray_messaging.audiences.member_edges import MemberEdges
from ray_messaging.errors import InvalidQuery, LogError
from ray_messaging.eventlog.event_log import EventLog
from ray_messaging.eventlog.folder import Folder
from ray_messaging.eventlog.folder_records import write_agents
from ray_messaging.eventlog.writing.hearers import hearers_of
from ray_messaging.eventlog.writing.log_columns import LoggedPart, record_batch
from ray_messaging.model.agent_sets import AgentSet
from ray_messaging.model.columns import PayloadColumn
from ray_messaging.model.extension import AudiencePairs, Extension, Fold


def test_export_to_parquet(log, tmp_path):
    assert log.export(tmp_path / "all.parquet") == 8
    assert pq.read_table(tmp_path / "all.parquet").equals(log.query())
    assert log.export(tmp_path / "ints.parquet", from_id=[1, 2], limit=3, after=0) == 3
    assert pq.read_table(tmp_path / "ints.parquet").equals(log.query(from_id=[1, 2], limit=3, after=0))


def test_export_to_csv(log, tmp_path):
    log.export(tmp_path / "all.csv")
    found = pyarrow.csv.read_csv(tmp_path / "all.csv").to_pylist()
    assert [one["message_id"] for one in found] == [one["message_id"] for one in ROWS]
    assert json.loads(found[2]["payload"]) == {"content": 'a "quoted", text'}
    assert (found[0]["labels"], found[0]["sent_at"]) == ("kind", datetime.fromtimestamp(T0, UTC))


def test_export_to_json_lines(log, tmp_path):
    seen = []
    log.export(str(tmp_path / "all.jsonl"), on_progress=seen.append)
    found = [msgspec.json.decode(line) for line in (tmp_path / "all.jsonl").read_bytes().splitlines()]
    assert [one["from_id"] for one in found] == [1, 1, "ann", 2, 2, None, 2, 1]
    assert found[2]["payload"] == {"content": 'a "quoted", text'}
    assert (found[0]["sent_at"], found[0]["labels"], found[1]["labels"]) == (T0, ["kind"], [])
    assert seen[-1] == 8


@pytest.mark.parametrize("name", ["none.parquet", "none.csv", "none.jsonl"])
def test_export_of_nothing(log, tmp_path, name):
    assert log.export(tmp_path / name, from_id=99) == 0
    assert (tmp_path / name).exists()


@pytest.mark.parametrize("name", ["events-00000001.parquet", "more.csv"])
def test_an_export_into_the_logs_folder_is_refused(log, folder, name):
    with pytest.raises(InvalidQuery, match="its folder has the files of an event log: export to another folder"):
        log.export(f"{folder.where}/{name}")
    assert len(log.query()) == 8


def test_an_export_may_have_nearly_the_name_of_a_logs_file(log, tmp_path):
    for name in ("events-monday.parquet", "events-tuesday.parquet", "events-monday.parquet"):
        assert log.export(tmp_path / name) == 8


def test_invalid_exports_are_refused(log, tmp_path):
    with pytest.raises(InvalidQuery, match=r"ends in .parquet or .csv or .jsonl"):
        log.export(tmp_path / "all.xlsx")
    with pytest.raises(InvalidQuery, match="no field 'fat'"):
        log.export(tmp_path / "all.csv", fat=1)
    with pytest.raises(LogError, match="export to another file"):
        log.export(tmp_path / "nowhere" / "all.csv")
    assert [path.name for path in tmp_path.iterdir()] == ["log"]


def test_an_export_of_what_an_agent_hears_has_senders_with_names(tmp_path):
    """The sender is in no mailbox that hears the broadcast, and the broadcast's row has no recipient."""
    folder, hearers = Folder(tmp_path / "log"), AgentSet.of([1, 2, 3])
    edges, digest = MemberEdges.among(hearers), agents_digest(hearers)
    write_edges(tmp_path / "log" / "audiences" / "all@1", edges)
    write_agents(folder, digest.hex(), hearers)
    extension = Extension(audience=AudiencePairs("all", 1), fold=Fold(digest, 3))
    batch = batch_to([None], ["boss"], lines=PayloadColumn.of([b'{"x":1}']), extension=extension)
    part = LoggedPart(batch, None, "1000-0", "g1", 0, hearers=hearers_of(batch, edges.toward(hearers)))
    table = pa.Table.from_batches([record_batch("e", [part])])
    folder.write(1, table, {"exp_id": "e", "epoch": 1, "first_row": 0, "cursors": {}})
    log = EventLog.open(tmp_path / "log")
    log.export(tmp_path / "heard.parquet", expand=True, to_id=1)
    for found in (log.query(expand=True, to_id=1), pq.read_table(tmp_path / "heard.parquet")):
        assert [(row["from_id"], row["to_id"]) for row in found.to_pylist()] == [("boss", "1")]
