"""The progress of a run: lines of text where there is no terminal."""

import pytest

from ray_messaging.cluster.handles.experiment_steps import RunProgress
from ray_messaging.common import progress_line as module
from ray_messaging.steps.stragglers import Straggler
from ray_messaging.transports.step_values import GroupProgress, Progress


class Steps:
    """Steps of two groups, one of them late."""

    def progress(self):
        groups = {name: GroupProgress(closed, None, None, 0, 0, None) for name, closed in (("west", 4), ("east", 5))}
        return Progress(4, 5, None, groups, {}, "0-0")

    def stragglers(self):
        return [Straggler("west", 5, 41.0, is_open=False, driver="")]


@pytest.fixture
def clock(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    return now


def test_a_line_comes_now_and_then(clock, capsys):
    with RunProgress(Steps(), 20, shown=True) as progress:
        progress.show()
        assert capsys.readouterr().err == ""
        clock[0] += 11
        progress.show()
        progress.show()
    assert capsys.readouterr().err == (
        "step 5 of 20, 0 steps/s, waiting for west; no task has opened group 'west': step 5 waits for it since 41 s\n"
    )


def test_nothing_comes_without_progress(clock, capsys):
    with RunProgress(Steps(), 20, shown=False) as progress:
        clock[0] += 100
        progress.show()
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("waiting", "text"),
    [
        ({}, "step 5 of 20, 2.5 steps/s"),
        ({"west": 5}, "step 5 of 20, 2.5 steps/s, waiting for west"),
        ({"west": 6, "east": 5, "north": 6}, "step 5 of 20, 2.5 steps/s, waiting for east and 2 more"),
    ],
)
def test_the_slowest_group_is_named(waiting, text):
    assert RunProgress(Steps(), 20, shown=False).text(5, 2.5, waiting) == text


def test_a_pause_is_named(clock, capsys):
    class Paused(Steps):
        def progress(self):
            return super().progress()._replace(target=4)

        def stragglers(self):
            return []

    with RunProgress(Paused(), 20, shown=True) as progress:
        clock[0] += 11
        progress.show()
    assert capsys.readouterr().err == "step 5 of 20, paused until messaging.steps.resume()\n"


def test_a_terminal_gets_a_bar(capsys, monkeypatch):
    monkeypatch.setattr(module.sys.stderr, "isatty", lambda: True, raising=False)
    with RunProgress(Steps(), 20, shown=True) as progress:
        progress.show()
        assert progress._line._bar.tasks[0].completed == 5
        assert "waiting for west" in progress._line._bar.tasks[0].description
