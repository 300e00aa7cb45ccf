"""The doctor for a server and for this machine: its findings, output and exit codes."""

import io
import json
import resource
import shutil
import tomllib
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from rich.console import Console
from typer.testing import CliRunner

from ray_messaging.cli import app, doctor_machine
from ray_messaging.cli.doctor import show_health
from ray_messaging.common import operating_system
from ray_messaging.errors import ConfigError, ServerFailed
from ray_messaging.observability.health.findings import Finding, Health


@pytest.fixture
def run(monkeypatch):
    """Return a function that runs the doctor; no Ray that runs here is joined."""
    monkeypatch.setattr(doctor_machine, "look_into_clusters", lambda **_: {})

    def run(*args):
        return CliRunner().invoke(app, ["doctor", *map(str, args)])

    return run


def url(config, username="", password=None, query=""):
    return f"redis://{username}:{password or config.password}@{config.server}:{config.port}{query}"


def told(found):
    findings = json.loads(found.stdout)["findings"]
    return {finding["what"]: finding for finding in findings}


# -- a server -------------------------------------------------------------------------------------------------------


@pytest.fixture
def client(redis_process):
    with redis_process.client() as client:
        yield client


def test_a_suitable_server_has_no_problems(run, redis_process, client):
    found = run("--redis", url(redis_process.config))
    assert found.exit_code == 0, found.output
    kind = "Redis 7" if redis_process.binary.endswith("redis-server") else "Valkey 9"
    assert f"ok: server: {kind}" in found.stdout
    assert "server rights" not in found.stdout  # none lack
    assert client.dbsize() == 0
    assert redis_process.config.password not in found.output


def test_a_server_that_evicts(run, redis_process, client):
    client.config_set("maxmemory", "100mb")
    client.config_set("maxmemory-policy", "allkeys-lru")
    found = run("--redis", url(redis_process.config), "--json")
    assert found.exit_code == 1
    assert told(found)["server eviction"]["level"] == "critical"
    assert "noeviction" in told(found)["server eviction"]["remedy"]
    allowed = run("--redis", url(redis_process.config, query="?allow_eviction=1"), "--json")
    assert (allowed.exit_code, told(allowed)["server eviction"]["level"]) == (0, "warning")


RIGHTS = ["~rm:*", "&*", "-@all", "+@read", "+@write", "+@scripting", "+@pubsub", "+@connection", "+info", "+time"]


def test_the_rights_of_a_user(run, redis_process, client):
    client.execute_command("ACL", "SETUSER", "bob", "on", ">pw", *RIGHTS)
    address = url(redis_process.config, "bob", "pw")
    found = run("--redis", address, "--json")
    assert found.exit_code == 0, found.output
    assert "MULTI, which the user may not use" in told(found)["server rights"]["value"]
    client.execute_command("ACL", "SETUSER", "bob", "+multi")
    assert "server rights" not in told(run("--redis", address, "--json"))
    for right in ("subscribe", "xadd", "hincrby", "unlink", "evalsha", "persist", "xinfo|stream"):
        client.execute_command("ACL", "SETUSER", "bob", f"-{right}")
        found = run("--redis", address, "--json")
        assert found.exit_code == 1
        assert told(found)["server rights"]["value"] == f"the server's user lacks the rights +{right}"
        client.execute_command("ACL", "SETUSER", "bob", f"+{right}")
    assert client.dbsize() == 0
    client.execute_command("ACL", "SETUSER", "bob", "-info")
    found = run("--redis", address)
    assert found.exit_code == 1
    assert "docs/security.md" in found.stdout


def test_the_rights_for_one_experiment(run, redis_process, client, monkeypatch):
    monkeypatch.setattr("ray_messaging.cli.doctor.join_ray", lambda *_: False)
    channels = ["&exps:town:*", "&rm:{town}:own", "&rm:{town}:own:ear:*"]
    client.execute_command("ACL", "SETUSER", "town", "on", ">pw", "~rm:{town}:*", *channels, *RIGHTS[2:], "+multi")
    address = url(redis_process.config, "town", "pw")
    assert "~rm:{doctor-" in told(run("--redis", address, "--json"))["server rights"]["value"]
    found = run("town", "--redis", address, "--json")
    assert found.exit_code == 0, found.output
    for channel in channels:
        others = [each for each in channels if each != channel]
        client.execute_command("ACL", "SETUSER", "town", "resetchannels", *others)
        found = run("town", "--redis", address, "--json")
        assert told(found)["server rights"]["value"] == f"the server's user lacks the rights {channel}"
    client.execute_command("ACL", "SETUSER", "town", "resetkeys", *channels)
    assert (
        told(run("town", "--redis", address, "--json"))["server rights"]["value"]
        == "the server's user lacks the rights ~rm:{town}:*"
    )
    assert client.dbsize() == 0


def test_a_missing_server_is_critical(run):
    found = run("--redis", "redis://:secret@127.0.0.1:1")
    assert found.exit_code == 1
    assert "critical: server: cannot reach the server at 127.0.0.1:1" in found.stdout
    assert "secret" not in found.output


def test_an_address_that_cannot_be_read(run):
    found = run("--redis", "http://:secret@host")
    assert (found.exit_code, found.stdout) == (2, "")
    assert "write redis://" in found.stderr
    assert "secret" not in found.stderr


def test_an_invalid_name_is_refused(run):
    assert run("a b").exit_code == 2


def test_a_server_with_known_holes_is_named(run, redis_process):
    found = told(run("--redis", url(redis_process.config), "--json"))["server version"]
    assert "known" in found["value"]


# -- this machine ---------------------------------------------------------------------------------------------------


def test_ctrl_c_ends_a_command_in_one_line(run, monkeypatch):
    monkeypatch.setattr(doctor_machine, "look_into_clusters", Mock(side_effect=KeyboardInterrupt))
    found = run()
    assert (found.exit_code, found.stderr) == (130, "stopped\n")


def test_this_machine(run):
    found = run("--json")
    assert told(found)["embedded server"]["level"] == "ok"
    assert "started in" in told(found)["embedded server"]["value"]
    assert told(found)["server version"]["level"] == "ok"  # of the package's server
    assert {"Python", "packages", "extras", "memory", "disk of Ray", "open files", "clock", "experiments"} <= set(
        told(found)
    )
    assert (found.exit_code == 1) == (json.loads(found.stdout)["level"] == "critical")


def test_the_doctor_knows_all_extras():
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
    assert {*doctor_machine.EXTRAS} == {*project["optional-dependencies"]}


@pytest.fixture
def poor(monkeypatch, tmp_path):
    """Pretend that the machine lacks everything."""
    no_server = Mock(side_effect=ServerFailed("no Valkey binary for this machine", log=""))
    monkeypatch.setattr(doctor_machine.EmbeddedServer, "start", no_server)
    monkeypatch.setattr(
        doctor_machine,
        "look_into_clusters",
        Mock(side_effect=ConfigError("RAY_ADDRESS='x' is not of the form host:port")),
    )
    monkeypatch.setenv("RAY_ADDRESS", "x")
    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, 256))
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(100 * 2**30, 0, 2**20))
    monkeypatch.setattr(doctor_machine, "EXTRAS", {"llm": "no such package"})
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal: 2000 kB\nMemAvailable: 1000 kB\n")
    monkeypatch.setattr(operating_system, "PROCESSES", tmp_path)


@pytest.mark.parametrize(
    ("ours", "seen", "level", "shown"),
    [
        ("", {"a:1": {"town"}, "b:1": set()}, "ok", "town: ray-messaging doctor EXP_ID"),
        ("", {"a:1": set()}, "ok", "none runs"),
        ("", {"a:1": {"town"}, "b:1": "no answer within 2 s"}, "warning", "b:1 (no answer within 2 s)"),
        ("b:1", {"b:1": "wrong token"}, "critical", "b:1 (wrong token)"),
    ],
)
def test_the_clusters_of_this_machine_are_named(run, monkeypatch, ours, seen, level, shown):
    monkeypatch.setattr(doctor_machine, "look_into_clusters", lambda **_: seen)
    monkeypatch.setenv("RAY_ADDRESS", ours) if ours else monkeypatch.delenv("RAY_ADDRESS", raising=False)
    found = doctor_machine._experiments()
    assert found.level == level
    assert shown in found.value


@pytest.mark.parametrize(
    ("version", "warned"), [("2.55.1", True), ("2.56.0", False), ("2.60.0", False), ("3.0", False)]
)
def test_a_ray_with_known_holes(run, monkeypatch, version, warned):
    monkeypatch.setattr(doctor_machine, "version", lambda _: version)
    found = told(run("--json"))
    assert ("Ray's version" in found) == warned
    if warned:
        assert found["Ray's version"]["level"] == "warning"
        assert "Ray 2.55.1 has known security holes" in found["Ray's version"]["value"]
        assert "ray>=2.56" in found["Ray's version"]["remedy"]


def test_the_lowest_ray_that_may_be_installed_has_no_known_holes():
    text = (Path(__file__).parents[3] / "pyproject.toml").read_text()
    assert f'"ray>={".".join(map(str, doctor_machine.SAFE_RAY))}"' in text


def test_a_machine_that_lacks_everything(poor):
    health = doctor_machine.examine_machine()
    found = {finding.what: finding.level for finding in health.problems}
    lacking = ("embedded server", "disk of temporary files", "disk of Ray", "open files", "Ray")
    assert found == dict.fromkeys(lacking, "critical") | {"memory": "warning"}
    assert all(finding.remedy for finding in health.problems)
    assert "pip install 'ray-messaging[llm]'" in health.of("extras")[0].value


def test_an_ordinary_laptop_has_no_problems(run, monkeypatch, tmp_path):
    monkeypatch.setattr(doctor_machine.ctypes, "CDLL", lambda _: SimpleNamespace(adjtimex=lambda _: 5))
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 1_048_576))  # Ray raises it by itself
    monkeypatch.setattr(operating_system, "PROCESSES", tmp_path / "none")  # no Linux
    found = told(run("--json"))
    assert [found[what]["level"] for what in ("clock", "open files", "memory", "embedded server")] == ["ok"] * 4
    assert "nothing synchronizes the clock" in found["clock"]["value"]


# -- what is printed ------------------------------------------------------------------------------------------------

FOUND = Health("x", [Finding("critical", "b", "2", "do c"), Finding("ok", "a", "1"), Finding("warning", "d", "3", "e")])


def printed(health, *, terminal, width=120):
    console = Console(
        file=io.StringIO(),
        force_terminal=terminal,
        width=width,
        highlight=False,
        color_system="standard" if terminal else None,
    )
    show_health(console, health)
    return console.file.getvalue()


def test_plain_lines_with_the_worst_last():
    assert printed(FOUND, terminal=False).splitlines() == [
        "ok: a: 1",
        "warning: d: 3 -> e",
        "critical: b: 2 -> do c",
        "Health of x: 1 critical, 1 to watch",
    ]
    assert printed(Health("y", [Finding("ok", "a", "1")]), terminal=False).splitlines()[-1] == "Health of y: ok"


def test_a_table_with_colours_on_a_terminal():
    text = printed(FOUND, terminal=True)
    assert "\x1b[1;31mcritical\x1b[0m" in text
    assert "what to do" in text
    assert "do c" in text


def test_lines_where_a_table_would_be_too_narrow():
    narrow = printed(FOUND, terminal=True, width=60)
    assert "critical: b: 2 -> do c" in narrow
    assert "what to do" not in narrow
