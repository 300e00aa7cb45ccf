"""Which Ray cluster the commands join, where several run on a machine."""

import os
import socket

import pytest
import ray

from ray_messaging import Messaging
from ray_messaging.cluster import ray_clusters as clusters
from ray_messaging.errors import ConfigError, InvalidAddress

HERE = ["10.0.0.1:1", "10.0.0.1:2", "10.0.0.1:3"]


@pytest.fixture
def joined(monkeypatch):
    """Have three clusters on this machine, the second of which runs `town`; return those that were joined."""
    joined = []

    def init(address, **options):
        if address == HERE[0]:
            raise ConnectionError("it ends just now")
        joined.append(address)

    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    monkeypatch.setattr(clusters, "check_ray_address", lambda: None)
    monkeypatch.setattr(clusters, "local_clusters", lambda: HERE)
    monkeypatch.setattr(clusters, "_lives", lambda _: True)
    monkeypatch.setattr(clusters, "_use_token", lambda: joined.append("token"))
    monkeypatch.setattr(
        clusters, "named_actors", lambda prefix: {"town/": 1} if (joined[-1], prefix) == (HERE[1], "town/") else {}
    )
    return joined


def test_the_one_with_the_experiment_is_found(joined):
    assert clusters.join_ray("town")
    assert joined == ["token", "token", HERE[1]]
    joined.clear()
    assert clusters.join_ray("nowhere")
    assert joined[-1] == HERE[2]


@pytest.mark.parametrize(("address", "shown"), [(HERE[2], True), ("localhost:3", True), ("far.away:3", False)])
def test_one_that_is_named_is_shown_the_token_if_it_runs_here(joined, monkeypatch, address, shown):
    monkeypatch.setenv("RAY_ADDRESS", address)
    assert clusters.join_ray("town")
    assert joined == ["token"] * shown + [address]


@pytest.mark.parametrize("call", [clusters.join_ray, clusters.ensure_ray])
@pytest.mark.parametrize("named", [True, False])
def test_one_that_does_not_let_us_in(joined, monkeypatch, call, named):
    if named or call is clusters.ensure_ray:
        monkeypatch.setenv("RAY_ADDRESS", HERE[0])
    monkeypatch.setattr(clusters, "local_clusters", lambda: HERE[:1])
    with pytest.raises(ConfigError, match="RAY_AUTH_MODE=token"):
        call()


def test_none_runs(joined, monkeypatch):
    def init(address, **options):
        raise ConnectionError("Could not find any running Ray instance.")

    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setattr(clusters, "local_clusters", list)
    assert not clusters.join_ray("town")
    with pytest.raises(ConfigError, match=r"no Ray cluster runs on this machine .* call ray\.init\(address=\.\.\.\)"):
        Messaging.connect("town")


def test_a_wrong_name_joins_none(joined):
    with pytest.raises(InvalidAddress, match="'a b'"):
        Messaging.connect("a b")
    assert joined == []


def test_only_raylets_of_this_user_count(monkeypatch, tmp_path):
    lines = {
        "1": b"/x/raylet/raylet\0--gcs-address=10.0.0.1:1\0--y",
        "2": b"python\0--gcs-address=10.0.0.1:2",
        "3": b"",
        "4": b"/x/raylet/raylet\0--gcs-address=10.0.0.1:1",
        "self": b"/x/raylet/raylet\0--gcs-address=10.0.0.1:3",
    }
    for pid, line in lines.items():
        (tmp_path / pid).mkdir()
        (tmp_path / pid / "cmdline").write_bytes(line)
    (tmp_path / "5").mkdir()
    monkeypatch.setattr(clusters, "PROCESSES", tmp_path)
    assert clusters.local_clusters() == ["10.0.0.1:1"]
    monkeypatch.setattr(os, "getuid", lambda: -1)
    assert clusters.local_clusters() == []


def test_a_cluster_that_says_nothing_is_left_out(monkeypatch, caplog):
    monkeypatch.setattr(clusters, "_ANSWER_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:  # as a stopped process: its system accepts connections
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        assert not clusters._lives(address)
        # Ray by itself would wait for it for minutes, where it is the only one.
        monkeypatch.setattr(clusters, "local_clusters", lambda: [address])
        monkeypatch.setattr(ray, "init", lambda **_: pytest.fail("Ray searches"))
        monkeypatch.setattr(ray, "is_initialized", lambda: False)
        monkeypatch.delenv("RAY_ADDRESS", raising=False)
        assert not clusters.join_ray("town")
        assert f"no answer from the Ray cluster at {address}" in caplog.text
    assert not clusters._lives(address)  # and one that has ended


# -- starting Ray, or joining it, as the environment says --------------------------------------------------------------


@pytest.fixture
def inits(monkeypatch):
    """Return how Ray was started."""
    found = []
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", lambda **options: found.append((options["address"], options["include_dashboard"])))
    return found


@pytest.mark.parametrize(
    ("address", "init"), [(None, (None, False)), ("", (None, False)), ("10.0.0.1:1", ("10.0.0.1:1", None))]
)
def test_which_cluster(inits, monkeypatch, address, init):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    if address is not None:
        monkeypatch.setenv("RAY_ADDRESS", address)
    assert clusters.ensure_ray()
    assert inits == [init]
