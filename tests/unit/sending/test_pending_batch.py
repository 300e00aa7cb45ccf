"""The batch that waits to be sent: single messages and whole batches keep their order, ids, payloads and causes."""

from hypothesis import given
from hypothesis import strategies as st

from ray_messaging.sending.pending_batch import PendingBatch

MESSAGES = st.tuples(
    st.sampled_from([1, -7, "anna", None]),
    st.lists(st.sampled_from([2, 3, "bert", None]), min_size=1, max_size=3),
    st.sampled_from(["chat", "news"]),
    st.integers(0, 999).map(lambda n: b'{"n":%d}' % n),
    st.sampled_from([None, None, "a-1-0", "b-2-5"]),
)
SINGLE = MESSAGES.map(lambda message: [message])
BATCH = st.lists(MESSAGES, min_size=1, max_size=3)


def rows_of(batch):
    causes = None if batch.extension is None else batch.extension.caused_by
    return [
        (
            batch.from_ids[row],
            batch.to_ids[row],
            batch.topic_of(row),
            batch.lines.row(row),
            None if causes is None else causes[row],
        )
        for row in range(batch.rows)
    ]


def expected_of(messages):
    return [
        (from_id, to_id, topic, line, cause) for from_id, to_ids, topic, line, cause in messages for to_id in to_ids
    ]


def sealed(messages):
    draft = PendingBatch(4)
    for message in messages:
        draft.append(*message, 1.0)
    return draft.seal("", 0, 0)


@given(st.lists(st.one_of(SINGLE, BATCH.map(tuple)), min_size=1, max_size=6))
def test_what_is_appended_keeps_its_order(sent):
    pending, futures, expected, bulk = PendingBatch(4), [], [], False
    for part in sent:
        if isinstance(part, tuple):
            batch = sealed(part)
            pending.join(batch)
            futures += [None] * batch.rows
            bulk = True
        else:
            from_id, to_ids, topic, line, cause = part[0]
            future = object()
            if cause is not None:
                pending.causes[len(pending.cells) // 6] = cause
            pending.cells += (from_id, to_ids[0], topic, line, 1.0, future)
            pending.nbytes += len(line) + 1
            futures.append(future)
            part = [(from_id, to_ids[:1], topic, line, cause)]
        expected += expected_of(part)
        assert len(pending) == len(expected)
    batch = pending.seal("west", 3, 70)
    assert rows_of(batch) == expected
    assert (batch.rows, batch.step, batch.message_id(len(expected) - 1)) == (
        len(expected),
        4,
        f"west-3-{69 + len(expected)}",
    )
    assert pending.nbytes == batch.lines.nbytes
    assert pending.singles == ([] if futures.count(None) == len(futures) else futures)
    assert pending.all_single == (not bulk)


def test_a_batch_that_comes_whole_is_sent_as_it_came():
    batch = sealed([(1, [2, 3], "chat", b"{}", None)])
    batch.labels, batch.noted = {"spam": [0]}, [1]
    assert PendingBatch.of(batch).seal("west", 3, 70) is batch
    assert (batch.labels, batch.noted, batch.sender) == ({}, None, "west")


def test_payloads_are_not_kept_twice_once_a_batch_is_sealed():
    pending = PendingBatch(4)
    for n in range(3):
        pending.join(sealed([(1, [2], "chat", b'{"n":%d}' % n, None)]))
    batch = pending.seal("a", 1, 0)
    assert pending.parts == [batch]
    again = pending.seal("a", 2, 7)
    assert rows_of(again) == [(1, 2, "chat", b'{"n":%d}' % n, None) for n in range(3)]
    assert (again.epoch, again.first, again.step) == (2, 7, 4)
