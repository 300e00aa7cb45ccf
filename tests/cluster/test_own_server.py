"""Experiments on a user's own server: existing data, and the keys left afterwards."""

import time

import pytest
import ray
from support.cluster import PATIENCE_S, drain, kill, numbered, numbers

from ray_messaging import Messaging, rules
from ray_messaging.errors import AlreadyExists, ConnectionFailed, ServerRefused, UnknownName

pytestmark = pytest.mark.usefixtures("ray_cluster")


@pytest.fixture
def left(redis_config, exp_id):
    """Leave an experiment with two unread messages and a black list that was set at run time."""
    with Messaging.start(exp_id, redis=redis_config) as messaging:
        group = messaging.create_group("all", [1, 2, 3])
        group.send_columns([1] * 3, [2] * 3, numbered(3))
        assert numbers(group.fetch_messages(limit=1, timeout=60)) == [0]
        group.ack()
        ray.get(messaging.interceptor.add_to_black_set.remote([(3, None)]))
    return redis_config


def keys(client, exp_id):
    return sorted(client.scan_iter(f"*{exp_id}*"))


@pytest.mark.long
def test_shutdown_can_erase_its_own_keys_and_no_others(redis_config, client, exp_id):
    others = {f"rm:{{{exp_id}0}}:meta", f"mine:{exp_id}", f"rm:{exp_id}"}
    for key in others:
        client.set(key, 1)
    user = redis_config
    with Messaging.start(exp_id, redis=f"redis://:{user.password}@{user.server}:{user.port}/0") as messaging:
        messaging.create_group("all", [1, 2]).send(1, 2, {"n": 1})
        assert len(keys(client, exp_id)) > len(others)
        assert "password" not in repr(messaging.redis)
        messaging.shutdown(erase=True)
    assert {key.decode() for key in keys(client, exp_id)} == others
    client.delete(*others)


def test_shutdown_leaves_the_data_and_they_stop_a_start(left, client, exp_id):
    before = keys(client, exp_id)
    assert len(before) > 3
    with pytest.raises(AlreadyExists, match="has data on the server") as caught:
        Messaging.start(exp_id, redis=left)
    assert (caught.value.kind, caught.value.value) == ("experiment", exp_id)
    assert "on_existing='resume'" in str(caught.value)
    assert keys(client, exp_id) == before
    with pytest.raises(UnknownName):
        Messaging.connect(exp_id)


@pytest.mark.long
def test_resume_continues_the_experiment_and_adds_run_time_changes_to_the_given_rules(left, exp_id):
    listed = [rules.BlackList([(1, 3)])]
    with Messaging.start(exp_id, redis=left, on_existing="resume", rules=listed) as messaging:
        assert messaging.stats()["waiting"] == {"all": 2}
        assert ray.get(messaging.interceptor.black_set.remote()) == {(1, 3), (3, None)}
        group = messaging.create_group("all", [1, 2, 3])
        assert group.send(3, 1, {}).fate == "blocked"
        assert group.send(1, 2, {"n": 3})
        assert numbers(drain(group, 3)) == [1, 2, 3]
        ray.get(messaging.interceptor.remove_from_black_set.remote([(1, 3)]))
        kill(messaging.interceptor)  # removed pairs must not return with the rules of the start
        assert ray.get(messaging.interceptor.black_set.remote()) == {(3, None)}


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"port": 1}, ConnectionFailed, ":1"),
        pytest.param({"server": "192.0.2.123"}, ConnectionFailed, "192.0.2.123", marks=pytest.mark.long),
        pytest.param({"password": "wrong"}, ServerRefused, "password", marks=pytest.mark.long),
    ],
    ids=str,
)
def test_a_wrong_address_raises_at_once(redis_config, exp_id, change, error, words):
    wrong = redis_config.model_copy(update=change)
    began = time.monotonic()
    with pytest.raises(error) as caught:
        Messaging.start(exp_id, redis=wrong)
    # 5 s for the connection, and the start of an actor on a machine that others load, too.
    assert time.monotonic() - began < 5 + PATIENCE_S
    assert words in str(caught.value)
    assert redis_config.password not in str(caught.value)
    # A second attempt can succeed.
    with pytest.raises(UnknownName):
        Messaging.connect(exp_id)
