"""Real traffic through groups: friends' messages, games with text, a room with many listeners."""

import gzip
import json
import uuid
from collections import Counter, defaultdict

import numpy as np
import pytest
import ray
import redis
from support.cluster import PATIENCE_S, drain
from support.frames import frames_of_entries

from ray_messaging import Messaging, MessagingConfig, Outgoing
from ray_messaging.addressing.channels import Keys
from ray_messaging.sending import bulk_input as bulk

pytestmark = pytest.mark.long

GROUPS = 4


@pytest.fixture(scope="module")
def experiment(ray_cluster):
    anybody = MessagingConfig(strict_senders=False)  # one group sends what all members of a room say
    with Messaging.start(f"data-{uuid.uuid4().hex[:8]}", settings=anybody) as started:
        yield started


@pytest.fixture
def society(experiment, make_group):
    """Return a function that spreads agents over four groups; it gives the groups and each agent's."""

    def spread(agents):
        groups = [make_group(experiment, agents[place::GROUPS]) for place in range(GROUPS)]
        return groups, {agent: place % GROUPS for place, agent in enumerate(agents)}

    return spread


@pytest.fixture
def encoded(monkeypatch):
    """Count the payloads that are encoded in this process."""
    count, encode = Counter(), bulk.encode_payload

    def counting(*args):
        count["payloads"] += 1
        return encode(*args)

    monkeypatch.setattr(bulk, "encode_payload", counting)
    return count


def test_a_room_of_gitter(data, society, encoded):
    """Every member of a room gets every message; each is encoded once."""
    with gzip.open(data("gitter-freecodecamp/gitter_rooms_A.jsonl.gz"), "rt") as lines:
        everything = [json.loads(line) for line in lines]
    room = [row for row in everything if row["room"] == "FreeCodeCamp/DataScience" and row["user_id"]]
    members = list(dict.fromkeys(row["user_id"] for row in room))
    assert (len(room), len(members)) == (7_636, 217)
    groups, _ = society(members)
    host = groups[0]
    receiving = [count_texts.remote(group, len(group.agents) * len(room)) for group in groups]
    delivered = 0
    for low in range(0, len(room), 200):
        said = [Outgoing.to_agents(members, {"text": row["text"]}, row["user_id"]) for row in room[low : low + 200]]
        delivered += host.send_messages(said).counts()["delivered"]
    assert delivered == len(room) * len(members) == 1_657_012
    assert encoded["payloads"] == len(room)
    heard = {member: texts for part in ray.get(receiving) for member, texts in part.items()}
    # One speaker's messages keep their order for each member, and so do all here: one task sends for all.
    expected = [row["text"] for row in room]
    assert heard.keys() == set(members)
    same = [member for member in members if heard[member] == expected]
    assert len(same) == len(members)


@ray.remote(num_cpus=0)
def count_texts(group, count):
    """Return the texts that each agent of a group received, in order."""
    decoded, heard, left = {}, defaultdict(list), count
    while left:
        messages = group.fetch_messages(timeout=PATIENCE_S)
        assert len(messages)
        left -= len(messages)
        for line, member in zip(messages.data, messages.to_ids.tolist(), strict=True):
            if line not in decoded:
                decoded[line] = json.loads(line)["text"]
            heard[member].append(decoded[line])
    assert len(group.fetch_messages(timeout=0.2)) == 0
    return dict(heard)


def test_a_fan_out_holds_its_text_once(experiment, society, encoded):
    """From the sender to each mailbox there is one frame with one text for all recipients there."""
    members = [f"member {n}" for n in range(400)]
    groups, _ = society(members)
    text = "said once " * 50
    receipts = groups[0].send_messages([Outgoing.to_agents(members, {"text": text}, "member 0")])
    assert receipts.counts()["delivered"] == 400
    assert encoded["payloads"] == 1
    frame = frames_of_entries(
        bulk.entries_of([Outgoing.to_agents(members, {"text": text})], lambda _: None, 10_000), None
    )
    assert [part.count(text.encode()) for part in frame] == [1]
    config = experiment.redis
    keys = Keys(experiment.exp_id)
    with redis.Redis(config.server, config.port, password=config.password) as client:
        for group in groups:
            born = client.hget(keys.state(group.name), "born").decode()
            [(_, fields)] = client.xrange(keys.stream(f"{group.name}:{born}"))
            assert sum(value.count(text.encode()) for value in fields.values()) == 1
    for group in groups:
        messages = drain(group, 100)
        assert {message.payload["text"] for message in messages} == {text}
        assert sorted(m.to_id for m in messages) == sorted(group.agents)
    assert np.all(receipts.sent)
