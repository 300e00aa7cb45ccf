"""`ray-messaging study show`: a study in a terminal."""

import json

import pytest
from support.studies import written_study
from typer.testing import CliRunner

from ray_messaging.cli import app


@pytest.fixture
def folder(tmp_path):
    def outcomes(run):
        if run.row["rule"] == "\x1bmask" and run.replicate == 1:
            raise RuntimeError("no \x1b beds (town.py:7)")
        return {"sick": run.replicate, "name": "x"}

    written_study(tmp_path / "s", {"rule": ["none", "\x1bmask"]}, 3, outcomes)
    return str(tmp_path / "s")


def show(*words):
    return CliRunner().invoke(app, ["study", "show", *words], env={"COLUMNS": "200"})


def test_means_with_intervals_and_the_runs_that_failed(folder):
    found = show(folder, "--level", "0.5")
    assert found.exit_code == 0, found.output
    assert "6 runs of town.person, 2 rows of parameters, 1 failed" in found.stdout
    assert "1 (0.6667 to 1.333)" in found.stdout
    assert "replicate 1: RuntimeError: no \ufffd beds (town.py:7)" in found.stdout
    assert "\x1b" not in found.stdout
    assert "name" not in found.stdout


def test_rows_for_programs(folder):
    rows = [json.loads(line) for line in show(folder, "--json").stdout.splitlines()]
    assert [(row["rule"], row["runs"], row["failed"], row["sick"]) for row in rows] == [
        *(("none", 3, 0, 1.0), ("\x1bmask", 3, 1, 1.0))
    ]


def test_no_study(tmp_path):
    found = show(str(tmp_path))
    assert found.exit_code == 2
    assert "has no study" in found.stderr
