"""A check of models finds each cause of results that do not repeat, and says where."""

import asyncio
import random
import re
import threading
import time
import uuid
from collections import Counter
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from ray_messaging.cluster.run.run_plan import RunOptions, check_run
from ray_messaging.errors import ConfigError, NotRepeatable, StepFailed
from ray_messaging.testing import check_repeatable

AGENTS, STEPS = 12, 4
EDGES = [(agent, (agent + k) % AGENTS) for agent in range(AGENTS) for k in (1, 5)]
NAMES = [f"name {n}" for n in range(40)]
order, calls = [], {"model": 0}


def check(model, **given):
    check_repeatable(model, **{"agents": AGENTS, "until": STEPS, "graph": EDGES, **given})


def tell(me, word):
    me.state["word"] = word
    for friend in me.neighbours:
        me.send(friend, {"word": word})


def clean(me, inbox):
    heard = sum(message.payload["word"] for message in inbox)
    tell(me, 0.9 * me.state.get("word", 0.0) + 0.1 * heard + float(me.rng.normal()) + len(sorted(set(NAMES))))


async def clean_async(me, inbox):
    await asyncio.sleep(0)
    clean(me, inbox)


def clean_crowd(crowd, step):
    crowd.state["x"] = crowd.state.get("x", np.zeros(len(crowd.ids))) + step.uniform(1)[:, 0]
    step.send_columns(crowd.ids, (crowd.ids + 1) % AGENTS, [{"x": x} for x in crowd.state["x"].tolist()])


def clean_counts(me, inbox):
    seen = me.state.setdefault("seen", {})
    for message in inbox:
        seen[message.from_id] = seen.get(message.from_id, 0) + 1
    me.state["names"] = me.state.get("names", frozenset()) | {*NAMES[: me.step + 2]}
    tell(me, len(seen))


def clean_total(crowd, step):
    crowd.state["total"] = crowd.state.get("total", 0) + 1
    crowd.state["ndim"] = np.full(len(crowd.ids), np.ndim(crowd.state["total"]))


def telling(make):
    """Return a model that says what a function makes."""
    return lambda me, inbox: tell(me, make())


def with_uuid(me, inbox):
    me.state["id"] = uuid.uuid4().hex


def with_arrival(me, inbox):
    order.append(me.id)
    tell(me, order.index(me.id))


def ask():
    """Answer as a model that answers differently each time."""
    calls["model"] += 1
    return calls["model"]


async def with_a_remembered_model(me, inbox):
    tell(me, await me.remember(ask))


def with_the_grouping(crowd, step):
    crowd.state["x"] = np.full(len(crowd.ids), len(crowd.ids))


def closure():
    kept = {}

    def with_a_closure(me, inbox):
        if me.step == 0:
            kept[me.id] = me.id * 2
        tell(me, kept.get(me.id, "lost"))

    return with_a_closure


def locked():
    lock = threading.Lock()
    return lambda me, inbox: tell(me, lock.locked())


@pytest.mark.long  # each example of the page is a clean model, too
@pytest.mark.parametrize("model", [clean, clean_counts, with_a_remembered_model, clean_async])
async def test_a_clean_model_passes(model):
    check(model, start=lambda me: {"word": float(me.rng.normal())}, graph=iter(EDGES))


@pytest.mark.long
def test_a_clean_crowd_passes():
    check(clean_crowd, by="group", graph=None)
    check(clean_total, by="group", graph=None, agents=iter(range(AGENTS)))


@pytest.mark.parametrize(
    ("model", "given", "words"),
    [
        (clean, {"by": "grup"}, "by='grup'"),
        (clean, {"until": "3"}, "until"),
        (clean, {"until": -1}, "until"),
        (locked(), {}, r"the model cannot be sent to other processes: its .*lock"),
        (lambda me: None, {}, r"must take two arguments, def person\(me, inbox\), but its parameters are \(me\)"),
        (lambda me, inbox, more: None, {}, "missing a required argument: 'more'"),
        (lambda me, inbox, *, more: None, {}, "missing a required .*argument: 'more'"),
        (lambda group: None, {"by": "group", "graph": None}, r"def crowd\(group, step\)"),
        (Counter, {}, r"model=<class .*Counter'> must be a function"),
        (clean, {"start": dict}, None),
        (clean, {"start": lambda *, me: {}}, "must take one argument"),
        (clean, {"start": lambda me, rng: {}}, "'rng'"),
        (partial(lambda me, inbox, more: tell(me, more), more=3), {}, None),
        (lambda *both: None, {}, None),
    ],
)
def test_a_model_or_option_that_cannot_be_is_refused_before_it_runs(model, given, words):
    if words is None:
        check_run(model, RunOptions(given.get("start"), "agent", 1, None))
        return
    with pytest.raises(ConfigError, match=words):
        check(model, **given)


def long(*models):
    return [pytest.param(model, marks=pytest.mark.long) for model in models]


@pytest.mark.parametrize(
    "model",
    [
        telling(random.random),
        with_uuid,
        *long(telling(lambda: float(np.random.normal())), telling(time.time_ns), telling(ask)),  # noqa: NPY002 - the sin
    ],
)
def test_what_another_attempt_does_otherwise_is_found(model):
    with pytest.raises(NotRepeatable, match=r"step 0 .* agent 0 .* ran again: .*docs/repeatability\.md") as caught:
        check(model)
    assert (caught.value.step, caught.value.agent) == (0, 0)
    assert caught.value.mine != caught.value.theirs
    assert caught.value.what == ("state" if model is with_uuid else "message")


@pytest.mark.parametrize(
    ("model", "step"),
    [
        (telling(lambda: " ".join(set(NAMES))), 0),  # the whole order: one name alone is often the same by chance
        pytest.param(telling(lambda: hash("word")), 0, marks=pytest.mark.long),
        pytest.param(with_arrival, 0, marks=pytest.mark.long),
        pytest.param(closure(), 1, marks=pytest.mark.long),
    ],
)
def test_what_another_process_does_otherwise_is_found(model, step):
    with pytest.raises(NotRepeatable, match="message in another process") as caught:
        check(model)
    assert caught.value.step == step


def with_the_name_of_the_group(crowd, step):
    step.send_columns(crowd.ids, crowd.ids, {"name": crowd.name})


@pytest.mark.parametrize("model", [with_the_grouping, *long(with_the_name_of_the_group)])
def test_a_crowd_that_depends_on_its_group_is_found(model):
    with pytest.raises(NotRepeatable, match=r"step 0 .* agent . .* with the agents in two groups"):
        check(model, by="group", graph=None)


def test_the_first_difference_is_named():
    def late(me, inbox):
        tell(me, 1.0 if (me.step, me.id) < (2, 7) else random.random())

    with pytest.raises(NotRepeatable, match="step 2 is not repeatable: agent 7 has another message when") as caught:
        check(late)
    assert (caught.value.step, caught.value.agent) == (2, 7)
    assert (caught.value.mine.to_id, caught.value.theirs.to_id) == (8, 8)
    assert "word" in caught.value.mine.payload


def test_a_model_that_fails_at_once_raises_its_own_error():
    def fails(me, inbox):
        raise ZeroDivisionError

    with pytest.raises(StepFailed, match="agent 0"):
        check(fails)


@pytest.mark.long
def test_a_model_that_fails_only_in_another_process_is_not_repeatable():
    kept = {}

    def fails_later(me, inbox):
        if me.step == 0:
            kept[me.id] = 1
        tell(me, kept[me.id])

    with pytest.raises(NotRepeatable, match=r"step 1 .* fails in another process.*KeyError") as caught:
        check(fails_later)
    assert caught.value.step == 1
    assert caught.value.agent in {0, 1, 2}  # the first ones of that process' groups, which fail at the same time


def test_the_page_has_examples_that_run():
    page = (Path(__file__).parents[3] / "docs" / "repeatability.md").read_text()
    names = {}
    for example in re.findall(r"^```python\n(.*?)^```$", page, re.DOTALL | re.MULTILINE):
        exec(example, names)
    names["test_person_is_repeatable"]()
    names["test_everybody_hears"]()
