"""Two Ray clusters on one server with one experiment: the old one cannot bypass the new one's rules."""

import pytest
from support.other_cluster import OtherCluster, texts_of

from ray_messaging import EventLog
from ray_messaging.addressing.server_keys import Keys
from ray_messaging.errors import AlreadyExists, MessagingError

pytestmark = pytest.mark.long

OVER = "started anew|flushed"  # each error says why, and what to do


@pytest.fixture(scope="module")
def clusters():
    """Give two clusters with a driver each."""
    made = [OtherCluster(), OtherCluster()]
    yield made
    for cluster in made:
        cluster.close()


@pytest.fixture
def redis(clocked_server):
    return clocked_server.config


@pytest.fixture
def old_and_new(clusters, redis):
    yield clusters
    for cluster in clusters:
        cluster.shutdown()


def refused(call, *args):
    with pytest.raises(MessagingError, match=OVER):
        call(*args)


def forbidden_never_passes(old, new):
    """Let old and new messagers of the old cluster try; the new one bans agent 1 from writing to 3."""
    new.group("north", [3, 4])
    for _ in range(2):
        refused(old.send, "west", 1, 3, ["old"] * 3)
        refused(old.send_anew, 1, 3, ["old"] * 3)
        refused(old.send_anew, 1, 2, ["old"] * 3)
        assert new.send("north", 1, 3, ["new"]) == ["blocked"]
        assert new.send("north", 4, 3, ["new"]) == ["delivered"]
        old.kill_interceptor()  # it starts again, and has no part in it then either
    assert new.fetch("north", 2) == ["new"] * 2


# test_epochs.py proves on each kind of server that its scripts refuse an old epoch after each loss.
@pytest.mark.parametrize(
    ("clocked_server", "lost", "stepped_s"),
    [("valkey", "all", 0), ("redis-server", "the experiment", -60)],
    indirect=["clocked_server"],
)
def test_messagers_from_before_a_flush_cannot_bypass_the_new_rules(
    old_and_new, clocked_server, server_clock, redis, exp_id, tmp_path, lost, stepped_s
):
    old, new = old_and_new
    log_dir = str(tmp_path / "log")
    old.start(exp_id, redis, log_dir=log_dir)
    old.group("west", [1])
    old.group("east", [2])
    assert old.send("west", 1, 2, ["before"]) == ["delivered"]
    assert old.logged() == ["before"]
    with clocked_server.client() as client:
        client.flushall() if lost == "all" else client.delete(Keys(exp_id).meta)
        if stepped_s:
            server_clock.step(client, stepped_s)
    new.start(exp_id, redis, banned=[(1, 3)], on_existing="reset", log_dir=log_dir)
    forbidden_never_passes(old, new)
    old.shutdown()
    assert new.logged() == ["new"] * 4
    new.shutdown()
    assert texts_of(EventLog.open(log_dir)) == ["new"] * 4


@pytest.mark.parametrize("clocked_server", ["valkey"], indirect=True)
def test_a_second_cluster_is_refused_and_a_reset_ends_the_first(old_and_new, redis, exp_id, tmp_path):
    old, new = old_and_new
    old.start(exp_id, redis, on_existing="reset", log_dir=str(tmp_path / "log"))  # it must not do so again
    old.group("west", [1])
    old.group("east", [2])
    for on_existing in ("error", "resume"):
        with pytest.raises(AlreadyExists, match=r"runs already.*another Ray cluster.*reset"):
            new.start(exp_id, redis, on_existing=on_existing)
    assert old.send("west", 1, 2, ["first"]) == ["delivered"]
    new.start(exp_id, redis, banned=[(1, 3)], on_existing="reset", log_dir=str(tmp_path / "log"))
    forbidden_never_passes(old, new)
    assert any("started anew" in problem for problem in old.problems())
    old.shutdown(erase=True)
    assert new.send("north", 4, 3, ["new"]) == ["delivered"]
    assert new.logged() == ["new"] * 5
