"""Experiments on a user's own server: existing data, and the keys left afterwards."""

import time

import pytest
import ray
from support.cluster import PATIENCE_S, drain, kill, numbered, numbers

from ray_messaging import Messaging, RedisConfig, rules
from ray_messaging.errors import AlreadyExists, ConfigError, ConnectionFailed, ServerRefused, UnknownName
from ray_messaging.transports.experiment_store import FORMAT

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
def test_data_of_another_version_are_refused_and_only_a_reset_passes(left, client, exp_id):
    meta = f"rm:{{{exp_id}}}:meta"
    client.hset(meta, "format", FORMAT - 1)
    before = {key: client.dump(key) for key in keys(client, exp_id)}
    for on_existing in ("error", "resume"):
        with pytest.raises(ConfigError, match=f"format {FORMAT - 1} .* reads format {FORMAT} only: .*another exp_id"):
            Messaging.start(exp_id, redis=left, on_existing=on_existing)
    assert {key: client.dump(key) for key in keys(client, exp_id)} == before
    with Messaging.start(exp_id, redis=left, on_existing="reset") as messaging:
        assert client.hget(meta, "format") == b"%d" % FORMAT
        group = messaging.create_group("all", [1, 2])
        group.send(1, 2, {"n": 7})
        assert numbers(drain(group, 1)) == [7]


@pytest.mark.long
def test_resume_continues_the_experiment(left, exp_id):
    with Messaging.start(exp_id, redis=left, on_existing="resume") as messaging:
        assert messaging.stats()["waiting"] == {"all": 2}
        assert ray.get(messaging.interceptor.black_set.remote()) == {(3, None)}
        group = messaging.create_group("all", [1, 2, 3])
        assert group.send(3, 1, {}).fate == "blocked"
        assert group.send(1, 2, {"n": 3})
        assert numbers(drain(group, 3)) == [1, 2, 3]


@pytest.mark.long
def test_resume_adds_run_time_changes_to_the_given_rules(left, exp_id):
    listed = [rules.BlackList([(1, 2)])]
    with Messaging.start(exp_id, redis=left, on_existing="resume", rules=listed) as messaging:
        assert ray.get(messaging.interceptor.black_set.remote()) == {(1, 2), (3, None)}
        ray.get(messaging.interceptor.remove_from_black_set.remote([(1, 2)]))
        kill(messaging.interceptor)  # removed pairs must not return with the rules of the start
        assert ray.get(messaging.interceptor.black_set.remote()) == {(3, None)}


@pytest.mark.long
def test_reset_ends_a_running_experiment(left, exp_id):
    old = Messaging.start(exp_id, redis=left, on_existing="resume")
    old.create_group("old", [7])
    with Messaging.start(exp_id, redis=left, on_existing="reset") as messaging:
        assert messaging.groups() == []
        group = messaging.create_group("old", [7, 8])
        old.shutdown()  # it has nothing any more that it could stop
        assert group.send(7, 8, {"n": 1})
        assert numbers(drain(group, 1)) == [1]


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"port": 1}, ConnectionFailed, ":1"),
        *(
            pytest.param(*case, marks=pytest.mark.long)
            for case in (
                ({"password": "wrong"}, ServerRefused, "password"),
                ({"server": "127.0.0.2", "port": 1}, ConnectionFailed, "127.0.0.2"),
                ({"server": "no-such-host.invalid"}, ConnectionFailed, "no-such-host.invalid"),
                ({"server": "192.0.2.123"}, ConnectionFailed, "192.0.2.123"),
                ({"password": None}, ServerRefused, "password"),
                ({"username": "nobody"}, ServerRefused, "user"),
                ({"db": 99}, ServerRefused, "99"),
            )
        ),
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
    assert type(caught.value) is error
    assert words in str(caught.value)
    assert redis_config.password not in str(caught.value)
    if issubclass(error, ServerRefused):
        assert isinstance(caught.value, ConfigError)
    # A second attempt can succeed.
    with pytest.raises(UnknownName):
        Messaging.connect(exp_id)


@pytest.mark.long
def test_after_a_wrong_address_the_right_one_works(redis_config, exp_id):
    wrong = RedisConfig(server=redis_config.server, port=redis_config.port, password="wrong")
    with pytest.raises(ServerRefused):
        Messaging.start(exp_id, redis=wrong)
    with Messaging.start(exp_id, redis=redis_config) as messaging:
        assert messaging.create_group("all", [1]).send(1, 1, {})
