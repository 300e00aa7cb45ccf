"""SQL over the log: questions that no other query answers, on real traffic, and all that is refused."""

import gzip
from collections import Counter, defaultdict
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path

import pyarrow as pa
import pytest
from support.log_queries import ROWS, ViewSource, log_of, row, write_folder
from support.log_writing import batch_of, table_of_batches, write_batches

from ray_messaging import EventLog
from ray_messaging.errors import InvalidQuery, LogError
from ray_messaging.eventlog.folder import Folder
from ray_messaging.eventlog.reading import sql
from ray_messaging.model.typed.input import columns

HEARD = 6_000  # messages of CollegeMsg


def test_the_share_of_blocked_messages_by_the_degree_of_their_sender(data, tmp_path):
    with gzip.open(data("collegemsg/CollegeMsg.txt.gz"), "rt") as lines:
        traffic = [tuple(map(int, line.split())) for line in islice(lines, HEARD)]
    rows = [
        row(n, one, other, sent_at=at, fate="delivered" if (one * other) % 7 else "blocked")
        for n, (one, other, at) in enumerate(traffic)
    ]
    parts = [rows[low : low + 2_500] for low in range(0, HEARD, 2_500)]
    found = log_of(write_folder(tmp_path / "log", parts, row_group_rows=500)).sql(
        """
        with degrees as (select from_id, count(distinct to_id) as degree from messages group by from_id)
        select degree, sum(case when fate = 'blocked' then 1 else 0 end) as blocked, count(*) as sent
        from messages join degrees using (from_id) group by degree order by degree
        """
    )
    friends = defaultdict(set)
    for one, other, _ in traffic:
        friends[one].add(other)
    sent, blocked = Counter(), Counter()
    for one, other, _ in traffic:
        sent[len(friends[one])] += 1
        blocked[len(friends[one])] += (one * other) % 7 == 0
    expected = [{"degree": degree, "blocked": blocked[degree], "sent": sent[degree]} for degree in sorted(sent)]
    assert found.to_pylist() == expected
    assert found["blocked"].type == pa.int64()


# -- the table --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [ROWS, ROWS[3:], [row(0)], []])
def test_the_table_has_the_columns_and_rows_of_query(tmp_path, rows):
    folder = write_folder(tmp_path / "log", [rows[:2], rows[2:4]])
    for log in (log_of(folder), log_of(folder, [[row(9, 3, "bob"), row(10, 3, None)]])):
        found, queried = log.sql("select * from messages order by position"), log.query()
        assert found.column_names == queried.column_names
        assert found.to_pylist() == queried.to_pylist()
        assert found["from_id"].type == queried["from_id"].type
        assert found["sent_at"].type == queried["sent_at"].type


def test_typed_payloads_have_their_columns_and_their_channels(tmp_path):
    made = [columns(price=[1, 2]), columns(price=[0.5], at=[[1.0, 2.0]]), columns(n=["a"], at=["here"])]
    typed = [batch_of(len(table), first=10 * n, lines=table) for n, table in enumerate(made)]
    log = write_batches(tmp_path, *typed, batch_of(1, first=30))
    found, queried = log.sql("select * from messages order by position"), log.query()
    assert found["payload.price"].to_pylist() == [1.0, 2.0, 0.5, None, None]
    assert found["payload.n"].to_pylist() == [None, None, None, "a", None]
    assert "payload.at" not in found.column_names  # vectors in some rows, texts in others
    for name in found.column_names:
        assert found[name].to_pylist() == queried[name].to_pylist(), name


def test_numbers_in_no_file_yet_that_no_type_of_sql_can_hold_are_named(tmp_path):
    made = [columns(price=[2**53 + 1]), columns(price=[0.5])]
    source = ViewSource(write_folder(tmp_path / "log", []))
    source.tables = [table_of_batches(batch_of(1, first=n, lines=table)) for n, table in enumerate(made)]
    with pytest.raises(InvalidQuery, match=r"column 'payload\.price' has numbers of several types, and double cannot"):
        EventLog(source).sql("select count(*) as n from messages")


def test_what_is_natural_in_sql(log):
    assert log.sql("from messages select max(position) as last").to_pylist() == [{"last": 7}]
    assert log.sql("select payload->>'content' as said from messages where position = 0").to_pylist() == [
        {"said": "hello 0"}
    ]
    assert "from_id" in log.sql("describe messages")["column_name"].to_pylist()
    assert len(log.sql("explain select 1")) == 1
    assert log.sql("select sum(position) as n from messages").to_pandas()["n"].tolist() == [28]
    assert log.sql("select count(*) as n from messages where fate = 'blocked'").to_pylist() == [{"n": 1}]
    assert log.sql("select count(*) as n from messages where sent_at < '2023-11-14 22:13:21Z'").to_pylist() == [
        {"n": 2}
    ]
    silences = log.sql(
        """
        select from_id, max(silence) as longest, date_trunc('hour', max(sent_at)) as hour from (
            select *, sent_at - lag(sent_at) over (partition by from_id order by sent_at) as silence from messages
        ) group by from_id order by from_id nulls first
        """
    )
    seconds = {None: None, "1": 7, "2": 2, "ann": None}
    assert silences.to_pylist() == [
        {"from_id": agent, "longest": gap and timedelta(seconds=gap), "hour": datetime(2023, 11, 14, 22, tzinfo=UTC)}
        for agent, gap in seconds.items()
    ]
    assert silences["longest"].type == pa.duration("us")


# -- refusals ---------------------------------------------------------------------------------------------------------

WRITES = [
    "copy messages to '{other}/stolen.csv'",
    "copy (select 1) to '{other}/stolen.parquet' (format parquet)",
    "export database '{other}'",
    "import database '{other}'",
    "attach '{other}/new.db'",
    "attach ':memory:' as other",
    "detach memory",
    "install httpfs",
    "load httpfs",
    "load json",
    "load '{other}/evil.duckdb_extension'",
    "set enable_external_access = true",
    "set threads = 1",
    "reset threads",
    "pragma threads = 1",
    "pragma memory_limit = '1GB'",
    "call pragma_version()",
    "create table mine as select * from messages",
    "create temp table mine as select 1",
    "create macro f(a) as a",
    "create secret (type s3)",
    "insert into messages select * from messages",
    "update messages set fate = 'delivered'",
    "delete from stored_messages",
    "drop view messages",
    "alter table stored_messages add column i int",
    "begin",
    "checkpoint",
    "vacuum",
    "prepare q as select 1",
    "select 1; select 2",
    "select 1; drop view messages",
    "",
    "-- nothing",
]
READS = [
    "select * from read_csv('{other}/secret.csv')",
    "select * from read_csv_auto('{other}/secret.csv')",
    "select * from '{other}/secret.csv'",
    "select * from read_parquet('{log}/*.parquet')",
    "select * from '{log}/events-00000000.parquet'",
    "select * from parquet_metadata('{log}/events-00000000.parquet')",
    "select * from read_text('{other}/secret.csv')",
    "select * from read_blob('{other}/secret.csv')",
    "select * from read_json('{other}/secret.csv')",
    "select * from sniff_csv('{other}/secret.csv')",
    "select * from glob('{other}/*')",
    "select * from 'https://example.com/a.csv'",
    "select * from variable",
    "select * from ROWS",
    "select getenv('HOME')",
    "select * from delta_scan('{other}')",
    "select * from query('copy messages to ''{other}/stolen.csv''')",
]


@pytest.mark.parametrize("query", WRITES + READS)
def test_what_does_not_read_the_log_alone_is_refused(log, tmp_path, query):
    variable = pa.table({"a": [1]})  # which DuckDB would find
    other = tmp_path / "other"
    other.mkdir()
    (other / "secret.csv").write_text("a,b\n1,2\n")
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    query = query.format(other=other, log=tmp_path / "log")
    with pytest.raises(InvalidQuery) as caught:
        log.sql(query)
    assert (caught.value.field, caught.value.value) == ("query", query)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before
    assert log.sql("select count(*) as n from messages").to_pylist() == [{"n": len(ROWS)}]
    assert len(variable) == 1


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("selec 1", 'syntax error at or near "selec"'),
        ("select nope from messages", 'column "nope" not found'),
        ("select * from mesages", "Table with name mesages does not exist.*only the tables messages, calls"),
        ("select cast(payload as int) from messages", "Could not convert string"),
        ("create table t as select 1", "CREATE is not allowed, because it may change data: write a SELECT"),
        ("select 1; select 2", "it has 2 statements: write exactly one"),
        (5, "must be a str"),
        (None, "must be a str with a SQL query"),
    ],
)
def test_an_error_says_what_is_wrong(log, query, words):
    with pytest.raises(InvalidQuery, match=words):
        log.sql(query)


def test_a_damaged_file_is_named(log, tmp_path):
    path = Path(Folder(tmp_path / "log").segments()[0].path)
    damaged = bytearray(path.read_bytes())
    damaged[200:300] = bytes(100)
    path.write_bytes(damaged)
    with pytest.raises(LogError, match="damaged") as caught:
        log.sql("select * from messages")
    assert caught.value.path == str(path)


def test_a_large_log_is_not_in_memory_as_a_whole(tmp_path):
    rows = [row(n, text="x" * 8_000) for n in range(2_000)]  # 16 MB in each segment
    log = EventLog.open(write_folder(tmp_path / "log", [rows] * 20, row_group_rows=500).where)
    pool, counted = pa.default_memory_pool(), pa.proxy_memory_pool(pa.default_memory_pool())
    pa.set_memory_pool(counted)
    try:
        found = log.sql("select count(*) as n from messages where payload like '%xx%'").to_pylist()
    finally:
        pa.set_memory_pool(pool)
    assert found == [{"n": 40_000}]
    assert 0 < counted.max_memory() < 160e6  # of 320 MB


# -- bounds -----------------------------------------------------------------------------------------------------------


def test_a_limit_keeps_the_first_rows_of_any_answer(log):
    assert log.sql("select position from messages order by position", limit=2)["position"].to_pylist() == [0, 1]
    assert log.sql("select position from messages where position > 6", limit=5)["position"].to_pylist() == [7]
    assert len(log.sql("describe messages", limit=3)) == 3
    assert len(log.sql("explain select 1", limit=1)) == 1
    assert log.sql("select 1 as n limit 0", limit=0).column_names == ["n"]
    with pytest.raises(InvalidQuery, match="limit"):
        log.sql("select 1", limit=-1)


def test_rows_beyond_the_limit_are_not_made(log):
    assert log.sql("select count(*) as n from range(100)", limit=1).to_pylist() == [{"n": 100}]
    assert len(log.sql("select * from range(1000000000000)", limit=3)) == 3


@pytest.mark.parametrize("allowed", [True, False])
def test_temporary_files_are_written_only_if_they_may_be(log, allowed, monkeypatch):
    monkeypatch.setitem(sql._SETTINGS, "memory_limit", "10MB")
    large = "select count(distinct range) as n from range(900000)"
    if allowed:
        assert log.sql(large).to_pylist() == [{"n": 900_000}]
    else:
        with pytest.raises(InvalidQuery, match="Out of Memory"):
            log.sql(large, temporary_files=allowed)


def test_a_query_that_takes_too_long_is_interrupted(log):
    endless = "select count(*) as n from range(1000000000) a, range(1000000000) b where a.range = b.range + 1"
    with pytest.raises(InvalidQuery, match=r"took longer than 0\.2 s: read fewer rows"):
        log.sql(endless, timeout_s=0.2)
    assert log.sql("select 1 as n", timeout_s=60).to_pylist() == [{"n": 1}]


def test_a_query_is_interrupted_even_if_its_time_is_over_before_it_runs(log):
    endless = "select count(*) as n from range(1000000000) a, range(1000000000) b where a.range = b.range + 1"
    with pytest.raises(InvalidQuery, match="took longer than"):
        log.sql(endless, timeout_s=1e-6)
