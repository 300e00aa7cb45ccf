"""Whole numbers of the log stay exact in every table, also beside rows without one."""

import csv
import json

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.log_queries import row, write_folder

from ray_messaging import EventLog
from ray_messaging.errors import InvalidQuery
from ray_messaging.eventlog.reading.results import unified, with_columns

LARGE = 1143926187236421734  # no float holds it
ROWS = [
    row(0, LARGE, LARGE + 1, step=1),
    row(1, None, LARGE),  # of the user
    row(2, LARGE, None, fate="blocked", rule="black_list"),
]
FROM, TO = [LARGE, None, LARGE], [LARGE + 1, LARGE, None]


@pytest.fixture
def log(tmp_path):
    write_folder(tmp_path / "log", [ROWS[:2], ROWS[2:]])
    return EventLog.open(tmp_path / "log")


def ids_of(frame):
    assert frame["from_id"].dtype == frame["to_id"].dtype == pd.Int64Dtype()
    return tuple([None if end is pd.NA else end for end in frame[name]] for name in ("from_id", "to_id"))


@pytest.mark.parametrize(
    "ask",
    [
        lambda log: log.query(),
        lambda log: log.query(internal=True).filter([True] * 3),
        lambda log: log.query(expand=True).select(["to_id", "from_id"]),
        lambda log: log.recent(),
        lambda log: log.count(by=["from_id", "to_id", "message_id"]).sort_by("message_id"),
        lambda log: log.sample(by=["from_id", "to_id", "message_id"]).counts.sort_by("message_id"),
        lambda log: pa.concat_tables(log.pages(rows=2)),
    ],
)
def test_ids_are_int64_of_pandas(log, ask):
    assert ids_of(ask(log).to_pandas()) == (FROM, TO)


def test_tables_without_a_missing_id_have_the_same_types(log):
    assert ids_of(log.query(limit=1).to_pandas()) == ([LARGE], [LARGE + 1])
    assert ids_of(log.edges().to_pandas()) == ([LARGE], [LARGE + 1])
    assert ids_of(log.conversation(None, LARGE, limit=1).to_pandas()) == ([None], [LARGE])
    assert ids_of(log.thread("s-1-1").to_pandas()) == ([None], [LARGE])
    assert ids_of(log.query(from_id=5).to_pandas()) == ([], [])
    frame = log.query(limit=1).to_pandas()
    assert (frame["step"].dtype, frame["position"].dtype) == (pd.Int64Dtype(), np.int64)


def test_files_keep_them(log, tmp_path):
    for name in ("all.parquet", "all.csv", "all.jsonl"):
        assert log.export(tmp_path / name) == 3
    assert ids_of(pd.read_parquet(tmp_path / "all.parquet")) == (FROM, TO)
    assert ids_of(pq.read_table(tmp_path / "log").to_pandas()) == (FROM, TO)
    with (tmp_path / "all.csv").open(newline="") as file:
        assert [found["from_id"] for found in csv.DictReader(file)] == [str(LARGE), "", str(LARGE)]
    lines = (tmp_path / "all.jsonl").read_text().splitlines()
    assert [json.loads(line)["from_id"] for line in lines] == FROM


def test_numbers_of_payloads_that_no_common_type_holds_are_texts():
    tables = [pa.table({"payload.n": pa.array(values)}) for values in ([2**53 + 1], [1.5])]
    assert unified(tables)["payload.n"].to_pylist() == ["9007199254740993", "1.5"]
    small = [pa.table({"payload.n": pa.array(values)}) for values in ([2**53], [1.5])]
    assert unified(small)["payload.n"].to_pylist() == [2.0**53, 1.5]
    with pytest.raises(InvalidQuery, match=r"column 'payload\.n' .* double"):
        with_columns(tables[0], pa.schema({"payload.n": pa.float64()}))
