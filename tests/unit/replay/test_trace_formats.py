"""Edge lists, CSV and JSON lines: parsed values, and errors for broken lines."""

import csv
import io
import json
import pickle

import numpy as np
import pytest

from ray_messaging.errors import TraceError
from ray_messaging.replay.trace import read_trace

LATE = "a quote comes after a space, so it may or may not belong to the cell's text: drop the space"
CSV = "from,to,time,text\n1,2,10,hi\n2,1,11,\n"
JSONL = '{"sender":"a","receiver":"b","seq":0,"text":"hi"}\n{"sender":"b","receiver":"a","seq":1,"text":""}\n'


@pytest.mark.parametrize("name", ["g.txt", "g.edges", "g.edgelist", "g.TXT", "g.txt.gz", "g.txt.GZ", "g"])
def test_edge_list(write, name):
    path = write(
        name,
        "# Nodes: 3, edges: 2\n1 2 30\n\n  # two three\n3\t1  20.5\r\n",
        zipped=name.lower().endswith("gz"),
    )
    trace = read_trace(path)
    assert (trace.senders, trace.receivers, trace.texts, trace.name) == ([1, 3], [2, 1], None, "g")
    assert trace.times.tolist() == [30.0, 20.5]
    assert trace.times.dtype == np.float64


@pytest.mark.parametrize("name", ["g.tsv", "g.TSV.gz"])
def test_cells_of_a_tsv_end_at_tabs(write, name):
    content = "# one two\n1\t2\t30\n\nagent 7\t ann lee \t2024-01-31 10:00\r\n"
    trace = read_trace(write(name, content, zipped=name.endswith("gz")))
    assert (trace.senders, trace.receivers) == ([1, "agent 7"], [2, "ann lee"])
    assert trace.times.tolist() == [30.0, 1706695200.0]
    trace = read_trace(write(name, "agent 7\t9\n"))
    assert (trace.senders, trace.receivers, trace.times.tolist()) == (["agent 7"], [9], [0.0])


@pytest.mark.parametrize(
    ("row", "in_tsv", "in_txt"),
    [
        ("1\t\t100", "The receiver is empty", "The line has an empty cell between tabs: give the file the extension"),
        ("1\t \t100", "The receiver is empty", "The line has an empty cell between tabs"),
        ("\t2\t100", "The sender is empty", "The line has an empty cell between tabs"),
        ("\t\t", "The sender is empty", "The line has an empty cell between tabs"),
        (
            "1\t2\t\r",
            r"found '1\t2\t'. The time is empty: fill it, or drop the tab before it. You",
            "The line has 2 columns instead of 3: correct the line.",
        ),
        ("1 2 3", "expected 'src dst time' with tabs between", None),
        ("1\t2 3", "'2 3' may be one cell or several: write tabs", None),
        (
            "agent 7\t9",
            "The line has 2 columns instead of 3: correct the line.",
            "'agent 7' between tabs may be one cell or several. If it is one",
        ),
        (
            "ann lee\tbob\t3",
            None,
            "'ann lee' between tabs may be one cell or several. If it is one, give the file the extension .tsv",
        ),
        ('"ann"\t2\t3', '"ann" has quotes: drop them', '"ann" has quotes: drop them'),
    ],
)
def test_a_row_of_an_edge_list_that_may_be_read_in_two_ways_is_refused(write, blame, row, in_tsv, in_txt):
    content = f"1\t2\t3\n{row}\n4\t5\t6\n"
    for name, message in (("g.tsv", in_tsv), ("g.txt", in_txt), ("g", in_txt)):
        if message is None:
            assert len(read_trace(write(name, content))) == 3
        else:
            line, found = blame(write(name, content))
            assert line == 2
            assert message in found


@pytest.mark.parametrize("name", ["g.tsv", "g.txt"])
def test_an_empty_cell_between_tabs_moves_no_column_of_konect(write, blame, name):
    line, found = blame(write(name, "% sym unweighted\n1\t2\t3\t4\n1\t\t3\t4\n"))
    assert line == 3
    assert "The line has an empty cell between tabs: fill the cell" in found


def test_an_id_in_a_tsv_may_end_with_a_comma(write):
    trace = read_trace(write("g.tsv", "a;b\tc,\t1\n"))
    assert (trace.senders, trace.receivers, trace.times.tolist()) == (["a;b"], ["c,"], [1.0])


def test_edge_list_fields_go_by_name(write):
    trace = read_trace(write("g.txt", "1 2 3\n"), from_field="dst", to_field="s-{src}", time_field="time")
    assert (trace.senders, trace.receivers) == ([2], ["s-1"])


@pytest.mark.parametrize(
    ("content", "pairs", "times"),
    [
        ("# a comment is no row\na b\nb c\na b", [("a", "b"), ("b", "c"), ("a", "b")], [0.0, 1.0, 2.0]),
        ("%20a b\n%20c b\n", [("%20a", "b"), ("%20c", "b")], [0.0, 1.0]),  # no comment of Konect
        ("% sym unweighted\n% 3 2 2\n1 2\n%x 9\n2 3\n", [(1, 2), (2, 3)], [0.0, 1.0]),
        ("# from a mirror\n\n%\n1 2 5\n2 3 5\n", [(1, 2), (2, 3)], [0.0, 1.0]),  # its third column is a weight
        ("% asym posweighted\n1 2 1 1082040961\n2\t3 -1 1082155839\n", [(1, 2), (2, 3)], [1082040961.0, 1082155839.0]),
    ],
)
@pytest.mark.parametrize("name", ["out.slashdot", "g.txt"])
def test_edge_lists_without_times_take_row_numbers_and_those_of_konect_are_known(write, name, content, pairs, times):
    trace = read_trace(write(name, content))
    assert [*zip(trace.senders, trace.receivers, strict=True)] == pairs
    assert trace.times.tolist() == times


@pytest.mark.parametrize("name", ["export.json", "export.txt", "export.csv", "export.jsonl", "export.json.gz"])
@pytest.mark.parametrize("content", ['[{"user":"ann","to":"bob","ts":1}]', '\n[\n  {"user": "ann"},\n  {}]', "[]"])
def test_a_json_array_is_named_with_the_remedy(write, blame, name, content):
    line, found = blame(write(name, content, zipped=name.endswith("gz")))
    assert line == 1
    assert (
        "a JSON array, but a trace has one object per line: convert it, "
        f"for example by `zcat -f {name} | jq -c '.[]' > export-lines.jsonl`"
    ) in found


@pytest.mark.parametrize(
    ("content", "line", "message"),
    [
        (
            "Source Target\n1 2\n",
            1,
            "found 'Source Target'. The line has the names of columns, but an edge list has no header: drop the line.",
        ),
        ("a, b\nb, c\n", 1, "separates cells by white space"),
        ("%%MatrixMarket matrix coordinate\n3 3 2\n1 2\n", 1, "Matrix Market file"),
        ("1 2 5\n1.0 2 5\n", 2, "The sender '1.0' is a whole number written as a float"),
        ("# c\n1 2 3\n\n3 x\n", 4, "expected 'src dst time', found '3 x'. The line has 2 columns instead of 3"),
        ("1 2 3\r\n1 2 3 4\r\n", 2, "expected 'src dst time', found '1 2 3 4'. The line has 4 columns instead of 3"),
        ("1\n", 1, "expected 'src dst time', found '1'. The line has 1 columns instead of 3: correct"),
        ("1 2\n1 2 3\n", 2, "expected 'src dst', found '1 2 3'. The line has 3 columns instead of 2: correct"),
        ("1 2 3\n1 2 x\n", 2, "Time 'x' is neither a finite number nor ISO-8601"),
        ("# a\u2028b\x0c\n1 2 x\n", 2, "Time 'x' is neither"),
        ("1 2 nan\n", 1, "Time 'nan' is neither"),
        ("1 2 1_000\n", 1, "Time '1_000' is neither"),
        ("1 2 1e-400\n", 1, "Time 1e-400 has more digits than a float holds"),
        ("1 2 3\n1 a\x00b 3\n", 2, r"The receiver is not a valid id (agent id 'a\x00b' cannot be used"),
        ("1 2 3\n" + "x" * 99, 2, "found '" + "x" * 60 + "...'"),
        ("# only\n# comments\n", 1, "the file contains no message"),
    ],
)
def test_broken_edge_list(write, content, line, message, blame):
    found = blame(write("g.txt", content))
    assert found[0] == line
    assert message in found[1]


def test_error_says_what_to_do_and_pickles(write):
    path = write("CollegeMsg.txt", "1 2 3\n" * 16 + "3 x\n")
    with pytest.raises(TraceError) as caught:
        read_trace(str(path))
    assert str(caught.value).startswith("CollegeMsg.txt:17: expected 'src dst time', found '3 x'")
    assert "begin the line with # to skip it" in str(caught.value)
    again = pickle.loads(pickle.dumps(caught.value))
    assert (again.file, again.line, str(again)) == (str(path), 17, str(caught.value))


def test_csv(write):
    trace = read_trace(write("m.csv", "\ufeff" + CSV))
    assert (trace.senders, trace.receivers, trace.texts) == ([1, 2], [2, 1], ["hi", ""])
    assert trace.times.tolist() == [10.0, 11.0]


@pytest.mark.parametrize(
    "header",
    ["source,target,ts", "Sender , Recipient,TIMESTAMP", "src,dst,seq", "from,receiver,time", "From,to,time,from,says"],
)
def test_csv_default_names(write, header):
    cells = [" a ", " 007 ", "1", "x", "no text"][: len(header.split(","))]
    trace = read_trace(write("m.csv", f"{header}\n{','.join(cells)}\n"))
    assert (trace.senders, trace.receivers, trace.texts) == (["a"], ["007"], None)


def test_csv_named_fields_and_awkward_text(write):
    text = ' "quoted", comma,\r\ntwo lines\u2028 and a separator\x0b'
    row = io.StringIO()
    csv.writer(row).writerow(["x", "y", "2004-04-15T14:56:01Z", text])
    path = write("m.csv", "who,whom,when,says\n" + row.getvalue())
    trace = read_trace(path, from_field="who", to_field="whom", time_field="when", text_field="says")
    assert trace.texts == [text]
    assert trace.times.tolist() == [1082040961.0]


@pytest.mark.parametrize(
    ("content", "line", "message"),
    [
        (
            CSV + "2,1.0,3,x\n",
            4,
            "put a letter before it by to_field='v{...}', with",
        ),
        (CSV + "-1.00,1,3,x\n", 4, "the sender '-1.00' is"),
        (CSV + "1.1439261872364217e+18,1,3,x\n", 4, "in pandas by astype('Int64')"),
        ("from_id,to_id,sent_at,payload,payload.n\n1,2,3,,4\n", 1, "export the log to .jsonl"),
        *((CSV + row, 4, LATE) for row in ('1, "2",1,x\n', ' "1",2,1,x\n', '1,2,1, "x"\n', '1,2,1, "x,y"\n')),
        (CSV + '1,2,1, "x\ny"\n', 4, LATE),
        (CSV + '1,2,1," ""x, ""y"""\n1,2,1, "x"\n', 5, LATE),
        ('from, "to",time\n1,2,3\n', 1, LATE),
        (CSV + '1,\t"2",1,x\n', 4, 'the receiver "2" has white space before its quote'),
        (CSV + "1,2\n", 4, "expected 4 cells as in the header, found 2"),
        (CSV + "\n,2,3,x\n", 5, "the sender is empty"),
        (CSV + "1, ,3,x\n", 4, "the receiver is empty"),
        ('from,to,time,text\n1,2,3,"a\nb\nc"\n1,2,x,d\n', 5, "time 'x' is neither"),
        # A lone carriage return ends no line for an editor.
        ('from,to,time,text\n1,2,3,"a\rb"\n1,2,x,d\n', 3, "time 'x' is neither"),
        (
            'from,to,time,text\n1,2,3,a\n1,2,3,"open\n1,2,3,b\n',
            3,
            "not a valid CSV row (unexpected end of data)",
        ),
        ('from,to,time,text\n1,2,3,"a"b\n', 2, "not a valid CSV row"),
        ("from,to,time\n1,2," + "9" * 140_000, 2, "as JSON lines"),
        ("from,to,time\n1,2,\n", 2, "time '' is neither"),
        (
            "\n6,2,4,1289241911\n",
            2,
            "no field for the sender (such as 'from'), the receiver (such as 'to'), the time (such as 'time') among "
            "'6', '2', '4', '1289241911': if the file has no header, write one above its first message, such as "
            "from,to,time; otherwise name your fields by",
        ),
        (
            "from,when\n",
            1,
            "among 'from', 'when': name your fields by to_field=, time_field= (on the command line --to, --time)",
        ),
        ("from,to,when\n", 1, "no field for the time (such as 'time') among 'from', 'to', 'when': name"),
        ("from,to,time,to\n", 1, "the header names 'to' twice"),
        ("from,to,time\n", 1, "the file contains no message"),
        (" \n\n", 1, "the file is empty"),
    ],
)
def test_broken_csv(write, content, line, message, blame):
    found = blame(write("m.csv", content))
    assert found[0] == line
    assert message in found[1]


@pytest.mark.parametrize(
    ("name", "content"), [("m.csv", "who,whom,at\n1,2,3\n"), ("m.jsonl", '{"who":1,"whom":2,"at":3}\n')]
)
def test_all_fields_that_are_missing_are_named_at_once_with_their_options(write, blame, name, content):
    line, found = blame(write(name, content))
    assert line == 1
    assert "among 'who', 'whom', 'at': name your fields by" in found
    for noun, option in (("sender", "from"), ("receiver", "to"), ("time", "time")):
        assert f"the {noun} (such as {option!r})" in found
        assert f"{option}_field=" in found
        assert f"--{option}" in found


@pytest.mark.parametrize("option", ["from_field", "to_field", "time_field", "text_field"])
def test_field_asked_for_is_absent(write, option, blame):
    noun = {"from_field": "sender", "to_field": "receiver"}.get(option, option.removesuffix("_field"))
    expected = f"no field 'nix' for the {noun}: the fields are "
    assert expected in blame(write("m.csv", CSV), **{option: "nix"})[1]
    assert expected in blame(write("m.jsonl", JSONL), **{option: "nix"})[1]
    assert expected in blame(write("m.txt", "1 2 3"), **{option: "nix"})[1]


def test_json_lines(write):
    trace = read_trace(write("m.ndjson", "\n" + JSONL.replace("\n", "\r\n")))
    assert (trace.senders, trace.receivers, trace.texts) == (["a", "b"], ["b", "a"], ["hi", ""])


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ('{"sender":"a"', "expected a JSON object (Input data was truncated), one on each line"),
        ("[1]", "expected a JSON object (Expected `object`, got `array`)"),
        ("[" * 100_000, "expected a JSON object"),
        ('{"sender":"a","seq":1,"text":""}', "this row has no field 'receiver'"),
        ('{"receiver":"a","seq":1}', "this row has no field 'sender', only 'receiver', 'seq': add it, or name a field"),
        ('{"receiver":"a","seq":1}', "that every row has (on the command line by --from, --to, --time, --text)"),
        ('{"sender":"","receiver":"b","seq":1,"text":""}', "the sender is empty"),
        ('{"sender":"a","receiver":null,"seq":1,"text":""}', "the receiver is empty"),
        ('{"sender":true,"receiver":"b","seq":1,"text":""}', "agent id True is a bool"),
        ('{"sender":1.0,"receiver":"b","seq":1,"text":""}', "agent id 1.0 is a float"),
        ('{"sender":["a"],"receiver":"b","seq":1,"text":""}', "is a list: an id must be an int or a str"),
        ('{"sender":"a","receiver":"b","seq":null,"text":""}', "time None is neither"),
        ('{"sender":"a","receiver":"b","seq":true,"text":""}', "time True is neither"),
        ('{"sender":"a","receiver":"b","seq":1%s,"text":""}' % ("0" * 400), "0... is neither a finite number"),
        ('{"sender":"a","receiver":"b","seq":1,"text":null}', "the text is of type NoneType"),
        ('{"sender":"a","receiver":"b","seq":1,"text":"\\ud800"}', "expected a JSON object"),
    ],
)
def test_broken_json_line(write, row, message, blame):
    line, found = blame(write("m.jsonl", JSONL + row + "\n" + JSONL))
    assert line == 3
    assert message in found


def test_text_that_only_later_rows_have_is_not_dropped(write, blame):
    line, found = blame(write("m.jsonl", '{"from":1,"to":2,"ts":3}\n{"from":1,"to":2,"ts":3,"text":"x"}'))
    assert line == 2
    assert "the rows before it have none" in found


def test_carriage_return_ends_no_json_line(write, blame):
    assert blame(write("m.jsonl", '{"from":1,\r"to":2,"ts":3}\n{'))[0] == 2


def test_lines_end_at_newlines_only(write, blame):
    """U+2028, U+0085 and the like end a line for str.splitlines, and must not count here."""
    text = "a\u2028b\u0085c\x1c"
    rows = [json.dumps({"from": 1, "to": 2, "ts": 3, "text": text}, ensure_ascii=False)] * 2
    path = write("m.jsonl", "\n".join([*rows, "{"]).replace("\x1c", "\\u001c"))
    assert blame(path)[0] == 3
    assert read_trace(write("n.jsonl", "\n".join(rows))).texts == [text, text]
