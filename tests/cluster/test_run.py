"""messaging.run: a model, its agents and groups, driven step by step."""

import asyncio
import importlib
import inspect
import os
import re
import signal
import sys
import threading
import time
import traceback
import uuid
from functools import partial

import numpy as np
import pandas as pd
import pytest
import ray
from support.cluster import die_once
from support.ripple import ripple, ripple_start
from support.step_society import AGENTS, SEED, STEPS, messages_of, person, sequential

from ray_messaging import Messaging, Steps
from ray_messaging import run as local_run
from ray_messaging.errors import AlreadyExists, ConfigError, StepFailed


@pytest.fixture(scope="module")
def idle(by_value):
    with Messaging.start(f"run-{uuid.uuid4().hex[:8]}", steps=Steps()) as messaging:
        yield messaging


async def thinking_crowd(group, step):
    pass


def with_a_lock():
    lock = threading.Lock()

    def locked(me, inbox=None):
        with lock:
            return {}

    return locked


def words(result):
    return {agent: state["word"] for agent, state in result.states.items()}


@pytest.mark.long
def test_a_run_goes_on_where_it_stopped(start_steps):
    messaging = start_steps()
    messaging.run(person, agents=AGENTS, groups=2, until=3)
    result = messaging.run(person, agents=AGENTS, groups=2, until=STEPS)
    assert words(result) == sequential()[0]
    assert sum(result.fates.values()) == messages_of(STEPS)
    again = messaging.run(person, agents=AGENTS, groups=2, until=STEPS)  # nothing is left to do
    assert (again.states, again.fates, again.digests) == (result.states, result.fates, result.digests)
    with pytest.raises(ConfigError, match=r"agents differ .* 1 agents .*agent 59, which has left group 'group1'"):
        messaging.run(person, agents=AGENTS - 1, groups=2, until=STEPS + 1)
    with pytest.raises(ConfigError, match=r"groups differ: .*2 groups \(group0, group1\), .* has 1 groups"):
        messaging.run(person, agents=AGENTS, groups=1, until=STEPS + 1)


@pytest.mark.long
def test_a_second_run_has_the_processes_of_the_first_unless_they_died_or_would_run_old_code(start_steps, tmp_path):
    code = tmp_path / "slogan.py"

    async def speaker(me, inbox):
        sys.path[:0] = [str(tmp_path)] * (str(tmp_path) not in sys.path)
        slogan = importlib.import_module("slogan")
        slogan.LOOPS.add(asyncio.get_running_loop())  # as a client in a module, which is bound to its loop
        assert len(slogan.LOOPS) == 1
        me.state = {"runs": [*me.state.get("runs", []), (os.getpid(), slogan.WORD)]}

    def newest(until):
        result = messaging.run(speaker, agents=2, groups=2, until=until, progress=False)
        assert len(result.states[0]["runs"]) == until  # the steps of the runs before are in the state
        return [state["runs"][-1] for state in result.states.values()]

    code.write_text("WORD, LOOPS = 'one', set()")
    messaging = start_steps()
    first = newest(1)
    assert newest(2) == first
    os.kill(first[0][0], signal.SIGKILL)
    third = newest(3)
    assert third[0][0] != first[0][0]
    assert third[1] == first[1]
    code.write_text("WORD, LOOPS = 'two', set()")
    os.utime(code, (time.time() + 1, time.time() + 1))  # file systems have coarse clocks
    fourth = newest(4)
    assert [word for _, word in fourth] == ["two", "two"]
    assert not {pid for pid, _ in fourth} & {pid for pid, _ in third}


@pytest.mark.long
def test_agents_with_data_neighbours_and_a_start(start_steps):
    table = pd.DataFrame({"age": [20, 30, 40]}, index=["ann", "bob", "eve"])
    edges = [("ann", "bob"), ("ann", "eve"), ("eve", "ann")]

    def meet(me, inbox):
        me.state["heard"] += [message.payload["age"] for message in inbox]
        for friend in me.neighbours:
            me.send(friend, {"age": me.data["age"] + me.shared})
        if me.id == "eve":
            me.stop()

    messaging = start_steps()
    result = messaging.run(
        meet, agents=table, groups=2, until=3, graph=edges, shared=1, start=lambda me: {"heard": [me.data["age"]]}
    )
    assert {agent: state["heard"] for agent, state in result.states.items()} == {
        "ann": [20, 41],
        "bob": [30, 21, 21],
        "eve": [40],
    }
    assert result.to_pandas().loc["bob", "heard"] == [30, 21, 21]


@pytest.mark.long
def test_a_model_by_group(start_steps):
    def crowd(group, step):
        heard = np.bincount(step.messages.to_ids, minlength=AGENTS) if len(step.messages) else np.zeros(AGENTS, int)
        group.state["heard"] = group.state["heard"] + heard[group.ids]
        group.state["luck"] = step.uniform(2)[:, 1]
        step.send_columns(group.ids, (group.ids + 1) % AGENTS, [{}] * len(group.ids))
        step.send(group.ids[0], 999, {})

    result = start_steps().run(
        crowd, agents=AGENTS, groups=2, until=4, by="group", start=lambda group: {"heard": np.zeros(len(group.ids))}
    )
    assert sorted(result.states) == ["group0", "group1"]
    assert all((state["heard"] == 3).all() for state in result.states.values())
    assert {name: ids.tolist() for name, ids in result.ids.items()} == {
        "group0": [*range(0, AGENTS, 2)],
        "group1": [*range(1, AGENTS, 2)],
    }
    assert result.to_pandas().index.tolist() == [*range(AGENTS)]
    assert result.undeliverable == {"agent 999": 2 * 4}
    assert result.to_pandas()["luck"][3] == result.states["group1"]["luck"][1]


def test_a_model_that_raises_names_agent_and_step(start_steps):
    messaging = start_steps()

    def broken(me, inbox):
        person(me, inbox)
        if me.step == 2 and me.id == 41:
            raise RuntimeError("no idea")

    with pytest.raises(StepFailed, match=r"agent 41 of group 'group1' in step 2.*RuntimeError: no idea") as caught:
        messaging.run(broken, agents=AGENTS, groups=2, until=STEPS)
    assert (caught.value.agent, caught.value.step, caught.value.group) == (41, 2, "group1")
    line = broken.__code__.co_firstlineno + 3
    assert str(caught.value).endswith(f"RuntimeError: no idea ({__file__}:{line})")
    printed = "".join(traceback.format_exception(caught.value))
    assert re.findall(r'File "(.*)", line \d+, in (.*)', printed) == [
        (__file__, "broken"),
        (__file__, "test_a_model_that_raises_names_agent_and_step"),
        (inspect.getfile(Messaging), "run"),
    ]
    result = messaging.run(person, agents=AGENTS, groups=2, until=STEPS)
    assert (words(result), result.fates) == (sequential()[0], {"delivered": messages_of(STEPS)})
    assert [messaging.steps.digest(step) for step in range(STEPS)] == sequential()[1]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"model": None}, "model=None"),
        ({"agents": 0}, "at least one agent"),
        ({"agents": "ann"}, "agents='ann'"),
        ({"groups": 0}, "groups=0"),
        ({"groups": {"a": [0], "b": [0, 1]}}, "in two groups"),
        ({"groups": {"a": [0]}}, "1 agents are in no group, such as 1"),
        ({"groups": {"a": [0, 1, 2]}}, "not in agents=, such as 2"),
        ({"until": -1}, "until=-1"),
        ({"until": None}, "until=None"),
        ({"concurrency": 0}, "concurrency=0"),
        ({"timeout": 0}, "timeout=0"),
        ({"timeout": 1, "by": "group"}, "timeout=1"),
        ({"start": {}}, "start={}"),
        ({"model": thinking_crowd, "by": "group"}, "plain function"),
        (
            {"model": with_a_lock()},
            r"^the model cannot be sent to other processes: its 'lock' cannot be pickled .[^\n]*$",
        ),
        ({"shared": {"client": [threading.Lock()]}}, "^shared cannot be .*'client'"),
        ({"start": with_a_lock()}, r"^the run's options cannot be .*'start\.lock'"),
        (
            {"agents": pd.DataFrame({"client": [threading.Lock()]})},
            "^column 'client' of agents has .*cannot be copied",
        ),
    ],
)
def test_bad_input(idle, arguments, text):
    with pytest.raises(ConfigError, match=text):
        idle.run(**{"model": person, "agents": 2, "until": 1} | arguments)


def test_a_group_of_the_name_of_the_runs_own_is_named_with_the_remedy(idle):
    group = idle.create_group("group0", [0, 1])
    with pytest.raises(AlreadyExists, match=r"'group0'.*A run makes its own groups"):
        idle.run(person, agents=2, groups=1, until=1, progress=False)
    idle.remove_group(group.name)
    assert idle.run(person, agents=2, groups=1, until=1, progress=False).steps == 1


def test_an_experiment_without_steps_says_so(messaging):
    with pytest.raises(ConfigError, match="has no steps"):
        messaging.run(person, agents=2, until=1)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"redis": "redis://127.0.0.1", "data_dir": "here"}, "data_dir='here' is for the embedded server"),
        ({"data_dir": "s3://bucket"}, "data_dir='s3://bucket' must be a folder"),
    ],
)
def test_a_data_dir_that_cannot_be(ray_cluster, arguments, text):
    with pytest.raises(ConfigError, match=text):
        Messaging.start(f"plain-{uuid.uuid4().hex[:8]}", **arguments)


@pytest.mark.long
def test_a_second_start_with_the_log_dir_of_a_run_names_briefly_what_works(start_steps, tmp_path):
    first = start_steps(log_dir=tmp_path / "log")
    result = first.run(person, agents=4, groups=1, until=2)
    first.shutdown()
    again = partial(Messaging.start, first.exp_id, steps=Steps(seed=SEED, digest=True))
    with pytest.raises(AlreadyExists) as caught:
        again(log_dir=tmp_path / "log")
    assert str(caught.value) == (
        f"experiment {first.exp_id!r} has data of an earlier run in {tmp_path / 'log-server'}: go on with it by "
        "on_existing='resume', delete it by on_existing='reset', or choose another log_dir"
    )
    printed = "".join(traceback.format_exception(caught.value))
    assert re.findall(r'File "(.*)", line', printed) == [__file__, inspect.getfile(Messaging)]
    for where, on_existing in (("log", "resume"), ("other", "error"), ("log", "reset")):
        with again(log_dir=tmp_path / where, on_existing=on_existing) as messaging:
            assert messaging.run(person, agents=4, groups=1, until=2).states == result.states


@pytest.mark.long
def test_a_run_that_resumes_with_a_changed_model_is_told(ray_cluster, tmp_path, monkeypatch, capfd):
    monkeypatch.syspath_prepend(tmp_path)
    exp_id = f"run-{uuid.uuid4().hex[:8]}"
    for until, (slogan, on_existing) in enumerate([("one", "error"), ("one", "resume"), ("two!", "resume")], 1):
        (tmp_path / "slogans.py").write_text(f"def person(me, inbox):\n    me.state['slogan'] = {slogan!r}\n")
        sys.modules.pop("slogans", None)
        module = importlib.import_module("slogans")
        ray.cloudpickle.register_pickle_by_value(module)
        steps = Steps(seed=SEED)
        with Messaging.start(exp_id, steps=steps, log_dir=tmp_path / "log", on_existing=on_existing) as messaging:
            for _ in range(2):
                result = messaging.run(module.person, agents=2, groups=1, until=until, progress=False)
            assert result.states[0] == {"slogan": slogan}
        told = [line for line in capfd.readouterr().err.splitlines() if "slogans.person" in line]
        assert len(told) == (slogan == "two!")
    assert told[0].startswith("the source of the model slogans.person differs from the source at this run's last start")


@pytest.mark.long
def test_a_later_call_with_other_inputs_is_told(ray_cluster, tmp_path, capfd):
    exp_id, rows = f"run-{uuid.uuid4().hex[:8]}", pd.DataFrame({"age": [1, 2]})
    first = {"agents": rows, "graph": [(0, 1)], "shared": {"x": 1}}
    others = {"agents": rows + 1, "graph": [(1, 0)], "shared": {"x": 2}}
    calls = [[first, first | {"shared": {"x": 3}}], [first | {"shared": {"x": 3}}, others]]
    found = []
    for until, (arguments, on_existing) in enumerate(zip(calls, ("error", "resume"), strict=True)):
        steps = Steps(seed=SEED)
        with Messaging.start(exp_id, steps=steps, log_dir=tmp_path / "log", on_existing=on_existing) as messaging:
            for number, given in enumerate(arguments):
                messaging.run(lambda me, inbox: None, **given, groups=1, until=2 * until + number + 1, progress=False)
                lines = capfd.readouterr().err.splitlines()
                found.append([line.partition("=")[0] for line in lines if "of this call of run differs" in line])
    assert found == [[], ["shared"], [], ["the DataFrame agents", "graph", "shared"]]


@pytest.mark.long
def test_a_run_of_active_agents_alone_is_the_same_where_groups_die_and_where_a_fork_wakes_one(start_steps, tmp_path):
    def dying(me, inbox):
        ripple(me, inbox)
        if me.step in {1, 4} and me.state["heard"]:
            die_once(tmp_path / f"{me.step}")

    options = {"agents": 40, "groups": 3, "start": ripple_start, "progress": False}
    every = local_run(ripple, agents=40, groups=1, start=ripple_start, seed=SEED, until=9)
    folder = tmp_path / "log"
    with start_steps(log_dir=folder, checkpoint=3) as messaging:
        messaging.run(dying, **options, until=4, only_active=True)
        active = messaging.run(dying, **options, until=9, only_active=True)
    assert {mark.name for mark in tmp_path.glob("[0-9]")} == {"1", "4"}
    assert (active.states, active.fates, active.digests) == (every.states, every.fates, every.digests)

    found = []
    for name, only_active in (("active", True), ("every", False)):
        changed = {"states": {39: {"left": 2}}}
        with Messaging.fork(folder, f"ripple-{name}", at_step=6, log_dir=tmp_path / name, **changed) as fork:
            found.append(fork.run(dying, **options, until=9, only_active=only_active))
    assert found[0].states[39]["called"][-2:] == [6, 7]  # `left` woke it, and it stayed active once
    assert (found[0].states, found[0].digests) == (found[1].states, found[1].digests)
    wrong = Messaging.fork(folder, "ripple-wrong", at_step=6, log_dir=tmp_path / "wrong", states={-1: {}})
    with wrong as fork, pytest.raises(ConfigError, match="states= has -1, which is not an agent of this run"):
        fork.run(dying, **options, until=9)
