"""The last rows of a log, read from its end."""

from itertools import pairwise

import pytest
from support.log_queries import ROWS, log_of, row, write_folder

from ray_messaging.errors import InvalidQuery
from ray_messaging.eventlog.reading import scan as scanning


@pytest.fixture
def log(tmp_path):
    folder = write_folder(tmp_path / "log", [ROWS[:3], ROWS[3:5], []], row_group_rows=2)
    return log_of(folder, [ROWS[5:7], ROWS[7:]])


@pytest.mark.parametrize(
    "fields",
    [{}, {"from_id": 1}, {"fate": "delivered"}, {"agent": 2}, {"after": 2}, {"after": 6}, {"rule": "no"}, {"step": 1}],
)
@pytest.mark.parametrize("limit", [0, 1, 2, 3, 5, 8, 100, None])
def test_they_are_the_last_ones_of_a_query(log, fields, limit):
    whole = log.query(text=True, **fields)["position"].to_pylist()
    count = len(whole) if limit is None else min(limit, len(whole))
    assert log.recent(limit=limit, **fields)["position"].to_pylist() == whole[len(whole) - count :]


def test_payloads_are_cut_and_have_their_size(log):
    rows = log.recent(width=9).to_pylist()
    whole = log.query(text=True).to_pylist()
    assert [found["payload"] for found in rows] == [found["payload"][:9] for found in whole]
    assert [found["payload_bytes"] for found in rows] == [len(found["payload"].encode()) for found in whole]
    assert rows[7]["payload_before"] == '{"content'
    assert log.recent(rule="no").column_names == log.recent().column_names


def test_only_the_end_of_a_long_log_is_read(tmp_path, monkeypatch):
    folder = write_folder(tmp_path / "log", [[row(n) for n in range(low, high)] for low, high in pairwise(range(9))])
    read = []
    numbers = {segment.path: segment.number for segment in folder.segments()}
    opened = scanning._file
    monkeypatch.setattr(scanning, "_file", lambda folder, path: read.append(numbers[path]) or opened(folder, path))
    assert log_of(folder).recent(limit=2)["position"].to_pylist() == [6, 7]
    assert read == [7, 6]


@pytest.mark.parametrize("fields", [{"limit": -1}, {"width": -1}, {"from_id": 1.5}])
def test_invalid_fields(log, fields):
    with pytest.raises(InvalidQuery):
        log.recent(**fields)
