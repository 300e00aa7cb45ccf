"""The directory, held against a naive one."""

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.batches import batch_to

from ray_messaging.addressing.channels import build_channel
from ray_messaging.addressing.directory import Claim, Directory, MailboxRecord, claims_of, decode_record, encode_record
from ray_messaging.addressing.patterns import compile_glob, glob_pattern
from ray_messaging.errors import FrameError
from ray_messaging.model.agent_sets import AgentSet

EXP = "e"
INT = st.one_of(st.integers(-5, 30), st.integers(-(2**63), 2**63 - 1))
AGENT = st.one_of(INT, st.sampled_from(["ann", "bob", "cid"]))
TOPICS = ["chat", "survey", "other"]
PLAIN = ["news", "exps:e:user-payback"]
GLOBS = [
    "exps:e:agents:*:chat",
    "n*",
    "exps:e:agents:[1-3]:*",
    "*",
    "exps:e:agents:1:*",
    "exps:e:agents:ann:*",
    "news?",
]


def claim(agents, subtopics):
    ints = np.array(sorted(agent for agent in agents if isinstance(agent, int)), "<i8")
    return Claim(tuple(subtopics), ints.tobytes(), tuple(sorted(agent for agent in agents if isinstance(agent, str))))


@st.composite
def records(draw, *, globs=True):
    names = draw(st.lists(st.sampled_from("pqrst"), unique=True, max_size=4))
    return [
        MailboxRecord(
            name,
            [
                claim(draw(st.sets(AGENT, max_size=8)), draw(st.sets(st.sampled_from(TOPICS), max_size=2)))
                for _ in range(draw(st.integers(0, 2)))
            ],
            draw(st.lists(st.sampled_from(PLAIN), unique=True)),
            draw(st.lists(st.sampled_from(GLOBS), unique=True, max_size=2)) if globs else [],
        )
        for name in names
    ]


@st.composite
def batches(draw):
    topic = st.sampled_from([*TOPICS, ":news", ":exps:e:user-payback", ":x"])
    rows = draw(st.lists(st.tuples(st.one_of(AGENT, st.none()), topic), max_size=15))
    # An agent's topic needs an agent.
    rows = [(1 if to_id is None and topic[0] != ":" else to_id, topic) for to_id, topic in rows]
    topics = tuple(dict.fromkeys(topic for _, topic in rows)) or ("chat",)
    topic = None if len(topics) == 1 else np.array([topics.index(topic) for _, topic in rows], np.uint16)
    return batch_to([to_id for to_id, _ in rows], topics=topics, topic=topic)


def naive(found, to_id, topic):
    channel = build_channel(EXP, to_id, topic)
    wanted = set()
    for record in found:
        for each in record.claims:
            agents = {*np.frombuffer(each.ints, "<i8").tolist(), *each.strings}
            if topic in each.subtopics and to_id in agents:
                wanted.add(record.mailbox)
        if topic[0] == ":" and channel in record.channels:
            wanted.add(record.mailbox)
        if any(glob_pattern(glob).fullmatch(channel.encode()) for glob in record.globs):
            wanted.add(record.mailbox)
    return wanted


def check(directory, found, batch):
    routes = directory.routing.route(batch)
    assert len(routes) == len(batch)
    for row, to_id in enumerate(batch.to_ids.tolist()):
        mailboxes = directory.routing.mailboxes(routes[row])
        assert len(set(mailboxes)) == len(mailboxes)
        assert set(mailboxes) == naive(found, to_id, batch.topic_of(row))


@given(st.one_of(records(globs=False), records()), st.lists(batches(), max_size=3))
def test_routes_are_those_of_a_naive_directory(found, sent):
    directory = Directory(EXP)
    directory.update(1, [decode_record(encode_record(record)) for record in found], [each.mailbox for each in found])
    for batch in sent:
        check(directory, found, batch)


@given(st.lists(records(), min_size=1, max_size=3), batches())
def test_changes_replace_and_remove(versions, batch):
    directory = Directory(EXP)
    known = {}
    for version, changed in enumerate(versions, 1):
        known |= {record.mailbox: record for record in changed}
        there = sorted(known)[::2] if version % 2 else sorted(known)
        known = {name: known[name] for name in there}
        directory.update(version, changed, there)
        assert directory.version == version
        check(directory, list(known.values()), batch)


@pytest.mark.parametrize("step", [1, 7, 8, 9, 10_000, 2**40])
def test_dense_and_sparse_ids(step):
    ids = [n * step - 5 for n in range(1, 300)]
    directory = Directory(EXP)
    record = MailboxRecord("m", [claim(set(ids), ["chat"])], [], [])
    directory.update(1, [record], ["m"])
    asked = [*ids, *(each + 1 for each in ids), -6, 2**62, -(2**63), 2**63 - 1]
    batch = batch_to(asked, topics=("chat",))
    assert [bool(route) for route in directory.routing.route(batch)] == [each in set(ids) for each in asked]


def test_a_pattern_for_each_agent_costs_a_match_for_each_message(monkeypatch):
    counts, agents = Counter(), [*range(2000), *(f"agent-{n}" for n in range(1000))]

    def counted(glob):
        counts["compiled"] += 1
        matches = compile_glob(glob)

        def match(channel):
            counts["matched"] += 1
            return matches(channel)

        return match

    monkeypatch.setattr("ray_messaging.addressing.directory.compile_glob", counted)
    directory = Directory(EXP)
    globs = [f"exps:e:agents:{agent}:*" for agent in agents]
    directory.update(1, [MailboxRecord("m", [], [], globs), MailboxRecord("all", [], [], ["exps:*"])], ["all", "m"])
    directory.update(2, [MailboxRecord("other", [], ["news"], [])], ["all", "m", "other"])
    assert counts["compiled"] == len(agents) + 1
    batch = batch_to(agents, topics=("chat",))
    for _ in range(2):
        assert {directory.routing.mailboxes(route) for route in directory.routing.route(batch)} == {("all", "m")}
        assert counts["matched"] == 2 * len(agents)
    assert set(directory.routing.mailboxes_of(1, "chat")) == {"all", "m"}
    assert counts["matched"] == 2 * len(agents)
    assert directory.routing.mailboxes_of(2000, "chat") == ("all",)


def test_a_record_with_half_an_id():
    with pytest.raises(FrameError):
        decode_record(encode_record(MailboxRecord("m", [Claim(("chat",), b"123", ())], [], [])))


SUBTOPICS = ("agent-chat", "gossip")


@given(st.lists(st.tuples(st.sets(st.integers(0, 20)), st.sets(st.sampled_from(SUBTOPICS)), st.booleans()), max_size=6))
def test_a_record_knows_the_agents_of_before_on_each_subtopic(changes):
    agents = [{"agent-chat": {0}, "gossip": set()}]

    def record_of(hosted):
        claims = claims_of({subtopic: AgentSet.of(sorted(here)) for subtopic, here in hosted.items()})
        return MailboxRecord("east", claims, [], [], exclusive=True)

    record = record_of(agents[0])
    for some, where, come in changes:
        now = agents[-1] | {name: agents[-1][name] | some if come else agents[-1][name] - some for name in where}
        agents.append(now)
        record = decode_record(encode_record(record_of(now).succeeds(record)))
    before = [{*each} for each in record.former()]
    assert before == [{*here} for each, after in [*pairwise(agents)][::-1] if each != after for here in each.values()]
