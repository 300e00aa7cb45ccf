"""Two groups at work on a server of this process: the whole engine but Ray."""

import asyncio
import time
from collections import Counter

import numpy as np
import pytest
from support.traffic import plan_of

from ray_messaging.errors import MessagingError
from ray_messaging.interception.interceptor.interceptor import Interceptor
from ray_messaging.interception.rules import BlackList, MaxLength
from ray_messaging.model.fates import DELIVERED
from ray_messaging.outgoing import Outgoing
from ray_messaging.replay import worker as module
from ray_messaging.replay.account import build_account, fate_codes
from ray_messaging.replay.worker import Worker

AGENTS = [1, 2, 3, "ann", "bob"]
GROUPS = {1: 0, 2: 1, 3: 0, "ann": 1, "bob": 0}


def random_rows(count):
    random = np.random.default_rng(5)
    return [(AGENTS[sender], AGENTS[receiver]) for sender, receiver in random.integers(0, 5, (count, 2)).tolist()]


@pytest.fixture
def workers(opener, exp_id, monkeypatch, local):
    """Return a function from a plan and rules to its shares and workers."""
    monkeypatch.setattr(module, "TICK_S", 0.01)
    monkeypatch.setattr(module, "PATIENCE_S", 1.0)

    async def workers(plan, *rules):
        interceptor, made = Interceptor(exp_id, rules), []
        for share in plan.shares():
            messager = await opener(local, interceptor, name=share.name, host=[*share.agents, f"probe-{share.group}"])
            made.append(Worker(messager, plan.reference(), share))
        return made

    return workers


async def play(plan, made, *, lost=0):
    """Run a replay as the engine does on Ray."""
    receiving = [asyncio.create_task(worker.receive()) for worker in made]
    sent = await asyncio.gather(*(worker.send() for worker in made))
    delivered = fate_codes(plan, plan.shares(), sent) == DELIVERED
    counts = np.bincount(plan.group_of[plan.traffic.targets[delivered]], minlength=plan.groups).tolist()
    for worker, count in zip(made, counts, strict=True):
        worker.expect(count + lost)
    return build_account(plan, plan.shares(), sent, await asyncio.gather(*receiving))


async def test_everything_arrives_that_no_rule_blocks(workers):
    rows, texts = random_rows(40_000), ["x" * 200 if n % 10 == 0 else f"text {n}\n" for n in range(40_000)]
    plan = plan_of(rows, GROUPS, texts=texts)
    made = await workers(plan, BlackList([(1, 2), ("ann", None)]), MaxLength(150))
    account = await play(plan, made)
    black = [sender == "ann" or (sender, receiver) == (1, 2) for sender, receiver in rows]
    long = [len(text) == 200 and not stopped for text, stopped in zip(texts, black, strict=True)]
    assert account.problems == []
    assert account.blocked_by == {"black_list": sum(black), "max_length": sum(long)}
    assert account.fates["blocked"] == sum(black) + sum(long)
    assert account.fates["delivered"] == account.received == 40_000 - account.fates["blocked"]
    assert [sum(each) for each in zip(*(worker.progress for worker in made), strict=True)] == [40_000, account.received]
    passed = zip(rows, black, long, strict=True)
    assert account.received_by_agent == Counter(to for (_, to), *stopped in passed if not any(stopped))


async def test_a_lost_message_ends_the_wait_and_an_extra_one_is_noticed(workers):
    plan = plan_of([(1, 2), (2, 1)], GROUPS)
    made = await workers(plan)
    await made[0]._messager.send_messages([Outgoing.to_agent(2, {"n": 0, "time": 0}, from_id=1)])
    account = await play(plan, made)
    assert account.duplicates == 1
    assert not account.balances


async def test_missing_messages_are_not_awaited_for_ever(workers):
    plan = plan_of([(1, 2), (2, 1)], GROUPS)
    account = await play(plan, await workers(plan), lost=1)
    assert account.received == 2


async def test_messages_leave_when_they_are_due(workers):
    plan = plan_of([(1, 2, 100), (1, 2, 100), (2, 1, 101), (1, 2, 103)], GROUPS, speed=20)
    began = time.monotonic()
    account = await play(plan, await workers(plan))
    assert time.monotonic() - began >= 0.15
    assert account.problems == []
    assert account.latency_ms["p50"] < 100


async def test_lone_messages_take_turns(workers):
    made = await workers(plan_of([(1, 2)], GROUPS))
    found = await asyncio.gather(
        made[0].exchange("probe-0", "probe-1", 5, first=True), made[1].exchange("probe-1", "probe-0", 5, first=False)
    )
    assert [len(latencies) for latencies in found] == [5, 5]
    assert all(0 <= latency < 5 for latencies in found for latency in latencies)


async def test_lone_messages_that_are_stopped_raise(workers):
    made = await workers(plan_of([(1, 2)], GROUPS), BlackList([(None, None)]))
    with pytest.raises(MessagingError, match="is blocked by the rule 'black_list'"):
        await made[0].exchange("probe-0", "probe-1", 5, first=True)
    with pytest.raises(MessagingError, match="did not arrive"):
        await made[1].exchange("probe-1", "probe-0", 5, first=False)
