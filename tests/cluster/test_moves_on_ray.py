"""Agents that come, go and move between groups on Ray."""

import uuid

import pytest
from support.cluster import drain, kill_and_wait

from ray_messaging import Messaging
from ray_messaging.errors import AlreadyExists, InvalidAddress, MoveFailed, UnknownName


@pytest.fixture(scope="module")
def town(ray_cluster):
    with Messaging.start(f"moves-{uuid.uuid4().hex[:8]}", log_dir=None) as messaging:
        groups = messaging.create_groups({"east": range(10), "west": range(10, 20), "north": [20]})
        yield messaging, *groups.values()


def contents(messages):
    return sorted((message.to_id, message.payload["n"]) for message in messages)


def test_agents_move_with_what_waits_for_them(town):
    messaging, east, west, north = town
    for n in range(5):
        north.send_columns(20, [0, 1, 10, 11], {"n": n})
    messaging.move_agents([1, 10], to=north)
    north.send_columns(20, [0, 1, 10, 11], {"n": 5})
    assert contents(drain(north, 12)) == [(to, n) for to in (1, 10) for n in range(6)]
    assert contents(drain(east, 6)) == [(0, n) for n in range(6)]
    assert contents(drain(west, 6)) == [(11, n) for n in range(6)]
    assert messaging.group_of(1).name == "north"
    assert (sorted(north.agents), 1 in east.agents) == ([1, 10, 20], False)
    kill_and_wait(north.actor)
    assert sorted(north.agents) == [1, 10, 20]
    assert north.send(10, 1, {"n": 6})
    assert contents(drain(north, 1)) == [(1, 6)]


def test_agents_come_and_go(town):
    messaging, east, west, _ = town
    east.add_agents([100, "ann"])
    assert west.send(11, "ann", {"n": 0})
    east.remove_agents([100, "ann"])
    assert west.send(11, "ann", {"n": 1}).fate == "undeliverable"
    (letter,) = messaging.dead_letters.list(mailbox="east")
    assert contents(letter.messages) == [("ann", 0)]
    east.add_agents(["ann"])
    assert messaging.dead_letters.requeue(mailbox="east").messages == 1
    messaging.move_agents(["ann"], to=west)
    assert contents(drain(west, 1)) == [("ann", 0)]
    with pytest.raises(AlreadyExists, match="is in group 'west'"):
        east.add_agents(["ann"])


def test_impossible_moves_on_ray(town):
    messaging, east, west, _ = town
    for ids, to, error, match, named in [
        ([12, 777], "east", UnknownName, "no group hosts agent 777", ("agent", 777)),
        ([12], "south", UnknownName, "no group 'south'", ("group", "south")),
        ([12, 2], "east", AlreadyExists, "agent 2 is in group 'east' already", ("agent", 2)),
    ]:
        with pytest.raises(error, match=match) as caught:
            messaging.move_agents(ids, to=to)
        assert (caught.value.kind, caught.value.value) == named
    for to in (None, "a b"):
        with pytest.raises(InvalidAddress, match="group"):
            west.move_agents([12], to=to)
    assert 12 in west.agents
    assert east.send(2, 12, {"n": 0})
    assert contents(west.fetch_messages(timeout=60)) == [(12, 0)]
    with pytest.raises(MoveFailed, match="not committed"):
        messaging.move_agents([12], to="east", timeout=0.1)
    west.ack()
    messaging.move_agents([12], to="east")
    assert messaging.group_of(12).name == "east"
    assert 12 in east.agents


def test_the_load_is_evened_out(town):
    messaging, east, west, north = town
    for _ in range(20):
        north.send_columns(20, [agent for agent in east.agents if isinstance(agent, int)], {"n": 0})
    drain(east, 20 * len(east.agents))
    before = {name: len(agents) for name, agents in messaging.agents().by_group.items()}
    planned = messaging.rebalance(dry_run=True)
    assert planned
    assert {move.source for move in planned} == {"east"}
    assert {name: len(agents) for name, agents in messaging.agents().by_group.items()} == before
    moves = messaging.rebalance()
    after = messaging.agents().by_group
    assert all(agent in after[move.target] for move in moves for agent in move.agents)
    assert sum(map(len, after.values())) == sum(before.values())
    east.ack()
    assert west.name in repr(moves) or north.name in repr(moves)
