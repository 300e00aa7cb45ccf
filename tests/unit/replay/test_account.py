"""The account must add up, and say in words where it does not."""

import json
from collections import Counter

import numpy as np
import pytest
from support.traffic import arrive, plan_of

from ray_messaging.model.fates import BLOCKED, DELIVERED, UNDELIVERABLE, UNKNOWN
from ray_messaging.replay.account import build_account, percentiles
from ray_messaging.replay.worker import Checker, ReplaySent

ROWS = [(1, 2), (2, 1), (1, 1), (1, 2), (2, 2)]
D, B, U = DELIVERED, BLOCKED, UNDELIVERABLE
LOST = "1 delivered messages never arrived"
DIFFER = "1 agents received another number than was delivered to them"
OTHER_IDS = "3 messages arrived with other ids, or at another group"


@pytest.fixture
def account():
    """Return a function from fates and each group's arrivals to the account."""

    def account(fates, first, second, **changes):
        plan = plan_of(ROWS, {1: 0, 2: 1}, texts=list("abcde"))
        shares, tallies = plan.shares(), []
        for group, numbers in enumerate((first, second)):
            checker = Checker(plan.reference(), group)
            arrive(checker, plan, numbers, **(changes if group else {}))
            tallies.append(checker.tally)
        codes = np.array(fates, np.uint8)
        blocked = Counter({"black_list": fates.count(B)}) if B in fates else Counter()
        sent = [ReplaySent(codes[share.rows], Counter(), 9.0, 10.0) for share in shares]
        sent[0] = sent[0]._replace(blocked_by=blocked)
        return build_account(plan, shares, sent, tallies)

    return account


def test_all_delivered(account):
    found = account([D] * 5, [1, 2], [0, 3, 4])
    assert found.balances
    assert found.received_equals_file
    assert (found.seconds, found.per_second) == (2.0, 2.5)
    assert found.matrix == [[1, 2], [1, 1]]
    assert found.groups[0] == {"name": "group-1", "agents": 1, "sent": 3, "received": 2}
    written = json.loads(json.dumps(found.to_dict()))
    assert written["received_by_agent"] == {"1": 2, "2": 3}
    assert (written["delivered"], written["received"], written["messages_per_second"]) == (5, 5, 2.5)
    assert written["latency_ms"] == {"p50": 1000.0, "p99": 1000.0}


def test_blocked_and_undeliverable_messages_balance_when_they_do_not_arrive(account):
    found = account([B, D, D, U, D], [1, 2], [4])
    assert found.balances
    assert not found.received_equals_file
    assert Counter(found.fates) == Counter(delivered=3, blocked=1, undeliverable=1)
    assert found.blocked_by == {"black_list": 1}
    assert found.unheard == {2: 1}


@pytest.mark.parametrize(
    ("fates", "first", "second", "changes", "problems"),
    [
        ([D, D, D, D, UNKNOWN], [1, 2], [0, 3], {}, ["1 messages have no fate"]),
        ([D] * 5, [1, 2], [0, 3], {}, ["5 messages were delivered, but 4 received", LOST, DIFFER]),
        # One too many and one too few: the sums agree, the account does not.
        ([D] * 5, [1, 2], [0, 0, 4], {}, [LOST, "1 messages arrived again"]),
        ([D, D, D, B, D], [1, 2], [0, 3], {}, [LOST, "1 messages arrived that were blocked or undeliverable"]),
        ([D] * 5, [1, 2], [3, 0, 4], {}, ["1 messages arrived after a later one of their pair"]),
        ([D] * 5, [1, 2], [0, 3, 4], {"text": "?"}, ["3 messages arrived with another text or time"]),
        ([D] * 5, [1, 2], [0, 3, 4], {"to_id": 1}, [OTHER_IDS, DIFFER]),
        ([D] * 5, [1, 2], [0, 3, 4], {"to_id": "ann"}, [OTHER_IDS, DIFFER]),
        ([D] * 5, [1, 2], [0, 3, 4], {"from_id": 3}, [OTHER_IDS, DIFFER]),
        ([D] * 5, [1, 2], [0, 3, 4], {"from_id": None}, [OTHER_IDS, DIFFER]),
        (
            [D] * 5,
            [1, 2],
            [0, 3, 99, 4],
            {},
            ["5 messages were delivered, but 6 received", "1 messages arrived that this replay did not send"],
        ),
    ],
)
def test_imbalances_are_reported(account, fates, first, second, changes, problems):
    found = account(fates, first, second, **changes)
    assert not found.balances
    assert found.problems == problems
    assert found.to_dict()["problems"] == problems


def test_percentiles():
    assert percentiles(np.zeros(0)) == {"p50": None, "p99": None}
    assert percentiles(np.arange(101) / 1000) == {"p50": 50.0, "p99": 99.0}
