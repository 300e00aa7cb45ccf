"""The page of the calls in a real browser: of a log, and of a run whose agents wait for their answers."""

import asyncio
import threading

import pytest
from support.cluster import wait_for
from support.inspector import browser, inspector, picture

from ray_messaging import Calls, Messaging, Price, Steps, by_content, report_usage, run

pytestmark = pytest.mark.long

AGENTS, LAST = 60, 5
PRICES = {"large": Price(input="2.50", cached="1.25", output="10"), "small": Price(input="0.15", output="0.60")}
RING = [(agent, (agent + more) % AGENTS) for agent in range(AGENTS) for more in (1, 2, 7)]


@pytest.fixture(scope="module")
def seen():
    with browser() as found:
        yield found


async def ask(prompt, *, words, seconds=0.0):
    """Answer as a model would, which takes some time and some tokens."""
    await asyncio.sleep(seconds)
    report_usage(model="large" if words > 90 else "small", input_tokens=40 * words, output_tokens=words)
    return f"{words} words on {prompt}"


async def citizen(me, inbox):
    words = 20 + (7 * me.id + 13 * me.step) % 80
    alone = me.step == LAST  # in the last step one agent asks, so that it is the slowest one of the step
    if not alone or me.id == 15:
        asked = by_content(ask, uses="ask")
        about, words = f"the park in {me.step}", words // 10 * 10 + 5
        me.state["said"] = await me.remember(asked, about, words=words, seconds=0.3 * alone)
    for friend in me.neighbours:
        me.send(friend, {"text": me.state["said"]})


def test_the_page_of_a_log_says_what_calls_have_cost_and_who_took_the_longest(seen, tmp_path):
    run(
        citizen, agents=AGENTS, until=LAST + 1, graph=RING, log_dir=tmp_path / "log", progress=False,
        calls=Calls(cost=PRICES, store=tmp_path / "store", concurrency=50),
    )  # fmt: skip
    with inspector(tmp_path / "log") as url:
        seen.base = url
        seen.go("/calls")
        seen.sees("figure-saved", "tokens)")
        seen.sees("measure", "Cost by step")
        seen.element("by-step").locator("canvas").first.wait_for()
        seen.sees("slowest", "longer than the next agent")
        seen.sees("slowest", "then wrote to 16, 17, 22")  # agent 15 did so
        seen.sees("by-model", "large")
        assert seen.element("now").count() == 0
        picture(seen, "inspector-calls-of-a-log")
        seen.open("about:blank")


def patient():
    """Return a model whose calls are answered once a file is there. Ray's processes cannot import this module."""

    async def held(prompt, path):
        while not path.exists():  # noqa: ASYNC110 - another process makes the file
            await asyncio.sleep(0.05)
        report_usage(model="small", input_tokens=900, output_tokens=50)
        return prompt

    async def waits(me, inbox):
        if me.id % 3 == 0:
            await me.remember(held, f"What do you do, agent {me.id}?", me.shared / f"{me.step}")
        for friend in me.neighbours:
            me.send(friend, {"text": "hello"})

    return waits


def test_the_page_of_a_run_says_which_calls_are_under_way_and_whom_they_hold_up(seen, ray_cluster, tmp_path):
    (tmp_path / "0").touch()
    calls = Calls(concurrency=8, cost=PRICES)
    steps = Steps(seed=1, wait_for="neighbours")
    with Messaging.start("calls-of-a-run", steps=steps, calls=calls, log_dir=tmp_path / "log") as messaging:
        lives = threading.Thread(
            target=messaging.run,
            args=(patient(),),
            kwargs={"agents": AGENTS, "groups": 2, "until": 2, "graph": RING, "shared": tmp_path, "progress": False},
        )
        lives.start()
        try:
            with messaging.ui(port=0) as page:
                seen.base = page.url
                seen.go("/calls")
                seen.sees("figure-flight", "8")
                seen.sees("figure-waits", "12")
                seen.sees("now", "step 1: 1 in flight, for")
                seen.sees("now", "holds up 1, 2, 7")
                wait_for(lambda: seen.number("figure-made") == 20)
                seen.sees("by-agent", "950")
                picture(seen, "inspector-calls")
                (tmp_path / "1").touch()
                seen.sees("now", "No call is under way.")
                seen.open("about:blank")
        finally:
            (tmp_path / "1").touch()
            lives.join()


def test_the_page_of_a_run_without_a_log_says_so_and_waits_for_nothing(seen, ray_cluster):
    with Messaging.start("calls-without-a-log", steps=Steps()) as messaging, messaging.ui(port=0) as page:
        seen.base = page.url
        seen.go("/calls")
        seen.sees("now", "No call is under way.")
        seen.sees("no-log", "log_dir=")
        assert seen.page.locator(".pending").count() == 0
        seen.open("about:blank")
