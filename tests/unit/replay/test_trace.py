"""A trace: its columns, the files it may come in, and files that cannot be read."""

import gzip

import pytest

from ray_messaging.replay.trace import read_trace

CSV = "from,to,time,text\n1,2,10,hi\n2,1,11,\n"


def test_agents_in_order_of_first_appearance_and_a_repr_without_them(write):
    trace = read_trace(write("t.txt", "b a\n3 b\nb c\n"))
    assert trace.agents == ["b", "a", 3, "c"]
    assert (trace.sources.tolist(), trace.targets.tolist()) == ([0, 2, 0], [1, 0, 3])
    assert len(trace) == 3
    assert repr(trace) == "Traffic(name='t', messages=3, agents=4)"


@pytest.mark.parametrize(
    ("content", "count"),
    [
        ('\n\n {"from":1,"to":2,"time":3}', 1),
        ("# a, b\n1 2 3\n4 5 6", 2),
        (CSV, 2),
    ],
)
@pytest.mark.parametrize("name", ["m", "m.dat", "m.dat.gz", "m.log"])
def test_unknown_extension_goes_by_content(write, name, content, count):
    assert len(read_trace(write(name, content))) == count


@pytest.mark.parametrize("name", ["m.csv", "m.csv.gz"])
@pytest.mark.parametrize("zipped", [False, True])
def test_gzip_goes_by_content(write, name, zipped):
    trace = read_trace(write(name, CSV, zipped=zipped))
    assert (len(trace), trace.name) == (2, "m")


def test_gzip_of_several_members(write):
    assert len(read_trace(write("m.txt.gz", gzip.compress(b"1 2 3\n") + gzip.compress(b"4 5 6\n")))) == 2


def test_truncated_gzip_names_the_line_it_ends_in(write, blame):
    zipped = gzip.compress(b"1 2 3\n4 5 6\n", compresslevel=0)
    # A stored block: the last 8 bytes are checksum and size, the 4 before them are cut from line 2.
    line, message = blame(write("m.txt.gz", zipped[:-12]))
    assert line == 2
    assert "the gzip data is damaged from about this line on" in message
    assert "download or zip it again" in message


@pytest.mark.parametrize("place", [1, 3, 12, 40, -6, -1])
def test_damaged_gzip(write, place, blame):
    damaged = bytearray(gzip.compress(b"".join(b"%d %d 3\n" % (i, i + 1) for i in range(1000))))
    damaged[place] ^= 0xFF
    line, message = blame(write("m.txt.gz", bytes(damaged)))
    assert 1 <= line <= 1001
    assert "again" in message or "UTF-8" in message


def test_rubbish_behind_the_gzip(write, blame):
    assert blame(write("m.txt.gz", gzip.compress(b"1 2 3\n") + b"rubbish"))[0] == 2


@pytest.mark.parametrize("name", ["m.txt", "m.csv", "m.jsonl", "m"])
@pytest.mark.parametrize("content", ["", "\n", "\ufeff", " \r\n\t\n"])
@pytest.mark.parametrize("zipped", [False, True])
def test_empty_file(write, name, content, zipped, blame):
    line, message = blame(write(name, content, zipped=zipped))
    assert line == 1
    assert "the file is empty" in message


def test_file_that_cannot_be_read(tmp_path, blame):
    line, message = blame(tmp_path / "missing.txt")
    assert line == 0
    assert str(tmp_path / "missing.txt") in message
    assert "No such file" in message
    assert "Is a directory" in blame(tmp_path)[1]


@pytest.mark.parametrize("name", ["m.txt", "m.csv", "m.jsonl", "m"])
def test_no_utf8(write, name, blame):
    line, message = blame(write(name, b"\xef\xbb\xbf1 2 3\n" + "1 é 3\n".encode() + b"1 \xe9 3\n"))
    assert line == 3
    assert "byte 3 of the line, 0xe9, is not UTF-8" in message
