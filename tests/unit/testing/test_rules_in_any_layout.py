"""What rules do to messages in steps depends neither on the number of groups nor on where batches end."""

from random import Random

import numpy as np
import pytest

from ray_messaging import run
from ray_messaging.interception import rules
from ray_messaging.interception.rules import ALLOW, Rule, SlowRule, Table, block, label
from ray_messaging.sending import bulk_input

AGENTS, STEPS = 12, 2
WORDS = ["bad", "odd", "fine", "casino", "dull"]


def talk(me, inbox):
    heard = [(message.from_id, message.payload["t"], message.labels) for message in inbox]
    learned = [(each.message_id, each.to_id, each.rule, each.reason) for each in me.blocked]
    me.state["seen"] = [*me.state.get("seen", []), heard, learned]
    chance = Random(f"{me.step} {me.id}")
    for n in range(chance.randrange(9)):
        said = {"t": f"{chance.choice(WORDS)} {n}"}
        kind = chance.randrange(8)
        if kind == 0:
            me.broadcast("*", said)
        else:
            later = me.step + 2 if kind == 2 else None
            me.send((me.id + chance.randrange(1, 4)) % AGENTS, said, deliver_at=later)


class EveryThird(Rule):
    """A rule that judges whole batches, and blocks every third message of an agent."""

    def __init__(self):
        self.state = Table()

    def check_batch(self, batch, exp_id):
        found = {}
        for row, agent in enumerate(batch.from_ids.tolist()):
            count = self.state[agent] = self.state.get(agent, 0) + 1
            if count % 3 == 0:
                found[row] = block(f"number {count}")
        return found


class Marks(Rule):
    """A rule whose labels come in any order."""

    needs_payload = True

    def check(self, message):
        text = message.payload["t"]
        return label("x", "a") if "odd" in text else label("a", "m") if "fine" in text else ALLOW


class Slow(SlowRule):
    name = "slow"

    async def judge(self, message):
        return block("slow") if "odd" in message.payload["t"] else ALLOW


class Counts:
    """A block of AgentSociety that refuses bad words, and all of an agent of whom three messages were blocked."""

    async def forward(self, llm, from_id, to_id, msg, violation_counts, black_set):
        return "bad" not in msg and violation_counts[from_id] < 3


BAD = lambda: rules.Pattern(["bad"], field="t")  # noqa: E731
RULES = {
    "quota of blocked": lambda: [rules.RoundQuota(blocked=1), BAD()],
    "quota behind": lambda: [BAD(), rules.RoundQuota(blocked=2), rules.Pattern(["odd"], field="t", name="odd")],
    "two quotas": lambda: [rules.RoundQuota(contacts=2, blocked=2), BAD(), rules.RoundQuota(blocked=3, name="more")],
    "quota and slow": lambda: [rules.RoundQuota(blocked=1), Slow(), BAD()],
    "contacts": lambda: [rules.RoundQuota(contacts=2)],
    "rate": lambda: [rules.RateLimit(per_round=3)],
    "rate and quota": lambda: [rules.RoundQuota(blocked=2), rules.RateLimit(per_round=3)],
    "sample": lambda: [rules.Sample(0.4)],
    "sender ban": lambda: [rules.SenderBan(BAD(), after=2), EveryThird()],
    "edge ban": lambda: [rules.EdgeBan(BAD(), after=1)],
    "ban by rate": lambda: [rules.SenderBan(rules.RateLimit(per_round=2), after=1)],
    "edge ban by contacts": lambda: [rules.EdgeBan(rules.RoundQuota(contacts=1), after=1)],
    "ban by quota": lambda: [BAD(), rules.EdgeBan(rules.RoundQuota(blocked=1), after=2)],
    "ban by counts": lambda: [rules.SenderBan(EveryThird(), after=1)],
    "edge ban by counts": lambda: [rules.EdgeBan(EveryThird(), after=1)],
    "labels": lambda: [Marks()],
    "block": lambda: [rules.Block(Counts())],
    "black list": lambda: [rules.BlackList([(1, 2), (3, None)]), rules.RoundQuota(blocked=2)],
}


def result(monkeypatch, made, groups, rows):
    """Run the model; return all that its agents have seen, the fates and the digests."""
    for name in ("BATCH_ROWS", "COLUMN_ROWS"):
        monkeypatch.setattr(bulk_input, name, rows)
    found = run(talk, agents=AGENTS, until=STEPS, groups=groups, rules=made)
    return dict(found.states), found.fates, found.digests


SHORT = {"edge ban by counts", "labels"}
SOME = [name if name in SHORT else pytest.param(name, marks=pytest.mark.long) for name in RULES]


@pytest.mark.parametrize("name", SOME)
def test_rules_in_any_layout(monkeypatch, name):
    whole = result(monkeypatch, RULES[name](), 1, 2**14)
    assert whole[1]["blocked"] or name == "labels"
    for groups, rows in ((1, 3), (3, 2**14)):
        assert result(monkeypatch, RULES[name](), groups, rows) == whole


def test_a_quota_of_blocked_messages_counts_message_by_message():
    said = np.random.default_rng(3).permutation([*range(9)] * 3)

    def say(me, inbox):
        me.state["learned"] = [(each.message_id, each.rule) for each in me.blocked]
        if me.step == 0:
            for n, word in enumerate(said):
                me.send((me.id + 1) % 6, {"t": "bad" if (word + me.id) % 4 == 0 else f"fine {n}"})

    quota, count = rules.RoundQuota(blocked=2), 0
    found = run(say, agents=6, until=2, groups=2, rules=[quota, BAD()])
    for agent, state in found.states.items():
        expected, bad = [], 0
        for n, word in enumerate(said):
            rule = "round_quota" if bad >= 2 else "pattern" if (word + agent) % 4 == 0 else None
            bad += rule == "pattern"
            expected += [] if rule is None else [(f"0-{n}-{agent}", rule)]
        assert state["learned"] == expected
        count += len(expected)
    assert found.fates["blocked"] == count


def test_a_rule_that_says_a_sender_has_no_room_judges_one_message_at_a_time():
    class NoRoom(Rule):
        needs_payload = counts_blocked = True

        def room(self, senders):
            return [0] * len(senders)

        def check(self, message):
            return block("one") if message.payload["n"] == 1 else ALLOW

    def person(me, inbox):
        me.state["heard"] = [message.payload["n"] for message in inbox]
        for n in range(3):
            me.send(1 - me.id, {"n": n})

    found = run(person, agents=2, until=2, rules=[NoRoom()], progress=False)
    assert [state["heard"] for state in found.states.values()] == [[0, 2], [0, 2]]
