"""The real traces, counted as their READMEs count them."""

import gzip
import json

import numpy as np
import pytest

from ray_messaging.replay.trace import read_trace


def test_college_messages(data):
    trace = read_trace(data("collegemsg/CollegeMsg.txt.gz"))
    assert (len(trace), trace.name, trace.texts) == (59_835, "CollegeMsg", None)
    assert (len(trace.agents), len(set(trace.senders)), len(set(trace.receivers))) == (1_899, 1_350, 1_862)
    assert len(set(zip(trace.senders, trace.receivers, strict=True))) == 20_296
    assert (trace.times[0], trace.times[-1]) == (1082040961, 1098777142)
    assert (np.diff(trace.times) >= 0).all()
    assert trace.senders.count(9) == 1_091


def test_diplomacy_games_with_agents_per_game(data):
    path = data("diplomacy-deception/messages_flat.jsonl.gz")
    trace = read_trace(path, from_field="{game}-{sender}", to_field="{game}-{receiver}")
    assert len(trace) == 17_289
    assert len(trace.agents) == 12 * 7
    assert sum("\n" in text for text in trace.texts) == 813
    seqs = {}
    for sender, seq in zip(trace.senders, trace.times.tolist(), strict=True):
        seqs.setdefault(sender.split("-")[0], []).append(seq)
    assert all(seq == list(range(len(seq))) for seq in seqs.values())
    assert len(read_trace(path).agents) == 7


@pytest.fixture(scope="module")
def gitter_lines(data):
    lines = gzip.decompress(data("gitter-freecodecamp/gitter_rooms_A.jsonl.gz").read_bytes()).split(b"\n")
    return [(line, json.loads(line)) for line in lines if line]


@pytest.mark.long
def test_gitter_rows_of_nobody_are_named(write, gitter_lines, blame, data):
    nobody = [number for number, (_, row) in enumerate(gitter_lines, 1) if row["user_id"] == ""]
    assert len(nobody) == 4
    head = [line for number, (line, _) in enumerate(gitter_lines, 1) if number not in nobody[:3]]
    for path, expected in (
        (data("gitter-freecodecamp/gitter_rooms_A.jsonl.gz"), nobody[0]),
        (write("g.jsonl", b"\n".join(head)), nobody[3] - 3),
    ):
        line, message = blame(path, from_field="user_id", to_field="room")
        assert line == expected
        assert "the sender is empty" in message


@pytest.mark.long
def test_gitter_texts_are_identical(write, gitter_lines):
    kept = [(line, row) for line, row in gitter_lines if row["user_id"]]
    path = write("g.jsonl", b"\n".join(line for line, _ in kept))
    trace = read_trace(path, from_field="user_id", to_field="room")
    assert len(trace) == 105_844 - 4
    assert len(set(trace.receivers)) == 261
    # Compared outside the assert: pytest would print real people's words.
    same = trace.texts == [row["text"] for _, row in kept]
    assert same
