"""Processes that die in the middle of their work: no acknowledged message is lost, none comes twice."""

import uuid

import pytest
import ray
from support.cluster import (
    PATIENCE_S,
    control,
    drain,
    kill,
    kill_and_wait,
    new_handle,
    numbered,
    numbers,
    wait_for,
)
from support.patience import Busy

from ray_messaging import Messaging, rules
from ray_messaging.errors import OutcomeUnknown


@pytest.fixture
def groups(pair):
    """Give two groups; a killed one restarts, and may be killed again in the next test."""
    return pair


def send(west, east, count, start=0):
    return west.send_columns([west.agents[0]] * count, [east.agents[0]] * count, numbered(count, start))


class Talk(Busy):
    """A thread that sends small batches in order until stopped; it records receipts and fates."""

    def __init__(self, group, from_id, to_id):
        super().__init__()
        self.group, self.pair = group, (from_id, to_id)
        self.delivered, self.blocked, self.unknown = [], [], []

    def work(self):
        handle, n = new_handle(self.group), 0
        from_id, to_id = self.pair
        while not self.enough.is_set():
            batch = numbered(20, n)
            n += 20
            try:
                receipts = handle.send_columns([from_id] * 20, [to_id] * 20, batch)
            except OutcomeUnknown:
                self.unknown += [payload["n"] for payload in batch]
                continue
            for payload, receipt in zip(batch, receipts, strict=True):
                {"delivered": self.delivered, "blocked": self.blocked}[receipt.fate].append(payload["n"])


@pytest.fixture
def talk():
    """Return a function that starts a sender; at the end all senders stop, before their groups."""
    started = []

    def start(group, from_id, to_id):
        started.append(Talk(group, from_id, to_id))
        started[-1].start()
        return started[-1]

    yield start
    for each in started:
        each.enough.set()
    for each in started:
        each.join(PATIENCE_S)


def assert_exactly_once(talk, messages):
    found = numbers(m for m in messages if (m.from_id, m.to_id) == talk.pair)
    assert len(set(found)) == len(found), "a message came twice"
    assert found == sorted(found), "messages came out of order"
    assert set(talk.delivered) <= set(found), "a message was lost"
    assert set(found) <= set(talk.delivered) | set(talk.unknown)


# -- a group dies -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "how", [*(pytest.param(how, marks=pytest.mark.long) for how in ("held", "acknowledged")), "in a with block"]
)
def test_a_handle_continues_after_the_death_of_its_group(messaging, groups, how):
    west, east = groups
    send(west, east, 300)
    found = numbers(east.fetch_messages(limit=100, timeout=60))
    if how == "in a with block":
        with east.fetch_messages(limit=100, timeout=60) as messages:
            found += numbers(messages)
            kill(east.actor)
    else:
        found += numbers(east.fetch_messages(limit=100, timeout=60))
        if how == "acknowledged":
            east.ack()
        kill(east.actor)
    found += numbers(drain(east, 100))
    assert found == list(range(300))
    assert messaging.stats()["waiting"][east.name] == 0


# -- the interceptor dies -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("deaths", [1, pytest.param(2, marks=pytest.mark.long)])
def test_the_interceptor_dies_while_others_send(messaging, groups, talk, deaths):
    west, east = groups
    talks = [talk(west, west.agents[n], east.agents[n]) for n in range(2)]
    talks.append(talk(east, east.agents[0], west.agents[0]))
    wait_for(lambda: all(talk.delivered for talk in talks), "a first receipt")
    silenced = talks[1]
    counted = control(messaging, "violation_counts").get(silenced.pair[0], 0)
    ray.get(messaging.interceptor.add_to_black_set.remote([silenced.pair]))
    last = silenced.delivered[-1]  # perhaps one batch more was under way
    wait_for(lambda: silenced.blocked, "a blocked message")
    epoch = messaging.stats()["epoch"]
    for _ in range(deaths):
        kill_and_wait(messaging.interceptor)
        older, epoch = epoch, messaging.stats()["epoch"]
        assert epoch > older
        before = [len(talk.delivered) for talk in (talks[0], talks[2])]
        wait_for(
            lambda before=before: all(len(t.delivered) > n for t, n in zip((talks[0], talks[2]), before, strict=True)),
            "a receipt after the restart",
        )
    # Whoever sends nothing does not look for the lane.
    wait_for(lambda: messaging.stats()["lane_connections"] >= 2, "both groups on the interceptor's lane again")
    for talk in talks:
        talk.stop()
        assert not talk.unknown
    assert messaging.stats()["epoch"] == epoch
    assert west.stats()["interceptor"] == east.stats()["interceptor"] == "lane"
    assert silenced.delivered == list(range(len(silenced.delivered)))
    assert silenced.delivered[-1] <= last + 40
    assert silenced.blocked[0] == silenced.delivered[-1] + 1
    assert control(messaging, "violation_counts")[silenced.pair[0]] - counted == len(silenced.blocked)  # once each
    found = drain(east, len(talks[0].delivered) + len(silenced.delivered)) + drain(west, len(talks[2].delivered))
    for talk in talks:
        assert_exactly_once(talk, found)
        assert len(numbers(m for m in found if (m.from_id, m.to_id) == talk.pair)) == len(talk.delivered)
    ray.get(messaging.interceptor.remove_from_black_set.remote([silenced.pair]))


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
    assert numbers(east.fetch_messages(limit=20, timeout=60)) == list(range(20))
    for actor in (messaging.interceptor, west.actor, east.actor):
        kill(actor)
    west.stats()  # it is back
    assert send(west, east, 50, start=50).counts()["delivered"] == 50
    assert numbers(drain(east, 80)) == list(range(20, 100))
