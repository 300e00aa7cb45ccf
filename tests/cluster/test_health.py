"""Findings of `messaging.health()` and the doctor, also with hanging or dead actors."""

import json
import logging
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager

import pytest
import ray
from support.cluster import PATIENCE_S, alive, pid_of, stopped, wait_for
from typer.testing import CliRunner

from ray_messaging import Messaging
from ray_messaging.cli import app
from ray_messaging.cluster import health_check as health_module

pytestmark = pytest.mark.usefixtures("ray_cluster")

SHORT_S = 1.5


@pytest.fixture
def hanging(monkeypatch):
    """Return a context manager that stops a process; hanging calls are given up soon."""

    @contextmanager
    def hanging(pid):
        with monkeypatch.context() as patch, stopped(pid):
            patch.setattr(health_module, "DEADLINE_S", SHORT_S)
            yield

    return hanging


@pytest.fixture
def run():
    def run(*args):
        return CliRunner().invoke(app, ["doctor", *map(str, args)])

    return run


def problems(health):
    found = {finding.what: finding for finding in health.problems}
    assert all(finding.remedy and finding.value for finding in found.values())
    return found


def test_a_healthy_experiment_has_no_problems(logged, run):
    messaging, west, _ = logged
    messaging.dead_letters.drop(everything=True)  # those that other tests have left
    west.send(1, 11, {"n": 1})
    health = messaging.health()
    # The machine's disk space and load are not part of the test.
    assert not {what for what in problems(health) if "disk" not in what and "clock" not in what and "trip" not in what}
    for name in ("interceptor", "log", "server's actor", "group 'west'", "group 'east'"):
        assert [finding.level for finding in health.of(name)] == ["ok"], name
    assert "outbox, reader, lease, subscription" in health.of("group 'west'")[0].value
    assert health.of("actors")[0].value.startswith("5 of 5 answer")
    assert "messages wait" in health.of("mailboxes")[0].value
    assert health.of("server disk")
    assert health.of("log disk")
    assert messaging.redis.password not in repr(health) + str(health.to_dict())
    assert pickle.loads(pickle.dumps(health)) == health
    found = run(messaging.exp_id, "--json")
    assert found.exit_code == 0, found.output
    told = json.loads(found.stdout)
    assert {finding["what"] for finding in told["findings"]} == {finding.what for finding in health.findings}
    plain = run(messaging.exp_id)
    assert "ok: group 'west': answers" in plain.stdout
    assert plain.stdout.splitlines()[-1].startswith(f"Health of experiment '{messaging.exp_id}': ")


def test_health_works_in_a_task(messaging):
    @ray.remote(num_cpus=0)
    def ask(messaging):
        return messaging.health()

    health = ray.get(ask.remote(messaging))
    assert health.of("interceptor")[0].level == "ok"
    assert health.of("server")[0].level == "ok"  # though no pickle holds its password


@pytest.mark.long
def test_health_works_in_another_process_by_rays_address(messaging):
    env = os.environ | {"RAY_ADDRESS": ray.get_runtime_context().gcs_address}
    env.pop("RAY_AUTH_MODE", None)  # Ray's own default, with which an address alone does not open a cluster
    command = [sys.executable, "-m", "ray_messaging.cli", "doctor", messaging.exp_id, "--json"]
    found = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=300)
    assert found.stdout, found.stderr
    assert json.loads(found.stdout)["subject"] == f"experiment {messaging.exp_id!r}"


def test_a_hanging_ray_head_does_not_delay_health(messaging, pair, monkeypatch):
    group = messaging.group(pair[0].name)  # so that it knows the group
    hanging = threading.Event()
    try:
        monkeypatch.setattr(health_module, "named_actors", lambda _: hanging.wait() and {})
        monkeypatch.setattr(health_module, "DEADLINE_S", SHORT_S)
        began = time.monotonic()
        found = messaging.health()
        assert time.monotonic() - began < PATIENCE_S
        assert problems(found)["Ray"].level == "critical"
        assert found.of(f"group {group.name!r}")[0].level == "ok"
    finally:
        hanging.set()


@pytest.mark.long
def test_a_hanging_and_a_returning_group_are_found(messaging, make_group, hanging, run):
    group = make_group(messaging)
    name, pid = f"group {group.name!r}", pid_of(group.actor)
    with hanging(pid):
        began = time.monotonic()
        found = problems(messaging.health())
        assert time.monotonic() - began < PATIENCE_S
        assert found[name].level == "critical"
        assert f"no answer within {SHORT_S:g} s" in found[name].value
        assert run(messaging.exp_id).exit_code == 1
    wait_for(lambda: name not in problems(messaging.health()), "an answer")
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not alive(pid), "its death")
    wait_for(lambda: "restarts: 1" in str(messaging.health().of(name)), "the restart")


def test_an_ended_task_of_a_group_is_found(messaging, make_group):
    group = make_group(messaging)

    def end(self):
        self._host.messager.engine.subscription._reader._task.cancel()

    ray.get(group.actor.__ray_call__.remote(end))
    found = problems(messaging.health())
    assert found[f"group {group.name!r}: reader"].level == "critical"
    assert "Ray starts it again" in found[f"group {group.name!r}: reader"].remedy


@pytest.fixture
def doomed(exp_id):
    """Give an experiment that the test destroys, and its group."""
    with Messaging.start(exp_id) as started:
        yield started, started.create_group("all", [1, 2])


@pytest.mark.long
def test_hanging_and_dead_actors_are_found(doomed, hanging, run):
    messaging, group = doomed
    assert group.send(1, 2, {"n": 1})
    with hanging(pid_of(messaging.interceptor)):
        elsewhere = pickle.loads(pickle.dumps(messaging))
        began = time.monotonic()
        assert problems(elsewhere.health())["interceptor"].level == "critical"
        assert time.monotonic() - began < PATIENCE_S
    ray.kill(group.actor)
    found = problems(messaging.health())
    assert found["group 'all'"].level == "critical"
    assert "dead" in found["group 'all'"].value
    assert "create the group again" in found["group 'all'"].remedy
    ray.kill(messaging.interceptor)
    found = problems(messaging.health())
    assert "no message can be sent" in found["interceptor"].remedy
    assert found["interceptor"].level == "critical"
    told = run(messaging.exp_id)
    assert told.exit_code == 1
    assert "critical: interceptor: its actor is dead" in told.stdout
    assert "ok: server: Valkey" in told.stdout  # where it is its own actor says
    server = ray.get(ray.get_actor(f"{messaging.exp_id}/server", namespace="ray_messaging").stats.remote())
    with hanging(server["pid"]):
        found = problems(messaging.health())
        assert found["server"].level == "critical"
        assert "interceptor" in found


@pytest.mark.long
def test_a_server_without_persistence_is_found(redis_process, caplog, exp_id):
    config = redis_process.config
    with redis_process.client() as client:
        client.config_set("appendonly", "no")
        with caplog.at_level(logging.WARNING, "ray_messaging"), Messaging.start(exp_id, redis=config) as messaging:
            assert "CONFIG SET appendonly yes" in caplog.text
            assert config.password not in caplog.text
            assert problems(messaging.health())["server persistence"].level == "warning"


def test_health_of_an_unknown_experiment_raises(messaging, run):
    found = run("nowhere")
    assert (found.exit_code, found.stdout) == (2, "")
    assert "no experiment 'nowhere' runs" in found.stderr
    assert messaging.exp_id in found.stderr
