"""Rules on broadcasts, and their rows in the log, on Ray."""

import asyncio
import uuid
from collections import Counter

import pytest
import ray
from support.patience import WAIT_S

GRAPH = [(2, 10), (2, 11), (2, 1), (10, 1)]


async def blocked_pair(messaging, from_id, to_id):
    async with asyncio.timeout(WAIT_S):
        events = messaging.blocked(after=0)
        while ((event := await anext(events)).from_id, event.to_id) != (from_id, to_id):
            pass
        return event


@pytest.mark.long
def test_a_black_list_changes_who_hears_within_the_call_and_the_log_agrees(logged):
    messaging, west, east = logged
    friends = messaging.create_audience(f"audience-{uuid.uuid4().hex[:8]}", graph=GRAPH)
    after = messaging.log.end
    first = west.broadcast(friends, {"n": 1}, from_id=2)
    assert first.counts()["delivered"] == 3
    ray.get(messaging.interceptor.add_to_black_set.remote([(2, 11)]))
    try:
        second = west.broadcast(friends, {"n": 2}, from_id=2)
        assert second.fates.tolist() == ["delivered", "delivered", "blocked"]
        (receipt,) = [each for each in second if not each]
        assert (receipt.rule, receipt.reason) == ("black_list", "this sender may not write to this hearer")
    finally:
        ray.get(messaging.interceptor.remove_from_black_set.remote([(2, 11)]))
    heard = Counter((message.payload["n"], message.to_id) for group in (west, east) for message in group.fetch())
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
    assert log.balance(expand=True).duplicates == 0
