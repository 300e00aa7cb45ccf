"""The interceptor: verdicts of rules on a batch, failing rules block, and each message counts once."""

import asyncio
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.interceptors import Held, Store, answered, batch, judged, waited, whole

from ray_messaging.errors import RuleError
from ray_messaging.interception.interceptor.interceptor import Interceptor
from ray_messaging.interception.rules import ALLOW, BlackList, Rule, SlowRule, Verdict, block, label, rewrite

# -- what rules make of a batch ---------------------------------------------------------------------------------------


NONSENSE = [
    {0: rewrite({"t": "\ud800"})}, {0: rewrite({"t": object()})}, {0: rewrite({1: {1, 2j}})},
    {0: Verdict(payload=[1])}, {0: Verdict(payload="x")}, {0: label("bad \ud800")}, {0: label("")}, {0: label(5)},
    {0: Verdict(labels=["x"])}, {0: Verdict(reason=None)}, {0: Verdict(True, b"x")}, {0: rewrite({}, "bad \ud800")},
    {0: True}, {0: None}, {0: "no"}, {0: (True, "no")},
    None, True, [], [0], "no", {5: block("x")}, {-1: block("x")}, {"0": block("x")}, {0.0: block("x")},
    {None: block("x")},
]  # fmt: skip


@pytest.mark.parametrize("answer", NONSENSE, ids=range(len(NONSENSE)))
async def test_nonsense_on_a_row_blocks_under_the_rules_name_or_changes_nothing(answer):
    found = await judged([whole("odd", answer), whole("last", {})], 1)
    assert found.blocked.keys() == {0}
    assert found.blocked[0][0] == "odd"
    assert "the rule failed" in found.blocked[0][1]
    lenient = await judged([whole("odd", answer, on_error="allow"), whole("last", {1: block("no")})], 2)
    assert lenient.blocked == {1: ("last", "no")}
    assert (found.rewritten, found.labels, lenient.rewritten, lenient.labels) == ({}, {}, {}, {})


async def test_a_label_that_cannot_be_sent_hurts_no_neighbour_and_a_reason_has_its_escape():
    found = await judged([whole("odd", {0: label("bad \ud800"), 1: label("fine"), 2: block("cut: \ud83d")})], 3)
    assert (found.blocked.keys(), found.blocked[2]) == ({0, 2}, ("odd", "cut: \\ud83d"))
    assert found.labels == {"fine": {1}}


class Kind(Rule):
    """A rule as a table from a payload's text to its verdict."""

    needs_payload = True

    def __init__(self, name, does):
        self.name = name
        self.does = does

    def check(self, message):
        what = self.does[int(message.payload["k"]) % len(self.does)]
        if what == "block":
            return block(f"{self.name} {message.payload['k']}")
        if what == "rewrite":
            return rewrite({"k": message.payload["k"] + 1})
        if what == "both":
            return rewrite({"k": message.payload["k"] + 2}, f"{self.name}-both")
        if what == "raise":
            raise ValueError(self.name)
        return label(self.name) if what == "label" else ALLOW


class SlowKind(SlowRule):
    """Judge as Kind does, at once now and then."""

    def __init__(self, name, does):
        self.name = name
        self.kind = Kind(name, does)

    def at_once(self, message):
        return self.kind.check(message) if message.payload["k"] % 3 == 0 else None

    async def judge(self, message):
        return self.kind.check(message)


def reference(rules, k):
    """Judge one message as the words say: rule by rule."""
    labels, rewritten = [], None
    for rule in rules:
        kind = getattr(rule, "kind", rule)
        what = kind.does[k % len(kind.does)]
        if what in {"block", "raise"}:
            return (rule.name, rewritten and (rewritten, k), labels)  # as the rule has seen it
        if what == "label":
            labels.append(rule.name)
        if what in {"rewrite", "both"}:
            k += 1 if what == "rewrite" else 2
            rewritten = rule.name
            labels += [f"{rule.name}-both"] if what == "both" else []
    return (None, rewritten and (rewritten, k), labels)


DOES = st.lists(st.sampled_from(["pass", "block", "rewrite", "both", "raise", "label"]), min_size=1, max_size=4)


@given(st.lists(st.tuples(st.booleans(), DOES), max_size=5), st.lists(st.integers(0, 6), min_size=1, max_size=8))
def test_as_one_by_one(makes, numbers):
    rules = [(SlowKind if slow else Kind)(f"r{n}", does) for n, (slow, does) in enumerate(makes)]
    interceptor = Interceptor("x", rules)
    found = asyncio.run(waited(interceptor, batch([{"k": k} for k in numbers])))
    assert (interceptor.judged, interceptor.blocked, interceptor.deferred) == (len(numbers), len(found.blocked), 0)
    for row, k in enumerate(numbers):
        blocker, rewritten, labels = reference(rules, k)
        assert found.blocked.get(row, (None,))[0] == blocker
        assert found.rewritten.get(row) == (rewritten and (rewritten[0], b'{"k":%d}' % rewritten[1]))
        assert sorted(name for name, rows in found.labels.items() if row in rows) == sorted(labels)


# -- slow rules -------------------------------------------------------------------------------------------------------


async def test_a_decided_row_does_not_wait_for_others():
    slow = Held("slow", block("slow"), only=lambda message: message.payload["text"] == "0")
    interceptor = Interceptor("x", [slow])
    asked = batch([{"text": "0"}, {"text": "1"}])
    await answered(interceptor, asked)
    found = await answered(interceptor, asked, rows=[0, 1])
    assert (found.blocked, found.deferred) == ({1: ("slow", "slow")}, {0})
    await interceptor.close()


async def test_a_closed_interceptor_leaves_nothing_behind():
    slow = Held("slow", ALLOW)
    interceptor = Interceptor("x", [slow])
    await answered(interceptor, batch([{"text": "0"}] * 3))
    await interceptor.close()  # before their tasks had begun
    assert interceptor.deferred == 0
    await answered(interceptor, batch([{"text": "0"}] * 3, first=3))
    await slow.called(3)
    await interceptor.close()
    assert interceptor.deferred == 0


# -- names and single calls --------------------------------------------------------------------------------------------


async def test_forwarded_messages_are_told_apart():
    slow = Held("slow", ALLOW, only=lambda message: message.from_id == 1)
    slow.answers = {2: block("two"), 3: ALLOW}
    interceptor = Interceptor("x", [slow], epoch=1, store=Store())
    first = asyncio.create_task(interceptor.forward(1, 9, "held"))
    await slow.called(1)
    found = [await interceptor.forward(by, 9, "hello") for by in (2, 3, 2, 3, 2, 3)]
    assert found == [False, True] * 3
    slow.release()
    assert await first is True
    assert Counter(interceptor.violations) == {2: 3}


@pytest.mark.parametrize("name", ["", None, 7, ":violations", "a\nb", "\ud800", "x" * 201])
def test_a_rule_whose_name_cannot_be_shown_or_kept(name):
    rule = BlackList()
    rule.name = name
    with pytest.raises(RuleError, match="invalid name"):
        Interceptor("x", [rule])


async def test_a_payload_is_forwarded_as_agentsociety_does_as_json_text():
    look = Held("look", is_open=True)
    interceptor = Interceptor("x", [look])
    for payload in ('{"content": "hi"}', {"content": "ho"}, "no JSON", "[1]"):
        assert await interceptor.forward(1, 2, payload)
    assert look.seen == [{"content": "hi"}, {"content": "ho"}, {"content": "no JSON"}, {"content": "[1]"}]
    await interceptor.close()
