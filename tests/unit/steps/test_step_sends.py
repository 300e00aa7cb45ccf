"""The messages that a group sends in one step."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.batches import batch_to

from ray_messaging.audiences.records import Audiences
from ray_messaging.errors import InvalidPayload, UnknownSender
from ray_messaging.messages import Slice
from ray_messaging.model.agent_sets import AgentSet
from ray_messaging.model.columns import PayloadColumn
from ray_messaging.model.extension import Extension
from ray_messaging.steps.agent_places import AgentPlaces
from ray_messaging.steps.step_sends import StepSends


def sends_of(agents=(1, 2, "x"), step=3):
    return StepSends(
        AgentPlaces(AgentSet.of(agents)), step, attempt=1, horizon=8, payload_bytes=1000, audiences=Audiences()
    )


def topic_of(batch, row):
    return batch.topics[0 if batch.topic is None else batch.topic[row]]


def rows_of(sends):
    """Return (from_id, ordinal, to_id, topic, step of delivery, payload) of each row."""
    return [
        (from_id, ordinal, to_id, topic_of(batch, row), batch.extension.deliver, batch.lines.row(row))
        for batch in sends.take()
        for row, (from_id, ordinal, to_id) in enumerate(
            zip(batch.from_ids.tolist(), batch.extension.ordinal.tolist(), batch.to_ids.tolist(), strict=True)
        )
    ]


@given(st.lists(st.tuples(st.booleans(), st.lists(st.sampled_from([1, 2, "x"]), min_size=1, max_size=5)), max_size=6))
def test_the_ordinal_counts_the_sends_of_each_agent(calls):
    sends, counts, expected = sends_of(), {1: 0, 2: 0, "x": 0}, []
    for number, (columns, from_ids) in enumerate(calls):
        payload = {"n": number}
        if columns:
            sends.add_columns(from_ids, [7] * len(from_ids), payload, "a")
        for from_id in from_ids:
            if not columns:
                sends.send(from_id, 7, payload, subtopic="a")
            expected.append((from_id, counts[from_id], 7, "a", 4, b'{"n":%d}' % number))
            counts[from_id] += 1
    assert sorted(rows_of(sends), key=str) == sorted(expected, key=str)
    assert rows_of(sends) == []


def test_a_refused_send_leaves_the_subtopic_of_later_ones():
    sends = sends_of()
    sends.send(1, 2, {}, subtopic="a")
    with pytest.raises(UnknownSender):
        sends.send(3, 2, {}, subtopic="b")
    sends.send(2, 2, {}, subtopic="a")
    sends.send("x", 2, {}, subtopic="b")
    assert sorted((str(row[0]), row[3]) for row in rows_of(sends)) == [("1", "a"), ("2", "a"), ("x", "b")]


def test_a_payload_with_nan_is_refused_also_after_an_equal_one_with_none():
    sends = sends_of()
    for payload in ({"mood": None}, {"mood": "null"}, {"mood": None}):
        sends.send(1, 2, payload)
        with pytest.raises(InvalidPayload, match="mood"):
            sends.send(1, 2, {"mood": float("nan")})
    [batch] = sends.batches()
    assert batch.lines.count == 2
    assert [row[-1] for row in rows_of(sends)] == [b'{"mood":null}', b'{"mood":"null"}', b'{"mood":null}']


def test_many_single_messages_become_batches_of_a_limited_size():
    sends = sends_of(range(10))
    for number in range(20_000):
        sends.send(number % 10, 2, {}, subtopic="a")
    batches = sends.take()
    assert [len(batch) for batch in batches] == [16_384, 20_000 - 16_384]
    ordinals = np.concatenate([batch.extension.ordinal for batch in batches])
    assert np.array_equal(np.bincount(ordinals), np.full(2_000, 10))


def questions(topics):
    """Return questions to agent 1 as a step reads them, each on a topic."""
    names, rows = (*dict.fromkeys(topics),), len(topics)
    topic = np.array([names.index(topic) for topic in topics], np.uint16)
    extension = Extension(ordinal=np.arange(rows, dtype=np.uint32), expects_answer=np.ones(rows, np.bool_))
    batch = batch_to([1] * rows, [7] * rows, topics=names, topic=topic, step=2, sent_at=0.0, extension=extension)
    batch.lines = PayloadColumn.of([b"{}"] * rows)
    return Slice(batch, 0, rows)


def test_answers_in_columns_are_in_the_order_of_the_questions():
    sends = sends_of()
    sends.add_replies(questions("babba"), {}, "e", None)
    assert [(row[1], row[3]) for row in rows_of(sends)] == [*enumerate("babba")]
