"""What a model keeps or draws outside of its agents is told once."""

import os
import random
import re
import subprocess
import sys
import time
from dataclasses import dataclass, field
from functools import partial
from types import MethodType

import networkx as nx
import numpy as np
import pandas as pd
import pytest
from support.patience import WAIT_S

from ray_messaging import run
from ray_messaging.cluster.run.content_digest import content_digest
from ray_messaging.cluster.run.model_watch import ModelWatch

SEEN, TABLE, LIMITS = [], {"n": 0}, {"high": 5}
count = 0


@dataclass
class World:
    day: int = 0
    places: set = field(default_factory=lambda: {"east", "west"})


def note(agent):
    SEEN.append(agent)


def by_a_function(me, inbox):
    note(me.id)


def by_name(me, inbox):
    global count
    count += 1


def within(me, inbox):
    [TABLE.update(n=TABLE["n"] + 1) for _ in range(1)]


def of_a_closure():
    kept = []

    def model(me, inbox):
        kept.append(me.id)

    return model


class Keeping:
    def __init__(self):
        self.calls = 0

    def __call__(self, me, inbox):
        self.calls += 1

    def live(self, me, inbox):
        self.calls += 1


async def thinking(me, inbox):
    note(me.id)


def ages(me, inbox):
    me.shared.day += 1


def moves_in(me, inbox):
    me.shared.places.add(me.id)


def draws(me, inbox):
    if me.step == 1:
        me.state["x"] = random.random()


def draws_arrays(me, inbox):
    np.random.shuffle([1, 2, 3])  # noqa: NPY002 - what is told


def grows(me, inbox):
    me.data["friends"].append(me.id)


def fine(me, inbox):
    me.state["friends"] = [*me.data["friends"], me.step]
    me.state["x"] = (me.rng.random(), LIMITS["high"], me.shared.day, len(SEEN))
    me.send(me.id, {})


class Proxy:
    """An object that raises whatever is asked, as one of a web framework does outside of a request."""

    def __getattribute__(self, name):
        raise SystemExit(f"no context for {name}")


class Counted:
    """An object that changes when it is pickled."""

    def __init__(self):
        self.pickled = 0

    def __getstate__(self):
        self.pickled += 1
        return {"pickled": self.pickled}


def told(caplog):
    return [record.getMessage() for record in caplog.records if record.name.endswith("model_watch")]


@pytest.mark.parametrize(
    ("model", "text"),
    [
        (by_a_function, "the global 'SEEN' of [a-z._]*test_model_watch has changed in step 0"),
        (by_name, "the global 'count' of [a-z._]*test_model_watch has changed in step 0"),
        (within, "the global 'TABLE' of [a-z._]*test_model_watch has changed in step 0"),
        (of_a_closure(), "'kept' of of_a_closure.<locals>.model has changed in step 0"),
        (Keeping(), "the object of Keeping has changed in step 0"),
        (Keeping().live, "the object of Keeping.live has changed in step 0"),
        (partial(by_a_function), "the global 'SEEN' of [a-z._]*test_model_watch has changed in step 0"),
        (thinking, "the global 'SEEN' of [a-z._]*test_model_watch has changed in step 0"),
        (ages, "shared has changed in step 0"),
        (moves_in, "shared has changed in step 0"),
        (draws, "random numbers of the module random were drawn in step 1: .* Draw random numbers by me.rng"),
        (draws_arrays, "random numbers of numpy.random were drawn in step 0: .* Draw random numbers by me.rng"),
        (grows, "me.data has changed in step 0"),
        (fine, None),
    ],
)
def test_what_a_model_keeps_or_draws_outside_of_its_agents_is_told_once(model, text, caplog):
    rows = pd.DataFrame({"age": [20] * 6, "friends": [[0]] * 6})
    run(model, agents=rows, until=2, groups=2, shared=World())
    found = told(caplog)
    assert len(found) == (text is not None)
    if text is not None:
        assert re.match(text, found[0])


@pytest.mark.parametrize("part", ["start", "model", "collect"])
def test_a_crowd_that_draws_is_told_wherever_it_does(part, caplog):
    parts = {
        "start": lambda group: {"x": np.zeros(3)},
        "model": lambda group, step: None,
        "collect": lambda group: {"x": group.state["x"]},
    }
    crowd = parts[part]
    parts[part] = lambda *given: (random.random(), crowd(*given))[1]
    run(parts.pop("model"), agents=3, until=1, by="group", **parts)
    [found] = told(caplog)
    assert found.startswith("random numbers of the module random were drawn in step 0")


def test_a_change_is_told_also_where_the_steps_are_short_and_many(caplog):
    shared, step = {"n": 0}, 0
    watch, end = ModelWatch(fine, {"shared": shared}), time.monotonic() + WAIT_S
    while not told(caplog) and time.monotonic() < end:
        with watch.over(step):
            shared["n"] = min(step, 1000) // 1000
        step += 1
    [found] = told(caplog)
    assert found.startswith("shared has changed ")
    assert step > 1000


def test_objects_that_run_code_when_they_are_read_are_left_alone(caplog):
    space = {"__name__": "framework", "proxy": Proxy(), "counted": Counted()}
    exec("def model(me, inbox):\n  if me.step > 9: return proxy, counted", space)
    run(space["model"], agents=3, until=2, groups=1)
    assert told(caplog) == []
    assert space["counted"].pickled == 0
    run(MethodType(partial(lambda given, me, inbox: None), [1]), agents=3, until=2, groups=1)
    assert told(caplog) == []


def test_an_error_in_the_checks_ends_them_and_not_the_step(caplog):
    class Torn(dict):
        def items(self):
            raise SystemExit("torn")

    steps = []
    watch = ModelWatch(fine, {"shared": Torn(a=1)})
    for step in range(3):
        with watch.over(step):
            steps.append(step)
    with pytest.raises(KeyError), watch.over(3):
        raise KeyError
    assert steps == [0, 1, 2]
    [found] = told(caplog)
    assert "are no longer checked for changes, because the check failed: SystemExit: torn" in found


def test_globals_of_one_name_in_two_modules_are_two(caplog):
    spaces = [{"__name__": name, "kept": []} for name in ("east", "west")]
    for space in spaces:
        exec("def add(): kept.append(1)", space)
    one, other = (space["add"] for space in spaces)
    run(lambda me, inbox: one() or other(), agents=1, until=1, groups=1)
    assert [found.split(" has")[0] for found in sorted(told(caplog))] == [
        "the global 'kept' of east",
        "the global 'kept' of west",
    ]


def test_a_huge_input_is_not_begun_and_a_turned_one_not_copied():
    huge = np.broadcast_to(np.zeros(1), (1 << 16, 1 << 15))
    began = time.thread_time()
    for found in (huge, huge.T, {"a": [huge]}, pd.DataFrame(huge, copy=False)):
        assert content_digest(found, longest_s=0.1) is None
    assert time.thread_time() - began < 0.5
    small = np.arange(600_000).reshape(3, 2, -1)
    for turned in (small.T, small.transpose(1, 0, 2), small[:, :, ::2]):
        other = turned.copy(order="K")
        assert content_digest(turned) == content_digest(turned) is not None
        other[-1, -1, -1] = 0
        assert content_digest(turned) != content_digest(other)


def test_reading_changes_no_digest():
    graph, frame = nx.karate_club_graph(), pd.DataFrame({"a": [1, 2], "t": ["x", "y"]})
    frame["z"] = 1.5
    for anywhere in (True, False):
        before = [content_digest(found, anywhere=anywhere) for found in (graph, frame)]
        assert all([graph.adj[0], list(graph.nodes), list(graph.edges), graph.degree, frame.to_numpy().shape])
        assert [content_digest(found, anywhere=anywhere) for found in (graph, frame)] == before
        assert None not in before


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"a": [1]}, {"a": [2]}),
        ([1], (1,)),
        (World(1), World(2)),
        ({1, 2}, {1, 3}),
        (np.zeros(3), np.zeros(4)),
        (np.zeros(3), np.zeros(3, np.float32)),
        (np.array(["a", None]), np.array(["b", None])),
        (np.array(["2026-01-01"], "M8[D]"), np.array(["2026-01-02"], "M8[D]")),
        (pd.DataFrame({"a": [1]}), pd.DataFrame({"a": [2]})),
        (pd.DataFrame({"a": [[1]]}), pd.DataFrame({"a": [[2]]})),
        (nx.path_graph(3), nx.path_graph(4)),
    ],
)
def test_other_content_has_another_digest(one, other):
    for anywhere in (True, False):
        assert (
            None is not content_digest(one, anywhere=anywhere) != content_digest(other, anywhere=anywhere) is not None
        )


def test_what_has_no_digest():
    circle = []
    circle.append(circle)
    assert content_digest(circle) is None
    assert content_digest(circle, anywhere=False) is not None
    assert content_digest([iter([]), (n for n in "ab")]) is None


def test_a_digest_is_the_same_in_processes_that_hash_otherwise():
    code = (
        "from ray_messaging.cluster.run.content_digest import content_digest;"
        "print(content_digest({'seen': {*map(str, range(99))}, 'names': ['ab' * n for n in (1, 2, 1)], 'f': print}))"
    )
    printed = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(printed) == 1
    assert printed != {b"None\n"}
