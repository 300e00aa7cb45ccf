"""Studies in processes of this machine, which die."""

import importlib
import os
import re
import select
import signal
import struct
import subprocess
import sys
import tempfile
import threading
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
from support.patience import wait_for
from support.studies import work_here

from ray_messaging import Calls, Mean, Study, batch_run, run
from ray_messaging.errors import Closed, ConfigError, LogError
from ray_messaging.studies import run_workers
from ray_messaging.studies.design import design_of

KEPT = "runs.parquet", "series.parquet"


def person(me, inbox, *, chance):
    me.state["heard"] = me.state.get("heard", 0) + len(inbox)
    if me.rng.random() < chance:
        me.send((me.id + 1) % 4, {})


def sweep(folder, model=person, **changed):
    arguments = {"agents": 4, "until": 3, "replicates": 3, "outcomes": Mean("heard"), "progress": False}
    return batch_run(model, {"chance": [0.2, 0.7]}, folder=folder, **arguments | changed)


@pytest.mark.long
def test_any_number_of_processes_gives_the_same_files_as_one(tmp_path, monkeypatch):
    sweep(tmp_path / "1", workers=1)
    sweep(tmp_path / "4", workers=4)
    work_here(monkeypatch)
    sweep(tmp_path / "here")
    for name in KEPT:
        (content,) = {(tmp_path / folder / name).read_bytes() for folder in ("1", "4", "here")}
        assert content


class Cluster:
    """A cluster of which a part is lost while each of the first runs begins."""

    def __init__(self, losses):
        self.losses = losses

    @contextmanager
    def start(self, name, *, rules, steps, calls):
        self.losses -= 1
        if self.losses >= 0:
            raise Closed(f"experiment {name!r} has lost its server")
        yield self

    def run(self, model, **given):
        return run(model, **given)


def test_a_run_whose_cluster_loses_a_part_is_carried_out_again(tmp_path, monkeypatch):
    work_here(monkeypatch)
    monkeypatch.setattr("ray_messaging.cluster.messaging.Messaging", Cluster(2))
    assert sweep(tmp_path / "twice", whole_cluster=True).to_pandas()["error"].isna().all()
    monkeypatch.setattr("ray_messaging.cluster.messaging.Messaging", Cluster(3))
    (error,) = sweep(tmp_path / "often", whole_cluster=True).to_pandas()["error"].dropna()
    assert re.fullmatch(r"WorkerDied: Closed: experiment 'study-.*' has lost its server .*", error)
    assert sweep(tmp_path / "often", whole_cluster=True).to_pandas()["error"].isna().all()


def test_no_worker_is_left_if_ctrl_c_comes_while_they_begin(monkeypatch):
    """In a notebook the first ones stayed, because the traceback held them."""
    begun = []

    class Worker:
        def __init__(self, begin):
            if begun:
                raise KeyboardInterrupt
            begun.append(self)

        def end(self):
            begun.remove(self)

    monkeypatch.setattr(run_workers, "_Worker", Worker)
    with pytest.raises(KeyboardInterrupt):
        run_workers.early_workers(3, 3, here=True)
    assert begun == []


def test_a_run_that_ctrl_c_has_ended_early_is_no_result(tmp_path, monkeypatch):
    """Its outcomes after fewer steps were in the study's table as if it had ended, and the study went on."""

    class Interrupted(Cluster):
        def run(self, model, **given):
            return replace(super().run(model, **given), stopped=self.losses == -2)

    work_here(monkeypatch)
    monkeypatch.setattr("ray_messaging.cluster.messaging.Messaging", Interrupted(0))
    with pytest.raises(KeyboardInterrupt):
        sweep(tmp_path / "s", whole_cluster=True)
    assert len(Study(tmp_path / "s")) == 1
    assert sweep(tmp_path / "s", whole_cluster=True).to_pandas()["error"].isna().all()


async def asks(me, inbox, *, chance):
    me.state["heard"] = await me.remember(float, chance) if me.step or chance > 0.5 else 0.0


def test_a_run_whose_budget_is_spent_is_no_result(tmp_path, monkeypatch):
    """Its outcomes after fewer steps were in the study's table as if it had ended."""
    work_here(monkeypatch)
    study = sweep(tmp_path / "s", asks, replicates=1, calls=Calls(budget=8))
    table = study.to_pandas()
    assert table["heard"].isna().tolist() == [False, True]
    assert table["error"][1].startswith(
        "BudgetSpent: the run's budget of 8 calls was spent in step 2, so the run has no"
    )
    assert study.calls.model == 16
    again = sweep(tmp_path / "s", asks, replicates=1, calls=Calls(budget=8))  # pays for no call in vain
    assert (again.to_pandas()["error"][1], again.calls.model) == (table["error"][1], 16)
    later = sweep(tmp_path / "s", asks, replicates=1, calls=Calls(budget=12))
    assert later.to_pandas()["error"].isna().all()


MODEL = """
import os, signal
from pathlib import Path

FACTOR = 1

def person(me, inbox, *, chance, folder=Path({folder!r})):
    marker = folder / f"{{chance}}"
    if chance == 0.7 or not marker.exists():  # the first run of each row ends its process, one row always
        marker.touch()
        Path(__file__).write_text("FACTOR = 2")
        os.kill(os.getpid(), signal.SIGKILL)
    me.state["heard"] = FACTOR
"""


@pytest.mark.long
def test_a_process_that_dies_is_replaced_by_one_with_the_same_model(tmp_path, monkeypatch):
    """The file of the model is edited meanwhile."""
    (tmp_path / "killing_model.py").write_text(MODEL.format(folder=str(tmp_path)))
    monkeypatch.syspath_prepend(tmp_path)
    model = importlib.import_module("killing_model").person
    table = sweep(tmp_path / "s", model, replicates=1, workers=1).to_pandas()
    assert table["heard"].tolist()[0] == 1
    assert table["error"][1].startswith("WorkerDied: the process of this run ({'chance': 0.7}) died 3 times")


@pytest.mark.long
def test_a_process_that_dies_in_the_middle_of_its_answer_is_replaced(tmp_path):
    marker = tmp_path / "died"

    def dying(result):
        def send_half(pipe, answer):
            os.write(pipe.fileno(), struct.pack("!i", len(answer)) + bytes(answer)[: len(answer) // 2])
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)

        if not marker.exists():
            Connection._send_bytes = send_half
        return 1

    study = sweep(tmp_path / "s", replicates=1, workers=1, outcomes={"one": dying})
    assert marker.exists()
    assert study.to_pandas()["one"].tolist() == [1, 1]


PROGRAM = """
import sys
from pathlib import Path
from ray_messaging import Mean, batch_run

GATE = Path(sys.argv[1])

def person(me, inbox, *, chance):
    me.state["heard"] = float(me.rng.random() + chance)

def one(result, replicate):
    if replicate:
        GATE.read_text()  # of a pipe that nobody writes: it waits
    return 1

batch_run(
    person, {"chance": [0.2, 0.7]}, agents=2, until=2, replicates=3, workers=2, folder=sys.argv[2],
    outcomes=[Mean("heard"), {"one": one}], progress=False,
)
"""


@pytest.mark.long
def test_a_program_that_is_killed_goes_on_and_its_processes_end_with_it(tmp_path):
    program, gate = tmp_path / "program.py", tmp_path / "gate"
    program.write_text(PROGRAM)
    os.mkfifo(gate)
    killed = start(program, gate, tmp_path / "s")
    wait_for((tmp_path / "s" / "runs-00000000.parquet").exists, "the first run")
    children = children_of(killed.pid)
    assert len(children) == 2
    killed.kill()
    killed.wait()
    assert all(wait_for_end(descriptor) for descriptor in children)
    assert len(Study(tmp_path / "s")) == 1
    gate.unlink()
    gate.touch()
    for folder in ("s", "other"):
        assert start(program, gate, tmp_path / folder).wait() == 0
    assert (tmp_path / "s" / "runs.parquet").read_bytes() == (tmp_path / "other" / "runs.parquet").read_bytes()
    assert len(Study(tmp_path / "s").to_pandas()) == 6


OF_ENUMS = """
import enum, sys
from ray_messaging import batch_run

class Mood(enum.StrEnum):
    SAD = "sad"

def person(me, inbox, *, mood):
    assert mood is Mood.SAD

batch_run(person, {"mood": [Mood.SAD]}, agents=2, until=2, workers=1, folder=sys.argv[1], progress=False)
"""


@pytest.mark.long
def test_a_parameter_may_be_of_a_class_of_the_program(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(OF_ENUMS)
    assert start(program, tmp_path / "s").wait() == 0
    (found,) = Study(tmp_path / "s").to_pandas().to_dict("records")
    assert (found["mood"], found["error"]) == ("sad", None)


def test_all_processes_begin_at_once_however_large_the_template_is(monkeypatch):
    """They import our modules for as long as a short run takes, and one after the other they would do so alone."""
    monkeypatch.setattr(run_workers, "_CHILD", "import sys; sys.stdin.read()")  # it reads nothing of the template
    with run_workers.workers_for(bytes(2**24), 3, here=True) as workers:
        for planned in design_of({"chance": [1, 2, 3]}, 1, 0):
            workers.start(planned)
        assert not workers.free


def test_a_template_that_cannot_be_written_is_an_error_with_a_place(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    with pytest.raises(LogError, match=r"arguments of the study cannot be written .* TMPDIR") as raised:
        run_workers.workers_for(bytes(4), 1, here=True)
    assert raised.value.path == str(tmp_path / "missing")


def test_processes_end_if_an_argument_is_wrong(monkeypatch, tmp_path):
    """They begin before the arguments are checked."""
    monkeypatch.delitem(sys.modules, "ray", raising=False)  # another test may have started Ray in this process
    begin, begun = run_workers.ProcessWorkers.begin, []

    def seen(self, runs):
        begin(self, runs)
        begun.extend(worker._process for worker in self._idle)

    monkeypatch.setattr(run_workers.ProcessWorkers, "begin", seen)
    with pytest.raises(ConfigError, match="no function takes the parameter"):
        sweep(tmp_path / "s", model=lambda me, inbox: None, workers=2)
    assert [process.poll() for process in begun] == [-signal.SIGKILL] * 2


WITHOUT_RAY = """
import sys
from ray_messaging import Mean, batch_run

# The workers begin after these imports.
assert {"ray", "pandas", "pyarrow", "pydantic", "asyncio"}.isdisjoint(sys.modules)
FACTOR = 2  # of this program, which the workers have not run

def person(me, inbox, *, chance):
    me.state["heard"] = chance * FACTOR

batch_run(
    person, {"chance": [1, 2]}, agents=2, until=2, workers=1, folder=sys.argv[1], progress=False,
    outcomes=[Mean("heard"), {"ray": lambda result: "ray" in sys.modules}],
)
assert "ray" not in sys.modules
"""


@pytest.mark.long
def test_a_worker_runs_the_model_of_a_program_and_neither_needs_ray(tmp_path):
    """To import Ray takes longer, and more memory, than a short run."""
    program = tmp_path / "program.py"
    program.write_text(WITHOUT_RAY)
    assert start(program, tmp_path / "s").wait() == 0
    found = Study(tmp_path / "s").to_pandas()
    assert found["heard"].tolist() == [2, 4]
    assert found["ray"].tolist() == [False, False]


PRINTS = """
import sys
from ray_messaging import batch_run

def person(me, inbox, *, chance):
    print("agent", me.id, "has the chance", chance)

batch_run(person, {"chance": [1, 2]}, agents=1, until=1, workers=2, folder=sys.argv[1], progress=False)
"""


@pytest.mark.long
def test_what_a_model_prints_is_written_though_its_worker_is_killed_after_the_run(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(PRINTS)
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    arguments = [sys.executable, str(program), str(tmp_path / "s")]
    ended = subprocess.run(arguments, stdout=subprocess.PIPE, text=True, env=buffered, check=True)
    assert sorted(ended.stdout.splitlines()) == ["agent 0 has the chance 1", "agent 0 has the chance 2"]


def start(program, *arguments):
    return subprocess.Popen([sys.executable, str(program), *map(str, arguments)], stdout=subprocess.DEVNULL)


def children_of(pid):
    """Return descriptors of the workers of a program."""
    listed = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    workers = [child for child in listed if b"serve_runs" in Path(f"/proc/{child}/cmdline").read_bytes()]
    return [os.pidfd_open(int(child)) for child in workers]


def wait_for_end(descriptor):
    ended, _, _ = select.select([descriptor], [], [], 60)
    os.close(descriptor)
    return bool(ended)


def test_what_cannot_be_pickled_is_named(tmp_path):
    lock = threading.Lock()

    def locked(me, inbox, *, chance):
        lock.acquire()

    with pytest.raises(ConfigError, match=r"the study cannot be sent to other processes: .*lock"):
        sweep(tmp_path / "s", locked)


def test_own_modules_are_those_that_are_not_installed():
    names = {module.__name__ for module in run_workers._own_modules()}
    assert "support.studies" in names
    assert names.isdisjoint({"ray_messaging", "ray_messaging.studies.study", "numpy", "json", "pytest", "__main__"})
