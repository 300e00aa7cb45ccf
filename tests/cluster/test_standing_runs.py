"""Series of a run on Ray, and runs that stand between their steps."""

import os
import shutil
import signal
import threading
import time

import numpy as np
import pandas as pd
import pytest
from support.cluster import die_once, kill
from support.step_society import AGENTS, SEED, STEPS, person, sequential

from ray_messaging import Count, EventLog, Mean, Messaging, Steps, run
from ray_messaging.errors import AlreadyExists, Closed, ConfigError, StepFailed, UnknownName
from ray_messaging.inspector.page_values import StepFacts
from ray_messaging.inspector.sources.live import LiveSource


def counted(me, inbox):
    person(me, inbox)
    me.state["number"] = int(me.state["word"], 16) / 7
    me.state["even"] = me.state["number"] % 2 < 1


def words(states):
    return {agent: state["word"] for agent, state in states.items()}


def rows(me):
    return {"word": me.state["word"], "number": me.state["number"]}


WHOLE = [Mean("number"), Count("even")]


@pytest.fixture(scope="module")
def expected():
    """The rows and the aggregates of one group in one process."""
    return {
        kind: run(counted, agents=AGENTS, until=STEPS, seed=SEED, collect=kind).series for kind in (rows, tuple(WHOLE))
    }


def is_equal(series, wanted):
    pd.testing.assert_frame_equal(series, wanted, check_exact=True)
    return True


def test_series_are_in_the_result_and_in_the_log(start_steps, tmp_path, expected):
    folder = tmp_path / "log"
    messaging = start_steps(log_dir=folder)
    half = messaging.run(counted, agents=AGENTS, groups=2, until=STEPS // 2, collect=rows, progress=False)
    assert half.series.index.unique("step").tolist() == [*range(STEPS // 2)]
    result = messaging.run(counted, agents=AGENTS, groups=2, until=STEPS, collect=rows, progress=False)
    assert is_equal(result.series, expected[rows])
    with pytest.raises(ConfigError, match=r"'number' \(mean\) for each step"):
        messaging.run(counted, agents=AGENTS, groups=2, until=STEPS + 1, collect=Mean("number"), progress=False)
    messaging.shutdown()
    table = EventLog.open(folder).series().to_pandas().set_index(["step", "agent"])
    assert is_equal(table, expected[rows])
    assert is_equal(pd.read_parquet(folder / "_series").set_index(["step", "agent"]), expected[rows])


@pytest.mark.long
@pytest.mark.parametrize("logged", [False, True])
@pytest.mark.parametrize("collect", [rows, tuple(WHOLE)], ids=["rows", "aggregates"])
def test_series_are_equal_although_groups_are_killed(start_steps, tmp_path, expected, collect, logged):
    def dying(me, inbox):
        counted(me, inbox)
        if me.step in {2, 5} and me.id in {7, 8}:
            die_once(tmp_path / f"{me.id}")

    messaging = start_steps(log_dir=tmp_path / "log" if logged else None)
    result = messaging.run(dying, agents=AGENTS, groups=3, until=STEPS, collect=collect, progress=False)
    assert sorted(mark.name for mark in tmp_path.glob("[78]")) == ["7", "8"]
    assert is_equal(result.series, expected[collect])
    assert words(result.states) == sequential()[0]


def test_a_run_goes_on_step_by_step(start_steps, expected):
    with start_steps().start_run(counted, agents=AGENTS, groups=3, collect=rows) as standing:
        assert standing.step == 0
        assert standing.advance() == 1
        assert standing.advance(2) == 3
        assert is_equal(standing.series, expected[rows].loc[:2])
        assert standing.advance(STEPS - 3) == STEPS
        assert words(standing.states()) == sequential()[0]
        result = standing.result()
        assert is_equal(result.series, expected[rows])
        assert (result.steps, result.stopped, [*result.digests]) == (STEPS, False, [*range(STEPS)])
        assert [bytes.fromhex(digest) for digest in result.digests.values()] == sequential()[1]
        with pytest.raises(ConfigError, match=r"advance\(0\) needs a whole number of at least 1"):
            standing.advance(0)
    with pytest.raises(Closed, match=f"closed before step {STEPS}"):
        standing.advance()


def test_what_has_ended_says_so(start_steps, capsys):
    messaging = start_steps()
    with messaging.start_run(lambda me, _: time.sleep(0.6), agents=1, groups=1) as standing:
        standing.advance(progress=True)
        assert capsys.readouterr().err.splitlines()[-1] == "1 step done"
    assert messaging.steps.waiting_for() == {}
    assert "1 step done" in messaging.steps._repr_html_()
    assert LiveSource(messaging).state().steps == StepFacts(1, None, {}, [], resting=True)
    with pytest.raises(UnknownName, match=r"group 'group0' of .* was made by messaging.run, .*messaging.agents\(\)"):
        messaging.group("group0")
    with pytest.raises(UnknownName, match=r"has no group 'west'; there are: group0$"):
        messaging.group("west")


@pytest.mark.long
def test_a_standing_run_survives_its_groups_and_is_closed_by_the_next_run(start_steps):
    pids = []

    def watched(me, inbox):
        counted(me, inbox)
        me.state["pid"] = os.getpid()

    messaging = start_steps()
    standing = messaging.start_run(watched, agents=AGENTS, groups=2)
    standing.advance(3)
    pids += {state["pid"] for state in standing.states().values()}
    os.kill(pids[0], signal.SIGKILL)
    assert standing.advance(2) == 5
    result = messaging.run(watched, agents=AGENTS, groups=2, until=STEPS, progress=False)
    assert words(result.states) == sequential()[0]
    with pytest.raises(Closed):
        standing.advance()
    with messaging.start_run(watched, agents=AGENTS, groups=2) as later:
        assert later.step == STEPS
        assert words(later.states()) == sequential()[0]


@pytest.mark.long
def test_a_standing_run_goes_on_after_the_death_of_the_interceptor(start_steps):
    messaging = start_steps()
    with messaging.start_run(counted, agents=AGENTS, groups=2) as standing:
        assert standing.advance(2) == 2
        kill(messaging.interceptor)  # it tells the groups of each step that a run goes on with
        assert standing.advance() == 3
        assert standing.advance(STEPS - 3) == STEPS
        assert words(standing.states()) == sequential()[0]


@pytest.mark.long
def test_the_inspector_shows_an_agents_state_between_two_steps(start_steps, tmp_path):
    def crowd(group, step):
        group.state = {"twice": group.ids * 2, "all": np.array([1, 2, 3])}

    messaging = start_steps(log_dir=tmp_path / "log")
    source = LiveSource(messaging)
    with messaging.start_run(crowd, by="group", agents=AGENTS, groups=2) as standing:
        assert source.agent("7").state == {}
        standing.advance()
        assert source.agent("7").state == {"twice": "14"}
    other = start_steps(log_dir=tmp_path / "other")
    with other.start_run(counted, agents=AGENTS, groups=2) as standing:
        standing.advance()
        state = standing.states()[7]
        assert LiveSource(other).agent("7").state == {key: str(value) for key, value in state.items()}
        assert LiveSource(other).agent(str(AGENTS)).state == {}


@pytest.mark.long
def test_a_run_goes_on_after_ctrl_c_and_behind_a_model_that_fails(start_steps):
    messaging = start_steps()
    with messaging.start_run(counted, agents=AGENTS, groups=2) as standing:
        threading.Timer(1.0, signal.raise_signal, [signal.SIGINT]).start()
        with pytest.raises(KeyboardInterrupt):
            standing.advance(10_000)
        assert 0 < (reached := standing.step) < 10_000
        assert len(standing.states()) == AGENTS
        assert standing.advance(2) == reached + 2
        threading.Timer(1.0, signal.raise_signal, [signal.SIGINT]).start()
        with pytest.raises(KeyboardInterrupt):
            [*iter(standing.advance, 10_000)]  # a loop over single steps ends, too
        reached = standing.advance() - 2

    def failing(me, inbox):
        if me.step == me.shared:
            raise ValueError("no")

    # One whose model fails is closed, and the next run goes on behind it.
    standing = messaging.start_run(failing, agents=AGENTS, groups=2, shared=reached + 4)
    standing.advance(2)
    with pytest.raises(StepFailed, match=f"in step {reached + 4}"):
        standing.advance()
    with pytest.raises(Closed):
        standing.advance()
    result = messaging.run(counted, agents=AGENTS, groups=2, until=reached + 6, progress=False)
    assert result.steps == reached + 6


@pytest.mark.long
def test_steps_that_a_server_without_its_data_counts_anew_have_series_of_their_own(by_value, tmp_path, exp_id):
    def count(me, inbox):
        me.state["n"] = me.state.get("n", 0) + me.shared

    folder = tmp_path / "log"
    for more, until, on_existing in ((1, 4, "error"), (100, 6, "resume")):
        with Messaging.start(exp_id, steps=Steps(), log_dir=folder, on_existing=on_existing) as messaging:
            result = messaging.run(
                count, agents=2, groups=1, until=until, shared=more, collect=lambda me: dict(me.state), progress=False
            )
        assert result.series.n.to_list() == [more * step for step in range(1, until + 1) for _ in range(2)]
        shutil.rmtree(f"{folder}-server")
    assert EventLog.open(folder).series()["n"].to_pylist() == result.series.n.to_list()
    with pytest.raises(AlreadyExists, match="log"):
        Messaging.start(exp_id, steps=Steps(), log_dir=folder)
