"""Which Ray cluster the commands join, where several run on a machine."""

import os
import socket
from functools import partial

import pytest
import ray
from ray.exceptions import AuthenticationError

from ray_messaging import Messaging
from ray_messaging.cluster import ray_clusters as clusters
from ray_messaging.common import operating_system
from ray_messaging.errors import ConfigError, InvalidAddress, ServerFailed, UnknownName

HERE = ["10.0.0.1:1", "10.0.0.1:2", "10.0.0.1:3"]


@pytest.fixture
def joined(monkeypatch):
    """Have three clusters on this machine, the second of which runs `town`; return those that were joined."""
    joined = []

    def names(cluster, namespace, timeout_s):
        assert namespace == "ray_messaging"
        if cluster == HERE[0]:
            raise AuthenticationError("wrong token. A long text follows.")
        return ["town/interceptor", "town/server"] if cluster.endswith(":2") else []

    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", lambda address, **_: joined.append(address))
    monkeypatch.setattr(clusters, "check_ray_address", lambda: None)
    monkeypatch.setattr(clusters, "local_clusters", lambda **_: HERE)
    monkeypatch.setattr(clusters, "_answers", lambda *_: True)
    monkeypatch.setattr(clusters, "use_token", lambda: joined.append("token"))
    monkeypatch.setattr(clusters, "names_in", names)
    return joined


def test_the_one_with_the_experiment_is_found(joined):
    assert clusters.join_ray("town")
    assert joined == ["token", HERE[1]]


def test_none_is_joined_where_no_cluster_has_the_experiment(joined):
    first = r"10.0.0.1:1 \(its experiments cannot be read: wrong token\)"
    seen = rf"{first}, 10.0.0.1:2 \(its experiments: town\), 10.0.0.1:3 \(it has no experiments\)"
    for find in (clusters.join_ray, Messaging.connect):
        with pytest.raises(UnknownName, match=f"no experiment 'nowhere' was found in the Ray clusters at {seen}"):
            find("nowhere")
    assert joined == ["token"] * 2


@pytest.mark.parametrize(("address", "shown"), [(HERE[1], True), ("localhost:2", True), ("far.away:2", False)])
def test_one_that_is_named_is_shown_the_token_if_it_runs_here(joined, monkeypatch, address, shown):
    monkeypatch.setenv("RAY_ADDRESS", address)
    assert clusters.join_ray("town")
    assert joined == ["token"] * shown + [address]


def test_a_cluster_without_tokens_is_shown_none(joined, monkeypatch):
    monkeypatch.setattr(clusters, "local_clusters", lambda with_tokens=False: [] if with_tokens else HERE)
    assert clusters.join_ray("town")
    assert joined == [HERE[1]]


@pytest.mark.parametrize("call", [partial(clusters.join_ray, "town"), clusters.hold_ray])
def test_one_that_does_not_let_us_in(joined, monkeypatch, call):
    def init(address, **options):
        raise ConnectionError("it ends just now")

    monkeypatch.setenv("RAY_ADDRESS", HERE[0])
    monkeypatch.setattr(ray, "init", init)
    with pytest.raises(ConfigError, match="RAY_AUTH_MODE=token"):
        call()


@pytest.mark.parametrize("error", [Exception("The current node timed out\nduring startup."), TimeoutError("30 s")])
def test_ray_that_does_not_start_is_told_with_a_remedy(joined, monkeypatch, error):
    """After 30 s Ray raises a bare Exception, which said nothing of the experiment."""

    def init(**_):
        raise error

    monkeypatch.setattr(ray, "init", init)
    with pytest.raises(
        ServerFailed, match=r"^Ray did not start on this machine \((The current node|30 s).*\), so the"
    ) as told:
        Messaging.start("town")
    assert told.value.__cause__ is error


def test_none_runs(joined, monkeypatch):
    monkeypatch.setattr(clusters, "local_clusters", lambda **_: [])
    assert not clusters.join_ray("town")
    with pytest.raises(ConfigError, match=r"no Ray cluster runs on this machine, .* call ray\.init\(address=\.\.\.\)"):
        Messaging.connect("town")
    assert joined == []


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
    monkeypatch.setattr(operating_system, "PROCESSES", tmp_path)
    assert clusters.local_clusters() == ["10.0.0.1:1"]
    assert clusters.local_clusters(with_tokens=True) == []  # a driver with a token must not join a cluster without
    (tmp_path / "4" / "environ").write_bytes(b"A=b\0RAY_AUTH_MODE=token\0C=d")
    assert clusters.local_clusters(with_tokens=True) == ["10.0.0.1:1"]
    monkeypatch.setattr(os, "getuid", lambda: -1)
    assert clusters.local_clusters() == []


def test_a_cluster_that_says_nothing_is_asked_once_and_named(monkeypatch, capfd):
    monkeypatch.setattr(clusters, "_LOOK_S", 0.1)
    monkeypatch.setattr(ray, "init", lambda **_: pytest.fail("Ray searches"))  # it would wait for minutes
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with socket.create_server(("127.0.0.1", 0)) as silent:  # as a stopped process: its system accepts connections
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        monkeypatch.setattr(clusters, "local_clusters", lambda **_: [address])
        seen = f"at {address} .its experiments cannot be read: no answer within 0.1 s.: see by `ray status`"
        with pytest.raises(UnknownName, match=seen):
            clusters.join_ray("town")
    with pytest.raises(UnknownName, match=f"at {address} .*refused"):  # and one that has ended
        clusters.join_ray("town")
    assert capfd.readouterr().err == ""


# -- starting Ray, or joining it, as the environment says --------------------------------------------------------------


@pytest.fixture
def inits(monkeypatch):
    """Return how Ray was started."""
    found = []
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", lambda **options: found.append((options["address"], options["include_dashboard"])))
    monkeypatch.setattr(clusters, "ray_session", object)
    return found


@pytest.mark.parametrize(
    ("address", "init"), [(None, (None, False)), ("", (None, False)), ("10.0.0.1:1", ("10.0.0.1:1", None))]
)
def test_which_cluster(inits, monkeypatch, address, init):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    if address is not None:
        monkeypatch.setenv("RAY_ADDRESS", address)
    clusters.release_ray(clusters.hold_ray())
    assert inits == [init]
