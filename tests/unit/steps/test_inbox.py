"""The inbox of a step."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ray_messaging.model.agent_sets import AgentSet
from ray_messaging.model.batch import Batch
from ray_messaging.model.columns import IdColumn, PayloadColumn
from ray_messaging.model.extension import Extension
from ray_messaging.steps.agent_places import AgentPlaces
from ray_messaging.steps.inbox import StepInbox
from ray_messaging.wire.frames import decode, encode

AGENTS = [1, 2, 30, "x", "ä"]
ROWS = st.lists(
    st.tuples(st.sampled_from(AGENTS), st.integers(0, 3), st.sampled_from(AGENTS), st.sampled_from(["a", "b"])),
    max_size=20,
)


def frame_of(rows, first):
    """Return the frame of rows (to_id, step, from_id, topic); the n-th of all rows has the ordinal n."""
    topics = sorted({row[3] for row in rows})
    batch = Batch(
        sender="group",
        epoch=1,
        first=0,
        from_ids=IdColumn.of([row[2] for row in rows]),
        rows=len(rows),
        to_ids=IdColumn.of([row[0] for row in rows]),
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


def test_an_empty_step_has_agents_without_messages():
    inbox = StepInbox("exp", AgentPlaces(AgentSet.of([2, 1])), [])
    assert [(agent, len(messages)) for agent, messages in inbox.by_agent()] == [(1, 0), (2, 0)]
    assert len(inbox.messages) == 0
