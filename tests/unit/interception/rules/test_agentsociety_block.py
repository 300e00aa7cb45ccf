"""Classes as users wrote them for AgentSociety, put to work as they are."""

import asyncio
import copy
import functools
import json
import threading
from collections import defaultdict

import pytest
import ray.cloudpickle
from hypothesis import given, settings
from hypothesis import strategies as st
from support.rules import batch_of, message_of

from ray_messaging.errors import InvalidAddress, RuleError
from ray_messaging.interception.interceptor.interceptor import Interceptor
from ray_messaging.interception.rules.agentsociety_rules import BlackSet, Block, ViolationCounts
from ray_messaging.interception.rules.black_list import BlackList
from ray_messaging.interception.rules.rule import ALLOW
from ray_messaging.message import Message

# -- what AgentSociety gives its users: a base class with a lock, a decorator that takes it and writes its arguments ---


def lock_decorator(function):
    @functools.wraps(function)
    async def wrapper(self, *args, **kwargs):
        async with self._lock:
            written = ", ".join([*map(repr, args), *(f"{key}={value!r}" for key, value in kwargs.items())])
            assert len(written) < 1000, written
            return await function(self, *args, **kwargs)

    return wrapper


class MessageBlockBase:
    def __init__(self, name=""):
        self._name = name
        self._lock = asyncio.Lock()

    @property
    def name(self):
        return self._name


# -- what users write -------------------------------------------------------------------------------------------------


class RudeBlock(MessageBlockBase):
    """A block that asks a model about rude messages, and bans after the third, as AgentSociety's examples do."""

    def __init__(self, name, limit, *, for_all=False):
        super().__init__(name)
        self.limit = limit
        self.for_all = for_all

    async def forward(self, llm, from_id, to_id, msg, violation_counts, black_set):
        if (from_id, to_id) in black_set or (None, to_id) in black_set or (from_id, None) in black_set:
            return False, "on the black set"
        if await llm.says_fine(msg):
            return True, ""
        if violation_counts[from_id] >= self.limit - 1:
            black_set.add((from_id, None if self.for_all else to_id))
        return False, "rude"


class Locked(MessageBlockBase):
    """Count without a lock of its own between reading and writing, as one may under AgentSociety's."""

    def __init__(self):
        super().__init__()
        self.seen = 0

    @lock_decorator
    async def forward(self, llm, from_id, to_id, msg, violation_counts, black_set):
        seen = self.seen
        await asyncio.sleep(0)
        self.seen = seen + 1
        return self.seen % 10 != 0, f"number {self.seen}"


class Once(MessageBlockBase):
    """A block that changes the black set as a test tells it."""

    def __init__(self, do):
        super().__init__("once")
        self.do = do

    async def forward(self, llm, from_id, to_id, msg, violation_counts, black_set):
        return self.do(msg, violation_counts, black_set)


class Model:
    """A model that objects to marked texts; it cannot be pickled, like most clients."""

    def __init__(self):
        self.lock = threading.Lock()
        self.asked = []

    async def says_fine(self, msg):
        self.asked.append(msg)
        await asyncio.sleep(0)
        return "rude" not in json.loads(msg)["content"]


def message(from_id=1, to_id=2, content="hello"):
    return message_of(content, from_id, to_id)


def block_in(block, pairs=(), **settings):
    """Put a block into an interceptor with a black list."""
    rule = Block(block, **settings)
    Interceptor("e", [BlackList(pairs), rule])
    return rule


async def judged(rule, *rows):
    """Judge messages all at once, counting as the interceptor does; return the passed ones, and the reasons."""

    async def one(row):
        verdict = await rule.judge(message(*row))
        if verdict.blocked:
            rule.context.violations[row[0]] = rule.context.violations.get(row[0], 0) + 1
        return verdict.reason or True

    return await asyncio.gather(*(one(row) for row in rows))


async def test_a_pardoned_sender_may_write_again():
    rule = block_in(RudeBlock("points", 3, for_all=True), [(1, None)], llm=Model())
    assert await judged(rule, (1, 2, "hello")) == ["on the black set"]
    rule.context.black_list.remove([(1, None)])
    assert await judged(rule, (1, 2, "hello")) == [True]


class Reference:
    """AgentSociety's decision: ask each block in turn, count for the refused sender."""

    def __init__(self, blocks, llm):
        self.blocks, self.llm = blocks, llm
        self.counts, self.pairs = defaultdict(int), set()

    async def forward(self, from_id, to_id, msg):
        for block in self.blocks:
            fine, _ = await block.forward(self.llm, from_id, to_id, msg, self.counts, self.pairs)
            if not fine:
                self.counts[from_id] += 1
                return False
        return True


SENT = st.tuples(st.integers(1, 3), st.integers(1, 3), st.sampled_from(["hello", "rude"]))


@settings(max_examples=40)
@given(st.lists(SENT, max_size=30))
def test_it_decides_as_agentsociety_does(sent):
    async def compare():
        blocks = [RudeBlock("edges", 2), RudeBlock("points", 4, for_all=True)]
        theirs, ours = Reference(blocks, Model()), Interceptor("e", [Block(block, Model()) for block in blocks])
        for from_id, to_id, content in sent:
            expected = await theirs.forward(from_id, to_id, json.dumps({"content": content}))
            assert await ours.forward(from_id, to_id, {"content": content}) == expected
        assert ours.black_list.pairs == theirs.pairs
        assert {who: count for who, count in theirs.counts.items() if count} == dict(ours.violations)
        await ours.close()

    asyncio.run(compare())


async def test_one_at_a_time_in_order():
    rule = block_in(Locked())
    said = await judged(rule, *[(n, n + 1, "") for n in range(40)])
    assert said == [f"number {n}" if n % 10 == 0 else True for n in range(1, 41)]
    assert rule.name == "locked", "a block without a name has its class's"


async def test_msg_is_what_agentsociety_gives():
    told = []
    rule = block_in(Once(lambda msg, counts, pairs: (told.append(msg) or True, "")))
    payload = {"type": "chat", "content": "grüße 你好", "n": [1, 2.5, None, True]}
    assert await rule.judge(Message("e", batch_of([(1, 2)], payloads=[payload]), 0)) is ALLOW
    assert told == [json.dumps(payload, default=str)]


@pytest.mark.parametrize("ids", [(None, 2), (1, None), (None, None)])
async def test_the_user_is_not_asked_about(ids):
    rule = block_in(Once(lambda *_: (False, "no")))
    assert rule.at_once(message(*ids)) is ALLOW
    assert await rule.judge(message(*ids)) is ALLOW
    assert rule.at_once(message()) is None
    assert (await rule.judge(message())).reason == "no"


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (False, "once refused it, from 1 to 2"),
        ((False, ""), "once refused it, from 1 to 2"),
        ((False, None), "once refused it, from 1 to 2"),
        ((False, {"why": 1}), "{'why': 1}"),
        (None, "the rule failed: TypeError: forward returned None: return (True, '') or (False, 'why')"),
        ((1, ""), "the rule failed: TypeError: forward returned (1, ''): return (True, '') or (False, 'why')"),
    ],
)
async def test_its_answers(answer, reason):
    rule = block_in(Once(lambda *_: answer))
    assert (await rule.judge(message())).reason == reason
    assert await block_in(Once(lambda *_: True)).judge(message()) is ALLOW


async def test_a_block_that_raises():
    def bad(msg, counts, pairs):
        pairs.add(7)

    verdict = await block_in(Once(bad)).judge(message())
    assert verdict.reason.startswith("the rule failed: RuleError: 7 is not a pair")
    assert await block_in(Once(bad), on_error="allow").judge(message()) is ALLOW
    assert "belongs to no interceptor" in (await Block(Once(bad)).judge(message())).reason


async def test_a_hanging_block_delays_the_next_only_for_its_timeout():
    class Hanging(MessageBlockBase):
        hang = True

        async def forward(self, **_):
            if self.hang:
                self.hang = False
                await asyncio.Event().wait()
            return True, ""

    rule = block_in(Hanging(), timeout_s=0.02)
    assert await judged(rule, (1, 2), (1, 2)) == ["the rule failed: TimeoutError: no answer within 0.02 s", True]
    await rule.close()


def test_the_black_set_is_the_black_list_and_nothing_else():
    context = Interceptor("e", [BlackList([(1, 2)])])
    pairs = BlackSet(context)
    pairs.add((3, None))
    pairs.update([(4, 4)], {(5, 5)})
    pairs |= {(6, 6)}
    assert context.black_list.pairs == {(1, 2), (3, None), (4, 4), (5, 5), (6, 6)} == set(pairs)
    pairs.discard((4, 4))
    pairs.discard((9, 9))
    pairs.discard("nothing")
    pairs.remove((5, 5))
    pairs -= [(6, 6)]
    with pytest.raises(InvalidAddress):
        pairs |= [(7, 7), (8, 8.5)]  # all or none
    assert pairs == {(1, 2), (3, None)}
    assert len(pairs) == 2
    with pytest.raises(KeyError):
        pairs.remove((9, 9))
    for own in (pairs.copy(), pairs | {(7, 7)}, pairs.union({(7, 7)}), pairs - set(), pairs & pairs, copy.copy(pairs),
                copy.deepcopy(pairs), pairs.difference([]), pairs.intersection(pairs)):  # fmt: skip
        assert type(own) is set
        own.add((8, 8))
    assert context.black_list.pairs == {(1, 2), (3, None)}
    pairs.clear()
    assert not context.black_list.pairs


def test_black_sets_lose_many_pairs_in_one_change():
    many = {(agent, agent + 1) for agent in range(20_000)}
    context = Interceptor("e", [BlackList(many)])
    pairs, same = BlackSet(context), BlackSet(context)
    changes = []
    remove = context.black_list.remove
    context.black_list.remove = lambda pairs: changes.append(remove(pairs))
    pairs -= many - {(0, 1)}
    assert set(pairs) == {(0, 1)}
    pairs -= same
    assert not pairs
    pairs.update(many)
    pairs.clear()
    assert not context.black_list.pairs
    assert len(changes) == 3


def test_violation_counts_are_the_interceptors():
    context = Interceptor("e")
    context.violations[1] = 2
    counts = ViolationCounts(context)
    assert (counts[1], counts[7], counts.get(7), 7 in counts, len(counts)) == (2, 0, 0, False, 1)
    counts[7] += 1
    del counts[1]
    assert context.violations == {7: 1} == dict(counts)
    copy.deepcopy(counts)[7] = 9
    assert context.violations == {7: 1}


async def test_it_travels():
    rule = ray.cloudpickle.loads(ray.cloudpickle.dumps(Block(RudeBlock("edges", 2), make_llm=Model)))
    for _ in range(2):
        Interceptor("e", [rule])
        said = await judged(rule, (1, 2, "rude"), (1, 2, "rude"), (1, 2, "hello"))
        assert said == ["rude", "rude", "on the black set"]
        rule = ray.cloudpickle.loads(ray.cloudpickle.dumps(rule))
    assert rule.context is None
    assert rule.describe() == {
        "name": "edges", "kind": "Block", "block": "RudeBlock", "timeout_s": 300.0, "on_error": "block",
    }  # fmt: skip


class Sync:
    def forward(self, llm, from_id, to_id, msg, violation_counts, black_set):
        return True, ""


@pytest.mark.parametrize(
    ("block", "settings", "said"),
    [
        (RudeBlock, {}, "not a block"),
        (Sync(), {}, "async def forward"),
        (print, {}, "not a block"),
        (RudeBlock("e", 1), {"llm": 1, "make_llm": Model}, "pass either llm, or make_llm"),
        (RudeBlock("e", 1), {"make_llm": "gpt"}, "make_llm"),
        (RudeBlock("e", 1), {"timeout_s": 0}, "timeout_s"),
        (RudeBlock("e", 1), {"on_error": "no"}, "on_error"),
        (RudeBlock("e", 1), {"name": ""}, "name"),
    ],
)
def test_bad_settings(block, settings, said):
    with pytest.raises(RuleError, match=said):
        Block(block, **settings)
