"""The balance of a log, and every way in which it can fail."""

import pickle

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.log_queries import log_of, row, table_of

from ray_messaging.errors import Unbalanced
from ray_messaging.eventlog.folder import Folder
from ray_messaging.eventlog.reading.balance import balance, hashes
from ray_messaging.eventlog.reading.scan import View


@pytest.mark.parametrize(
    ("wrong", "words", "offenders"),
    [
        ([row(2, fate="blocked", entry="99-0")], "s-1-2 is blocked and delivered", ["s-1-2"]),
        ([row(2, entry="99-0")], "s-1-2 is 2 times in the log for mailbox m", ["s-1-2"]),
        ([row(4, fate="undeliverable", entry="99-0")], "s-1-4 is 2 times in the log", ["s-1-4"]),
        ([row(9, entry="2-0")], "has the same mailbox, entry and row as another message", ["s-1-2", "s-1-9"]),
        ([row(9, fate="lost")], "has the fate 'lost'", ["s-1-9"]),
        ([row(9, entry="9-0", audience="all", to_id=None)], "9-0 of m has no hearers", ["s-1-9 in entry 9-0 of m"]),
        ([row(0), row(1), row(2)], "3 of 8 sends", ["s-1-0", "s-1-1", "s-1-2"]),
    ],
)
@pytest.mark.parametrize("partition_rows", [1, 3, 1000])
def test_a_log_that_does_not_balance(folder, wrong, words, offenders, partition_rows):
    with pytest.raises(Unbalanced, match=words) as caught:
        balance(View(folder, folder.segments(), [table_of(wrong)]), partition_rows=partition_rows)
    assert sorted(caught.value.offenders) == offenders
    assert pickle.loads(pickle.dumps(caught.value)).offenders == caught.value.offenders


def test_a_collision_of_hashes_is_no_error(folder, monkeypatch):
    monkeypatch.setattr("ray_messaging.eventlog.reading.balance.hashes", lambda texts: np.zeros(len(texts), np.uint64))
    assert balance(View(folder, folder.segments())).rows == 8


def test_a_log_that_does_not_balance_at_all(folder):
    twice = [row(number, entry=f"{number}-9") for number in range(3000)]
    once = [row(number) for number in range(3000)]
    with pytest.raises(Unbalanced, match="at least 1,000 of 3,000 sends") as caught:
        log_of(Folder(folder.where + "-none"), [once, twice]).balance()
    assert len(caught.value.offenders) == 100


TEXTS = st.lists(st.one_of(st.none(), st.text(max_size=6), st.text("ab", min_size=250, max_size=260)), max_size=20)
FORMS = st.sampled_from([pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())])


@given(TEXTS, st.integers(0, 5), FORMS)
def test_equal_texts_and_only_those_have_equal_hashes(texts, start, form):
    found = hashes(pa.array(texts, form).slice(start)).tolist()
    chunks = pa.chunked_array([texts[start : start + 2], [], texts[start + 2 :]], pa.string())
    assert hashes(chunks).tolist() == found
    assert hashes(chunks.slice(0, 0)).tolist() == hashes(pa.chunked_array([], pa.string())).tolist() == []
    known = dict(zip(texts[start:], found, strict=True))
    assert [known[text] for text in texts[start:]] == found
    filled = [text for text in known if text]
    assert len({known[text] for text in filled} - {0}) == len(filled)
