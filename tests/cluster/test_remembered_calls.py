"""Remembered calls on Ray: a fake model counts its calls in a file, and the log's folder has each of them once."""

import asyncio
import json
import re
import time
import uuid
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Literal

import pydantic
import pytest
from support.cluster import die_once
from support.step_society import SEED

from benchmarks.fake_openai import served
from ray_messaging import Calls, EventLog, Messaging, Price, Steps, models, rules
from ray_messaging.cluster.run.run import Run, RunActors
from ray_messaging.cluster.run.run_plan import RunOptions
from ray_messaging.errors import BudgetSpent, ConfigError, StepFailed

AGENTS, STEPS = 12, 4
PARENT_OF = "ray_messaging.cluster.run.run.parent_of"


def note(file, prompt):
    with Path(file).open("a") as calls:
        calls.write(f"{prompt}\n")


async def ask(prompt, *, file, mood=0.5):
    """Answer as a model that is asked over a network, and count the call."""
    note(file, prompt)
    await asyncio.sleep(0.05)
    return prompt.upper(), time.time()


asked_here = []  # the remembered calls of this process


async def remember(me, *call, **arguments):
    asked_here.append(asyncio.ensure_future(me.remember(*call, **arguments)))
    return await asked_here[-1]


async def person(me, inbox, *, file, marks=None):
    heard = [message.payload["said"] for message in inbox]
    me.state["said"], me.state["at"] = await remember(me, ask, f"agent {me.id} heard {len(heard)}: {heard}", file=file)
    me.send((me.id + 1) % AGENTS, {"said": me.state["said"]})
    if marks is not None and (me.id, me.step) == (5, 2):
        await asyncio.wait(asked_here)
        die_once(marks)


def asked(file):
    return sorted(file.read_text().splitlines()) if file.exists() else []


def test_a_kill_makes_no_call_again_and_each_call_is_in_the_log_once(start_steps, tmp_path):
    file, folder, mark = tmp_path / "calls", tmp_path / "log", tmp_path / "mark"
    messaging = start_steps(log_dir=folder)
    model = partial(person, file=str(file), marks=mark)
    result = messaging.run(model, agents=AGENTS, groups=3, until=STEPS, progress=False)
    assert mark.exists()
    prompts = asked(file)
    assert len(prompts) == len({*prompts}) == AGENTS * STEPS
    live = messaging.log.calls()
    messaging.shutdown()

    log = EventLog.open(folder)
    calls = log.calls().to_pandas()
    assert calls.equals(live.to_pandas())
    assert [*zip(calls.step, calls.agent, strict=True)] == [(s, a) for s in range(STEPS) for a in range(AGENTS)]
    arguments = [json.loads(text) for text in calls.arguments]
    assert sorted(each["args"][0] for each in arguments) == prompts
    assert {each["kwargs"]["file"] for each in arguments} == {str(file)}
    kept = calls[calls.source == "kept"]
    assert {*zip(kept.step, kept.agent, strict=True)} == {(2, agent) for agent in range(AGENTS) if agent % 3 == 2}
    assert {*calls.source} == {"kept", "model"}
    assert {*calls.function} == {"ask"}
    assert {*calls.tries} == {1}
    assert calls.seconds.between(0.04, 10).all()
    last = log.sql(f"select agent, result->>1 as at from calls where step = {STEPS - 1} order by agent").to_pylist()
    assert {row["agent"]: float(row["at"]) for row in last} == {a: state["at"] for a, state in result.states.items()}


@pytest.mark.long
def test_a_fork_makes_no_call_and_with_a_ban_only_those_whose_arguments_differ(start_steps, tmp_path):
    file, town = tmp_path / "calls", tmp_path / "town"
    model = partial(person, file=str(file))
    parent = start_steps(log_dir=town, checkpoint=1)
    result = parent.run(model, agents=AGENTS, groups=2, until=6, progress=False)
    parent.shutdown()
    before = asked(file)
    for name, banned in (("twin", []), ("ban", [rules.BlackList([(3, 4)])])):
        fork = partial(Messaging.fork, town, f"{name}-{uuid.uuid4().hex[:8]}", log_dir=tmp_path / name, at_step=2)
        with fork(rules=banned) as messaging:
            again = messaging.run(model, agents=AGENTS, groups=2, until=6, progress=False)
        calls = EventLog.open(tmp_path / name).calls().to_pandas()
        assert [*zip(calls.step, calls.agent, strict=True)] == [(s, a) for s in range(6) for a in range(AGENTS)]
        made = calls[(calls.source == "model") & (calls.step >= 2)]
        assert sorted(made.arguments.map(lambda text: json.loads(text)["args"][0])) == sorted(
            (Counter(asked(file)) - Counter(before)).elements()
        )
        assert (again.states == result.states) is not banned
        # Agent 4 hears nothing from step 3 on, agent 5 hears otherwise from step 4 on, and so on.
        assert {*zip(made.step, made.agent, strict=True)} == {
            (step, 4 + later) for step in range(3, 6) for later in range(step - 2) if banned
        }
        before = asked(file)


@pytest.mark.long
def test_an_earlier_run_that_cannot_be_read_ends_the_run(start_steps, tmp_path, monkeypatch):
    born = tmp_path / "log" / "_calls" / "0"
    born.mkdir(parents=True)
    (born / "00000000-00000003.parquet").write_bytes(b"PAR1 and no more")
    model, options = partial(person, file=str(tmp_path / "calls")), RunOptions(None, "agent", 100, None)
    monkeypatch.setattr(PARENT_OF, lambda _: str(tmp_path / "log"))
    with (
        Run(start_steps(), model, AGENTS, 2, None, None, options, RunActors(), ("spread", None)) as standing,
        pytest.raises(StepFailed, match="is damaged"),
    ):
        standing.advance()
    assert asked(tmp_path / "calls") == []


class Busy(Exception):
    status_code = 429


async def ask_busy(prompt, *, file):
    """Answer each prompt at the second time it is asked; the first time there are too many."""
    began = time.time()
    asked_before = any(line.split(" ", 1)[1] == prompt for line in asked(Path(file)))
    note(file, f"{began} {prompt}")
    await asyncio.sleep(0.02)
    if not asked_before:
        raise Busy(prompt)
    return prompt


@pytest.mark.long
def test_four_groups_hold_a_rate_with_a_model_that_is_too_busy_half_of_the_time(
    start_steps, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr("ray_messaging.common.progress_line._LINE_S", 0.5)

    async def busy(me, inbox, *, file):
        me.state["said"] = await me.remember(ask_busy, f"{me.id} in {me.step}", file=file)

    file, rate = tmp_path / "calls", 1200
    messaging = start_steps(log_dir=tmp_path / "log", calls=Calls(rate_per_minute=rate, retries=3))
    result = messaging.run(partial(busy, file=str(file)), agents=60, groups=4, until=2)
    messaging.shutdown()
    lines = [line.split(" ", 1) for line in asked(file)]
    assert Counter(prompt for _, prompt in lines) == {f"{a} in {s}": 2 for a in range(60) for s in range(2)}
    assert (result.calls.model, result.calls.retries, result.steps) == (120, 120, 2)
    assert re.search(r"; \d+ calls, \d+ waiting, \d+ retries", capsys.readouterr().err)
    assert EventLog.open(tmp_path / "log").calls()["tries"].to_pylist() == [2] * 120
    # The first tries of 60 agents keep to the rate of all groups together; then they wait before they try again. A busy
    # machine begins some later than they may.
    began = sorted(float(at) for at, prompt in lines if prompt.endswith("in 1"))[:60]
    assert rate / 2 < 59 / (began[-1] - began[0]) * 60 < rate * 1.5


@pytest.mark.long
def test_a_budget_ends_the_run_cleanly_and_a_later_start_goes_on(by_value, tmp_path):
    file, folder, name = tmp_path / "calls", tmp_path / "log", f"budget-{uuid.uuid4().hex[:8]}"
    model = partial(person, file=str(file))

    def start_with(budget, on_existing):
        steps, calls = Steps(seed=SEED, digest=True), Calls(budget=budget, keep_arguments=False)
        return Messaging.start(name, steps=steps, log_dir=folder, calls=calls, on_existing=on_existing)

    with start_with(30, "error") as messaging:
        result = messaging.run(model, agents=AGENTS, groups=3, until=STEPS, progress=False)
        assert (result.steps, result.stopped, result.calls.spent) == (2, True, True)
        assert {state["said"].split()[3] for state in result.states.values()} == {"1:"}
        assert len(asked(file)) == 30
        with messaging.start_run(model, agents=AGENTS, groups=3) as standing, pytest.raises(BudgetSpent):
            standing.advance()
    with start_with(18, "resume") as messaging:
        result = messaging.run(model, agents=AGENTS, groups=3, until=STEPS, progress=False)
        assert (result.steps, result.stopped, result.calls.model, result.calls.spent) == (STEPS, False, 18, False)
        assert result.calls.kept <= 6  # those of groups that have not committed the step that was open
    assert len(asked(file)) == len({*asked(file)}) == AGENTS * STEPS
    arguments = EventLog.open(folder).calls()["arguments"]
    assert (len(arguments), arguments.null_count) == (AGENTS * STEPS, AGENTS * STEPS)


async def citizen(me, inbox, *, marks):
    heard = " ".join(message.payload["place"] for message in inbox)
    me.state["place"] = (await remember(me, me.shared, f"I am {me.id}, and friends go to {heard}."))["place"]
    me.send((me.id + 1) % AGENTS, {"place": me.state["place"]})
    if (me.id, me.step) == (5, 2):
        await asyncio.wait(asked_here)
        die_once(marks)


class Choice(pydantic.BaseModel):
    place: Literal["cafe", "market", "park"]


@pytest.mark.long
def test_the_log_has_what_the_server_was_paid_for_over_a_kill_and_a_budget_that_is_raised(by_value, tmp_path):
    folder, name, mark = tmp_path / "log", f"paid-{uuid.uuid4().hex[:8]}", tmp_path / "mark"
    model = partial(citizen, marks=mark)

    def play(budget, on_existing):
        calls = Calls(budget=budget, cost=Price(input=10, cached=5, output=30), concurrency=4)
        start = partial(Messaging.start, name, steps=Steps(seed=SEED), log_dir=folder, calls=calls)
        with start(on_existing=on_existing) as messaging:
            return messaging.run(model, agents=AGENTS, groups=3, until=STEPS, shared=chat, progress=False)

    with served(refuse=0.3, unfit=0.1) as server:
        chat = models.Chat(model="small", base_url=server.base_url, form=Choice, corrections=9)
        first = play("0.02 USD", "error")  # enough for step 0 and some calls of step 1
        assert (first.stopped, first.calls.spent, mark.exists()) == (True, True, False)
        half = server.counts()["answered"]
        assert 0 < half < AGENTS * STEPS
        assert play("100 USD", "resume").steps == STEPS
        assert mark.exists()
        counts = server.counts()
    assert counts["answered"] - counts["unfit"] == AGENTS * STEPS  # none was made twice
    [total] = EventLog.open(folder).calls(by="model").to_pylist()
    given, cached, output = (counts[f"{kind}_tokens"] for kind in ("prompt", "cached", "completion"))
    assert (total["model"], total["calls"]) == ("small", AGENTS * STEPS)
    assert (total["input_tokens"], total["cached_tokens"], total["output_tokens"]) == (given, cached, output)
    assert total["cost"] * 10**6 == (given - cached) * 10 + cached * 5 + output * 30


def test_calls_without_steps_and_of_another_type_are_refused(by_value):
    for calls, text in ((Calls(budget=1), r"add steps=Steps\(\)"), ({"budget": 1}, "is not a Calls object")):
        with pytest.raises(ConfigError, match=text):
            Messaging.start("refused", calls=calls)


async def voter(me, inbox, *, file):
    me.state["said"] = await me.remember(ask, f"topic {me.id % 3} in {me.step}", file=file)


@pytest.mark.long
def test_groups_with_a_store_make_each_call_of_a_content_once(start_steps, tmp_path):
    file, calls = tmp_path / "calls", Calls(store=tmp_path / "store")
    for log, made in (("one", 3 * STEPS), ("two", 0)):
        messaging = start_steps(log_dir=tmp_path / log, calls=calls)
        result = messaging.run(partial(voter, file=str(file)), agents=AGENTS, groups=2, until=STEPS, progress=False)
        assert (result.calls.model, result.calls.store) == (made, AGENTS * STEPS - made)
        assert asked(file) == sorted(f"topic {topic} in {step}" for topic in range(3) for step in range(STEPS))
        found = Counter(messaging.log.calls()["source"].to_pylist())
        assert found == Counter({"model": made, "store": AGENTS * STEPS - made})
        messaging.shutdown()
    (tmp_path / "file").write_text("no folder")
    messaging = start_steps(calls=Calls(store=tmp_path / "file"))
    with pytest.raises(ConfigError, match="is a file: name a folder"):
        messaging.run(partial(voter, file=str(file)), agents=AGENTS, groups=2, until=STEPS, progress=False)
