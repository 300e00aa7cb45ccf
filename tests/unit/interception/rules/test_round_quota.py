"""RoundQuota."""

import pickle

from hypothesis import given
from hypothesis import strategies as st
from support.rules import PAIRS, batch_of, blocked, follow, judged, one_by_one, revived

from ray_messaging.interception.rules import RoundQuota
from ray_messaging.interception.server.interceptor import Interceptor
from ray_messaging.interception.server.table import Table


class Context:
    """The interceptor as a rule sees it."""

    def __init__(self):
        self.violations = Table()


def quota(context=None, **settings):
    rule = RoundQuota(**settings)
    rule.context = context or Context()
    return rule


@given(PAIRS, st.integers(0, 3))
def test_contacts_by_hand_at_once_one_by_one_and_after_a_death(pairs, contacts):
    met, expected = {}, []
    for row, (from_id, to_id) in enumerate(pairs):
        if from_id is None or to_id is None:
            continue
        known = met.setdefault(from_id, set())
        if to_id not in known and len(known) >= contacts:
            expected.append(row)
        else:
            known.add(to_id)
    batch, rule = batch_of(pairs), quota(contacts=contacts)
    verdicts = judged(rule, batch)
    assert [row for row, verdict in enumerate(verdicts) if verdict] == expected
    assert one_by_one(quota(contacts=contacts), batch) == verdicts
    heir = revived(rule, quota(contacts=contacts))
    assert judged(heir, batch) == verdicts
    heir.new_round()
    assert judged(heir, batch) == verdicts


def test_contacts():
    rule = quota(contacts=2)
    assert blocked(rule, batch_of([(1, 2), (1, "ann"), (1, 3), (1, 2), (1, None), (2, 1), (None, 3)])) == [2]
    assert judged(rule, batch_of([(1, 3)]))[0].reason.startswith("agent 1 has written to 2 agents in this round")
    rule.new_round()
    assert blocked(rule, batch_of([(1, 3), (1, 4), (1, 2)])) == [2]


def test_blocked_messages_count_by_round():
    context = Context()
    context.violations.update({1: 5, 2: 1, None: 9})
    rule = quota(context, blocked=2)
    batch = batch_of([(1, 2), (2, 1), (None, 1), ("ann", 1)])
    assert blocked(rule, batch) == []  # what was blocked before the rule came does not count
    context.violations.update({1: 6, 2: 3, None: 99, "ann": 2})
    assert blocked(rule, batch) == [1, 3]
    assert judged(rule, batch)[1].reason.startswith("2 messages of agent 2 were blocked in this round")
    rule.new_round()
    assert blocked(rule, batch) == []
    context.violations[1] += 2
    assert blocked(rule, batch) == [0]


def test_the_round_survives_a_death():
    context, kept = Context(), {}
    context.violations[1] = 3
    rule = quota(context, contacts=1, blocked=2)
    judged(rule, batch_of([(1, 2)]))
    follow(rule.state.changes(), kept)
    context.violations[1] = 4
    heir = quota(context, contacts=1, blocked=2)
    heir.state.load(kept)
    heir.restored()
    assert blocked(heir, batch_of([(1, 2), (1, 3)])) == [1]
    context.violations[1] = 5
    assert blocked(heir, batch_of([(1, 2)])) == [0]
    rule.context = None
    copy = pickle.loads(pickle.dumps(rule))
    copy.context = context
    assert blocked(copy, batch_of([(1, 2)])) == [0]


def test_a_silenced_agent_makes_no_contacts():
    context = Context()
    rule = quota(context, contacts=1, blocked=1)
    judged(rule, batch_of([(2, 1)]))
    context.violations[1] = 1
    assert blocked(rule, batch_of([(1, 2)])) == [0]
    context.violations.clear()
    assert blocked(rule, batch_of([(1, 3)])) == []


def test_counts_that_are_set_back_begin_at_zero():
    context = Context()
    context.violations[1] = 10
    rule = quota(context, blocked=2)
    judged(rule, batch_of([(1, 2)]))
    context.violations.clear()
    context.violations[1] = 1
    assert blocked(rule, batch_of([(1, 2)])) == []
    context.violations[1] = 2
    assert blocked(rule, batch_of([(1, 2)])) == [0]


def test_within_an_interceptor_the_quota_is_not_for_ever():
    rule = RoundQuota(contacts=1, blocked=2)
    interceptor = Interceptor("e", [rule])
    assert rule.context is interceptor
    assert judged(rule, batch_of([(1, 2), (1, 3)]))[1].blocked
    interceptor.violations[1] = 2
    assert blocked(rule, batch_of([(1, 2)])) == [0]
    rule.new_round()
    assert blocked(rule, batch_of([(1, 3)])) == []
