"""docs/studies.md runs as printed, from nothing to a plot with intervals; without Ray."""

import sys
import types

import pytest
from support.doc_pages import run_page
from typer.testing import CliRunner

from ray_messaging.cli import app


@pytest.mark.long
def test_the_page_runs_as_printed(tmp_path, monkeypatch, capsys):
    def command(words):
        assert words[0] == "ray-messaging"
        found = CliRunner().invoke(app, words[1:])
        assert found.exit_code == 0, found.output
        return found.stdout

    program = types.ModuleType("__main__")  # as of a program of the reader's
    monkeypatch.setitem(sys.modules, "__main__", program)
    monkeypatch.chdir(tmp_path)
    run_page("docs/studies.md", vars(program), printed=lambda: capsys.readouterr().out, command=command)
    assert (tmp_path / "rumour.png").stat().st_size > 10_000
