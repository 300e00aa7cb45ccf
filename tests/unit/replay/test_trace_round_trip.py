"""A written trace is read back unchanged."""

import csv
import io
import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.log_queries import T0, row, write_folder

from ray_messaging import EventLog
from ray_messaging.addressing.channels import check_id
from ray_messaging.errors import InvalidAddress, TraceError
from ray_messaging.replay.trace import read_trace


def is_id(spelled):
    try:
        check_id(spelled)
    except InvalidAddress:
        return False
    return True


FLOAT = re.compile(r"[+-]?\d+\.(0+|\d+[eE][+-]?\d+)")
integers = st.integers(-(2**63), 2**63 - 1)
names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=20).filter(
    lambda s: s == s.strip() and is_id(s) and not FLOAT.fullmatch(s)
)
ids = integers | names.map(check_id)
times = st.floats(allow_nan=False, allow_infinity=False)
words = ids.filter(lambda i: len(str(i).split()) == 1 and str(i)[0] not in "#%" and str(i)[-1] not in ",;")
words = words.filter(lambda i: str(i)[:1] != '"')

tabbed = ids.filter(
    lambda i: str(i)[0] not in '#%"' and str(i)[-1] not in ",;" and not re.search(r"\d\s+[-+\d.]", str(i))
)


@given(
    rows=st.lists(st.tuples(words, words, times), min_size=1),
    breaks=st.sampled_from(["\n", "\r\n", "\n\n", "\n# c\n"]),
)
def test_edge_list_round_trip(tmp_path_factory, rows, breaks):
    path = tmp_path_factory.mktemp("t") / "g.txt"
    path.write_bytes(breaks.join(f"{a} {b} {t!r}" for a, b, t in rows).encode())
    trace = read_trace(path)
    assert list(zip(trace.senders, trace.receivers, trace.times.tolist(), strict=True)) == rows


@given(rows=st.lists(st.tuples(tabbed, tabbed, times), min_size=1), breaks=st.sampled_from(["\n", "\r\n", "\n\n"]))
def test_tsv_round_trip(tmp_path_factory, rows, breaks):
    path = tmp_path_factory.mktemp("t") / "g.tsv"
    path.write_bytes(breaks.join(f"{a}\t{b}\t{t!r}" for a, b, t in rows).encode())
    trace = read_trace(path)
    assert list(zip(trace.senders, trace.receivers, trace.times.tolist(), strict=True)) == rows


texts = st.text(st.characters(codec="utf-8"))


@given(rows=st.lists(st.tuples(ids, ids, times, texts), min_size=1), plain=st.booleans())
def test_json_lines_round_trip(tmp_path_factory, rows, plain):
    path = tmp_path_factory.mktemp("t") / "m.jsonl"
    lines = [json.dumps(dict(zip(("from", "to", "ts", "text"), row, strict=True)), ensure_ascii=plain) for row in rows]
    path.write_bytes("\n".join(lines).encode())
    trace = read_trace(path)
    assert list(zip(trace.senders, trace.receivers, trace.times.tolist(), trace.texts, strict=True)) == rows


@given(rows=st.lists(st.tuples(ids, ids, times, texts), min_size=1))
def test_csv_round_trip(tmp_path_factory, rows):
    path = tmp_path_factory.mktemp("t") / "m.csv"
    buffer = io.StringIO()
    csv.writer(buffer, quoting=csv.QUOTE_ALL).writerows([("from", "to", "time", "text"), *rows])
    path.write_bytes(buffer.getvalue().encode())
    trace = read_trace(path)
    assert list(zip(trace.senders, trace.receivers, trace.times.tolist(), trace.texts, strict=True)) == rows


LARGE = 1143926187236421734  # no float holds it


@pytest.mark.parametrize("name", ["town.jsonl", "town.csv"])
def test_an_export_of_the_log_can_be_replayed(tmp_path, name):
    rows = [row(0, LARGE, "ann", text="é", sent_at=T0 + 0.25), row(1, "ann", LARGE, fate="blocked", rule="pattern")]
    write_folder(tmp_path / "log", [rows])
    EventLog.open(tmp_path / "log").export(tmp_path / name)
    trace = read_trace(tmp_path / name)
    assert (trace.senders, trace.receivers) == ([LARGE, "ann"], ["ann", LARGE])
    assert trace.times.tolist() == [T0 + 0.25, T0 + 1]
    assert [json.loads(text) for text in trace.texts] == [{"content": "é"}, {"content": "hello 1"}]


def test_a_message_of_the_user_in_an_export_is_named(tmp_path):
    write_folder(tmp_path / "log", [[row(0), row(1, None, 1)]])
    EventLog.open(tmp_path / "log").export(tmp_path / "town.jsonl")
    with pytest.raises(TraceError, match=r"town.jsonl:2: the sender is empty.*messages of the user have no sender"):
        read_trace(tmp_path / "town.jsonl")
