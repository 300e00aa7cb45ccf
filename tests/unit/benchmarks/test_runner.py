"""Benchmark parts in processes of their own: their output, failures, and leftovers."""

import sys
from contextlib import contextmanager
from unittest.mock import Mock

import pytest
from support.benchmark_parts import TELL, figure, part
from support.embedded_server import wait_ended

from benchmarks.figures import OURS, Figure, Plan, percentiles
from benchmarks.runs.runner import MissingError, Part, Watcher, run_all, run_part


class TestFigures:
    def test_come_through_a_line_of_json(self):
        told = figure(values=[3.0, 1.0, 2.0], note="set up in 1 s")
        assert Figure.from_json(told.to_json()) == told
        assert (told.median, told.low, told.high) == (2.0, 1.0, 3.0)
        assert Plan.from_json(Plan.of(quick=True).to_json()) == Plan(quick=True, seconds=0.7, repeats=1)

    @pytest.mark.parametrize(
        ("changed", "says"),
        [({"unit": "furlongs"}, "furlongs"), ({"values": []}, "finite"), ({"values": [float("nan")]}, "finite")],
    )
    def test_that_no_table_can_show_are_refused(self, changed, says):
        with pytest.raises(ValueError, match=says):
            figure(**changed)

    def test_percentiles(self):
        assert percentiles(list(range(1000, 0, -1)), 50, 99, 99.9) == [501, 991, 1000]
        assert percentiles([7.0], 50, 99.9) == [7.0, 7.0]


class TestParts:
    def test_one_that_measures(self):
        seen = []
        outcome = run_part(part(TELL), seen.append)
        assert (outcome.state, outcome.why) == ("measured", "")
        assert [(each.who, each.values, each.at) for each in outcome.figures] == [(OURS, [2.0], {"groups": 2})]
        assert seen == outcome.figures

    @pytest.mark.parametrize(
        ("code", "state", "says", "figures"),
        [
            (TELL + "raise RuntimeError('boom')", "failed", "exit code 1: RuntimeError: boom", 1),
            (
                "import atexit; atexit.register(print, '[2026] 7 frames'); raise OSError('boom')",
                "failed", "code 1: OSError: boom", 0,
            ),
            (TELL + "sys.exit(77)", "missing", "Ray says something", 1),
            ("print('no mosquitto'); raise SystemExit(77)", "missing", "no mosquitto", 0),
            ("print('nothing')", "failed", "no figure: nothing", 0),
            *((f"print({line!r})", "failed", "no figure", 0) for line in ("7", "[]", "{}", '{"axis": 1, "unit": 2}')),
            ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "failed", "exit code -9", 0),
        ],
    )  # fmt: skip
    def test_one_that_does_not(self, code, state, says, figures):
        outcome = run_part(part(code))
        assert outcome.state == state
        assert says in outcome.why
        assert len(outcome.figures) == figures

    def test_one_that_hangs_is_ended(self):
        outcome = run_part(part("import threading; threading.Event().wait()", limit_s=0.5))
        assert (outcome.state, outcome.why) == ("failed", "not done after 0.5 s; last words: it said nothing")

    def test_processes_of_a_part_end_with_it(self):
        code = TELL + (
            "import subprocess\n"
            "child = subprocess.Popen([sys.executable, '-c', 'import threading; threading.Event().wait()'])\n"
            "emit(Figure('groups', 'pid', 'ray_messaging', 's', [child.pid]))"
        )
        outcome = run_part(part(code))
        assert outcome.state == "measured"  # its pipes were held open by the child, which has ended
        wait_ended(int(outcome.figures[-1].median))

    def test_a_server_is_there_as_long_as_the_part(self):
        life = []

        @contextmanager
        def served():
            life.append("up")
            yield {"port": 7}
            life.append("down")

        def told(server):
            life.append(server["port"])
            return Plan(seconds=server["port"]).to_json()

        outcome = run_part(Part("x", "groups", lambda: [sys.executable, "-c", TELL], told, 30.0, served))
        assert outcome.figures[0].values == [7]
        assert life == ["up", 7, "down"]

    @pytest.mark.parametrize(("error", "state"), [(MissingError("no nats"), "missing"), (OSError("full"), "failed")])
    def test_a_server_that_does_not_start(self, error, state):
        outcome = run_part(part(TELL, served=Mock(side_effect=error)))
        assert (outcome.state, outcome.figures) == (state, [])
        assert str(error) in outcome.why

    def test_an_environment_that_is_not_there(self):
        command = Mock(side_effect=RuntimeError("not built: python -m benchmarks peers"))
        outcome = run_part(Part("x", "peers", command, lambda _: "", 1.0))
        assert outcome.state == "failed"
        assert "python -m benchmarks peers" in outcome.why

    def test_an_interrupt_leaves_out_the_others(self):
        cut = part(TELL, "cut", served=Mock(side_effect=KeyboardInterrupt))
        found = list(run_all([part(TELL), cut, part(TELL, "left")], Watcher()))
        assert [(each.state, each.why) for each in found] == [("measured", "")] + [("failed", "interrupted")] * 2
