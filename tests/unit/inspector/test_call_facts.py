"""What the page of the calls shows of a log: sums by step, agent and model, and the slowest agents."""

from decimal import Decimal

import pytest

from ray_messaging import Calls, Price, by_content, report_usage, run
from ray_messaging.inspector.sources.call_facts import _money
from ray_messaging.inspector.sources.folder_facts import FolderFacts

AGENTS, STEPS = 6, 3


async def ask(topic, tokens):
    report_usage(model="small" if tokens < 500 else "large", input_tokens=tokens, output_tokens=0)
    return topic


async def person(me, inbox):
    me.state["said"] = await me.remember(
        by_content(ask, uses="ask"), f"{me.id // 2} in {me.step}", 100 * (me.id // 2 + 4)
    )
    me.send((me.id + 1) % AGENTS, {"said": me.state["said"]})


@pytest.fixture
def lived(tmp_path):
    calls = Calls(cost=Price(input=1, output=1), store=tmp_path / "store")
    run(person, agents=AGENTS, until=STEPS, calls=calls, log_dir=tmp_path / "log", progress=False)
    return FolderFacts(tmp_path / "log")


def test_the_sums_are_those_of_the_log(lived):
    found = lived.calls()
    assert "Calls" not in lived.lacks
    each = 400 + 500 + 600
    assert (found.made, found.saved, found.tokens, found.saved_tokens) == (9, 9, STEPS * each, STEPS * each)
    assert (found.cost, found.measure) == ("0.0045", "cost")
    assert (found.by_step.steps, found.by_step.lines) == ([0, 1, 2], {"cost": [pytest.approx(each / 1e6)] * STEPS})
    assert {model.name: (model.calls, model.tokens) for model in found.models} == {
        "large": (6, STEPS * 1100),
        "small": (3, STEPS * 400),
    }
    assert sum(agent.calls for agent in found.agents) == AGENTS * STEPS
    assert {slow.step for slow in found.slowest} <= {*range(STEPS)}
    for slow in found.slowest:
        assert slow.seconds >= slow.longer > 0
        assert (slow.hears, slow.named) == (1, [str((int(slow.agent) + 1) % AGENTS)])


def test_a_log_without_calls_has_no_page_of_calls(tmp_path):
    async def silent(me, inbox):
        me.send(1, {"text": "hello"})

    run(silent, agents=2, until=1, log_dir=tmp_path / "log", progress=False)
    facts = FolderFacts(tmp_path / "log")
    assert "Calls" in facts.lacks
    assert (facts.calls().made, facts.calls().slowest, facts.calls().by_step.steps) == (0, [], [])


@pytest.mark.parametrize(
    ("amount", "text"),
    [("0", "0.00"), ("0.0033", "0.0033"), ("0.00012346", "0.0001235"), ("12.5", "12.50"), ("1234.567", "1,234.57")],
)
def test_money_is_rounded_to_four_digits_and_at_least_to_cents(amount, text):
    assert _money(Decimal(amount)) == text
