"""The command `ray-messaging ui`: what is refused before a page is served."""

import socket

import pytest
from support.log_queries import ROWS, write_folder
from support.studies import written_study
from typer.testing import CliRunner

from ray_messaging.cli import app
from ray_messaging.inspector.web.serve import Place, bind


@pytest.fixture
def run(monkeypatch):
    """Return a function that runs the command, which must fail; give its error."""
    monkeypatch.setattr("ray_messaging.inspector.web.serve.serve", lambda *_, **__: pytest.fail("it serves"))

    def run(*args):
        found = CliRunner().invoke(app, ["ui", *map(str, args)])
        assert (found.exit_code, found.stdout) == (2, ""), found.output
        return found.stderr

    return run


@pytest.fixture
def folder(tmp_path):
    return write_folder(tmp_path / "log", [ROWS]).where


def test_a_wrong_folder(run, tmp_path):
    (tmp_path / "file").touch()
    assert "holds no event log" in run(tmp_path, "--port", 0)
    assert "is a file" in run(tmp_path / "file", "--port", 0)


def test_a_port_that_is_taken(run, folder):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert f"port {port} of 127.0.0.1 cannot be taken" in run(folder, "--port", port)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--port", 70_000], "--port 70000 is not a port"),
        (["--host", "192.0.2.7"], "is not an address of this machine"),
        (["--host", "no.such.host.invalid"], "is not an address of this machine"),
        (["--port", 0, "--control"], "is the folder of a log"),
    ],
)
def test_options_that_cannot_be(run, folder, options, words):
    assert words in run(folder, *options)


@pytest.mark.parametrize(
    "options", [[], ["town", "--control"], ["town", "--token"], ["town", "--beside", "x"], ["--model", "a:b"]]
)
def test_the_seats_are_those_of_an_experiment_and_no_other_option_is_dropped_in_silence(run, options):
    assert "--seats shows pages on which people answer for agents of a running experiment" in run(
        "--port", 0, "--seats", *options
    )


def test_it_names_the_extra_that_is_missing(run, folder, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "nicegui", None)
    assert "pip install 'ray-messaging[ui]'" in run(folder)


def test_an_experiment_that_is_nowhere(run, monkeypatch):
    monkeypatch.setattr("ray_messaging.cluster.ray_clusters.join_ray", lambda _: False)
    assert "there is no folder 'town' here, and no Ray cluster was found" in run("town", "--port", 0)


@pytest.mark.parametrize(
    ("host", "token", "demanded"),
    [("127.0.0.1", False, False), ("127.0.0.1", True, True), ("localhost", False, False), ("0.0.0.0", False, True)],
)
def test_another_address_than_loopback_demands_a_token(host, token, demanded):
    bound = bind(Place(host, 0, ("proxy.example",)), token=token)
    bound.socket.close()
    assert (bound.access.token is not None) == demanded
    assert ("?token=" in bound.url) == demanded
    assert "proxy.example" in bound.access.hosts


def test_a_study_or_a_model_is_named_as_such(run, folder, tmp_path):
    written_study(tmp_path / "study", {"chance": [1]}, 1, lambda run: {})
    assert "is the folder of a study" in run("--port", 0, tmp_path / "study", "--beside", folder)
    assert "name what to show" in run("--port", 0, folder, "--model", "town:town")
    assert "cannot be imported" in run("--port", 0, "--model", "no_such_module:town")
    assert "has no default" in run("--port", 0, "--model", "operator:add")
    assert "--model runs a model" in run("--port", 0, "--model", "town:town", "--beside", folder)
