"""Failures of rules: each blocks only its messages, is counted for its rule, and each distinct error is logged once."""

import asyncio
import logging

import pytest
from support.interceptors import Held, answered, batch, judged, waited, whole
from support.rules import AskingBlock, Only

from ray_messaging.interception.interceptor import interceptor as interceptor_module
from ray_messaging.interception.interceptor.interceptor import Interceptor
from ray_messaging.interception.rules import (
    ALLOW,
    Block,
    EdgeBan,
    Moderator,
    Pattern,
    Rule,
    SenderBan,
    block,
    label,
    rewrite,
)


class Odd(Rule):
    """Fail on each message that says so, always at the same line, and each time in other words."""

    needs_payload = True

    def __init__(self, name="odd", on_error="block"):
        self.name, self.on_error = name, on_error

    def check(self, message):
        text = message.payload["text"]
        if text == "other":
            raise TypeError("another place")
        raise ValueError(f"what about {text}?")


class Mute(Exception):
    def __str__(self):
        raise RuntimeError("no words")


def failures(interceptor):
    return {rule.name: interceptor.failures.of(rule).get("failures", 0) for rule in interceptor.rules}


def tracebacks(caplog):
    return [record for record in caplog.records if record.exc_info]


async def asks(interceptor, count, *, first=0, texts=None):
    return await waited(interceptor, batch([{"text": str(n)} for n in texts or range(count)], first=first))


async def fails_at_once(_):
    raise ValueError("no")


async def exits(_):
    raise SystemExit(3)


def slow(**settings):
    return Held("slow", settings.pop("answer", ValueError("no")), is_open=True, **settings)


def late():
    rule = Held("slow")
    rule.time_limit_s = 0.01
    return rule


WAYS = {
    "check": Odd,
    "check_batch": lambda: whole("whole", ValueError("no")),
    "not a mapping": lambda: whole("whole", []),
    "rows outside the batch": lambda: whole("whole", {7: block("no")}),
    "no verdict": lambda: whole("whole", dict.fromkeys(range(3), "no")),
    "SystemExit": lambda: whole("whole", SystemExit(1)),
    "CancelledError": lambda: whole("whole", asyncio.CancelledError()),
    "RecursionError": lambda: whole("whole", RecursionError()),
    "an error whose words cannot be sent": lambda: whole("whole", ValueError("odd \ud800")),
    "cannot be sent": lambda: whole("whole", dict.fromkeys(range(3), rewrite({"text": "\ud800"}))),
    "a label that cannot be sent": lambda: whole("whole", dict.fromkeys(range(3), label("\ud800"))),
    "an error without words": lambda: whole("whole", Mute()),
    "a slow rule": slow,
    "a slow rule's verdict cannot be sent": lambda: slow(answer=rewrite({"text": "\ud800"})),
    "a slow rule that answers nonsense": lambda: slow(answer="no"),
    "a slow rule without an answer": lambda: slow(answer=None),
    "a slow rule that would end the process": lambda: slow(answer=SystemExit(3)),
    "a slow rule that was cancelled": lambda: slow(answer=asyncio.CancelledError()),
    "a slow rule's error without words": lambda: slow(answer=Mute()),
    "a slow rule at once": lambda: slow(at_once=lambda message: 1 / 0),
    "a slow rule that is too late": late,
    "a moderator": lambda: Moderator(fails_at_once, cache=0),
    "a moderator that would end the process": lambda: Moderator(exits),
    "a block of AgentSociety": lambda: Block(AskingBlock(fails_at_once)),
    "a block that would end the process": lambda: Block(AskingBlock(exits)),
    "a ban's check": lambda: SenderBan(Odd()),
    "a ban's check of whole batches": lambda: EdgeBan(whole("whole", ValueError("no"))),
    "a pattern's field": lambda: Pattern(["a"], [r"(a|aa)+$"], time_limit_s=1e-9),
}


@pytest.mark.parametrize("way", WAYS)
async def test_a_rule_that_fails_is_counted_by_message_whichever_way_it_fails(way, caplog):
    rule = WAYS[way]()
    interceptor = Interceptor("x", [rule])
    text = "a" * 40 + "b" if way == "a pattern's field" else "a"
    found = await waited(interceptor, batch([{"text": f"{text}{n}"} for n in range(3)]))
    assert set(found.blocked) == {0, 1, 2}
    assert failures(interceptor) == {rule.name: 3}
    assert len(tracebacks(caplog)) == 1
    await interceptor.close()


@pytest.mark.parametrize("wrap", [lambda rule: rule, SenderBan], ids=["check", "a ban's check"])
@pytest.mark.parametrize(
    "error", [ValueError("odd"), SystemExit(3), asyncio.CancelledError(), RecursionError(), None, "no"], ids=repr
)
async def test_a_check_that_fails_on_one_message_blocks_that_one(wrap, error):
    def fails_on_one(message):
        if message.from_id != 1:
            return ALLOW
        if isinstance(error, BaseException):
            raise error
        return error

    rule = wrap(Only(fails_on_one))
    interceptor = Interceptor("x", [rule])
    asked = batch([{"text": str(n)} for n in range(4)], pairs=[(n, 9) for n in range(4)])
    assert set((await answered(interceptor, asked)).blocked) == {1}
    assert failures(interceptor) == {rule.name: 1}


async def test_long_reasons_are_cut_so_that_the_answer_can_be_sent():
    found = await judged([whole("long", {n: block(f"{n}" + "x" * 1_000_000) for n in range(4)})], 4)
    assert [found.blocked[n] for n in range(4)] == [("long", f"{n}" + "x" * 1_999) for n in range(4)]


async def test_verdicts_that_are_too_large_to_be_sent_block_and_say_so(monkeypatch):
    monkeypatch.setattr(interceptor_module, "FRAME_LIMIT", 1_000)
    found = await judged([whole("large", {n: rewrite({"text": f"{n}" * 400}) for n in range(4)})], 4)
    assert {rule for rule, _ in found.blocked.values()} == {"interceptor"}
    assert "the limit is 1000" in found.blocked[3][1]


async def test_failures_with_on_error_allow_are_counted():
    rules = [Odd(on_error="allow"), SenderBan(Odd(on_error="allow"), name="ban"), slow(on_error="allow")]
    interceptor = Interceptor("x", rules)
    found = await asks(interceptor, 5)
    assert not found.blocked
    assert failures(interceptor) == {"odd": 5, "ban": 5, "slow": 5}
    assert interceptor.failures.of(rules[0])["on_error"] == "allow"


async def test_distinct_errors_are_logged_and_repeats_are_summed_up(caplog):
    rule = Odd()
    interceptor = Interceptor("x", [rule])
    with caplog.at_level(logging.DEBUG):
        for first in range(0, 2000, 100):
            await asks(interceptor, 100, first=first)
        await asks(interceptor, 1, first=2000, texts=["other"])
    told = interceptor.failures.of(rule)
    assert [(each["error"], each["failures"]) for each in told["errors"]] == [
        ("ValueError: what about 0?", 2000),
        ("TypeError: another place", 1),
    ]
    assert (told["failures"], told["last_error"]) == (2001, "TypeError: another place")
    assert len(tracebacks(caplog)) == 2
    said = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(said) == 5  # the first of each, and once there were 10, 100 and 1,000
    assert "has failed 1000 times by now: ValueError" in said[3]


async def test_a_rule_with_ever_new_errors_says_twenty_of_them(caplog):
    class Ever(Rule):
        def check_batch(self, batch, exp_id):
            exec(compile("\n" * batch.first + "raise ValueError('no')", "rule.py", "exec"))

    rule = Ever()
    interceptor = Interceptor("x", [rule])
    for first in range(100):
        await asks(interceptor, 1, first=first)
    told = interceptor.failures.of(rule)
    assert told["failures"] == sum(each["failures"] for each in told["errors"]) == 100
    assert len(tracebacks(caplog)) == len(told["errors"]) == 21
    assert len(caplog.records) == 21 + 1


async def test_failures_end_when_the_rule_goes_and_its_successor_begins_anew():
    odd, slow = Odd(), Held("slow", ValueError("no"))
    interceptor = Interceptor("x", [odd, slow])
    await asks(interceptor, 2)
    assert failures(interceptor) == {"odd": 2, "slow": 0}
    await interceptor.change(lambda: interceptor.rules.pop("odd"))
    waiting = asyncio.create_task(asks(interceptor, 3, first=2))
    await slow.called(3)
    await interceptor.change(lambda: interceptor.rules.replace("slow", Held("slow", is_open=True)))
    slow.release()
    assert set((await waiting).blocked) == {0, 1, 2}
    assert failures(interceptor) == {"slow": 0}
    await interceptor.change(lambda: interceptor.rules.insert(odd))
    assert failures(interceptor) == {"slow": 0, "odd": 0}
    await interceptor.close()


async def test_a_rule_with_a_failing_error_handler_blocks_and_floods_no_log(caplog):
    class Worse(Odd):
        def failed(self, error):
            raise KeyError("no verdict either")

        def check_batch(self, batch, exp_id):
            raise ValueError("no")

    rule = Worse("worse")
    interceptor = Interceptor("x", [rule])
    for first in range(9):
        assert set((await answered(interceptor, batch([{}], first=first))).blocked) == {0}
    assert failures(interceptor) == {"worse": 9}
    assert len(caplog.records) == 2
