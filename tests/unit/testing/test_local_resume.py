"""A local run goes on in the folder of its log, as `messaging.run` does, whatever ended its process."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.resumed_run import STEPS, resumed

from ray_messaging import Calls, EventLog, Mean, run
from ray_messaging.cluster.finishing import finish
from ray_messaging.errors import AlreadyExists, ConfigError, StepFailed
from ray_messaging.eventlog.folder import Folder
from ray_messaging.eventlog.folder_records import unended

TESTS = Path(__file__).parents[2]
# In these runs a rule judges whole steps.
OF_STEPS = ["rules"]


def killed(folder, step, agent, *more):
    """Run the model in a process that is killed in a step."""
    environment = os.environ | {"PYTHONPATH": str(TESTS)}
    command = [sys.executable, "-m", "support.resumed_run", str(folder), str(step), str(agent), *more]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60)
    assert ended.returncode == -signal.SIGKILL, ended.stderr


def calls_of(log):
    return log.calls().drop_columns(["seconds", "source"]).to_pylist()  # the source says what was answered before


def assert_equal_runs(mine, theirs, folder, other):
    assert (mine.digests, mine.fates, mine.states) == (theirs.digests, theirs.fates, theirs.states)
    assert mine.series.equals(theirs.series)
    logs = [EventLog.open(each) for each in (folder, other)]
    assert logs[0].diff(logs[1]) is None
    assert logs[0].history_digest(STEPS - 1) == logs[1].history_digest(STEPS - 1)
    assert logs[0].balance() == logs[1].balance()
    assert logs[0].series().equals(logs[1].series())
    assert calls_of(logs[0]) == calls_of(logs[1])


@pytest.mark.parametrize(
    ("step", "agent", "more"),
    [
        (5, 0, OF_STEPS),
        *(pytest.param(*case, marks=pytest.mark.long) for case in [(0, 2, []), (4, 3, []), (STEPS - 1, 5, OF_STEPS)]),
    ],
)
def test_a_run_that_was_killed_goes_on_and_equals_an_undisturbed_one(step, agent, more, tmp_path):
    whole = resumed(tmp_path / "whole", of_steps=bool(more))
    killed(tmp_path / "log", step, agent, *more)
    on = resumed(tmp_path / "log", of_steps=bool(more), on_existing="resume")
    assert_equal_runs(on, whole, tmp_path / "log", tmp_path / "whole")
    asked = Path(f"{tmp_path / 'log'}-asked").read_text().splitlines()
    again = [line for line in asked if asked.count(line) > 1]
    assert {int(line.split()[1]) for line in again} <= {step}  # only calls under way at the kill are made again


def test_a_run_goes_on_after_an_error_and_with_more_steps(tmp_path):
    def mean(me, inbox):
        me.state["sum"] = me.state.get("sum", 0) + sum(message.payload["n"] for message in inbox)
        me.send((me.id + me.step) % 4, {"n": int(me.rng.integers(100))})
        if fails and me.step == 5 and me.id == 2:
            raise ValueError("no network")
        if me.step == 2 and me.id == 1:
            me.move("group0")

    def live(name, **changed):
        asked = {"agents": 4, "groups": 2, "seed": 3, "until": 8, "collect": Mean("sum"), "progress": False}
        return run(mean, log_dir=tmp_path / name, **asked | changed)

    fails = False
    whole = live("whole")
    fails = True
    with pytest.raises(StepFailed, match="no network"):
        live("log")
    fails = False
    with pytest.raises(AlreadyExists, match="contains the log of an earlier run: continue that log by on_existing='re"):
        live("log")
    on = live("log", until=7, on_existing="resume")
    assert (on.steps, [*on.series.index]) == (7, [*range(7)])
    on = live("log", on_existing="resume")
    assert (on.digests, on.fates, on.states) == (whole.digests, whole.fates, whole.states)
    assert on.series.equals(whole.series)
    logs = [EventLog.open(tmp_path / name) for name in ("log", "whole")]
    assert logs[0].diff(logs[1]) is None
    assert logs[0].balance() == logs[1].balance()
    for changed, why in [
        ({"seed": 4}, "seed was 3 and is 4"),
        ({"groups": 1}, "groups was 2 and is 1"),
        ({"agents": 5}, "agents differ"),
    ]:
        with pytest.raises(ConfigError, match=why):
            live("log", on_existing="resume", **changed)
    # The run ended at the condition, so it ends there again.
    until = {"until": lambda now: now["step"] == 4, "max_steps": 8, "on_existing": "resume"}
    assert [live("early", **until).steps for _ in range(2)] == [5, 5]
    on = live("log", on_existing="reset", until=2)
    assert (on.steps, {*EventLog.open(tmp_path / "log").query()["step"].to_pylist()}) == (2, {0, 1})


def test_a_run_whose_budget_was_spent_goes_on_with_another(tmp_path):
    async def asking(me, inbox):
        me.state["answer"] = await me.remember(answer, me.id, me.step)

    async def answer(agent, step):
        return agent * step

    def live(name, budget, **more):
        return run(
            asking,
            agents=2,
            until=6,
            groups=2,
            calls=Calls(budget=budget),
            log_dir=tmp_path / name,
            progress=False,
            **more,
        )

    whole, part = live("whole", 20), live("log", 5)
    assert part.stopped
    on = live("log", 20, on_existing="resume")
    assert (on.steps, on.states, on.digests) == (6, whole.states, whole.digests)


def test_a_log_without_the_data_of_its_server_says_how_to_go_on(tmp_path):
    resumed(tmp_path / "log", checkpoint=4)
    (tmp_path / "log-server").rename(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match=r"the server of this start has none of them.*Messaging.fork"):
        resumed(tmp_path / "log", on_existing="resume")
    for name in ("log", "log-server"):
        shutil.rmtree(tmp_path / name)
    (tmp_path / "elsewhere").rename(tmp_path / "log-server")
    with pytest.raises(AlreadyExists, match="log-server has the data of an earlier run: go on with it by"):
        resumed(tmp_path / "log")


@pytest.mark.long
def test_the_log_of_a_killed_run_can_be_completed_without_it(tmp_path):
    killed(tmp_path / "log", 6, 2)
    assert unended(Folder(str(tmp_path / "log"))) is not None
    finish(str(tmp_path / "log"))
    assert unended(Folder(str(tmp_path / "log"))) is None
    assert max(EventLog.open(tmp_path / "log").query()["step"].to_pylist()) == 5
    assert resumed(tmp_path / "log", on_existing="resume").steps == STEPS
