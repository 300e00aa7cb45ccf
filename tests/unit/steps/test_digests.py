"""Digests of steps."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ray_messaging.steps.digests import DigestRow, HeardBy, history_digest, row_bytes, step_digest, sum_of, sum_of_like

TEXT = st.text(max_size=4)
AGENTS = st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1), TEXT)
ROWS = st.builds(
    DigestRow,
    step=st.integers(0, 9),
    step_read=st.integers(0, 9),
    from_id=AGENTS,
    ordinal=st.integers(0, 9),
    to_id=AGENTS,
    subtopic=TEXT,
    fate=TEXT,
    rule=st.none() | TEXT,
    labels=st.lists(TEXT, max_size=2, unique=True).map(sorted),
    payload=st.binary(max_size=4),
    in_reply_to=st.none() | TEXT,
    expects_answer=st.booleans(),
    audience=st.none() | st.builds(HeardBy, TEXT, st.binary(max_size=4)),
)


def normal(row):
    """Return a row as it may be: a broadcast has its audience instead of a recipient."""
    return row if row.audience is None else row._replace(to_id=None)


@given(ROWS, ROWS)
def test_rows_have_equal_bytes_only_if_they_are_equal(one, other):
    for name in DigestRow._fields:
        first, second = normal(one), normal(one._replace(**{name: getattr(other, name)}))
        assert (row_bytes(first) == row_bytes(second)) == (first == second), name


def test_a_row_that_comes_twice_or_has_a_weight_counts_as_often():
    row = DigestRow(1, 2, 3, 0, 4, "agent-chat", "delivered", None, (), b"{}")
    assert len({step_digest([sum_of([row] * count)]) for count in range(4)}) == 4
    heard = row._replace(to_id=None, audience=HeardBy("friends", b"x"))
    assert sum_of([heard], [3]) == sum_of([heard] * 3)


INT = st.integers(-(2**63), 2**63 - 1)


@given(ROWS, st.lists(st.tuples(INT, st.integers(0, 2**32 - 1), INT, st.binary(max_size=4)), min_size=1))
def test_rows_that_differ_in_ids_ordinals_and_payloads_have_the_sum_of_any_rows(row, columns):
    like = row._replace(in_reply_to=None, expects_answer=False, audience=None)
    from_ids, ordinals, to_ids, payloads = zip(*columns, strict=True)
    for each in (payloads, payloads[:1] * len(payloads)):
        rows = [
            like._replace(from_id=from_id, ordinal=ordinal, to_id=to_id, payload=payload)
            for from_id, ordinal, to_id, payload in zip(from_ids, ordinals, to_ids, each, strict=True)
        ]
        found = sum_of_like(like, np.array(from_ids), np.array(ordinals, np.uint32), np.array(to_ids), each)
        assert found == sum_of(rows)


@pytest.mark.parametrize("last", [b"x", b"y"])
def test_the_sum_of_rows_with_a_large_payload_does_not_copy_it_for_all_rows_at_once(last):
    like = DigestRow(1, 2, 3, 0, 4, "agent-chat", "delivered", None, (), b"{}")
    large, count = b"x" * 100_000, 500
    payloads, ids = [large] * (count - 1) + [large[1:] + last], np.arange(count)
    tracemalloc.start()
    try:
        sum_of_like(like, ids, ids.astype(np.uint32), ids, payloads)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 20 * len(large)


def test_the_history_depends_on_all_that_was_before():
    digest = step_digest([sum_of([])])
    assert history_digest(b"", 0, 0, digest) != history_digest(b"", 1, 0, digest)
    assert history_digest(b"", 0, 0, digest) != history_digest(digest, 0, 0, digest)
    assert history_digest(b"", 0, 0, digest) != history_digest(b"", 0, 1, digest)


def test_an_answer_to_a_question_from_outside_does_not_name_its_place_among_the_others():
    row = DigestRow(5, 6, 3, 0, None, ":exps:x:user-payback", "delivered", None, (), b"{}")
    first, second, other = (
        row._replace(in_reply_to=f"{step}-{ordinal}-None") for step, ordinal in ((5, 2**31), (5, 2**31 + 7), (4, 2**31))
    )
    assert row_bytes(first) == row_bytes(second) != row_bytes(other)
    assert row_bytes(row._replace(in_reply_to="5-0-1")) != row_bytes(row._replace(in_reply_to="5-1-1"))
