"""The inbox of a step."""

import pickle

import numpy as np
import pytest
from support.batches import batch_to

from ray_messaging.errors import FrameError
from ray_messaging.model.agent_sets import AgentSet
from ray_messaging.model.columns import PayloadColumn
from ray_messaging.model.extension import Extension
from ray_messaging.steps.agent_places import AgentPlaces
from ray_messaging.steps.inbox import StepInbox


def numbered(lines):
    """Return the inbox of agents 1 and 2, by turns, of lines from agent 7."""
    to_ids = [1 + place % 2 for place in range(len(lines))]
    extension = Extension(attempt=1, deliver=4, ordinal=np.arange(len(lines), dtype=np.uint32))
    batch = batch_to(to_ids, [7] * len(lines), step=3, sent_at=5.0, lines=PayloadColumn.of(lines), extension=extension)
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
