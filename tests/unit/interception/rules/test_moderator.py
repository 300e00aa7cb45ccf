"""The moderator: its questions, their number, and messages without an answer."""

import asyncio
import contextlib
import copy
import logging
from functools import partial

import numpy as np
import pytest
import ray.cloudpickle
from support.rules import AskingBlock
from support.rules import message_of as message

from ray_messaging.errors import RuleError
from ray_messaging.interception.interceptor.interceptor import Interceptor
from ray_messaging.interception.rules.agentsociety_rules import Block, Supervisor
from ray_messaging.interception.rules.moderator import Moderator
from ray_messaging.interception.rules.rule import ALLOW, block, label, rewrite


class Judge:
    """A judge with given answers; it records its questions, and holds answers back until `open` is set."""

    def __init__(self, *answers, is_open=True):
        self.answers = list(answers)
        self.asked = []
        self.now = self.most = 0
        self.open = asyncio.Event()
        if is_open:
            self.open.set()
        self.came = asyncio.Condition()

    async def __call__(self, asked):
        self.asked.append(asked.payload["content"])
        self.now += 1
        self.most = max(self.most, self.now)
        async with self.came:
            self.came.notify_all()
        try:
            await self.open.wait()
        finally:
            self.now -= 1
        answer = (self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]) if self.answers else True
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def has(self, count):
        async with self.came:
            await self.came.wait_for(lambda: len(self.asked) >= count)


@pytest.mark.parametrize(
    ("answer", "verdict"),
    [
        (True, ALLOW),
        (ALLOW, ALLOW),
        (np.True_, ALLOW),
        (False, block("the moderator refused it")),
        (np.False_, block("the moderator refused it")),
        ("too loud", block("too loud")),
        (block("no"), block("no")),
        (label("loud"), label("loud")),
        (rewrite({"content": "***"}), rewrite({"content": "***"})),
    ],
)
async def test_its_answers(answer, verdict):
    assert await Moderator(Judge(answer)).judge(message()) == verdict


@pytest.mark.parametrize("answer", [None, "", 1, (False, "no"), block(3), b"no"])
async def test_nonsense_blocks(answer):
    rule = Moderator(Judge(answer))
    verdict = await rule.judge(message())
    assert verdict.blocked
    assert verdict.reason.startswith("the rule failed: TypeError")
    assert rule.at_once(message()) is None, "an error is not kept"


async def test_an_error_blocks_or_passes_and_is_not_kept():
    judge = Judge(OSError("no route"), True)
    rule = Moderator(judge)
    assert await rule.judge(message()) == block("the rule failed: OSError: no route")
    assert await rule.judge(message()) is ALLOW
    assert rule.stats() == {"asked": 2, "cached": 0, "shared": 0, "failed": 1, "waiting": 0}
    lenient = Moderator(Judge(OSError("no route"), "bad"), on_error="allow")
    assert await lenient.judge(message()) is ALLOW
    assert await lenient.judge(message()) == block("bad")


async def test_a_dead_service_is_reported_once(caplog):
    rule = Moderator(Judge(OSError("a"), OSError("b"), True, OSError("c")))
    with caplog.at_level(logging.WARNING):
        for content in "wxyz":
            await rule.judge(message(content))
    assert [record.getMessage() for record in caplog.records] == [
        "rule 'moderator' fails, so each message that it should judge is blocked: OSError: a",
        "rule 'moderator' fails, so each message that it should judge is blocked: OSError: c",
    ]


async def test_it_repeats_failed_questions():
    judge = Judge(OSError("a"), None, "bad")
    rule = Moderator(judge, retries=2)
    assert await rule.judge(message()) == block("bad")
    assert len(judge.asked) == 3
    assert await Moderator(Judge(OSError("a"), OSError("b"), True), retries=1).judge(message()) == block(
        "the rule failed: OSError: b"
    )


async def test_an_answer_in_time_is_required():
    judge = Judge(is_open=False)
    rule = Moderator(judge, timeout_s=0.02)
    assert await rule.judge(message()) == block("the rule failed: TimeoutError: no answer within 0.02 s")
    judge.open.set()
    assert await rule.judge(message()) is ALLOW
    await rule.close()
    assert judge.now == 0


async def test_retries_end_with_the_time():
    rule = Moderator(Judge(OSError("a")), timeout_s=0.02, retries=1000)
    assert await rule.judge(message()) == block("the rule failed: TimeoutError: no answer within 0.02 s")
    await rule.close()


async def test_a_judge_that_ignores_cancellation_is_left_behind():
    stop = asyncio.Event()
    started = []

    async def deaf(asked):
        started.append(asked)
        while not stop.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await stop.wait()

    rule = Moderator(deaf, timeout_s=0.01, concurrency=1)
    first = await rule.judge(message("a"))
    assert first.reason == "the rule failed: TimeoutError: no answer within 0.01 s"
    second = await rule.judge(message("b"))  # only after a second's grace
    assert "still run, although they were cancelled" in second.reason
    assert len(started) == 1
    stop.set()
    await rule.close()


async def test_cancelling_itself_is_an_error():
    async def judge(asked):
        raise asyncio.CancelledError

    assert (await Moderator(judge).judge(message())).reason.endswith("the call was cancelled from within")


async def test_so_many_at_a_time():
    judge = Judge(is_open=False)
    rule = Moderator(judge, concurrency=3)
    judged = [asyncio.ensure_future(rule.judge(message(n))) for n in range(20)]
    await judge.has(3)
    await asyncio.gather(*(asyncio.ensure_future(judge.has(3)) for _ in range(50)))  # time for a fourth to slip in
    assert len(judge.asked) == 3
    assert rule.stats()["waiting"] == 20
    judge.open.set()
    assert await asyncio.gather(*judged) == [ALLOW] * 20
    assert judge.most == 3
    assert judge.asked == list(range(20)), "in the order they came"


async def test_verdicts_are_kept_and_the_longest_unused_goes_first():
    judge = Judge("no")
    rule = Moderator(judge, cache=2)
    a, b, c = message("a"), message("b"), message("c")
    assert rule.at_once(a) is None
    for asked in (a, b):
        await rule.judge(asked)
    assert rule.at_once(message("a", from_id=7)) == block("no"), "by its payload alone"
    await rule.judge(c)
    assert rule.at_once(a) is not None
    assert rule.at_once(b) is None
    assert await rule.judge(a) == block("no")
    assert judge.asked == ["a", "b", "c"]
    assert rule.stats()["cached"] == 3


async def test_keyed_by_more_than_the_payload():
    async def judge(asked):
        return asked.from_id != 1

    rule = Moderator(judge, key=lambda asked: (asked.from_id, asked.data))
    assert (await rule.judge(message(from_id=1))).blocked
    assert not (await rule.judge(message(from_id=2))).blocked
    assert rule.at_once(message(from_id=1)).blocked
    assert not rule.at_once(message(from_id=2)).blocked


@pytest.mark.parametrize("key", [lambda asked: asked.nothing, lambda asked: [asked.from_id]])
async def test_a_key_that_fails(key):
    judge = Judge()
    rule = Moderator(judge, key=key)
    assert rule.at_once(message()) is None
    assert (await rule.judge(message())).blocked
    assert not judge.asked


async def test_alike_at_the_same_time_share_a_call():
    judge = Judge("no", is_open=False)
    rule = Moderator(judge)
    judged = [asyncio.ensure_future(rule.judge(message())) for _ in range(10)]
    await judge.has(1)
    judged[0].cancel()  # who leaves does not take the others' call along
    await asyncio.wait(judged[:1])
    judge.open.set()
    assert await asyncio.gather(*judged[1:]) == [block("no")] * 9
    assert judged[0].cancelled()
    assert judge.asked == ["hello"]
    assert rule.stats()["shared"] == 9


async def test_no_cache_shares_nothing():
    judge = Judge(is_open=False)
    rule = Moderator(judge, cache=0)
    judged = [asyncio.ensure_future(rule.judge(message())) for _ in range(4)]
    await judge.has(4)
    judge.open.set()
    await asyncio.gather(*judged)
    assert rule.at_once(message()) is None
    assert len(judge.asked) == 4


async def test_closing_gives_up():
    judge = Judge(is_open=False)
    rule = Moderator(judge)
    judged = [asyncio.ensure_future(rule.judge(message(n))) for n in range(3)]
    await judge.has(3)
    await rule.close()
    assert all(verdict.blocked and "closed" in verdict.reason for verdict in await asyncio.gather(*judged))
    assert judge.now == 0


async def test_cancelled_without_a_cache():
    judge = Judge(is_open=False)
    rule = Moderator(judge, cache=0, concurrency=1)
    judged = asyncio.ensure_future(rule.judge(message()))
    await judge.has(1)
    judged.cancel()
    await asyncio.wait([judged])
    assert judged.cancelled()
    judge.open.set()
    assert await rule.judge(message()) is ALLOW, "its place was given back"


async def test_in_the_interceptor():
    judge = Judge(block("no"))
    interceptor = Interceptor("e", [Moderator(judge)])
    passed = await asyncio.gather(*(interceptor.forward(n, 2, {"content": n % 10}) for n in range(50)))
    assert passed == [False] * 50
    assert sorted(judge.asked) == list(range(10))
    assert dict(interceptor.violations) == dict.fromkeys(range(50), 1)
    await interceptor.close()


def plain(asked):
    return True


async def right(asked, more=None):
    return True


class _Supervisor:
    async def forward(self, current_round_messages):
        return {}, []


@pytest.mark.parametrize(
    "rule", [Moderator(right), Block(AskingBlock(right)), Supervisor(_Supervisor())], ids=lambda rule: rule.name
)
def test_a_copy_of_a_rule_in_force_is_a_rule_of_its_own(rule):
    Interceptor("town", [rule])
    for made in (copy.copy(rule), copy.deepcopy(rule), ray.cloudpickle.loads(ray.cloudpickle.dumps(rule))):
        assert made.context is None
        for own in {"_work", "_calls"} & rule.__dict__.keys():
            assert made.__dict__[own] is not rule.__dict__[own]
        assert made.describe() == rule.describe()


def test_partials_of_async_functions_serve():
    assert Moderator(partial(right, more=1))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"judge": plain}, "async def"),
        ({"judge": Judge}, "async def"),
        ({"judge": "gpt"}, "cannot be called"),
        ({"timeout_s": 0}, "timeout_s"),
        ({"timeout_s": None}, "timeout_s"),
        ({"timeout_s": float("nan")}, "timeout_s"),
        ({"concurrency": 0}, "concurrency"),
        ({"concurrency": True}, "concurrency"),
        ({"cache": -1}, "cache"),
        ({"cache": None}, "cache"),
        ({"retries": -1}, "retries"),
        ({"on_error": "pass"}, "on_error"),
        ({"key": "content"}, "key"),
        ({"key": right}, "key"),
        ({"name": ""}, "name"),
    ],
)
def test_bad_settings(settings, said):
    with pytest.raises(RuleError, match=said):
        Moderator(**{"judge": right, **settings})
