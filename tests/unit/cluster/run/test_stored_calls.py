"""Calls by content in whole runs: each content is called once, and the runs say how many calls that saved."""

import asyncio
from collections import Counter
from pathlib import Path

import pydantic
import pytest
from support.studies import work_here

from ray_messaging import Calls, batch_run, by_content, run
from ray_messaging.errors import ConfigError, StepFailed
from ray_messaging.steps.call_store import FILE

AGENTS, STEPS = 12, 3


def note(file, prompt):
    with Path(file).open("a") as calls:
        calls.write(f"{prompt}\n")


def asked(file):
    return sorted(Path(file).read_text().splitlines()) if Path(file).exists() else []


async def ask(prompt, *, file):
    """Answer as a model: each answer is another one, and counted."""
    note(file, prompt)
    answer = f"{prompt.upper()} {len(asked(file))}"
    await asyncio.sleep(0)
    return answer


async def person(me, inbox, *, file, topics=3):
    me.state["said"] = await me.remember(ask, f"topic {me.id % topics} in {me.step}", file=file)
    me.send((me.id + 1) % AGENTS, {"said": me.state["said"]})


@pytest.fixture
def file(tmp_path):
    return str(tmp_path / "calls")


@pytest.fixture
def calls(tmp_path):
    return Calls(store=tmp_path / "store")


def go(model, calls, **options):
    given = {"agents": AGENTS, "until": STEPS, "progress": False}
    return run(model, calls=calls, **given | options)


def by(model, **given):
    async def bound(me, inbox):
        await model(me, inbox, **given)

    return bound


def test_each_content_is_called_once_by_all_agents_groups_and_runs(file, calls):
    first = go(by(person, file=file), calls, groups=3)
    assert asked(file) == sorted(f"topic {topic} in {step}" for topic in range(3) for step in range(STEPS))
    assert (first.calls.model, first.calls.store) == (9, AGENTS * STEPS - 9)
    again = go(by(person, file=file), calls, seed=5, groups=2)
    assert (again.calls.model, again.calls.store) == (0, AGENTS * STEPS)
    assert again.states == first.states
    more = go(by(person, file=file, topics=4), calls, until=1)
    assert (more.calls.model, len(asked(file))) == (1, 10)


def test_without_a_store_each_agent_calls(file):
    assert go(by(person, file=file), Calls(), until=1).calls.model == AGENTS == len(asked(file))


def test_samples_are_so_many_answers_and_none_shares_nothing(file, calls):
    async def sampled(me, inbox, sample):
        some = by_content(ask, sample=sample)
        me.state["heard"] = await asyncio.gather(*(me.remember(some, "mood?", file=file) for _ in range(3)))

    three = go(by(sampled, sample=3), calls, until=1)
    assert asked(file) == ["mood?"] * 3
    assert {len({*state["heard"]}) for state in three.states.values()} == {3}
    assert len({state["heard"][0] for state in three.states.values()}) > 1  # not all begin with the same one
    assert go(by(sampled, sample=3), calls, until=1, groups=2).states == three.states
    assert asked(file) == ["mood?"] * 3
    one = go(by(sampled, sample=1), calls, until=1)  # the answers of an agent in one step are never the same one
    assert len({(*state["heard"],) for state in one.states.values()}) == 1
    assert len({*one.states[0]["heard"]}) == 3
    assert asked(file) == ["mood?"] * 3
    assert go(by(sampled, sample=None), calls, until=1).calls.model == 3 * AGENTS


def test_a_call_whose_content_cannot_be_told_is_an_error_that_names_it(calls):
    lock = asyncio.Lock()

    async def locked(me, inbox):
        async def guarded():
            return lock is None

        await me.remember(guarded)

    with pytest.raises(StepFailed, match=r"ConfigError|cannot tell.*the function's 'lock' is <asyncio.*uses="):
        go(locked, calls)


def test_an_error_is_not_stored(file, calls):
    async def fails(prompt):
        note(file, prompt)
        raise ValueError("no answer")

    async def brave(me, inbox):
        try:
            await me.remember(fails, "x")
        except ValueError as error:
            me.state["error"] = str(error)

    result = go(brave, calls, until=2)
    assert {state["error"] for state in result.states.values()} == {"no answer"}
    assert result.calls.model == result.calls.store == 0
    assert 2 <= len(asked(file)) <= 2 * AGENTS


@pytest.mark.parametrize("given", [{"retries": 2, "concurrency": 1}, {"rate_per_minute": 60_000.0}])
def test_a_local_run_has_the_limits_of_calls(file, given):
    running, most, tries = [0], [0], Counter()

    class Busy(Exception):
        status_code = 429

    async def slow(prompt):
        running[0] += 1
        most[0] = max(most[0], running[0])
        await asyncio.sleep(0)
        running[0] -= 1
        tries[prompt] += 1
        return prompt

    async def asks(me, inbox):
        me.state["said"] = await me.remember(slow, str(me.id))

    result = go(asks, Calls(**given), until=1, groups=2)
    assert result.calls.model == AGENTS == sum(tries.values())
    assert most[0] == 1 or "concurrency" not in given


def test_a_local_run_ends_with_the_steps_that_its_budget_has_paid(file):
    result = go(by(person, file=file), Calls(budget=AGENTS + 3))
    assert (result.steps, result.stopped, result.calls.spent) == (1, True, True)
    assert len(asked(file)) == AGENTS + 3


@pytest.mark.parametrize("store", ["s3://bucket/calls", "", 5])
def test_a_store_is_a_folder_of_this_machine(store):
    with pytest.raises(pydantic.ValidationError, match="store"):
        Calls(store=store)


def test_a_store_that_cannot_be_used_is_told_before_a_step(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(ConfigError, match="is a file"):
        go(by(person, file="unused"), Calls(store=tmp_path / "file"))
    with pytest.raises(ConfigError, match="is not a Calls object"):
        go(by(person, file="unused"), {"store": "x"})


def test_a_study_makes_the_different_calls_only(file, calls, tmp_path, monkeypatch):
    work_here(monkeypatch)

    async def voter(me, inbox, *, topics):
        await person(me, inbox, file=file, topics=topics)

    study = batch_run(
        voter,
        {"topics": [2, 3, 4]},
        replicates=3,
        agents=AGENTS,
        until=STEPS,
        calls=calls,
        outcomes={"said": lambda result: result.states[0]["said"]},
        folder=tmp_path / "study",
        progress=False,
    )
    assert asked(file) == sorted(f"topic {topic} in {step}" for topic in range(4) for step in range(STEPS))
    table = study.to_pandas()
    assert table.error.isna().all()
    assert table.said.nunique() == 1
    assert study.calls.model == 4 * STEPS
    assert study.calls.model + study.calls.store == 9 * AGENTS * STEPS
    assert f"{9 * AGENTS * STEPS - 12:,} from the store" in repr(study)
    assert Path(calls.store, FILE).exists()


def repeated(question):
    return question


async def asks_alike(me, inbox):
    await me.remember(repeated, f"{me.step} {me.id % (2 if me.step else 6)}")


async def asks_in_one_group(me, inbox):
    if me.id % 3 == 0:
        await me.remember(repeated, f"{me.step}")


@pytest.mark.parametrize("budget", [4, 7, 9])
def test_a_spent_budget_ends_the_groups_that_share_answers(calls, budget):
    limited = calls.model_copy(update={"budget": budget})
    result = go(asks_alike, limited, groups=3, until=4)
    assert (result.stopped, result.calls.spent, result.calls.model) == (True, True, budget)


def test_a_spent_budget_ends_the_groups_that_made_no_calls():
    result = go(asks_in_one_group, Calls(budget=6), groups=3, until=4)
    assert (result.steps, result.stopped, result.calls.model) == (1, True, 6)
