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

from ray_messaging import ConfigError, NotRepeatable, StepFailed
from ray_messaging.cluster.run.run import check_run
from ray_messaging.cluster.run.run_actor import RunOptions
from ray_messaging.testing import check_repeatable

AGENTS, STEPS = 12, 4
EDGES = [(agent, (agent + k) % AGENTS) for agent in range(AGENTS) for k in (1, 5)]
NAMES = [f"name {n}" for n in range(40)]
moods, order, calls = {}, [], {"model": 0}


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


def with_random(me, inbox):
    tell(me, random.random())


def with_numpy(me, inbox):
    tell(me, float(np.random.normal()))  # noqa: NPY002 - the sin


def with_clock(me, inbox):
    tell(me, time.time_ns())


def with_uuid(me, inbox):
    me.state["id"] = uuid.uuid4().hex


def with_a_set(me, inbox):
    tell(me, " ".join(set(NAMES)))  # the whole order: one name alone is the same by chance in 1 of 40 processes


def with_a_sum_over_a_set(me, inbox):
    values = {name: 0.1 * n for n, name in enumerate(NAMES, 10 * me.id)}
    tell(me, sum(values[name] for name in set(NAMES)))


def with_hash(me, inbox):
    tell(me, hash("word"))


def with_a_global(me, inbox):
    moods[me.id] = moods.get(me.id, 0) + 1
    tell(me, moods[me.id])


def with_arrival(me, inbox):
    order.append(me.id)
    tell(me, order.index(me.id))


def with_a_model(me, inbox):
    calls["model"] += 1  # as one that answers differently each time
    tell(me, f"answer {calls['model']}")


async def with_a_remembered_model(me, inbox):
    def ask():
        calls["model"] += 1
        return calls["model"]

    tell(me, await me.remember(ask))


def with_the_grouping(crowd, step):
    crowd.state["x"] = np.full(len(crowd.ids), len(crowd.ids))


def with_the_name_of_the_group(crowd, step):
    step.send_columns(crowd.ids, crowd.ids, {"name": crowd.name})


def with_the_mean_of_the_group(crowd, step):
    x = step.uniform(1)[:, 0]
    crowd.state["x"] = x - x.mean()


def closure():
    kept = {}

    def with_a_closure(me, inbox):
        if me.step == 0:
            kept[me.id] = me.id * 2
        tell(me, kept.get(me.id, "lost"))

    return with_a_closure


@pytest.mark.long  # each example of the page is a clean model, too
@pytest.mark.parametrize("model", [clean, clean_counts, with_a_remembered_model, clean_async])
def test_a_clean_model_passes(model):
    check(model, start=lambda me: {"word": float(me.rng.normal())})


@pytest.mark.long
def test_a_clean_crowd_passes():
    check(clean_crowd, by="group", graph=None)
    check(clean_total, by="group", graph=None, agents=iter(range(AGENTS)))


@pytest.mark.parametrize(
    ("given", "words"), [({"by": "grup"}, "by='grup'"), ({"until": "3"}, "until"), ({"until": -1}, "until")]
)
def test_arguments_are_checked_as_those_of_a_run(given, words):
    with pytest.raises(ConfigError, match=words):
        check(clean, **given)


@pytest.mark.parametrize(
    ("model", "given", "words"),
    [
        (lambda me: None, {}, r"must take two arguments, def person\(me, inbox\): too many .* are \(me\)"),
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
def test_a_model_that_cannot_be_called_is_refused_before_it_runs(model, given, words):
    if words is None:
        check_run(model, RunOptions(given.get("start"), "agent", 1, None))
        return
    with pytest.raises(ConfigError, match=words):
        check(model, **given)


def test_a_model_that_cannot_be_pickled_names_its_variable():
    lock = threading.Lock()

    def locked(me, inbox):
        with lock:
            tell(me, 1)

    with pytest.raises(ConfigError, match=r"the model cannot be sent to other processes: its .*lock"):
        check(locked)


@pytest.mark.long
def test_a_graph_may_be_an_iterator():
    check(clean, graph=iter(EDGES))


@pytest.mark.parametrize(
    "model",
    [
        with_random,
        with_uuid,
        *(pytest.param(each, marks=pytest.mark.long) for each in (with_numpy, with_clock, with_a_global, with_a_model)),
    ],
)
def test_what_another_attempt_does_otherwise_is_found(model):
    with pytest.raises(NotRepeatable, match=r"step 0 .* agent 0 .* ran again: .*docs/repeatability\.md") as caught:
        check(model)
    assert (caught.value.step, caught.value.agent) == (0, 0)
    assert caught.value.mine != caught.value.theirs
    assert caught.value.what == ("state" if model is with_uuid else "message")


@pytest.mark.parametrize(
    "model",
    [
        with_a_set,
        pytest.param(with_a_sum_over_a_set, marks=pytest.mark.long),
        pytest.param(with_hash, marks=pytest.mark.long),
        pytest.param(with_arrival, marks=pytest.mark.long),
        pytest.param(closure(), marks=pytest.mark.long),
    ],
    ids=lambda model: model.__name__,
)
def test_what_another_process_does_otherwise_is_found(model):
    with pytest.raises(NotRepeatable, match="message in another process") as caught:
        check(model)
    assert caught.value.step == (1 if model.__name__ == "with_a_closure" else 0)


@pytest.mark.parametrize(
    "model",
    [
        with_the_grouping,
        *(
            pytest.param(each, marks=pytest.mark.long)
            for each in (with_the_name_of_the_group, with_the_mean_of_the_group)
        ),
    ],
)
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
    assert caught.value.agent in {
        0,
        1,
        2,
    }  # the first agents of that process' three groups, which fail at the same time


@pytest.mark.long
async def test_it_runs_within_an_event_loop():
    check(clean)


def test_the_page_has_examples_that_run():
    page = (Path(__file__).parents[3] / "docs" / "repeatability.md").read_text()
    names = {}
    for example in re.findall(r"^```python\n(.*?)^```$", page, re.DOTALL | re.MULTILINE):
        exec(example, names)
    names["test_person_is_repeatable"]()
    names["test_everybody_hears"]()
