"""A study in tasks of Ray: the files of a study in one process, when a worker dies, too."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
import ray
from support.studies import work_here

from ray_messaging import Mean, Study, batch_run
from ray_messaging.interception.rules import BlackList


@pytest.mark.long
def test_a_study_on_ray_has_the_files_of_one_in_this_process(ray_cluster, tmp_path, monkeypatch):
    mine, marker, one = os.getpid(), tmp_path / "died", ray.put(1)

    def person(me, inbox, *, chance):
        if os.getpid() != mine and chance == 0.7:
            try:
                marker.touch(exist_ok=False)
            except FileExistsError:
                pass
            else:
                os.kill(os.getpid(), signal.SIGKILL)
        me.state["heard"] = me.state.get("heard", 0) + len(inbox) * ray.get(one, timeout=60)
        if me.rng.random() < chance:
            me.send((me.id + 1) % 4, {})

    def sweep(folder):
        return batch_run(
            person, {"chance": [0.2, 0.7]}, agents=4, until=3, replicates=3, outcomes=Mean("heard"), progress=False,
            folder=folder,
        )  # fmt: skip

    sweep(tmp_path / "ray")
    assert marker.exists()
    work_here(monkeypatch)
    sweep(tmp_path / "here")
    for name in ("runs.parquet", "series.parquet"):
        assert (tmp_path / "ray" / name).read_bytes() == (tmp_path / "here" / name).read_bytes()


@pytest.mark.long
def test_runs_over_the_whole_cluster_are_those_of_one_process(ray_cluster, tmp_path, monkeypatch):
    def person(me, inbox, *, chance):
        if me.id == 0 and me.step == 2 and chance == 0.9:
            raise ValueError("too much")
        me.state["heard"] += len(inbox)
        for friend in me.neighbours:
            if me.rng.random() < chance:
                me.send(friend, {"text": "heard?"})

    def sweep(folder, **layout):
        return batch_run(
            person, {"chance": [0.4, 0.9], "ban": [2]}, agents=6, until=3, start=lambda me: {"heard": 0},
            graph=[(agent, (agent + step) % 6) for agent in range(6) for step in (1, 2)], outcomes=Mean("heard"),
            rules=lambda ban: [BlackList([(ban, ban + 1)])], progress=False, folder=folder, **layout,
        )  # fmt: skip

    whole = sweep(tmp_path / "cluster", whole_cluster=True, groups=2).to_pandas()
    work_here(monkeypatch)
    here = sweep(tmp_path / "here").to_pandas()
    assert here["error"].isna().tolist() == [True, False]
    for table in (whole, here):
        table["error"] = table["error"].str.replace(r"of group '\w+'", "of the group", regex=True)
    pd.testing.assert_frame_equal(whole.drop(columns="seconds"), here.drop(columns="seconds"))


SWEEP = """
import os, signal, sys
from pathlib import Path
from ray_messaging import Mean, batch_run

FOLDER, RUNS, DYING = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "dying"

def person(me, inbox, *, chance):
    if DYING and chance == 0.5 and me.step == 1 and me.id == 0:  # a run ends its process, once
        marker = FOLDER.with_name("died")
        if not marker.exists():
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
    me.state["heard"] = me.state.get("heard", 0) + len(inbox)
    if me.rng.random() < chance:
        me.send((me.id + 1) % 3, {})

rows = [{"chance": number / RUNS} for number in range(1, RUNS + 1)]
if DYING:
    import ray
    ray.init(log_to_driver=False, logging_level="ERROR")
batch_run(person, rows, agents=3, until=3, outcomes=Mean("heard"), folder=FOLDER, workers=4, progress=False)
"""

HOST = """
import os, subprocess, sys
from support.bare_ray import start_cluster
from support.patience import wait_for
from ray_messaging import Study
from ray_messaging.errors import LogError

program, folder, runs = sys.argv[1:]
CLOCKS = {"health_check_initial_delay_ms": 5000, "health_check_period_ms": 1000, "health_check_failure_threshold": 5}
cluster = start_cluster(num_cpus=2, _system_config=CLOCKS)
lost = cluster.add_node(num_cpus=2)
cluster.wait_for_nodes()

def start():
    return subprocess.Popen([sys.executable, program, folder, runs, "dying"],
                            env=os.environ | {"RAY_ADDRESS": cluster.address})

def ended():
    try:
        return len(Study(folder))
    except LogError:
        return 0

driver = start()
wait_for(lambda: ended() > 10, "the first runs", 200)
driver.kill()
driver.wait()
before = ended()
assert before < int(runs)
driver = start()
wait_for(lambda: ended() > before, "more runs", 200)
cluster.remove_node(lost, allow_graceful=False)
assert ended() < int(runs)
assert driver.wait(400) == 0
cluster.shutdown()
"""


@pytest.mark.long
@pytest.mark.parametrize("runs", [300, 1000])
def test_a_sweep_loses_its_driver_workers_and_a_machine_and_has_each_run_once(runs, tmp_path):
    """Processes without Ray, of which none dies, write the same bytes."""
    program = tmp_path / "program.py"
    program.write_text(SWEEP)
    path = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    environment |= {"PYTHONPATH": path}
    disturbed, quiet = tmp_path / "disturbed", tmp_path / "quiet"
    command = [sys.executable, "-c", HOST, str(program), str(disturbed), str(runs)]
    subprocess.run(command, env=environment, check=True, timeout=280)
    subprocess.run([sys.executable, str(program), str(quiet), str(runs), "quiet"], env=environment, check=True)
    assert (tmp_path / "died").exists()
    for name in ("runs.parquet", "series.parquet"):
        assert (disturbed / name).read_bytes() == (quiet / name).read_bytes()
    found = Study(disturbed).to_pandas()
    assert (len(found), found["error"].isna().all(), found["chance"].is_unique) == (runs, True, True)
