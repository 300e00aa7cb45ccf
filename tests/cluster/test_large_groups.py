"""Groups of ten thousand agents and more on Ray."""

import numpy as np
import pytest
import redis
from support.cluster import drain, kill_and_wait

from ray_messaging import Messaging
from ray_messaging.errors import AlreadyExists

AGENTS = 12_000  # with three subtopics: above the limit of single subscriptions


@pytest.mark.long
def test_large_groups(ray_cluster, exp_id):
    with Messaging.start(exp_id) as messaging:
        west = messaging.create_group("west", range(AGENTS))
        given = [*range(2 * AGENTS - 1, AGENTS - 1, -1), "ann"]
        east = messaging.create_group("east", given)
        assert (west.agents, east.agents) == ([*range(AGENTS)], given)
        owners = [messaging.group_of(agent).name for agent in (0, AGENTS - 1, AGENTS, 2 * AGENTS - 1, "ann")]
        assert owners == ["west", "west", "east", "east", "east"]
        with pytest.raises(AlreadyExists, match=f"agent {AGENTS - 1} is in group 'west' already"):
            messaging.create_group("third", np.arange(AGENTS - 1, -1, -1)[:1])

        receipts = west.send_columns(np.arange(AGENTS), np.arange(AGENTS) + AGENTS, {"n": 1})
        assert receipts.counts()["delivered"] == AGENTS
        assert sorted(message.to_id for message in drain(east, AGENTS)) == [*range(AGENTS, 2 * AGENTS)]

        kill_and_wait(east.actor)
        assert east.agents == [*range(AGENTS, 2 * AGENTS), "ann"]
        with redis.Redis(messaging.redis.server, messaging.redis.port, password=messaging.redis.password) as client:
            client.publish(f"exps:{messaging.exp_id}:agents:{AGENTS}:user-chat", b'{"n":2}')
        (message,) = drain(east, 1)
        assert (message.to_id, message.subtopic, message.payload) == (AGENTS, "user-chat", {"n": 2})
        assert len(west.fetch_messages()) == 0
