"""The watchdog: a rule that hangs is interrupted, or the process ends."""

import asyncio
import contextlib
import logging
import subprocess
import sys
import threading
import time

import pytest
from support.interceptors import Held, answered, batch, waited, whole
from support.rules import AskingBlock, Only, Whole

from ray_messaging.interception.interceptor.interceptor import Interceptor
from ray_messaging.interception.interceptor.watchdog import RuleCalls, RunningRule, Stuck, Watchdog
from ray_messaging.interception.rules import ALLOW, Block, Moderator, SlowRule, label

LIMIT_S = 0.1


def spin():
    while True:
        pass


def hanging(on_error="block"):
    return Whole(lambda _: spin(), "hanging", on_error)


def stubborn(_):
    """Hang in the code of one message, and swallow all exceptions there."""
    while True:
        with contextlib.suppress(Exception):
            spin()


class HangingSlow(SlowRule):
    name = "slow"

    def __init__(self, where):
        self.where = where

    def at_once(self, message):
        return spin() if self.where == "at once" else None

    def judge(self, message):
        return spin() if self.where == "before" else self.later()

    async def later(self):
        try:
            await asyncio.sleep(0)
            if self.where == "after":
                spin()
        finally:
            self.ended = True
        return label("fine")


@pytest.fixture
def watched():
    """Start a watchdog over an interceptor."""
    started = []

    def start(interceptor):
        started.append(Watchdog(interceptor.watch, rule_timeout_s=LIMIT_S))
        started[-1].start()
        return interceptor

    yield start
    for each in started:
        each.stop()
    assert not [thread for thread in threading.enumerate() if "watchdog" in thread.name]


@pytest.mark.parametrize("rule", [hanging(), Only(stubborn, "stubborn")], ids=lambda rule: rule.name)
async def test_a_rule_that_hangs_is_interrupted(watched, rule, caplog):
    interceptor = watched(Interceptor("x", [whole("first", {}), rule, whole("last", {0: label("late")})]))
    for first in (0, 2):
        found = await answered(interceptor, batch([{}] * 2, first=first))
        assert {rule for rule, _ in found.blocked.values()} == {rule.name}
        assert set(found.blocked) == {0, 1}
        assert "was interrupted" in found.blocked[0][1]
    told = interceptor.failures.of(rule)
    assert (told["failures"], told["errors"][0]["where"][:16]) == (4, "test_watchdog.py")
    said = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    said = [text for text in said if "all messages wait for it" in text]
    assert len(said) == 2
    assert repr(rule.name) in said[0]
    assert "in spin" in said[0]
    await asyncio.sleep(0)  # the loop goes on


async def test_a_rule_that_may_fail_is_passed_by(watched):
    interceptor = watched(Interceptor("x", [hanging("allow"), whole("last", {0: label("late")})]))
    found = await answered(interceptor, batch([{}]))
    assert (found.blocked, found.labels) == ({}, {"late": {0}})


@pytest.mark.parametrize("where", ["at once", "before", "after", "nowhere"])
async def test_a_slow_rule_that_hangs_in_its_own_code(watched, where):
    rule = HangingSlow(where)
    interceptor = watched(Interceptor("x", [rule]))
    found = await waited(interceptor, batch([{}]))
    if where == "nowhere":
        assert found.labels == {"fine": {0}}
    else:
        assert "was interrupted" in found.blocked[0][1]
    assert getattr(rule, "ended", False) == (where in {"after", "nowhere"})


async def spins(_):
    """Never let go of the loop."""
    spin()


@pytest.mark.parametrize(
    "rule",
    [Moderator(spins), Moderator(spins, cache=0), Block(AskingBlock(spins))],
    ids=["moderator", "without cache", "block"],
)
async def test_a_call_that_never_lets_go_of_the_loop_is_interrupted(watched, rule):
    interceptor = watched(Interceptor("x", [rule]))
    assert "was interrupted" in (await waited(interceptor, batch([{}]))).blocked[0][1]
    assert interceptor.failures.of(rule)["failures"] == 1
    await interceptor.close()


async def test_a_slow_rule_that_awaits_is_not_at_work(watched, caplog):
    slow = Held("slow", ALLOW)
    interceptor = watched(Interceptor("x", [slow]))
    await answered(interceptor, batch([{}]))
    await slow.called(1)
    assert interceptor.watch.rule is None
    slow.release()
    assert (await waited(interceptor, batch([{}]), rows=[0])).blocked == {}
    assert interceptor.watch.rule is None
    assert not caplog.records


async def test_a_function_of_a_rule_that_is_not_async_is_named():
    found = await RuleCalls().run(Only("plain"), lambda: ALLOW, 1.0, "verdict")
    with pytest.raises(TypeError, match=r"the rule's function returned Verdict\(.*is not async: write async def"):
        raise found


def test_a_rule_that_is_done_is_never_interrupted():
    """Interrupt again and again from another thread, at any point of the rule."""
    watch, rule = RunningRule(), whole("quick", {})
    over = threading.Event()
    thread = threading.get_ident()

    def strike():
        while not over.is_set():
            watch.strike(thread, watch.calls)

    striker = threading.Thread(target=strike)
    striker.start()
    hit = outside = 0
    deadline = time.monotonic() + 0.5
    try:
        while time.monotonic() < deadline:
            try:
                watch.run(rule, sum, (number for number in range(200)))
            except Stuck:
                hit += 1
            try:
                sum(range(50))  # nobody is at work: nothing may come here
            except Stuck:
                outside += 1
    finally:
        over.set()
        striker.join()
    assert outside == 0
    assert hit > 0


CHILD = """
import asyncio, re, sys, time
sys.path.insert(0, "tests")
from support.interceptors import answered, batch
from ray_messaging.interception.interceptor.interceptor import Interceptor
from ray_messaging.interception.rules import ALLOW, Rule
from ray_messaging.interception.interceptor.watchdog import Watchdog

class RunsAway(Rule):
    name = "runs_away"
    def check(self, message):
        if {way!r} == "regex":
            re.match("(a+)+$", "a" * 40 + "b")
        elif {way!r} == "sleep":
            time.sleep(60)
        return ALLOW

async def main():
    interceptor = Interceptor("x", [RunsAway()])
    dog = Watchdog(interceptor.watch, rule_timeout_s=0.1, exit_after_s=0.5)
    dog.start()
    await answered(interceptor, batch([{{}}]))
    await asyncio.sleep(1.0)  # an idle loop is left alone
    dog.stop()
    print("done")

asyncio.run(main())
"""


@pytest.mark.parametrize("way", ["regex", "sleep", "fine"])
def test_a_process_that_cannot_go_on_ends(way, request):
    """Run a rule that holds the loop where no exception reaches it."""
    code = CHILD.format(way=way)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=30, cwd=request.config.rootpath
    )
    if way == "fine":
        assert (done.returncode, done.stdout.strip()) == (0, "done"), done.stderr
    else:
        assert done.returncode == 1
        assert "Timeout (" in done.stderr
        assert "in check" in done.stderr
        assert "done" not in done.stdout


LATE = """
import sys
from ray_messaging.interception.interceptor.watchdog import RunningRule

watch = RunningRule()
watch.struck = True  # the interrupt comes after the rule has ended
watch.take_back()
sys.setprofile(lambda *_: None)
(lambda: None)()
sys.setprofile(None)
"""


def test_a_process_can_be_profiled_after_an_interrupt_that_came_too_late():
    """If Python takes the interrupt for pending for ever, all code is slower, and in 3.11 a profiler hangs."""
    subprocess.run([sys.executable, "-c", LATE], check=True, timeout=20)
