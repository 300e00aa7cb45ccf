"""Hashes of texts: the same for the same text wherever it stands, and another for another."""

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from ray_messaging.eventlog.reading.balance import hashes

TEXTS = st.lists(st.one_of(st.none(), st.text(max_size=6), st.text("ab", min_size=250, max_size=260)), max_size=20)


@given(
    TEXTS, st.integers(0, 5), st.sampled_from([pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())])
)
def test_equal_texts_and_only_those_have_equal_hashes(texts, start, kind):
    found = hashes(pa.array(texts, kind).slice(start)).tolist()
    texts = texts[start:]
    assert len(found) == len(texts)
    known = dict(zip(texts, found, strict=True))
    assert [known[text] for text in texts] == found
    filled = [text for text in known if text]
    assert len({known[text] for text in filled} - {0}) == len(filled)


def test_chunks_and_forms_do_not_matter():
    texts = ["a-1-1", None, "", "b", "a-1-1"]
    chunks = pa.chunked_array([pa.array(texts[:2]), pa.array([], pa.string()), pa.array(texts[2:])])
    assert hashes(chunks).tolist() == hashes(pa.array(texts).dictionary_encode()).tolist()
    assert hashes(pa.chunked_array([], pa.string())).tolist() == []
