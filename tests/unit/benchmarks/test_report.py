"""Results of a benchmark run: their drawing, required content, and the commands."""

import json

import pytest
from support.benchmark_parts import FACTS, TELL, figure, part, run_of
from typer.testing import CliRunner

from benchmarks import __main__ as commands
from benchmarks import machine
from benchmarks.axes import AXES
from benchmarks.figures import LIMIT, TURNS
from benchmarks.peers import PEERS
from benchmarks.reports import markdown, targets
from benchmarks.runs import parts
from benchmarks.runs.results import Outcome, Run


class TestReport:
    def test_ratios_are_ours_by_theirs(self):
        ours, theirs = figure(values=[2000.0, 3000.0, 1000.0]), figure("NATS core", [500.0])
        text = markdown.by_point([ours, theirs])
        assert "| bulk | 2,000 | messages/s | 2,000 (1,000 to 3,000) | 500 | 4 x |" in text
        slower = [figure(values=[0.25], unit="ms", case="lone p50"), figure("zmq", [0.125], unit="ms", case="lone p50")]
        assert "| 0.25 | 0.125 | 2 x |" in markdown.by_point(slower)

    def test_many_peers_are_rows_the_best_first(self):
        peers = [figure(f"peer {rate}", [rate]) for rate in (1.0, 5.0, 3.0, 4.0)]
        text = markdown.axis_tables([figure(LIMIT + "frames", [900.0]), *peers, figure()])
        names = [line.split(" | ")[0].removeprefix("| ") for line in text.splitlines()[4:]]
        assert names == ["**ray_messaging**", "peer 5.0", "peer 4.0", "peer 3.0", "peer 1.0", "limit: frames"]
        assert text.startswith("agents 2,000:")

    def test_notes_are_said_once(self):
        told = [figure(note="set up in 1 s"), figure(case="awaited", note="set up in 1 s; 3 lost")]
        elsewhere = figure(agents=200)
        assert markdown.notes([*told, elsewhere]) == "- ray_messaging, agents 2,000: set up in 1 s; awaited: 3 lost"

        everywhere = [figure(note="one core", agents=agents) for agents in (200, 2000)]
        assert markdown.notes([*everywhere, figure("zmq")]) == "- ray_messaging: one core"

    def test_failed_and_missing_parts_are_reported(self):
        run = run_of(figure())
        run.outcomes += [
            Outcome("axis log", "log", "failed", "exit code 1: a|b", 3.0),
            Outcome("mqtt", "peers", "missing", "no"),
        ]
        text = markdown.markdown(run)
        assert "| failed | axis log | exit code 1: a\\|b | 3 s |" in text
        assert "| missing | mqtt | no | 0 s |" in text
        assert run.failed
        assert not run_of(figure()).failed

    def test_a_busy_machine_is_reported(self):
        assert "busy" not in markdown.markdown(run_of(figure()))
        assert "40% of its processors" in markdown.markdown(run_of(figure(), facts=FACTS | {"busy": 0.4}))

    def test_all_of_a_run_is_kept(self, tmp_path):
        run = run_of(figure(), figure("NATS core"))
        run.write(tmp_path)
        assert Run.from_json((tmp_path / "benchmarks.json").read_text()) == run
        with pytest.raises(ValueError, match="version"):
            Run.from_json('{"version": 0}')


class TestMustShow:
    def checked(self, text, *figures):
        return next(each for each in targets.checked(figures) if text in each.target.text)

    def test_a_ratio(self):
        def rate(value, agents=1_000_000):
            return figure(axis="agents", values=[value], agents=agents)

        text = "bulk at 1,000,000 agents, beside 200"
        assert self.checked(text, rate(75.0), rate(100.0, 200))[1:3] == (0.75, True)
        assert self.checked(text, rate(74.0), rate(100.0, 200))[1:3] == (0.74, False)
        assert self.checked(text, rate(75.0))[1:3] == (None, None)
        assert self.checked(text, rate(75.0), rate(0.0, 200))[1:3] == (None, None)
        assert self.checked(text, rate(75.0), rate(100.0, 2000)).kept is None

    def test_a_bound(self):
        lost = figure(axis="log", case="lost when the log lags", unit="messages", values=[1.0])
        assert self.checked("lost", lost).kept is False
        slow = figure(axis="latency", case="p99", unit="ms", values=[1.4], load="idle")
        assert self.checked("p99, idle", slow).kept is True
        assert "| ✅ | lone message p99, idle (ms) | 1.4 | at most 1.5 |" in markdown.markdown(run_of(slow))

    def test_a_sum(self):
        at = {"axis": "agents", "case": "memory", "unit": "bytes", "agents": 1_000_000}
        ours, rays = figure(values=[3e9], **at), figure("Ray's own processes", [0.9e9], **at)
        assert self.checked("memory in all", ours, rays)[1:3] == (3.9e9, True)
        assert self.checked("memory in all", ours)[1:3] == (None, None)

    def test_names_only_what_is_measured(self):
        named = [each for target in targets.TARGETS for each in (target.figure, target.beside) if each]
        assert {each.axis for each in named} <= {TURNS, *AXES}
        measured = {peer.name for peer in PEERS}
        assert {each.who for each in named if each.axis == TURNS} <= measured


class TestCommands:
    runner = CliRunner()

    def run(self, *words):
        return self.runner.invoke(commands.app, [str(word) for word in words])

    @pytest.fixture
    def chosen(self, monkeypatch):
        """Have `run` measure these parts rather than ours."""
        listed = []
        monkeypatch.setattr(parts, "choose", lambda *_: listed)
        monkeypatch.setattr(parts, "environments", lambda *_: [])
        monkeypatch.setattr(machine, "WATCHED_S", 0.01)
        return listed

    def test_names_its_parts(self):
        names = self.run("run", "--list").stdout.splitlines()
        assert "axis groups" in names
        assert {"peers: NATS core, 2,000 agents", "by turns: ours and NATS core, 2,000 agents"} <= set(names)
        assert self.run("run", "--list", "--only", "AXIS G").stdout.splitlines() == ["axis groups"]
        refused = self.run("run", "--only", "nonsense")
        assert refused.exit_code == 2
        assert "axis groups" in refused.output

    def test_a_run_writes_all_and_prints_json(self, chosen, tmp_path):
        chosen += [part(TELL), part("import sys; print('no server'); sys.exit(77)", "other")]
        ran = self.run("run", "--json", "--out", tmp_path)
        assert ran.exit_code == 0, ran.output
        assert [each["state"] for each in json.loads(ran.stdout)["outcomes"]] == ["measured", "missing"]
        assert "no server" in ran.stderr
        assert "| missing | other | no server |" in (tmp_path / "benchmarks.md").read_text()

    def test_a_failed_part_is_the_exit_code(self, chosen, tmp_path):
        chosen += [part("raise SystemExit(5)"), part(TELL)]
        ran = self.run("run", "--quick", "--out", tmp_path)
        assert ran.exit_code == 1
        assert "failed: part: exit code 5" in ran.stdout
        assert len(list(Run.from_json((tmp_path / "benchmarks.json").read_text()).figures())) == 1

    def test_a_report_is_drawn_anew(self, tmp_path):
        peers = [figure(), figure("NATS core", [50.0]), figure(case="lone p50", unit="ms", values=[0.2])]
        axes = [figure(axis="agents", agents=agents) for agents in (200, 2000)]
        run_of(*peers, *axes).write(tmp_path)
        ran = self.run("report", tmp_path)
        assert ran.exit_code == 0, ran.output
        assert "2 x" in ran.stdout
        for name in ("peers.png", "peers-lone.png", "agents.png"):
            head = (tmp_path / name).read_bytes()[:24]
            assert head[:4] == b"\x89PNG"
            assert int.from_bytes(head[16:20]) == 1200
            assert f"]({name})" in (tmp_path / "benchmarks.md").read_text()

    def test_a_report_of_nothing(self, tmp_path):
        refused = self.run("report", tmp_path)
        assert refused.exit_code == 2
        assert "benchmarks.json" in refused.output
