"""Tokens and money of remembered calls in whole runs: what is counted, the budget, and what is paid once."""

import asyncio
import contextlib
import threading
import time
from collections import Counter
from decimal import Decimal

import pytest

from ray_messaging import Calls, EventLog, Price, by_content, report_usage, run
from ray_messaging.errors import ConfigError, StepFailed

AGENTS, STEPS = 6, 2
PRICE = Price(input="0.15", output="0.6", cached="0.075")


def go(model, calls, **options):
    return run(model, calls=calls, **{"agents": AGENTS, "until": STEPS, "progress": False} | options)


async def ask(prompt):
    """Answer as a client of OpenAI does, and report what it has used."""
    usage = {"prompt_tokens": 100, "completion_tokens": 10, "prompt_tokens_details": {"cached_tokens": 40}}
    report_usage({"model": "small-2026", "usage": usage})
    return prompt.upper()


async def person(me, inbox):
    me.state["said"] = await me.remember(ask, f"{me.id} in {me.step}")


def test_the_end_of_a_run_says_what_it_has_used_and_what_it_has_cost():
    result = go(person, Calls(cost=PRICE))
    calls = AGENTS * STEPS
    found = result.calls
    assert (found.input_tokens, found.cached_tokens, found.output_tokens) == (100 * calls, 40 * calls, 10 * calls)
    each = (60 * Decimal("0.15") + 40 * Decimal("0.075") + 10 * Decimal("0.6")) / 1_000_000
    assert found.cost == each * calls
    assert str(found) == f"12 calls, 1,320 tokens, {each * calls} USD"
    assert str(found) in repr(result)


def test_with_progress_the_end_of_a_run_says_so_on_stderr(capsys):
    go(person, Calls(cost=PRICE), progress=True)
    assert capsys.readouterr().err.splitlines()[-1] == "12 calls, 1,320 tokens, 0.000216 USD"
    go(person, Calls(), progress=True)
    assert "tokens" not in capsys.readouterr().err


def test_a_sum_of_many_small_costs_is_exact():
    async def tiny(me, inbox):
        for number in range(100):
            await me.remember(used, number)

    async def used(number):
        report_usage(input_tokens=1, output_tokens=0)
        return number

    found = go(tiny, Calls(cost=Price(input="0.1", output="0")), agents=10, until=1)
    assert found.calls.cost == Decimal("0.0001")


def test_an_answer_that_is_openais_dict_is_counted_unless_its_function_reports():
    async def answer(twice):
        if twice:
            report_usage(model="large", input_tokens=1, output_tokens=2)
            report_usage(model="small", input_tokens=3, output_tokens=4)
        return {"model": "small", "usage": {"prompt_tokens": 5, "completion_tokens": 6}}

    async def asks(me, inbox):
        me.state["is"] = await me.remember(answer, me.id == 1)

    found = go(asks, Calls(), agents=2, until=1).calls
    assert (found.input_tokens, found.output_tokens, found.cost, str(found)) == (9, 12, 0, "2 calls, 21 tokens")
    prices = {"large": Price(input=1, output=1), "s": Price(input=0, output=0), "small": Price(input=0, output=2)}
    assert go(asks, Calls(cost=prices), agents=2, until=1).calls.cost == Decimal("0.000023")
    with pytest.raises(StepFailed, match=r"no price for model 'small', only for 'large': add \{'small'"):
        go(asks, Calls(cost={"large": Price(input=1, output=1)}), agents=2, until=1)


@pytest.mark.parametrize(
    "usage",
    [
        {"prompt_tokens": "12", "completion_tokens": 3},
        {"prompt_tokens": 1.5, "completion_tokens": 3},
        {"input_tokens": -5, "output_tokens": 3},
        {"input_tokens": 2, "output_tokens": 3, "input_tokens_details": {"cached_tokens": 9}},
        {"input_tokens": 2**70, "output_tokens": 3},
    ],
)
def test_a_dict_whose_usage_is_none_of_tokens_is_a_result_like_others(usage):
    async def plan():
        return {"usage": usage}

    async def person(me, _inbox):
        me.state["plan"] = await me.remember(plan)

    found = run(person, agents=[1], until=1, progress=False)
    assert found.states == {1: {"plan": {"usage": usage}}}
    assert (found.calls.input_tokens, found.calls.output_tokens) == (0, 0)


def test_a_call_that_says_nothing_is_an_error_where_tokens_or_money_are_limited():
    async def silent(prompt):
        return prompt

    async def asks(me, inbox):
        await me.remember(silent, "?")

    assert go(asks, Calls(cost=PRICE)).calls.cost == 0
    for limit in ({"budget": "5 USD", "cost": PRICE}, {"tokens_per_minute": 100}):
        with pytest.raises(StepFailed, match="has not said how many tokens it used"):
            go(asks, Calls(**limit))


def test_a_budget_of_money_ends_the_run_and_what_was_paid_is_not_paid_again(tmp_path):
    made = Counter()

    async def counted(prompt):
        made[prompt] += 1
        report_usage(input_tokens=0, output_tokens=1)
        return prompt

    async def asks(me, inbox):
        await me.remember(by_content(counted, uses="counted"), f"{me.id} in {me.step}")

    price = Price(input=0, output=1_000_000)  # a call is a dollar

    def with_budget(budget):
        return go(asks, Calls(cost=price, budget=budget, store=tmp_path / "store"), groups=2)

    first = with_budget("9 USD")
    assert (first.stopped, first.calls.spent, first.steps, first.calls.cost) == (True, True, 1, 9)
    again = with_budget("9 USD")  # a run has a budget of its own, and this one finds nine answers
    assert (again.stopped, again.steps, again.calls.cost, again.calls.store) == (False, STEPS, 3, 9)
    assert made == {f"{agent} in {step}": 1 for agent in range(AGENTS) for step in range(STEPS)}


@pytest.mark.parametrize("wait_for", ["all", "neighbours"])
def test_a_store_says_how_many_tokens_and_how_much_money_it_saved(tmp_path, wait_for):
    async def asks(me, inbox):
        me.state["said"] = await me.remember(by_content(ask, uses="ask"), f"{me.id % 2} in {me.step}")
        me.send((me.id + 1) % AGENTS, {"said": me.state["said"]})

    ring = [(one, (one + 1) % AGENTS) for one in range(AGENTS)]
    each = (60 * Decimal("0.15") + 40 * Decimal("0.075") + 10 * Decimal("0.6")) / 1_000_000
    options = {"graph": ring, "wait_for": wait_for}
    first = go(asks, Calls(cost=PRICE, store=tmp_path / "store"), log_dir=str(tmp_path / "log"), **options)
    found, saved = first.calls, AGENTS * STEPS - 2 * STEPS
    assert (found.model, found.store, found.saved_tokens, found.saved_cost) == (4, saved, 110 * saved, each * saved)
    assert str(found).endswith(f" {saved} from the store, 440 tokens, {each * 4} USD, saved 880 tokens, {each * 8} USD")
    rows = EventLog.open(tmp_path / "log").calls(by="source").to_pylist()
    assert [(row["source"], row["saved_tokens"], row["saved_cost"]) for row in rows] == [
        ("model", None, None),
        ("store", 110 * saved, each * saved),
    ]
    twice = Price(input="0.3", output="1.2", cached="0.15")  # what was saved has the prices of the run that asks
    again = go(asks, Calls(cost=twice, store=tmp_path / "store"), **options).calls
    assert (again.model, again.cost, again.saved_cost) == (0, 0, 2 * each * AGENTS * STEPS)
    other = go(asks, Calls(cost={"large": PRICE}, store=tmp_path / "store"), **options).calls
    assert (other.saved_tokens, other.saved_cost) == (110 * AGENTS * STEPS, 0)  # this run has no price of the model


def test_tries_that_fail_are_paid_too():
    class Busy(Exception):
        status_code = 429

    tried = Counter()

    async def busy(prompt):
        tried[prompt] += 1
        report_usage(input_tokens=10, output_tokens=1)
        if tried[prompt] == 1:
            raise Busy
        return prompt

    async def asks(me, inbox):
        await me.remember(busy, me.id)

    found = go(asks, Calls(retries=1, cost=PRICE), agents=2, until=1).calls
    assert (found.model, found.retries, found.input_tokens, found.output_tokens) == (2, 2, 40, 4)


def test_a_plain_function_that_goes_on_when_its_agent_has_given_it_up_counts_in_the_limits():
    free, alone = threading.Semaphore(), []

    def slow(prompt):
        alone.append(free.acquire(blocking=False))
        time.sleep(0.05)
        report_usage(input_tokens=100, output_tokens=0)
        if alone[-1]:
            free.release()

    async def hasty(me, inbox):
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(me.remember(slow, f"{me.id} in {me.step}"), 0.01)

    result = go(hasty, Calls(concurrency=1, cost=Price(input="1", output="1"), budget="0.00025 USD"), until=100)
    assert result.calls.spent
    assert alone == [True] * 3


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"budget": "5 USD"}, "needs cost=Price"),
        ({"budget": "5"}, "money with its currency"),
        ({"budget": "0 USD", "cost": PRICE}, "must be above 0"),
        ({"budget": 0}, "at least one call"),
        ({"budget": "5 EUR", "cost": PRICE}, "different currencies, EUR and USD"),
        ({"cost": {}}, "has no price"),
    ],
)
def test_limits_that_cannot_work_are_named(given, text):
    with pytest.raises(ValueError, match=text):
        Calls(**given)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({}, "needs the answer of the model's server"),
        ({"input_tokens": 1}, "or both input_tokens= and output_tokens="),
        ({"input_tokens": 1.5, "output_tokens": 1}, "must be whole and at least 0"),
        ({"input_tokens": 1, "output_tokens": 1, "cached_tokens": 2}, "cached_tokens at most input_tokens"),
    ],
)
def test_a_report_of_nothing_is_refused(given, text):
    with pytest.raises(ConfigError, match=text):
        report_usage(**given)
    with pytest.raises(ConfigError, match="has no usage"):
        report_usage({"text": "yes"})
