"""Processes that die in the middle of their work: no acknowledged message is lost, none comes twice."""

import uuid

import pytest
from support.cluster import drain, kill, numbered, numbers

from ray_messaging import Messaging, rules


@pytest.fixture
def groups(pair):
    """Give two groups; a killed one restarts, and may be killed again in the next test."""
    return pair


def send(west, east, count, start=0):
    return west.send_columns([west.agents[0]] * count, [east.agents[0]] * count, numbered(count, start))


# -- a group dies -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["held", "acknowledged", "in a with block"])
def test_a_handle_continues_after_the_death_of_its_group(messaging, groups, how):
    west, east = groups
    send(west, east, 300)
    found = numbers(east.fetch(limit=100, timeout=60))
    if how == "in a with block":
        with east.fetch(limit=100, timeout=60) as messages:
            found += numbers(messages)
            kill(east.actor)
    else:
        found += numbers(east.fetch(limit=100, timeout=60))
        if how == "acknowledged":
            east.ack()
        kill(east.actor)
    found += numbers(drain(east, 100))
    assert found == list(range(300))
    assert messaging.stats()["waiting"][east.name] == 0


# -- the interceptor dies -----------------------------------------------------------------------------------------


@pytest.mark.long
def test_an_interceptor_with_a_long_black_list_comes_back(ray_cluster):
    """Ray keeps no large arguments for a restart."""
    pairs = [(n, n + 1) for n in range(50_000)]
    with Messaging.start(f"long-{uuid.uuid4().hex[:8]}", rules=[rules.BlackList(pairs)]) as messaging:
        group = messaging.create_group("all", range(10))
        kill(messaging.interceptor)
        assert [receipt.fate for receipt in group.send_columns([1, 1], [2, 3], {})] == ["blocked", "delivered"]


@pytest.mark.long
def test_all_actors_may_die_together(messaging, groups):
    west, east = groups
    send(west, east, 50)
    assert numbers(east.fetch(limit=20, timeout=60)) == list(range(20))
    for actor in (messaging.interceptor, west.actor, east.actor):
        kill(actor)
    west.stats()  # it is back
    assert send(west, east, 50, start=50).counts()["delivered"] == 50
    assert numbers(drain(east, 80)) == list(range(20, 100))
