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
from support.step_society import AGENTS, SEED, STEPS, listen, messages_of, sequential, spread

from ray_messaging import AlreadyExists, ConfigError, Messaging, StepFailed, Steps, UndeclaredSend, UnknownName


def started(**options):
    return Messaging.start(f"run-{uuid.uuid4().hex[:8]}", steps=Steps(seed=SEED, digest=True), **options)


@pytest.fixture
def start(by_value):
    """Start an experiment with steps, which ends with the test."""
    experiments = []

    def start_one(**options):
        experiments.append(started(**options))
        return experiments[-1]

    yield start_one
    for messaging in experiments:
        messaging.shutdown()


@pytest.fixture(scope="module")
def idle(by_value):
    with started() as messaging:
        yield messaging


def person(me, inbox):
    heard = [(message.from_id, message.payload) for message in inbox]
    me.state["word"] = listen(me.state.get("word", "0"), heard, me.rng)
    for friend, payload, later in spread(me.id, me.state["word"], me.step):
        me.send(friend, payload, deliver_at=later)


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
@pytest.mark.parametrize("groups", [1, 3])
def test_the_result_is_that_of_one_loop(start, groups):
    messaging = start()
    result = messaging.run(person, agents=AGENTS, groups=groups, until=STEPS)
    assert words(result) == sequential()[0]
    assert list(result.states) == list(range(AGENTS))
    assert result.steps == STEPS
    assert result.fates == {"delivered": messages_of(STEPS)}
    assert [messaging.steps.digest(step) for step in range(STEPS)] == sequential()[1]
    assert result.digests == {step: digest.hex() for step, digest in enumerate(sequential()[1])}
    assert messaging.steps.now == STEPS
    with pytest.raises(UnknownName, match="not committed"):
        messaging.steps.digest(STEPS)


@pytest.mark.long
def test_a_run_goes_on_where_it_stopped(start):
    messaging = start()
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
def test_a_second_run_has_the_processes_of_the_first_unless_they_died_or_would_run_old_code(start, tmp_path):
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
    messaging = start()
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
def test_groups_that_are_killed_change_nothing(start, tmp_path):
    def dying(me, inbox):
        person(me, inbox)
        mark = tmp_path / f"{me.id}"
        if me.step in {2, 5} and me.id in {7, 8} and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)

    result = start().run(dying, agents=AGENTS, groups=2, until=STEPS)
    assert words(result) == sequential()[0]
    assert sum(result.fates.values()) == messages_of(STEPS)
    assert sorted(mark.name for mark in tmp_path.iterdir()) == ["7", "8"]


@pytest.mark.long
def test_a_call_that_is_remembered_is_made_once_although_its_step_runs_again(start, tmp_path):
    answers, mark, heard = tmp_path / "answers", tmp_path / "mark", []

    def ask(agent, step):
        answer = uuid.uuid4().hex
        with answers.open("a") as file:
            file.write(f"{step} {agent} {answer}\n")
        return answer

    async def person(me, inbox):
        for _ in range(2):
            me.state.setdefault("heard", []).append([me.step, await me.remember(ask, me.id, me.step)])
        heard.append(me.step)
        if heard.count(2) == 10 and not mark.exists():  # the last one of its group
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)

    result = start().run(person, agents=20, groups=2, until=4)
    assert mark.exists()
    made = [line.split() for line in answers.read_text().splitlines()]
    assert len(made) == 20 * 2 * 4
    for agent, state in result.states.items():
        assert state["heard"] == [[int(step), answer] for step, by, answer in made if int(by) == agent]


def test_agents_with_data_neighbours_and_a_start(start):
    table = pd.DataFrame({"age": [20, 30, 40]}, index=["ann", "bob", "eve"])
    edges = [("ann", "bob"), ("ann", "eve"), ("eve", "ann")]

    def meet(me, inbox):
        me.state["heard"] += [message.payload["age"] for message in inbox]
        for friend in me.neighbours:
            me.send(friend, {"age": me.data["age"] + me.shared})
        if me.id == "eve":
            me.stop()

    messaging = start()
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
def test_groups_wait_for_those_that_the_graph_says(ray_cluster):
    """Ten agents in a line: the first group hears nobody, so it need not wait for the second."""

    def relay(me, inbox):
        me.state["heard"] = me.state.get("heard", 0) + sum(message.payload["n"] for message in inbox)
        for friend in me.neighbours:
            me.send(friend, {"n": me.step})
        if me.id == 9 and me.step == 3:
            me.send(me.shared, {"n": 0})

    steps = Steps(seed=SEED, wait_for="senders")
    halves = {"west": range(5), "east": range(5, 10)}
    line = [(agent, agent + 1) for agent in range(9)]
    with Messaging.start(f"run-{uuid.uuid4().hex[:8]}", steps=steps) as messaging:
        assert messaging.steps.wait_for == "senders"
        with pytest.raises(UndeclaredSend, match="step 3 of group 'east' is not committed: it sends to 'west'"):
            messaging.run(relay, agents=10, groups=halves, until=5, graph=line, shared=2)
        result = messaging.run(relay, agents=10, groups=halves, until=5, graph=line, shared=8)
        assert [state["heard"] for state in result.states.values()] == [0, *[6] * 9]
        with pytest.raises(ConfigError, match="at_step="):
            messaging.run(relay, agents=10, groups=halves, until=6, graph=[(9, 0)], shared=8)


@pytest.mark.long
def test_a_model_by_group(start):
    def crowd(group, step):
        heard = np.bincount(step.messages.to_ids, minlength=AGENTS) if len(step.messages) else np.zeros(AGENTS, int)
        group.state["heard"] = group.state["heard"] + heard[group.ids]
        group.state["luck"] = step.uniform(2)[:, 1]
        step.send_columns(group.ids, (group.ids + 1) % AGENTS, [{}] * len(group.ids))
        step.send(group.ids[0], 999, {})

    result = start().run(
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


def test_a_model_that_raises_names_agent_and_step(start):
    messaging = start()

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


@pytest.mark.long
def test_calls_of_all_groups_that_are_under_way_where_one_fails_are_made_once(start, tmp_path):
    answers, asked, failed = tmp_path / "answers", tmp_path / "asked", tmp_path / "failed"

    async def ask(agent):
        (asked / str(agent)).touch()
        await until_true(failed.exists)
        with answers.open("a") as file:
            file.write(f"{agent}\n")
        return agent

    async def person(me, inbox):
        if me.id:
            me.state["heard"] = await me.remember(ask, me.id)
        elif not failed.exists():
            await until_true(lambda: len([*asked.iterdir()]) == 5)
            asyncio.get_running_loop().call_later(0.1, failed.touch)
            raise ValueError("no provider")

    async def until_true(condition):
        while not condition():  # noqa: ASYNC110 - another process makes it true
            await asyncio.sleep(0.01)

    asked.mkdir()
    messaging = start()
    with pytest.raises(StepFailed, match=r"agent 0 .*no provider"):
        messaging.run(person, agents=6, groups=2, until=1)
    result = messaging.run(person, agents=6, groups=2, until=1)
    assert {agent: state.get("heard") for agent, state in result.states.items()} == {0: None} | {
        agent: agent for agent in range(1, 6)
    }
    assert sorted(answers.read_text().split()) == [*"12345"]


@pytest.mark.long
def test_a_model_that_never_returns_is_ended_by_its_timeout_and_named(start):
    async def model(me, inbox):
        if me.id == 2:
            threading.Event().wait()

    with pytest.raises(StepFailed, match="timeout=1 s, and its model blocked the event loop") as caught:
        start().run(model, agents=4, groups=2, until=1, timeout=1)
    assert (caught.value.agent, caught.value.step) == (2, 0)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"model": None}, "model=None"),
        ({"agents": 0}, "at least one agent"),
        ({"agents": "ann"}, "agents='ann'"),
        ({"groups": 0}, "groups=0"),
        ({"groups": {"a": [0], "b": [0, 1]}}, "in two groups"),
        ({"groups": {"a": [0]}}, "1 agents are in no group, as 1"),
        ({"groups": {"a": [0, 1, 2]}}, "not in agents, as 2"),
        ({"until": -1}, "until=-1"),
        ({"until": None}, "until=None"),
        ({"by": "city"}, "by='city'"),
        ({"concurrency": 0}, "concurrency=0"),
        ({"timeout": 0}, "timeout=0"),
        ({"timeout": 1, "by": "group"}, "timeout=1"),
        ({"start": {}}, "start={}"),
        ({"graph": [1, 2]}, "graph holds 1"),
        ({"graph": [(0, 1)], "by": "group"}, "shared="),
        ({"model": thinking_crowd, "by": "group"}, "plain function"),
        ({"model": dict}, "must be a function: def person"),
        ({"model": lambda me: None}, "must take two arguments"),
        (
            {"model": with_a_lock()},
            r"^the model cannot be sent to other processes: its 'lock' cannot be pickled .[^\n]*$",
        ),
        ({"shared": {"client": [threading.Lock()]}}, "^shared cannot be .*'client'"),
        ({"start": with_a_lock()}, r"^the run's options cannot be .*'start\.lock'"),
        ({"agents": pd.DataFrame({"client": [threading.Lock()]})}, "^the data of agents cannot be .*'client'"),
    ],
)
def test_bad_input(idle, arguments, text):
    with pytest.raises(ConfigError, match=text):
        idle.run(**{"model": person, "agents": 2, "until": 1} | arguments)


def test_a_group_of_the_name_of_the_runs_own_is_named_with_the_remedy(idle):
    group = idle.create_group("group0", [0, 1])
    with pytest.raises(AlreadyExists, match=r"'group0'.*A run hosts its agents in groups of its own"):
        idle.run(person, agents=2, groups=1, until=1, progress=False)
    idle.remove_group(group.name)
    assert idle.run(person, agents=2, groups=1, until=1, progress=False).steps == 1


def test_an_experiment_without_steps_says_so(start, messaging):
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
def test_a_second_start_with_the_log_dir_of_a_run_names_briefly_what_works(start, tmp_path):
    first = start(log_dir=tmp_path / "log")
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
def test_a_run_that_resumes_with_a_changed_model_is_told(start, tmp_path, monkeypatch, capfd):
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
    assert told[0].startswith("the source of the model slogans.person is not that of this run's last start")


@pytest.mark.long
def test_kept_data_are_named_where_they_are_in_the_way(start, tmp_path):
    messaging = start(data_dir=tmp_path / "data")
    messaging.run(person, agents=2, groups=1, until=1)
    messaging.shutdown()
    with pytest.raises(AlreadyExists, match=f"has data of an earlier run in {tmp_path / 'data'}: .*data_dir$"):
        Messaging.start(messaging.exp_id, steps=Steps(seed=SEED, digest=True), data_dir=tmp_path / "data")
    with pytest.raises(ConfigError, match="seed was 7 and is 8"):
        Messaging.start(
            messaging.exp_id, steps=Steps(seed=8, digest=True), data_dir=tmp_path / "data", on_existing="resume"
        )
    again = {"steps": Steps(seed=SEED, digest=True), "data_dir": tmp_path / "data", "on_existing": "resume"}
    Messaging.start(messaging.exp_id, **again).shutdown(erase=True)
    assert not (tmp_path / "data").exists()
