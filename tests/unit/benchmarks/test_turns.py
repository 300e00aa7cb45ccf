"""Alternating runs of ours and a peer: order, pairs, frozen processes, and no leftovers."""

import json
import os
import signal
import subprocess
import sys
from contextlib import contextmanager

import pytest
from support.benchmark_parts import figure, run_of
from support.embedded_server import wait_ended

from benchmarks.figures import OURS, TURNS, Plan, Task, paired
from benchmarks.peers import BY_TURNS
from benchmarks.reports import markdown, targets
from benchmarks.runs import parts
from benchmarks.runs.runner import ROOT
from benchmarks.runs.sessions import members
from benchmarks.runs.side import Side
from benchmarks.runs.turns import FIRST_WARM_S, by_turns

TASK = Task(["bulk"], 1.0, 1, 300, 0.3)
PEER = "NATS core"
# As Ray's workers, its child has a group of its own and writes elsewhere; it does not end with it, either.
DRIVER = """
import os, subprocess, sys
from benchmarks.figures import DONE, Figure, emit
who, told, fate = sys.argv[1:]
forever = "import threading; threading.Event().wait()"
child = subprocess.Popen([sys.executable, "-c", forever], stdout=2, process_group=0)
sys.stdin.readline()
if fate == "fails":
    raise OSError("no port is free")
print(DONE, flush=True)
for number, _ in enumerate(sys.stdin):
    with open(told, "w") as telling:
        print(os.getpid(), child.pid, file=telling)
    if fate == "hangs":
        child.wait()
    if fate == "ends":
        raise OSError("the server has gone")
    print("Ray says something")
    emit(Figure("peers", "bulk", who, "messages/s", [number + 1.0], note="set up"))
    print(DONE, flush=True)
"""


class Pretended:
    """A side with the number of its turn as every rate."""

    def __init__(self, who, log):
        self.who, self.log, self.asked = who, log, []

    @contextmanager
    def awake(self):
        self.log.append(self.who)
        yield self
        self.log.append("frozen")

    def ask(self, line):
        self.asked.append(Task.from_json(line))
        number = float(len(self.asked))
        return [
            figure(self.who, [number], note=f"set up; {number:g} lost"),
            figure(self.who, [2 * number], "awaited"),
        ]


class TestOrder:
    def test_the_first_side_alternates_and_rounds_stay_together(self):
        log = []
        sides = Pretended(OURS, log), Pretended(PEER, log)
        found = list(by_turns(sides, TASK, 3, 2000))
        assert [who for who in log if who != "frozen"] == [OURS, PEER, PEER, OURS, OURS, PEER]
        assert log[1::2] == ["frozen"] * 6
        assert [(each.who, each.case, each.values) for each in found] == [
            (who, case, values)
            for who in (OURS, PEER)
            for case, values in (("bulk", [1.0, 2.0, 3.0]), ("awaited", [2.0, 4.0, 6.0]))
        ]
        assert {each.axis for each in found} == {TURNS}
        assert found[0].at == {"agents": 2000, "beside": PEER}
        assert found[0].note == "set up; 1 lost; 2 lost; 3 lost"
        assert [task.warm_s for task in sides[0].asked] == [FIRST_WARM_S, TASK.warm_s, TASK.warm_s]


AT = {"axis": TURNS, "agents": 2000, "beside": PEER, "case": "awaited"}


class TestPairs:
    def test_are_divided_round_by_round(self):
        ours, theirs = figure(values=[10.0, 40.0, 30.0], **AT), figure(PEER, [5.0, 10.0, 10.0], **AT)
        assert paired(ours, theirs) == [2.0, 4.0, 3.0]
        assert paired(ours, figure(PEER, [5.0, 0.0, 10.0], **AT)) == []
        assert paired(figure(), figure(PEER)) == []  # they took no turns

    def test_the_shown_ratio_is_the_median_of_their_ratios(self):
        # The medians of both rates are 40 and 40; no round was measured at less than twice theirs but one.
        run = run_of(figure(values=[40.0, 20.0, 90.0], **AT), figure(PEER, [40.0, 10.0, 45.0], **AT))
        text = "one awaited call each, 2,000 agents, beside NATS core"
        shown = next(each for each in targets.checked(run.figures()) if each.target.text == text)
        assert (shown.value, shown.kept, shown.values) == (2.0, True, [1.0, 2.0, 2.0])
        drawn = markdown.markdown(run)
        assert f"| ✅ | {text} | 2 x (1 to 2) | at least 1 x |" in drawn
        assert "| awaited | 2,000 | NATS core | messages/s | 40 (20 to 90) | 40 (10 to 45) | 2 x (1 to 2) |" in drawn

    def test_everything_beside_peers_is_measured_by_turns(self):
        asked = {
            (each.figure.case.partition(" ")[0], each.beside.who, each.figure.at["agents"])
            for each in targets.TARGETS
            if each.figure.axis == TURNS
        }
        assert asked == {(kind, each.peer, each.agents) for each in BY_TURNS for kind in each.kinds}

    def test_a_part_starts_both_in_their_environments(self, tmp_path, monkeypatch):
        monkeypatch.setattr("benchmarks.setup.environments.python", lambda envs, name: envs / name / "python")
        [part] = parts.choose(Plan(seconds=1.5), ["by turns: ours and NATS core"], tmp_path)
        job = json.loads(part.stdin({"port": 7}))
        ours, theirs = job["sides"]
        assert ours["command"] == [sys.executable, "-m", "benchmarks.runs.driver"]
        assert theirs["command"][0] == str(tmp_path / "brokers" / "python")
        assert ours["job"] == {"peer": OURS, "agents": 2000, "server": None}
        assert theirs["job"] == {"peer": PEER, "agents": 2000, "server": {"port": 7}}
        assert (job["rounds"], job["agents"]) == (6, 2000)
        [task] = job["tasks"]
        assert (Task(**task).kinds, task["seconds"], task["repeats"]) == (["awaited"], 1.5, 1)


@pytest.fixture
def told(tmp_path, monkeypatch):
    """Open the pipe on which drivers report the running side."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    path = tmp_path / "told"
    os.mkfifo(path)
    with os.fdopen(os.open(path, os.O_RDWR), "r", closefd=True) as pipe:
        yield pipe, path


def driver(who, path, fate="works"):
    return [sys.executable, "-c", DRIVER, who, str(path), fate]


class TestFreezing:
    def test_only_the_side_with_the_turn_runs(self, told):
        pipe, path = told
        with Side(PEER, driver(PEER, path), "{}") as side:
            with side.awake():
                [found] = side.ask(TASK.to_json())
                pids = [int(pid) for pid in pipe.readline().split()]
                awake = members(pids[0])
            frozen = members(pids[0])
            with side.awake():
                [again] = side.ask(TASK.to_json())
        assert set(awake) == set(frozen) == set(pids)
        assert "T" not in awake.values()
        assert set(frozen.values()) == {"T"}
        assert (found.who, found.values, again.values) == (PEER, [1.0], [2.0])
        wait_ended(*pids)

    @pytest.mark.parametrize(("fate", "says"), [("fails", "no port is free"), ("ends", "the server has gone")])
    def test_a_failing_driver_reports_the_reason(self, told, fate, says):
        with (
            pytest.raises(RuntimeError, match=f"driver of {PEER} ended; OSError: {says}"),
            Side(PEER, driver(PEER, told[1], fate), "{}") as side,
            side.awake(),
        ):
            side.ask(TASK.to_json())

    def test_a_failing_side_ends_the_other(self, told):
        pipe, path = told
        with (
            pytest.raises(RuntimeError, match="the server has gone"),
            Side(OURS, driver(OURS, path), "{}") as ours,
            Side(PEER, driver(PEER, path, "ends"), "{}") as theirs,
        ):
            list(by_turns((ours, theirs), TASK, 2, 2000))
        wait_ended(*(int(pid) for _ in range(2) for pid in pipe.readline().split()))


class TestProcess:
    def started(self, path, fate):
        sides = [
            {"who": OURS, "command": driver(OURS, path), "job": {}},
            {"who": PEER, "command": driver(PEER, path, fate), "job": {}},
        ]
        job = {"agents": 2000, "rounds": 2, "tasks": [vars(TASK)], "sides": sides}
        process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.runs.turns"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip
        process.stdin.write(json.dumps(job))
        process.stdin.close()
        process.stdin = None
        return process

    def test_prints_the_figures_of_both(self, told):
        with self.started(told[1], "works") as process:
            out, said = process.communicate()
        assert process.returncode == 0, said
        assert [(each["who"], each["values"]) for each in map(json.loads, out.splitlines())] == [
            (OURS, [1.0, 2.0]),
            (PEER, [1.0, 2.0]),
        ]

    @pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
    def test_an_ended_run_ends_the_frozen_and_the_running_side(self, told, end):
        pipe, path = told
        with self.started(path, "hangs") as process:
            pids = [int(pid) for _ in range(2) for pid in pipe.readline().split()]
            assert set(members(pids[0]).values()) == {"T"}  # ours, while theirs has its turn
            os.killpg(process.pid, end)
            process.communicate()
            wait_ended(*pids)
