"""Processes that die in the middle of their work: no acknowledged message is lost, none comes twice."""

import pytest
from faults.ledger import read_ledger
from faults.ray_support import a_town
from faults.ray_traffic import traffic_in
from support.cluster import control, drain, kill, kill_and_wait, numbered, numbers, wait_for

from ray_messaging import Messaging, rules


def send(west, east, count, start=0):
    return west.send_columns([west.agents[0]] * count, [east.agents[0]] * count, numbered(count, start))


# -- a group dies -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "how", [*(pytest.param(how, marks=pytest.mark.long) for how in ("held", "acknowledged")), "in a with block"]
)
def test_a_handle_continues_after_the_death_of_its_group(messaging, pair, how):
    west, east = pair
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
def test_the_interceptor_dies_while_others_send(ray_cluster, tmp_path, deaths):
    with a_town() as town:
        messaging, banned = town.messaging, (2, 12)
        with traffic_in(town, tmp_path) as traffic:
            silenced = next(sender for sender in traffic.senders if sender.pair == banned)
            control(messaging, "add_to_black_set", [banned])
            last = silenced.delivered  # perhaps one batch more was under way
            wait_for(lambda: silenced.answered > silenced.delivered, "a blocked message")
            epoch = messaging.stats()["epoch"]
            for _ in range(deaths):
                kill_and_wait(messaging.interceptor)
                older, epoch = epoch, messaging.stats()["epoch"]
                assert epoch > older
                traffic.goes_on()
            # Whoever sends nothing does not look for the lane.
            wait_for(lambda: messaging.stats()["lane_connections"] >= 2, "both groups on the interceptor's lane again")
        assert messaging.stats()["epoch"] == epoch
        assert town.west.stats()["interceptor"] == town.east.stats()["interceptor"] == "lane"
        account = traffic.account()
        assert (account.flaws, account.unknown, account.refused) == ({}, 0, 0), str(account)
        fates = [send.fate for send in read_ledger(silenced.ledger.path)]
        assert fates == ["delivered"] * silenced.delivered + ["blocked"] * account.blocked
        assert silenced.delivered <= last + 40
        assert control(messaging, "violation_counts") == {banned[0]: account.blocked}  # once each


@pytest.mark.long
def test_an_interceptor_with_a_long_black_list_comes_back(ray_cluster, exp_id):
    """Ray keeps no large arguments for a restart."""
    pairs = [(n, n + 1) for n in range(50_000)]
    with Messaging.start(exp_id, rules=[rules.BlackList(pairs)]) as messaging:
        group = messaging.create_group("all", range(10))
        kill(messaging.interceptor)
        assert [receipt.fate for receipt in group.send_columns([1, 1], [2, 3], {})] == ["blocked", "delivered"]


@pytest.mark.long
def test_all_actors_may_die_together(messaging, pair):
    west, east = pair
    send(west, east, 50)
    assert numbers(east.fetch_messages(limit=20, timeout=60)) == list(range(20))
    for actor in (messaging.interceptor, west.actor, east.actor):
        kill(actor)
    west.stats()  # it is back
    assert send(west, east, 50, start=50).counts()["delivered"] == 50
    assert numbers(drain(east, 80)) == list(range(20, 100))
