"""Rules on broadcasts, and their rows in the log, on Ray."""

import asyncio
from collections import Counter

import pandas as pd
import pytest
import ray
from support.patience import WAIT_S

from ray_messaging import Messaging, Steps, rules
from ray_messaging.errors import UnknownName

GRAPH = [(2, 10), (2, 11), (2, 1), (10, 1)]


async def blocked_pair(messaging, from_id, to_id):
    async with asyncio.timeout(WAIT_S):
        events = messaging.blocked(after=0)
        while ((event := await anext(events)).from_id, event.to_id) != (from_id, to_id):
            pass
        return event


@pytest.mark.long
def test_a_black_list_changes_who_hears_within_the_call_and_the_log_agrees(logged, exp_id):
    messaging, west, east = logged
    friends = messaging.create_audience(exp_id, graph=GRAPH)
    after = messaging.log.end
    first = west.broadcast(2, friends, {"n": 1})
    assert first.counts()["delivered"] == 3
    ray.get(messaging.interceptor.add_to_black_set.remote([(2, 11)]))
    try:
        second = west.broadcast(2, friends, {"n": 2})
        assert second.fates.tolist() == ["delivered", "delivered", "blocked"]
        (receipt,) = [each for each in second if not each]
        assert (receipt.rule, receipt.reason) == ("black_list", "this sender may not write to this hearer")
    finally:
        ray.get(messaging.interceptor.remove_from_black_set.remote([(2, 11)]))
    heard = Counter(
        (message.payload["n"], message.to_id) for group in (west, east) for message in group.fetch_messages()
    )
    assert heard == Counter([(1, 1), (1, 10), (1, 11), (2, 1), (2, 10)])
    log = messaging.log
    rows = log.query(expand=True, after=after)
    assert Counter(zip(rows["to_id"].to_pylist(), rows["fate"].to_pylist(), strict=True)) == Counter(
        {(1, "delivered"): 2, (10, "delivered"): 2, (11, "delivered"): 1, (11, "blocked"): 1}
    )
    assert len(log.query(fate="delivered", after=after)) == 4  # a row for each of two groups
    event = asyncio.run(blocked_pair(messaging, 2, 11))
    assert (event.rule, event.reason) == (receipt.rule, receipt.reason)
    west.ack()
    east.ack()
    log.balance(expand=True)  # raises if a message is there twice


@pytest.mark.long
def test_rounds_and_changes_for_a_step_hold_for_broadcasts_of_steps(ray_cluster, exp_id):
    def shout(me, inbox):
        me.state["heard"] = me.state.get("heard", 0) + len(inbox)
        for n in range(2):
            me.broadcast("square", {"n": n})

    with Messaging.start(exp_id, steps=Steps(), rules=[rules.RateLimit(per_round=1)]) as messaging:
        messaging.create_audience("square", members=range(4))
        ray.get(messaging.interceptor.pop_rule.remote("rate_limit", at_step=2))
        result = messaging.run(shout, agents=4, groups=2, until=4, progress=False)
        found = [messaging.steps.fates(step) for step in range(4)]
    assert [(each["delivered"], each["blocked"]) for each in found] == [(12, 12), (12, 12), (24, 0), (24, 0)]
    assert {state["heard"] for state in result.states.values()} == {3 + 3 + 6}


@pytest.mark.long
def test_a_graph_is_passed_once_and_then_known_by_its_name(ray_cluster, exp_id):
    def tell(me, inbox):
        me.state["neighbours"] = [*me.neighbours]
        me.state["heard"] = [message.from_id for message in inbox]
        me.broadcast("friends", {})
        for agent in range(4):
            me.send(agent, {})

    edges = pd.DataFrame({"follower": [2, 0, 1, 0], "followed": [0, 1, 2, 2]})
    with Messaging.start(exp_id, steps=Steps(wait_for="senders")) as messaging:
        friends = messaging.create_audience("friends", graph=edges)
        ray.get(messaging.interceptor.insert_rule.remote(rules.AllowGraph(friends)))
        result = messaging.run(tell, agents=4, groups=2, until=2, graph="friends", progress=False)
        with pytest.raises(UnknownName, match="'foes'"):
            messaging.run(tell, agents=4, groups=2, until=3, graph="foes", progress=False)
    assert [state["neighbours"] for state in result.states.values()] == [[1, 2], [2], [0], []]
    assert [state["heard"] for state in result.states.values()] == [[2, 2], [0, 0], [0, 0, 1, 1], []]
