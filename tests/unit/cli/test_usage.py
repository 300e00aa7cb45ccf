"""Errors for invalid command lines, before anything is started."""

import subprocess
import sys
from importlib.metadata import version

import pytest
from support.doc_pages import blocks
from typer.main import get_command
from typer.testing import CliRunner

from ray_messaging.cli import app
from ray_messaging.cli.app import COMMANDS, PROGRAM


@pytest.fixture
def run(monkeypatch):
    """Return a function that runs a command line; starting anything would be an error."""
    monkeypatch.setattr("ray_messaging.cluster.messaging.Messaging.start", lambda *_, **__: pytest.fail("started"))

    def run(*args):
        return CliRunner().invoke(app, [*map(str, args)])

    return run


@pytest.fixture(autouse=True)
def traces(tmp_path, monkeypatch):
    """Go to a folder with a trace, and with a broken one."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "trace.txt").write_text("1 2 10\n2 1 20\n")
    (tmp_path / "broken.txt").write_text("1 2 10\n1 2 10\n1 x\n")


def test_version(run):
    found = run("--version")
    assert (found.exit_code, found.stdout) == (0, f"ray-messaging {version('ray-messaging')}\n")


def commands(group, path=()):
    """Give the words of each command and of each group of commands."""
    yield path
    for name, command in getattr(group, "commands", {}).items():
        yield from commands(command.load() if name in COMMANDS and not path else command, (*path, name))


def test_without_arguments_it_says_where_to_begin(run):
    found = run()
    assert found.exit_code == 0
    assert "ray-messaging demo" in found.stdout
    program = "\n".join(line.removeprefix("    ") for line in found.stdout.splitlines())
    assert program.rstrip().endswith(PROGRAM.rstrip())
    assert next(block.text for block in blocks("README.md") if block.language == "python") == PROGRAM


def test_the_list_of_commands_has_them_in_order_and_imports_none(run):
    listed = run("--help").stdout.partition("Commands:\n")[2].splitlines()
    assert [line.split()[0] for line in listed] == list(COMMANDS)
    code = "import sys; from ray_messaging.cli import app; sys.argv[1:] = ['--help']\n"
    code += "try: app()\nfinally: assert not {'ray', 'pyarrow', 'redis', 'numpy'} & set(sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_shell_completes_commands_and_options(run, monkeypatch):
    def completed(words):
        monkeypatch.setenv("_RAY_MESSAGING_COMPLETE", "complete_bash")
        monkeypatch.setenv("COMP_WORDS", words)
        monkeypatch.setenv("COMP_CWORD", str(len(words.split()) - 1))
        return CliRunner().invoke(app, [], prog_name="ray-messaging").stdout.split()

    assert completed("ray-messaging de") == ["demo", "deadletters"]
    assert "--agents" in completed("ray-messaging demo --a")


@pytest.mark.parametrize("command", list(commands(get_command(app))), ids=lambda words: "-".join(words) or "all")
def test_help(run, command):
    found = run(*command, "--help")
    assert found.exit_code == 0, found.exception
    assert found.stdout.startswith("Usage: ")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("replay trace.txt --rules foo:1", "error: unknown rule 'foo'"),
        ("replay trace.txt --speed 0", "neither 'max' nor a positive number"),
        ("replay trace.txt --speed nan", "neither 'max' nor a positive number"),
        ("replay trace.txt --speed fast", "neither 'max' nor a positive number"),
        ("replay trace.txt --groups 0", "Invalid value for '--groups'"),
        ("replay trace.txt --from {a.b}", "cannot use the template"),
        ("replay trace.txt --nonsense", "No such option"),
        ("replay broken.txt", "error: broken.txt:3: "),
        ("replay nothing.txt", "cannot read the trace"),
        ("demo --ui", "add --log-dir demo-log to --ui"),
        ("demo --agents 4 --groups 3", "4 agents cannot fill 3 groups"),
    ],
)
def test_a_wrong_command_line_is_named(run, words, says):
    found = run(*words.split())
    assert (found.exit_code, found.stdout) == (2, "")
    assert says in " ".join(found.stderr.replace("│", " ").split())
    assert "Traceback" not in found.stderr


@pytest.fixture
def old_log(tmp_path):
    """Give the folder of a run that is over."""
    from ray_messaging.eventlog.folder import Folder
    from ray_messaging.eventlog.log_schema import SCHEMA

    folder = Folder(tmp_path / "log")
    folder.prepare("old")
    folder.write(1, SCHEMA.empty_table(), {"exp_id": "old", "epoch": 1, "first_row": 0, "cursors": {}})
    return folder.where


def test_the_log_of_an_earlier_run_stays(run, old_log):
    for command in (["replay", "trace.txt"], ["demo", "--messages", 9]):
        found = run(*command, "--log-dir", old_log)
        assert (found.exit_code, found.stdout) == (2, "")
        assert f"'{old_log}' contains the log of an earlier run" in found.stderr


@pytest.mark.parametrize(
    ("address", "words"),
    [
        pytest.param("nonsense", "is not of the form host:port", marks=pytest.mark.long),
        pytest.param("ray://127.0.0.1:1", "is not of the form host:port", marks=pytest.mark.long),
        ("127.0.0.1:1", "is not the address of a Ray"),
    ],
)
def test_a_ray_address_that_leads_nowhere(run, monkeypatch, address, words):
    monkeypatch.setenv("RAY_ADDRESS", address)
    monkeypatch.setattr("ray.is_initialized", lambda: False)  # other tests have a Ray in this process
    for command in (["demo"], ["log", "stats", "some-experiment"]):
        found = run(*command)
        assert found.exit_code == 2
        assert found.stderr.startswith(f"error: RAY_ADDRESS='{address}' {words}")


def test_a_rate_by_the_clock_is_noted(run, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "nonsense")  # so that it goes no further
    found = run("replay", "trace.txt", "--rules", "rate-limit:per_second=5")
    assert "note: a limit per_second counts seconds of the clock" in found.stderr
