"""Lines cut out of a blob are those that a list would give, wherever in a frame the blob begins."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ray_messaging.model.columns import PayloadColumn

texts = st.lists(st.text("ab\n", max_size=5), min_size=1, max_size=12)


@given(texts, st.data())
def test_a_cut_has_its_lines_and_their_sizes(found, data):
    made = PayloadColumn.encode([{"a": text} for text in found], 1000)
    wanted = list(PayloadColumn.encode([{"a": text} for text in found], 1000).list)
    low = data.draw(st.integers(0, len(found) - 1))
    rows = np.arange(low, data.draw(st.integers(low + 1, len(found))))
    inside = PayloadColumn(b"head\n" + made.blob, len(found), None, 5)
    for lines in (made, inside):
        assert lines.weights.tolist() == [len(line) + 1 for line in wanted]
        assert lines.take(rows).blob == b"".join(wanted[row] + b"\n" for row in rows)
        assert lines.take(rows[::-1]).list == [wanted[row] for row in rows[::-1]]
        lines.pack()
        assert lines.list == wanted


@pytest.mark.parametrize("rows", [3, 1000])  # few bytes and many are counted in different ways
def test_a_blob_with_a_line_too_many_is_not_whole(rows):
    blob = PayloadColumn.encode([{"content": "x" * 40}] * rows, 1000).blob
    assert PayloadColumn(blob, rows).whole(rows)
    assert not PayloadColumn(blob + b"{}\n", rows).whole(rows)
    assert not PayloadColumn(blob[:-1], rows).whole(rows)
