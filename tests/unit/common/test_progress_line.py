"""The progress of a run: lines of text where there is no terminal."""

import pytest

from ray_messaging.cluster.handles.experiment_steps import RunProgress
from ray_messaging.common import progress_line as module
from ray_messaging.errors import ConnectionFailed
from ray_messaging.steps.stragglers import Straggler
from ray_messaging.transports.step_values import Driver, GroupProgress, Progress


class Steps:
    """Steps of groups, which the test takes on. The run is at step 5, for which `west` is late."""

    def __init__(self, late=(), **closed):
        self.late = late
        self.now = Progress(4, 5, None, {}, {}, "0-0")
        self.close(**(closed or {"west": 4, "east": 5}))

    def close(self, **closed):
        groups = {name: GroupProgress(step, None, None, 0, 0, None) for name, step in closed.items()}
        self.now = self.now._replace(groups=groups, sealed=min(closed.values()))
        self.now = self.now._replace(latest=self.now.sealed + 1)

    def progress(self):
        return self.now

    def stragglers(self):
        return self.late


@pytest.fixture
def clock(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    return now


def shown_after(seconds, steps, progress, clock, capsys, *, each=0.25):
    """Return the lines of the next seconds, in which the run makes a step each 0.25 s."""
    for _ in range(round(seconds / each)):
        clock[0] += each
        steps.close(west=steps.now.sealed + 1)
        progress.show()
    return capsys.readouterr().err


def test_the_first_line_comes_at_once_and_others_now_and_then(clock, capsys):
    steps = Steps([Straggler("west", 5, 41.0, is_open=False, driver="")])
    with RunProgress(steps, 20) as progress:
        progress.show()
        first = "step 5 of 20, waiting for west; no task has opened group 'west': step 5 has waited for it for 41 s\n"
        assert capsys.readouterr().err == first
        clock[0] += 9
        progress.show()
        assert capsys.readouterr().err == ""
        clock[0] += 2
        progress.show()
        progress.show()
        assert capsys.readouterr().err == first
    assert capsys.readouterr().err == "5 of 20 steps done\n"


def test_the_rate_is_that_of_the_last_seconds_from_the_first_step_on(clock, capsys):
    steps = Steps(west=-1)
    steps.now = steps.now._replace(latest=-1)
    with RunProgress(steps, 500) as progress:
        progress.show()  # no step has begun
        assert capsys.readouterr().err == "step 0 of 500, waiting for west\n"
        clock[0] += 5
        steps.close(west=-1)
        progress.show()
        assert shown_after(5, steps, progress, clock, capsys) == "step 20 of 500, 4 steps/s, waiting for west\n"
        assert shown_after(10, steps, progress, clock, capsys) == "step 60 of 500, 4 steps/s, waiting for west\n"
        assert ", 2 steps/s," in shown_after(10, steps, progress, clock, capsys, each=0.5)
        assert ", 0.05 steps/s," in shown_after(40, steps, progress, clock, capsys, each=20)
        clock[0] += 100  # a step that takes longer lowers it
        progress.show()
        assert ", 0.0167 steps/s," in capsys.readouterr().err


@pytest.mark.parametrize(
    ("closed", "text"),
    [
        ({"west": 4}, "step 5 of 20, waiting for west\n"),
        ({"west": 4, "east": 4, "north": 5, "south": 4}, "step 5 of 20, waiting for east and 2 more\n"),
    ],
)
def test_the_slowest_group_is_named_where_progress_is_shown(closed, text, capsys):
    with RunProgress(Steps(**closed), 20) as progress:
        progress.show()
        assert capsys.readouterr().err == text


def test_a_group_that_is_cut_off_is_named_first_and_at_once(clock, capsys):
    steps = Steps(west=4, east=4, north=5)
    silent = GroupProgress(4, 5, Driver("messager west"), 14_000, 0, None, 13_000)
    steps.now = steps.now._replace(groups=steps.now.groups | {"west": silent})
    with RunProgress(steps, 20) as progress:
        progress.show()
        expected = "step 5 of 20, waiting for west (its process has not called the server for 13 s) and 1 more\n"
        assert capsys.readouterr().err == expected


def test_an_interceptor_that_does_not_reach_the_server_ends_no_run(clock, capsys, monkeypatch):
    def fail():
        raise ConnectionFailed("cannot reach the server at a:1")

    steps = Steps()
    with RunProgress(steps, 20) as progress:
        progress.show()
        monkeypatch.setattr(steps, "progress", fail)
        clock[0] += 20
        progress.show()
    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        "step 5 of 20, waiting for west",
        "step 5 of 20, as far as is known: cannot reach the server at a:1",
    ]


def test_a_pause_is_shown_in_place_of_a_rate_and_does_not_count(clock, capsys):
    steps = Steps()
    with RunProgress(steps, 99) as progress:
        progress.show()
        shown_after(9, steps, progress, clock, capsys)
        steps.now = steps.now._replace(latest=40, target=40)
        clock[0] += 100
        progress.show()
        assert capsys.readouterr().err == "step 41 of 99, paused until messaging.steps.resume()\n"
        steps.now = steps.now._replace(latest=41, target=None)
        progress.show()
        assert "step 81 of 99, 4 steps/s" in shown_after(10, steps, progress, clock, capsys)


def test_a_terminal_gets_a_bar(capsys, monkeypatch):
    monkeypatch.setattr(module.sys.stderr, "isatty", lambda: True, raising=False)
    with RunProgress(Steps(), 20) as progress:
        progress.show()
        assert progress._line._bar.tasks[0].completed == 5
        assert "waiting for west" in progress._line._bar.tasks[0].description


def test_the_last_line_says_that_the_steps_are_done_once(clock, capsys):
    steps = Steps()
    with RunProgress(steps, 20, more=lambda: "3 calls") as progress:
        progress.show()
        steps.close(west=19)  # the groups have not returned yet
        clock[0] += 60
        progress.show()
    assert capsys.readouterr().err.splitlines()[1:] == ["20 steps done; 3 calls"]
    with RunProgress(steps, 20):
        pass  # it was too short for a line
    assert capsys.readouterr().err == ""
    progress = RunProgress(Steps(), 20)
    progress.show()
    progress.__exit__(ValueError, None, None)  # a run that failed has its error in place of a last line
    assert capsys.readouterr().err == "step 5 of 20, waiting for west\n"


def test_a_run_that_succeeded_does_not_fail_by_its_last_line(capsys, monkeypatch):
    def fail():
        raise ConnectionFailed("the interceptor restarts")

    steps = Steps()
    with RunProgress(steps, 20) as progress:
        progress.show()
        monkeypatch.setattr(steps, "progress", fail)
    assert capsys.readouterr().err == "step 5 of 20, waiting for west\n"


def test_steps_rest_while_none_is_open():
    def progress(*groups, sealed=3, latest=3):
        members = {str(place): GroupProgress(closed, opened, None, 0, 0, None) for place, (closed, opened) in groups}
        return Progress(sealed, latest, None, members, {}, "0-0")

    assert progress(*enumerate([(3, None), (3, None)])).resting
    assert not progress(*enumerate([(3, None), (3, 4)])).resting  # ahead of the others, as for its senders alone
    assert not progress(*enumerate([(4, None), (3, None)])).resting
    assert not progress(*enumerate([(3, None), (3, None)]), latest=4).resting
