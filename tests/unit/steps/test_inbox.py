"""The inbox of a step."""

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.batches import batch_to

from ray_messaging.errors import FrameError
from ray_messaging.model.agent_sets import AgentSet
from ray_messaging.model.columns import PayloadColumn
from ray_messaging.model.extension import Extension
from ray_messaging.steps.agent_places import AgentPlaces
from ray_messaging.steps.inbox import _AHEAD, StepInbox
from ray_messaging.wire.frames import decode, encode

AGENTS = [1, 2, 30, "x", "ä"]
ROWS = st.lists(
    st.tuples(st.sampled_from(AGENTS), st.integers(0, 3), st.sampled_from(AGENTS), st.sampled_from(["a", "b"])),
    max_size=20,
)


def frame_of(rows, first):
    """Return the frame of rows (to_id, step, from_id, topic); the n-th of all rows has the ordinal n."""
    topics = sorted({row[3] for row in rows})
    batch = batch_to(
        [row[0] for row in rows],
        [row[2] for row in rows],
        topics=tuple(topics),
        topic=np.array([topics.index(row[3]) for row in rows], np.uint16) if len(topics) > 1 else None,
        step=np.array([row[1] for row in rows], np.int64),
        sent_at=5.0,
        lines=PayloadColumn.of([b'{"n":%d}' % (first + place) for place in range(len(rows))]),
        labels={"odd": np.arange(1, len(rows), 2, dtype=np.uint32)} if len(rows) > 1 else {},
        extension=Extension(attempt=1, deliver=4, ordinal=np.arange(first, first + len(rows), dtype=np.uint32)),
    )
    return decode(encode(batch))


def key_of(agent):
    return (1, agent) if isinstance(agent, int) else (2, agent.encode())


@given(st.lists(ROWS, max_size=4))
def test_each_agent_reads_its_messages_in_canonical_order(frames):
    starts = np.cumsum([0, *map(len, frames)]).tolist()
    batches = [frame_of(rows, first) for rows, first in zip(frames, starts, strict=False) if rows]
    inbox = StepInbox("exp", AgentPlaces(AgentSet.of(AGENTS)), batches)
    sent = [(row, number, place % 2) for rows, first in zip(frames, starts, strict=False)
            for place, (row, number) in enumerate(zip(rows, range(first, first + len(rows)), strict=True))]  # fmt: skip
    sent.sort(key=lambda each: (key_of(each[0][0]), each[0][1], key_of(each[0][2]), each[1]))
    wanted = [(*row, number, ("odd",) if odd else ()) for row, number, odd in sent]

    def shown(messages):
        return [(m.to_id, m.step, m.from_id, m.subtopic, m.payload["n"], m.labels) for m in messages]

    assert shown(inbox.messages) == wanted
    assert [message.id for message in inbox.messages] == [f"{row[1]}-{row[4]}-{row[2]}" for row in wanted]
    by_agent = list(inbox.by_agent())
    assert [agent for agent, _ in by_agent] == AGENTS
    for agent, messages in by_agent:
        assert shown(messages) == [row for row in wanted if row[0] == agent]


def numbered(lines):
    """Return the inbox of agents 1 and 2, by turns, of lines from agent 7."""
    rows = [(1 + place % 2, 3, 7, "a") for place in range(len(lines))]
    batch = frame_of(rows, 0)
    batch.lines = PayloadColumn.of(lines)
    return StepInbox("exp", AgentPlaces(AgentSet.of([1, 2])), [batch])


@pytest.mark.parametrize("bad", [b"no JSON", b"[1", b"", b"1,2", b'{"n":1}{"n":2}', b"\xff"])
def test_a_payload_that_is_no_json_spoils_no_other_one(bad):
    inbox = numbered([b'{"n":0}', b'{"n":1}', bad, b"3]"])
    heard = {agent: list(messages) for agent, messages in inbox.by_agent()}
    assert heard[1][0].payload == {"n": 0}
    assert heard[2][0].payload == {"n": 1}
    assert heard[1][1].data == bad
    with pytest.raises(FrameError, match="not JSON"):
        _ = heard[1][1].payload


def test_an_agent_that_changes_a_payload_changes_its_own_alone():
    for _, messages in numbered([b'{"n":[0]}', b'{"n":[1]}', b'{"n":[2]}']).by_agent():
        for message in messages:
            message.payload["n"].append("changed")
        assert all(len(message.payload["n"]) == 1 for message in messages)


def test_messages_of_an_agent_read_pickle_as_others_do():
    for agent, messages in numbered([b'{"n":0}', b'{"n":1}', b'{"n":2}']).by_agent():
        read = list(messages)
        again = pickle.loads(pickle.dumps((messages, read)))
        assert again == (messages, read)
        assert [message.payload["n"] for message in again[1]] == [agent - 1, agent + 1][: len(read)]


def test_long_inboxes_are_decoded_in_parts():
    inbox = numbered([b'{"n":%d}' % place for place in range(3 * _AHEAD)])
    heard = [message.payload["n"] for _, messages in inbox.by_agent() for message in messages]
    assert heard == [*range(0, 3 * _AHEAD, 2), *range(1, 3 * _AHEAD, 2)]
    few = StepInbox("exp", AgentPlaces(AgentSet.of(range(5000))), [frame_of([(n, 3, 7, "a") for n in range(5000)], 0)])
    assert [[m.payload["n"] for m in messages] for _, messages in few.by_agent()] == [[n] for n in range(5000)]
