"""docs/studies.md runs as printed, from nothing to a plot with intervals; without Ray."""

import sys
import types
from pathlib import Path

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


def test_from_nothing_to_a_plotted_sweep_with_intervals_are_twenty_lines():
    page = Path(__file__).parents[3] / "docs/studies.md"
    program = page.read_text().partition("```python\n")[2].partition("```")[0]
    assert "study.plot(" in program
    assert len([line for line in program.splitlines() if line.strip()]) <= 20
