"""The inbox of a step."""

import pickle
from collections.abc import Sequence
from copy import copy
from operator import add
from threading import Thread

import numpy as np
import pytest
from support.batches import batch_to
from support.step_society import open_step

from ray_messaging.audiences.cache import EVERYBODY
from ray_messaging.audiences.folding import agents_digest
from ray_messaging.audiences.member_edges import MemberEdges
from ray_messaging.default_limits_and_leases import BATCH_ROWS
from ray_messaging.errors import ConfigError, FrameError
from ray_messaging.messages import Messages, decoded_messages
from ray_messaging.model.agent_sets import AgentSet
from ray_messaging.model.columns import PayloadColumn
from ray_messaging.model.extension import Extension, Fold
from ray_messaging.steps import step_inbox
from ray_messaging.steps.agent_places import AgentPlaces
from ray_messaging.steps.step_inbox import FoldedBatch, StepInbox
from ray_messaging.wire.frames import decode, encode


def numbered(lines, agents=(1, 2)):
    """Return the inbox of agents, of which 1 and 2, by turns, hear lines from agent 7."""
    to_ids = [1 + place % 2 for place in range(len(lines))]
    extension = Extension(attempt=1, deliver=4, ordinal=np.arange(len(lines), dtype=np.uint32))
    batch = batch_to(to_ids, [7] * len(lines), step=3, sent_at=5.0, lines=PayloadColumn.of(lines), extension=extension)
    return StepInbox("exp", AgentPlaces(AgentSet.of(agents)), [batch])


@pytest.mark.parametrize("bad", [b"no JSON", b"[1", b"", b"1,2", b'{"n":1}{"n":2}', b"\xff"])
def test_a_payload_that_is_no_json_spoils_no_other_one(bad):
    inbox = numbered([b'{"n":0}', b'{"n":1}', bad, b"3]"])
    heard = {agent: list(messages) for agent, messages in inbox.by_agent()}
    assert heard[1][0].payload == {"n": 0}
    assert heard[2][0].payload == {"n": 1}
    assert heard[1][1].data == bad
    with pytest.raises(FrameError, match="not JSON"):
        _ = heard[1][1].payload


@pytest.mark.parametrize("places", [np.array([150, 5]), slice(None, None, -1)])
def test_inboxes_of_places_in_any_order(places):
    count = 200
    extension = Extension(attempt=1, deliver=4, ordinal=np.arange(count, dtype=np.uint32))
    lines = PayloadColumn.of([b'{"n":%d}' % place for place in range(count)])
    batch = batch_to(range(count), [7] * count, step=3, sent_at=5.0, lines=lines, extension=extension)
    inbox = StepInbox("exp", AgentPlaces(AgentSet.of(range(count))), [batch])
    found = [[message.payload["n"] for message in messages] for messages in inbox.inboxes(places)]
    assert found == [[place] for place in np.arange(count)[places].tolist()]


def test_an_agent_that_changes_a_payload_changes_its_own_alone():
    for _, messages in numbered([b'{"n":[0]}', b'{"n":[1]}', b'{"n":[2]}']).by_agent():
        for message in messages:
            message.payload["n"].append("changed")
        assert all(len(message.payload["n"]) == 1 for message in messages)


def test_agents_may_read_in_threads(monkeypatch):
    agents = 200
    extension = Extension(attempt=1, deliver=4, ordinal=np.arange(agents, dtype=np.uint32))
    lines = PayloadColumn.of([b'{"n":%d}' % place for place in range(agents)])
    batch = batch_to(range(agents), [7] * agents, step=3, sent_at=5.0, lines=lines, extension=extension)
    messages = [*StepInbox("exp", AgentPlaces(AgentSet.of(range(agents))), [batch]).inboxes()]
    found = {}

    def read(agent):
        found[agent] = [message.payload["n"] for message in messages[agent]]

    def decoded_meanwhile(*given):
        monkeypatch.undo()
        other = Thread(target=read, args=(101,))
        other.start()
        other.join()
        return decoded_messages(*given)

    read(0)
    monkeypatch.setattr(step_inbox, "decoded_messages", decoded_meanwhile)
    read(100)
    assert found == {agent: [agent] for agent in (0, 100, 101)}


def test_messages_of_an_agent_read_pickle_as_others_do():
    for agent, messages in numbered([b'{"n":0}', b'{"n":1}', b'{"n":2}']).by_agent():
        read = list(messages)
        again = pickle.loads(pickle.dumps((messages, read)))
        assert again == (messages, read)
        assert [message.payload["n"] for message in again[1]] == [agent - 1, agent + 1][: len(read)]


def test_the_messages_of_an_agent_are_used_as_all_other_messages():
    inbox = numbered([b'{"n":0}', b'{"n":1}', b'{"n":2}'])
    (_, found), (_, other) = inbox.by_agent()
    whole = inbox.of(0)
    assert isinstance(found, Messages)
    assert isinstance(found, Sequence)
    assert (found == whole, whole == found, found == other, found == 3) == (True, True, False, False)
    assert (repr(found), len(found), bool(found)) == (repr(whole), 2, True)
    listed = list(found)
    assert found + other == listed + other == [*whole, *other]
    assert [*reversed(found)] == [found[-1], found[0]]
    assert found[:1] == [found[0]]
    assert (found.index(found[1]), found.count(found[0]), found[1] in found, other[0] in found) == (1, 1, True, False)
    assert found.from_ids.tolist() == [7, 7]
    assert found.column("n").tolist() == [0, 2]
    assert copy(found) == found
    match found:
        case [first, _]:
            assert first.payload == {"n": 0}
        case _:
            pytest.fail("it is no sequence")
    with pytest.raises(TypeError, match="unhashable"):
        hash(found)
    with pytest.raises(AttributeError, match="nothing"):
        _ = found.nothing


def test_more_subtopics_than_two_bytes_can_number():
    names = [f"t{number}" for number in range(2**16 + 10)]
    asked = []
    for low in range(0, len(names), BATCH_ROWS):
        topics = names[low : low + BATCH_ROWS]
        ordinal, topic = low + np.arange(len(topics), dtype=np.uint32), np.arange(len(topics), dtype=np.uint16)
        extension = Extension(attempt=1, deliver=1, ordinal=ordinal, expects_answer=np.ones(len(topics), np.bool_))
        facts = {"step": 0, "lines": PayloadColumn.of([b"{}"] * len(topics)), "extension": extension}
        asked.append(batch_to([2] * len(topics), [1] * len(topics), topics=(*topics,), topic=topic, **facts))
    inbox = StepInbox("exp", AgentPlaces(AgentSet.of([2])), asked)
    assert [message.subtopic for message in inbox.messages] == names
    assert [message.subtopic for message in pickle.loads(pickle.dumps(inbox.messages))] == names
    later = open_step(1)
    for question in inbox.questions_of(inbox.messages, 1):
        later.sends.add_replies(question, {"yes": True}, "exp", None)
    answers = [decode(encode(batch)) for batch in later.sends.take()]
    assert [batch.topic_of(row) for batch in answers for row in range(batch.rows)] == names
    assert max(len(batch.topics) for batch in answers) <= BATCH_ROWS


def test_broadcasts_whose_subtopics_have_other_hearers_are_read_as_messages():
    folded = []
    for ordinal, (topic, hearers) in enumerate({"a": [1, 2, 3], "b": [1, 2]}.items()):
        agents = AgentSet.of(hearers)
        edges = MemberEdges.among(agents)
        fold = Fold(agents_digest(agents), len(hearers) - 1)
        extension = Extension(
            attempt=1, deliver=1, ordinal=np.array([ordinal], np.uint32), audience=EVERYBODY, fold=fold
        )
        facts = {"step": 0, "sent_at": 5.0, "lines": PayloadColumn.of([b'{"v":1}']), "extension": extension}
        folded.append(FoldedBatch(batch_to([None], [1], topics=(topic,), **facts), edges))
    inbox = StepInbox("exp", AgentPlaces(AgentSet.of([1, 2, 3])), [], folded)
    with pytest.raises(ConfigError, match=r"different agents of this group.*read these broadcasts from step\.messages"):
        inbox.heard("*")
    assert [len(messages) for _, messages in inbox.by_agent()] == [0, 2, 1]


def test_the_messages_of_an_agent_that_has_none_are_used_as_all_other_messages():
    read = numbered([b'{"n":0}', b'{"n":1}', b'{"n":2}'])
    for inbox, agents in (
        (StepInbox("exp", AgentPlaces(AgentSet.of(range(3))), []), 3),
        (numbered([b"{}"], range(8)), 8),
    ):
        found = [*inbox.inboxes()][agents - 1]
        assert isinstance(found, Messages)
        assert (len(found), bool(found), [*found], found.exp_id, found.more) == (0, False, [], "exp", False)
        assert found == [] == found
        assert found == inbox.of(agents - 1)
        assert found != [*read.messages]
        assert add(found, [*read.messages]) == add([*read.messages], found) == [*read.messages]
        assert found.payloads == found.to_pandas().index.tolist() == found[:] == []
        assert repr(found) == repr(inbox.of(agents - 1))
        assert pickle.loads(pickle.dumps(found)) == copy(found) == []
        with pytest.raises(IndexError, match="there is no message 0"):
            found[0]
        with pytest.raises(TypeError, match="unhashable"):
            hash(found)
