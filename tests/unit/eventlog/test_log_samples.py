"""Counts of the rows behind a position; of many rows, of a sample."""

import pytest
from support.log_queries import log_of, row, write_folder

from ray_messaging.errors import InvalidQuery

ROWS = [row(n, from_id=1 + n // 120) for n in range(240)]  # the rows of each sender follow each other


@pytest.fixture
def log(tmp_path):
    folder = write_folder(tmp_path / "log", [ROWS[:100], ROWS[100:130]], row_group_rows=16)
    return log_of(folder, [ROWS[130:200], ROWS[200:]])


def by_sender(found):
    return dict(zip(found.counts["from_id"].to_pylist(), found.counts["count"].to_pylist(), strict=True))


@pytest.mark.parametrize("after", [-1, 0, 99, 150, 239, 500])
def test_few_rows_are_all_counted(log, after):
    found = log.sample("from_id", after=after)
    whole = log.count("from_id", after=after)
    assert by_sender(found) == dict(zip(whole["from_id"].to_pylist(), whole["count"].to_pylist(), strict=True))
    assert (found.reached, found.share) == (239, 1.0)


def test_a_sample_has_rows_of_all_parts(log):
    found = log.sample("from_id", most=80)
    assert by_sender(found) == {1: 40, 2: 40}
    assert (found.reached, found.share) == (239, 80 / 240)
    later = log.sample(["from_id", "fate"], after=119, most=16)
    assert by_sender(later) == {2: 16}
    assert later.share == 16 / 120


def test_a_sample_of_ints_and_later_strs(tmp_path):
    rows = [row(n, from_id="ann" if n < 120 else 1) for n in range(240)]
    found = log_of(write_folder(tmp_path / "log", [rows])).sample("from_id", most=80)
    assert by_sender(found) == {"ann": 40, "1": 40}


@pytest.mark.parametrize("fields", [{"most": 0}, {"most": "all"}, {"after": "x"}, {"by": "mood"}])
def test_invalid_fields(log, fields):
    with pytest.raises(InvalidQuery):
        log.sample(**fields)
