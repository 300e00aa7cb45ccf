"""Fields put together by templates, and times in their spellings."""

import json

import pytest

from ray_messaging.errors import ConfigError
from ray_messaging.replay.trace import read_trace

JSONL = '{"sender":"a","receiver":"b","seq":0,"text":"hi"}\n{"sender":"b","receiver":"a","seq":1,"text":""}\n'


def test_template_makes_ids_of_several_fields(write):
    rows = [{"game": game, "sender": "x", "receiver": "y", "seq": 0} for game in (1, "2")]
    path = write("m.jsonl", "\n".join(map(json.dumps, rows)))
    trace = read_trace(path, from_field="{game}-{sender}", to_field="{{{game}}}{game}")
    assert (trace.senders, trace.receivers) == (["1-x", "2-x"], ["{1}1", "{2}2"])
    assert read_trace(path, to_field="{game}").receivers == [1, 2]


@pytest.mark.parametrize(
    "template",
    [
        "{sender.__class__}",
        "{sender[0]}",
        "{sender!r}",
        "{seq:03}",
        "{}",
        "{sender",
        "sender}",
        "{{sender}}",
        "{seq:{seq}}",
    ],
)
def test_template_of_more_than_plain_fields(write, template):
    with pytest.raises(ConfigError, match="write") as caught:
        read_trace(write("m.jsonl", JSONL), from_field=template)
    assert repr(template) in str(caught.value)


@pytest.mark.parametrize(
    ("value", "message"),
    [("", "field 'game' of the template is empty"), (None, "is of type NoneType"), (1.5, "is of type float")],
)
def test_template_value_that_cannot_be_part_of_an_id(write, value, message, blame):
    rows = [{"game": game, "from": "x", "to": "y", "seq": 0} for game in (1, value)]
    line, found = blame(write("m.jsonl", "\n".join(map(json.dumps, rows))), from_field="{game}-{from}")
    assert line == 2
    assert message in found


def test_template_field_that_is_absent(write, blame):
    path = write("m.jsonl", JSONL)
    expected = "the template '{game}-{sender}' for the sender names 'game', which is no field: the fields are "
    assert expected in blame(path, from_field="{game}-{sender}")[1]
    rows = '{"game":1,"from":1,"to":2,"ts":3}\n{"from":1,"to":2,"ts":3}'
    assert "this row has no field 'game'" in blame(write("n.jsonl", rows), to_field="{game}-{to}")[1]


@pytest.mark.parametrize(
    ("spelled", "seconds"),
    [
        ("0", 0.0),
        ("-1.5e3", -1500.0),
        ("1970-01-01", 0.0),
        ("1970-01-01T00:00:01", 1.0),
        ("1970-01-01 00:00:01.250Z", 1.25),
        ("1970-01-01T01:00:00+01:00", 0.0),
        ("0001-01-01T00:00:00+23:00", -62135679600.0),
        ("2014-11-30T23:35:14.775Z", 1417390514.775),
        ("2014-11-30T23:35:14.775000000Z", 1417390514.775),
        ("1700000000123456512", 1700000000123456512.0),  # a float holds it
        ("1700000000.12345600128173828125", 1700000000.123456),
        ("0000000000000000007.50", 7.5),
    ],
)
def test_times(write, spelled, seconds):
    assert read_trace(write("m.csv", f"from,to,time\n1,2,{spelled}\n")).times.tolist() == [seconds]


@pytest.mark.parametrize(
    "spelled", ["1700000000123456789", "1700000000.123456789", "2023-11-14T22:13:20.123456789Z", str(2**53 + 1)]
)
def test_times_that_would_become_one_are_refused(write, spelled, blame):
    assert "times would become equal" in blame(write("m.csv", f"from,to,time\n1,2,{spelled}\n"))[1]
    value = spelled if spelled[-1] != "Z" else f'"{spelled}"'
    line, found = blame(write("m.jsonl", '{"from":1,"to":2,"time":0.1}\n{"from":1,"to":2,"time":' + value + "}"))
    assert line == 2
    assert f"time {spelled}" in found


@pytest.mark.parametrize("spelled", ["20240131235959", "20240131235959.0", "2.0240131235959e13", "19000101000000"])
def test_a_number_that_may_be_a_date_is_refused(write, spelled, blame):
    date = "1900-01-01T00:00:00" if spelled.startswith("19") else "2024-01-31T23:59:59"
    expected = f"may be a number, or the date {date}: write dates in ISO-8601 ({date}Z)"
    assert expected in blame(write("m.csv", f"from,to,time\n1,2,{spelled}\n"))[1]
    rows = ['{"from":1,"to":2,"time":1}', '{"from":1,"to":2,"time":' + spelled + "}"]
    line, found = blame(write("m.jsonl", "\n".join(rows)))
    assert line == 2
    assert expected in found


@pytest.mark.parametrize(
    "spelled", ["20240231235959", "20240131", "1706745599000", "1706745599000000", "20241301000000"]
)
def test_a_number_that_is_no_date_is_a_time(write, spelled):
    assert read_trace(write("m.csv", f"from,to,time\n1,2,{spelled}\n")).times.tolist() == [float(spelled)]


@pytest.mark.parametrize("spelled", ["inf", "-Infinity", "1e999", "yesterday", "2004-13-01", " "])
def test_no_times(write, spelled, blame):
    assert "is neither a finite number nor ISO-8601" in blame(write("m.csv", f"from,to,time\n1,2,{spelled}\n"))[1]
