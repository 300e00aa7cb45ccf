"""`me.blocked`: what an agent sent in the step before and a rule blocked, on any number of groups."""

import numpy as np
import pytest

from ray_messaging import run
from ray_messaging.interception.rules import ALLOW, Rule, SlowRule, StepRule, StepVerdicts, block

AGENTS, STEPS = 6, 4


def pairs(from_id, to_id):
    """Return the rule that blocks a message, and why; None where it does not."""
    return ("pairs", f"no {from_id} to {to_id}") if (from_id + to_id) % 3 == 0 else None


def verdict(found):
    return ALLOW if found is None else block(found[1])


class Pairs(Rule):
    name = "pairs"

    def check(self, message):
        return verdict(pairs(message.from_id, message.to_id))


class Slow(SlowRule):
    name = "pairs"

    async def judge(self, message):
        return verdict(pairs(message.from_id, message.to_id))


class Whole(StepRule):
    def __init__(self, name="pairs", judge=pairs):
        self.name, self._judge = name, judge

    async def check_step(self, number, batch, exp_id):
        ends = zip(batch.from_ids.tolist(), batch.to_ids.tolist(), strict=True)
        return StepVerdicts({row: verdict(found) for row, pair in enumerate(ends) if (found := self._judge(*pair))})


def friends(agent):
    return [(agent + n) % AGENTS for n in (5, 1, 3)]


def talk(me, inbox):
    kept = [(b.message_id, b.from_id, b.to_id, b.rule, b.reason) for b in me.blocked]
    me.state["blocked"][me.step] = kept
    if me.shared and me.step == 1:
        me.move("group0" if me.id % 2 else "group1")
    first, second, third = friends(me.id)
    me.send(first, {})
    me.send(second, {}, deliver_at=me.step + 2)
    me.ask(third, {})


def expected(judge=pairs):
    """Return what each agent learns."""
    found = {}
    for agent in range(AGENTS):
        learnt = found[agent] = {"start": [], 0: []}
        for step in range(STEPS - 1):
            rows = learnt[step + 1] = []
            for n, to_id in enumerate(friends(agent)):
                if found_by := judge(agent, to_id):
                    rows.append((f"{step}-{n}-{agent}", agent, to_id, *found_by))
    return found


def learnt(rules, groups, *, moves=False):
    options = {"groups": groups, "rules": rules, "shared": moves}
    result = run(talk, agents=AGENTS, until=STEPS, start=lambda me: {"blocked": {"start": [*me.blocked]}}, **options)
    return {agent: state["blocked"] for agent, state in result.states.items()}


@pytest.mark.parametrize(("groups", "moves"), [(1, False), (3, False), (2, True)])
@pytest.mark.parametrize("rule", [Pairs(), Slow(), Whole()], ids=["rule", "slow rule", "step rule"])
def test_an_agent_learns_what_was_blocked_wherever_it_has_moved(rule, groups, moves):
    assert learnt([rule], groups, moves=moves) == expected()


def test_blocks_of_rules_of_both_kinds_come_in_the_order_of_the_sends():
    def odd(from_id, to_id):
        return ("whole", "odd") if (from_id + to_id) % 2 and from_id < 4 else None

    assert learnt([Pairs(), Whole("whole", odd)], 3) == expected(lambda *ends: pairs(*ends) or odd(*ends))


def test_a_broadcast_names_each_hearer_that_does_not_get_it():
    def says(me, inbox):
        me.state["blocked"] = [(blocked.message_id, blocked.to_id) for blocked in me.blocked]
        if me.step == 0:
            me.broadcast("*", {})

    found = [run(says, agents=AGENTS, until=2, groups=groups, rules=[Pairs()]).states for groups in (1, 3)]
    assert found[0] == found[1]
    assert found[0][1]["blocked"] == [("0-0-1", 2), ("0-0-1", 5)]


def test_a_crowd_has_columns():
    def crowd(group, step):
        blocked = step.blocked
        group.state["rows"] = np.array([blocked.from_ids, blocked.to_ids])
        group.state["ordinals"] = np.array([int(each.message_id.split("-")[1]) for each in blocked])
        assert [blocked.rules, blocked.reasons] == [[each.rule for each in blocked], [each.reason for each in blocked]]
        step.send_columns(group.ids, (group.ids + 1) % AGENTS, {})
        step.send_columns(group.ids, (group.ids + 3) % AGENTS, {})

    states = run(crowd, agents=AGENTS, until=2, groups=2, by="group", rules=[Pairs()]).states
    assert [state["rows"].tolist() for state in states.values()] == [[[0, 4], [3, 5]], [[1, 3], [2, 0]]]
    assert [state["ordinals"].tolist() for state in states.values()] == [[1, 0], [0, 1]]
