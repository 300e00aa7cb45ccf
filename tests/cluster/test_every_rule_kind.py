"""Every kind of rule travels to the interceptor, and judges there."""

import uuid

import numpy as np
import pytest
from support.cluster import Shouting

from ray_messaging import Messaging, rules

pytestmark = pytest.mark.usefixtures("ray_cluster")

BAD, FINE = {"content": "bad"}, {"content": "fine"}


@pytest.fixture(scope="module")
def shared(by_value):
    """Give an experiment for inserted rules; the classes here are pickled by value, like a notebook's."""
    with Messaging.start(f"put-in-{uuid.uuid4().hex[:8]}") as started:
        yield started


class Once(rules.Rule):
    """A user's rule that lets each agent write once, with a writable array and bytes of its own."""

    def __init__(self):
        self.seen = np.zeros(100_000, np.int64)  # so large that Ray would keep it apart
        self.last = bytearray(8)

    def check(self, message):
        self.seen[message.from_id] += 1
        self.last[0] = message.from_id
        return rules.ALLOW if self.seen[message.from_id] == 1 else rules.block("once is enough")


class Counter:
    """A block of AgentSociety's that refuses bad texts, and everything after three messages."""

    def __init__(self):
        self.asked = np.zeros(1, np.int64)

    async def forward(self, llm, from_id, to_id, msg, violation_counts, black_set):
        self.asked += 1
        if "bad" in msg:
            black_set.add((from_id, to_id))
        return "bad" not in msg and bool(self.asked[0] <= 3), "refused"


async def dislikes_bad(message):
    return message.payload["content"] != "bad"


def bans(make):
    return lambda: make(rules.Pattern(["bad"]), after=2)


# What makes the rule, and messages in batches (who writes, to whom, what, and whether it is blocked).
BANNED = [[(1, 2, BAD, True), (3, 2, BAD, True)], [(1, 2, BAD, True), (3, 2, FINE, False)], [(1, 2, FINE, True)] * 2]
CASES = {
    "AllowGraph": (lambda: rules.AllowGraph([(1, 2)]), [[(1, 2, FINE, False), (2, 1, FINE, True)]] * 2),
    "BlackList": (lambda: rules.BlackList([(1, 2), (3, None)]), [[(1, 2, FINE, True), (3, 1, FINE, True)]] * 2),
    "Block": (lambda: rules.Block(Counter()), [[(1, 2, BAD, True)], [(1, 3, FINE, False)] * 2, [(1, 3, FINE, True)]]),
    "EdgeBan": (bans(rules.EdgeBan), [*BANNED, [(1, 3, FINE, False)]]),
    "MaxLength": (lambda: rules.MaxLength(20), [[(1, 2, FINE, False), (1, 2, {"content": "x" * 20}, True)]] * 2),
    "Moderator": (lambda: rules.Moderator(dislikes_bad), [[(1, 2, FINE, False), (1, 3, BAD, True)]] * 2),
    "Pattern": (lambda: rules.Pattern(["bad"], ["b.d"]), [[(1, 2, FINE, False), (1, 2, BAD, True)]] * 2),
    "RateLimit": (lambda: rules.RateLimit(1e-6, 2), [[(1, 2, FINE, False)], [(1, 2, FINE, True)]]),
    "RoundQuota": (
        lambda: rules.RoundQuota(contacts=1, blocked=2),
        [[(1, 2, FINE, False), (1, 3, FINE, True)], [(1, 3, FINE, True)], [(1, 2, FINE, True)]],
    ),
    "Rule": (lambda: Once(), [[(1, 2, FINE, False), (3, 2, FINE, False)], [(1, 2, FINE, True)]]),
    "Sample": (lambda: rules.Sample(1.0), [[(1, 2, FINE, True)]]),
    "SenderBan": (bans(rules.SenderBan), [*BANNED, [(1, 3, FINE, True)]]),
    "SlowRule": (lambda: rules.Moderator(dislikes_bad, cache=0), [[(1, 2, BAD, True)], [(1, 2, FINE, False)]]),
    "a rule that travels by value": (lambda: Shouting(), [[(1, 2, {"text": "HEY"}, True), (1, 2, FINE, False)]]),
    "a ban round a user's rule": (
        lambda: rules.SenderBan(Once(), after=1),
        [[(1, 2, FINE, False)], [(1, 2, FINE, True), (3, 2, FINE, False)], [(1, 2, FINE, True)]],
    ),
}


def test_no_kind_of_rule_is_left_out():
    classes = {name: found for name in rules.__all__ if isinstance(found := getattr(rules, name), type)}
    each = {name for name, found in classes.items() if issubclass(found, rules.Rule)}
    whole = {name for name, found in classes.items() if issubclass(found, rules.StepRule)}  # test_step_rules_on_ray.py
    assert each - whole - {"OpenAIModerator"} <= set(
        CASES
    )  # it travels in its own tests, which have a server of models


async def judged_as_told(messaging, batches):
    messager = await messaging.open_messager("all", range(5))
    try:
        for batch in batches:
            from_ids, to_ids, payloads, wanted = map(list, zip(*batch, strict=True))
            receipts = await messager.send_columns(from_ids, to_ids, payloads)
            told = [(receipt.fate, receipt.reason) for receipt in receipts]
            assert [fate == "blocked" for fate, _ in told] == wanted, told
            assert not [reason for _, reason in told if reason and "the rule failed" in reason]
    finally:
        await messager.close()
        await messaging.interceptor.remove.remote("all")


@pytest.mark.parametrize("name", CASES)
async def test_a_rule_judges_until_its_state_changes(name, shared):
    make, batches = CASES[name]
    interceptor = shared.interceptor
    await interceptor.reset_violation_counts.remote()
    await interceptor.insert_rule.remote(make())
    try:
        await judged_as_told(shared, batches)
    finally:
        for listed in await interceptor.rules.remote():
            await interceptor.pop_rule.remote(listed["name"])
