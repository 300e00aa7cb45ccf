"""Messages of bulk sends, before the first one is sent."""

from hypothesis import given
from hypothesis import strategies as st

from ray_messaging.limits_and_timeouts import BATCH_BYTES
from ray_messaging.sending.bulk_input import payloads_of
from ray_messaging.sending.pending_batch import Entry


@given(st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from([1, "x", None]), st.integers(0, 2))))
def test_payloads_are_checked_in_their_order(sent):
    entries = [
        Entry(from_id, [1] * copies, topic, b'{"n":%d}' % number)
        for number, (topic, from_id, copies) in enumerate(sent)
    ]
    found = [
        (batch.topic_of(row), batch.from_ids[row], batch.lines.row(row))
        for batch in payloads_of(entries)
        for row in range(batch.rows)
    ]
    assert found == [(entry.topic, entry.from_id, entry.line) for entry in entries]


def test_payloads_of_one_topic_are_checked_together():
    assert [batch.rows for batch in payloads_of([Entry(1, [2], "a", b"{}")] * 5_000)] == [5_000]
    large = [Entry(1, [2], "a", b'"%s"' % (b"a" * (BATCH_BYTES // 2)))] * 6
    assert max(batch.lines.nbytes for batch in payloads_of(large)) <= 2 * BATCH_BYTES
