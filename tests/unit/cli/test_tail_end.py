"""How a tail ends when the experiment does."""

import pytest
from typer.testing import CliRunner

from ray_messaging.cli import app
from ray_messaging.errors import Closed, LogError


class EndingLog:
    """A log with a tail that ends by an error."""

    end = -1

    def __init__(self, error):
        self.error = error

    def tail(self, **fields):
        raise self.error
        yield


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (Closed("read its folder"), 0, "note: the experiment has ended: read its folder\n"),
        (LogError("it is damaged"), 2, "error: it is damaged\n"),
    ],
)
def test_the_end_of_the_experiment_is_no_error(monkeypatch, error, code, words):
    monkeypatch.setattr("ray_messaging.cli.log.open_log", lambda target: EndingLog(error))
    found = CliRunner().invoke(app, ["log", "tail", "some-experiment"])
    assert (found.exit_code, found.stdout, found.stderr) == (code, "", words)
