"""Actors that cannot restart at once: they retry, report the reason, and pass nothing meanwhile."""

from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
import ray
from ray.experimental.internal_kv import _internal_kv_get, _internal_kv_list, _internal_kv_put
from support.cluster import (
    PATIENCE_S,
    Shouting,
    control,
    drain,
    fates,
    kill,
    kill_and_wait,
    numbered,
    numbers,
    wait_for,
)

from ray_messaging import Messager, MessagingConfig, RedisConfig, rules
from ray_messaging.cluster.actors.interceptor_host import InterceptorHost
from ray_messaging.cluster.handles.connection import NAMESPACE
from ray_messaging.cluster.spec import InterceptorSpec, PickledRule
from ray_messaging.errors import (
    ConfigError,
    ConnectionFailed,
    InterceptorUnavailable,
    MailboxFull,
    RuleError,
    ServerRefused,
)

pytestmark = pytest.mark.long


@pytest.fixture
def start(redis_process, start):
    """Start the experiment on a server of its own."""
    return partial(start, redis=redis_process.config)


@pytest.fixture
def client(redis_process):
    """Give a client of that server; in the end the server has memory again."""
    with redis_process.client() as client:
        yield client
        client.config_set("maxmemory", 0)


def many_refusals(client):
    """Return a function that tells whether the full server has refused many more calls."""

    def refusals():
        return client.info("errorstats").get("errorstat_OOM", {"count": 0})["count"]

    before = refusals()
    return lambda: refusals() > before + 15


def rules_of(messaging):
    """Return the rules of a working interceptor, or None."""
    try:
        return control(messaging, "rules")
    except ray.exceptions.RayTaskError:
        return None


async def test_an_interceptor_that_could_not_start_judges_nothing():
    broken = PickledRule("black_list", b"cannot be unpickled here")
    spec = InterceptorSpec("x", "run", MessagingConfig(), rules=(broken,), on_existing="error")
    host = InterceptorHost(spec, RedisConfig(server="127.0.0.1", port=1))
    with pytest.raises(InterceptorUnavailable, match="not loaded its rules yet"):
        host.interceptor.answer(b"")
    with pytest.raises(RuleError):
        await host.start("127.0.0.1")
    await host.abandon()
    with pytest.raises(InterceptorUnavailable, match="not loaded its rules yet"):
        host.interceptor.answer(b"")


def test_an_interceptor_killed_while_the_memory_is_full_returns_later(start, client):
    messaging, west, east = start(rules.BlackList([(1, 11)]), send_timeout_s=2, interceptor_timeout_s=2)
    assert fates(west.send_columns([1, 2], [11, 11], numbered(2))) == ["blocked", "delivered"]
    client.config_set("maxmemory", 1)
    kill_and_wait(messaging.interceptor)

    def reason():
        with pytest.raises(InterceptorUnavailable) as caught:
            west.send(2, 11, {"n": 2})
        return "memory of the server" in str(caught.value)

    wait_for(reason, "an interceptor that says why it cannot start")
    wait_for(many_refusals(client), "several attempts to start again")
    with pytest.raises(MailboxFull):
        messaging.stats()
    client.config_set("maxmemory", 0)
    assert [rule["name"] for rule in wait_for(lambda: rules_of(messaging), "another attempt")] == ["black_list"]
    assert fates(west.send_columns([1, 2], [11, 11], numbered(2, 3))) == ["blocked", "delivered"]
    assert numbers(drain(east, 2)) == [1, 4]


def test_an_interceptor_without_its_rules_reports_it_until_it_finds_them(start):
    messaging, west, east = start(interceptor_timeout_s=1)
    control(messaging, "insert_rule", Shouting())
    assert west.send(1, 11, {"n": 0})
    [name] = _internal_kv_list(f"rules/{messaging.exp_id}/", namespace=NAMESPACE)
    code = _internal_kv_get(name, namespace=NAMESPACE)
    _internal_kv_put(name, b"", namespace=NAMESPACE)  # no rules at all can be read from this
    kill_and_wait(messaging.interceptor)
    for ask in ("ready", "rules", "stats", "black_set", "violation_counts", "new_round"):
        with pytest.raises(ray.exceptions.RayTaskError, match=r"interceptor of .* cannot start"):
            control(messaging, ask)
    with pytest.raises(ray.exceptions.RayTaskError, match=r"interceptor of .* cannot start"):
        ray.get(messaging.interceptor.forward.remote(1, 11, "HEY"))
    with pytest.raises(ray.exceptions.RayTaskError, match=r"interceptor of .* cannot start"):
        ray.get(messaging.interceptor.forward_batch.remote(b"", False, messaging.exp_id))
    with pytest.raises(InterceptorUnavailable, match=r"interceptor of .* cannot start") as caught:
        west.send(1, 11, {"text": "HEY"})
    assert "Traceback" not in str(caught.value)
    _internal_kv_put(name, code, namespace=NAMESPACE)
    assert [rule["name"] for rule in wait_for(lambda: rules_of(messaging), "another attempt")] == ["shouting"]
    assert west.send(1, 11, {"text": "HEY"}).rule == "shouting"
    assert west.send(1, 11, {"n": 1})
    assert numbers(drain(east, 2)) == [0, 1]


def test_a_group_killed_while_the_memory_is_full_returns_later(start, client):
    _, west, east = start(send_timeout_s=2)
    assert west.send(1, 11, {"n": 0})
    client.config_set("maxmemory", 1)
    refused = many_refusals(client)
    kill(east.actor)
    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(east.fetch_messages, timeout=PATIENCE_S)
        wait_for(lambda: found.done() or refused(), "several attempts to start again")
        client.config_set("maxmemory", 0)
        assert numbers(found.result()) == [0]
    east.ack()
    assert west.send(1, 11, {"n": 1})
    assert numbers(drain(east, 1)) == [1]


def test_a_change_while_the_server_is_away_is_in_force_and_stored_later(start, redis_process):
    messaging, west, _ = start(send_timeout_s=5)
    redis_process.kill()
    with pytest.raises(ConnectionFailed, match=r"in force, but is not stored yet.*within 5 s") as caught:
        control(messaging, "add_to_black_set", (1, 11))
    assert caught.value.cause.port == redis_process.config.port
    assert control(messaging, "black_set") == {(1, 11)}
    with pytest.raises(ConnectionFailed, match="in force"):
        control(messaging, "insert_rule", Shouting(), 0)
    redis_process.start()
    control(messaging, "add_to_black_set", (2, 12))  # returns once all is kept
    kill(messaging.interceptor)
    assert control(messaging, "black_set") == {(1, 11), (2, 12)}
    assert [rule["name"] for rule in control(messaging, "rules")] == ["shouting", "black_list"]
    assert fates(west.send_columns([1, 2, 3], [11, 12, 13], {})) == ["blocked", "blocked", "delivered"]


# -- another experiment's interceptor -----------------------------------------------------------------------------


async def test_another_experiments_interceptor_is_refused(messaging, ruled):
    other, _, _ = ruled
    async with Messager(messaging.redis, messaging.exp_id, other.interceptor) as foreign:
        with pytest.raises(ConfigError, match=f"'{messaging.exp_id}'.*'{other.exp_id}'"):
            await foreign.send_message(foreign.get_agent_chat_channel(1), {}, from_id=1)
        foreign.set_message_interceptor(messaging.interceptor)
        assert (await foreign.send_message(foreign.get_agent_chat_channel(1), {}, from_id=1)).fate == "undeliverable"
    with pytest.raises(ConfigError, match=r"interceptor of experiment"):
        await other.interceptor.forward_batch.remote(b"", False, messaging.exp_id)


def test_a_group_that_dies_while_the_server_refuses_it_comes_back(redis_process, client, start):
    client.execute_command("ACL", "SETUSER", "agent", "reset", "on", ">secret", "~*", "&*", "+@all")
    config = redis_process.config.model_copy(update={"username": "agent", "password": "secret"})
    messaging, west, east = start(redis=config)
    assert west.send(0, 10, {"n": 0})
    client.execute_command("ACL", "SETUSER", "agent", "off")
    client.execute_command("CLIENT", "KILL", "USER", "agent")
    kill(east.actor)
    found = []

    def refused():
        try:
            found.extend(numbers(east.fetch_messages()))
        except ServerRefused:
            return True
        return False

    wait_for(refused, "the restart")
    assert "refused this client" in str(messaging.health())
    client.execute_command("ACL", "SETUSER", "agent", "on")
    wait_for(lambda: not refused() and found, "the end of the refusal")
    assert found == [0]
