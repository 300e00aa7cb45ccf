"""Invalid input to `Messaging` and `Group`: errors name the value and the remedy."""

import pickle
import threading

import pytest

from ray_messaging import LocalServer, Messaging, MessagingConfig, Outgoing, rules
from ray_messaging.embedded.redis_server import EmbeddedServer
from ray_messaging.embedded.server_restarts import ServerSupervisor
from ray_messaging.errors import (
    AlreadyExists,
    ConfigError,
    InvalidAddress,
    InvalidColumns,
    InvalidPayload,
    MessagingError,
    PayloadTooLarge,
    RuleError,
    ServerFailed,
    UnknownName,
)


def raised(error_type, call, /, *words, **facts):
    """Check that a call raises exactly this class, with these words and fields, and that the error pickles."""
    with pytest.raises(MessagingError) as caught:
        call()
    error = caught.value
    assert type(error) is error_type
    for word in words:
        assert str(word) in str(error), str(error)
    assert {name: getattr(error, name) for name in facts} == facts
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again)) == (error_type, str(error))
    assert {name: getattr(again, name) for name in facts} == facts
    return error


def test_an_unknown_experiment_is_refused(ray_cluster):
    raised(UnknownName, lambda: Messaging.connect("nowhere"), "'nowhere'", "start", kind="experiment", value="nowhere")


@pytest.mark.parametrize(
    "name",
    ["", "a b", "a:b", "é", "x" * 201, 7, None, "a}:b", "a{b}", "a*", "a\n", "a\0", "\ud800", "\uff41", b"a"],
)
def test_invalid_names_are_refused(messaging, name):
    for call in (
        lambda: Messaging.start(name),
        lambda: Messaging.connect(name),
        lambda: messaging.create_group(name, [1]),
    ):
        raised(InvalidAddress, call, repr(name), "A-Z a-z 0-9" if isinstance(name, str) else "be a str", value=name)


@pytest.mark.parametrize(
    ("redis", "words"),
    [
        (LocalServer(), ["redis=LocalServer", "leave it out for an embedded server"]),
        (7, ["redis=int", "redis:// URL"]),
        ({"server": "127.0.0.1"}, ["redis=dict", "RedisConfig"]),
        (MessagingConfig(), ["MessagingConfig is not the config of a server"]),
    ],
    ids=["local", "int", "dict", "settings"],
)
def test_invalid_servers_are_refused(redis, words):
    raised(ConfigError, lambda: Messaging.start("never", redis=redis), *words)


def test_the_embedded_server_has_no_replicas_to_wait_for():
    with pytest.raises(ConfigError, match=r"wait_replicas=1 .* the embedded server has no replicas.*sentinels=\["):
        Messaging.start("town", settings=MessagingConfig(wait_replicas=1))


@pytest.mark.parametrize("name", ["settings", "log_dir", "data_dir"])
def test_arguments_of_another_kind_are_refused(name):
    for value in ({}, 7):
        raised(ConfigError, lambda value=value: Messaging.start("never", **{name: value}), f"{name}={value}")


def test_a_running_experiment_cannot_be_started_again(messaging):
    for on_existing in ("error", "resume"):
        raised(
            AlreadyExists,
            lambda how=on_existing: Messaging.start(messaging.exp_id, on_existing=how),
            repr(messaging.exp_id),
            "connect",
            kind="experiment",
            value=messaging.exp_id,
        )
    assert messaging.stats()["epoch"] >= 1  # it is as it was


def test_an_unknown_group_or_agent_is_refused(messaging, pair):
    raised(UnknownName, lambda: messaging.group("moon"), "'moon'", pair[0].name, kind="group", value="moon")
    raised(UnknownName, lambda: messaging.remove_group("moon"), "'moon'", kind="group", value="moon")
    raised(UnknownName, lambda: messaging.group_of(-77), "-77", "create_group", kind="agent", value=-77)
    raised(InvalidAddress, lambda: messaging.group_of(1.5), "1.5", "int or a str", value=1.5)
    assert pair[0].send(pair[0].agents[0], -77, {}).fate == "undeliverable"


def test_a_second_group_of_a_name_is_refused(messaging, pair):
    name = pair[0].name
    raised(AlreadyExists, lambda: messaging.create_group(name, [-1]), repr(name), "another", kind="group", value=name)
    assert pair[0].send(pair[0].agents[0], pair[0].agents[1], {}).fate == "delivered"  # the first one lives
    pair[0].fetch_messages(timeout=60)
    pair[0].ack()


def test_an_agent_of_another_group_is_refused(messaging, pair):
    agent = pair[0].agents[2]
    raised(
        AlreadyExists,
        lambda: messaging.create_group("thief", [-5, agent]),
        agent,
        pair[0].name,
        "leave the agent out",
        kind="agent",
        value=agent,
        owner=pair[0].name,
    )
    # Nothing is left of the refused group.
    group = messaging.create_group("thief", [-5])
    assert group.agents == [-5]
    messaging.remove_group("thief")


@pytest.mark.parametrize("agents", ["ann", b"ann", 7, None, [1.5], [True], [None], ["a\n"], [2**63], [7, "7"]])
def test_invalid_agents_are_refused(messaging, agents):
    bad = agents[0] if isinstance(agents, list) else agents
    raised(InvalidAddress, lambda: messaging.create_group("none", agents), repr(bad), value=bad)
    with pytest.raises(UnknownName):
        messaging.group("none")


@pytest.mark.parametrize("subtopic", ["", "a:b", "x*", 7])
def test_invalid_subtopics_of_a_group_are_refused(messaging, pair, subtopic):
    west = pair[0]
    raised(InvalidAddress, lambda: messaging.create_group("none", [-1], subtopics=[subtopic]), repr(subtopic))
    raised(InvalidAddress, lambda: west.send(1, 2, {}, subtopic=subtopic), repr(subtopic), value=subtopic)


def test_invalid_settings_are_refused(ray_cluster):
    raised(ConfigError, lambda: Messaging.start("x", on_existing="overwrite"), "'overwrite'", "'resume'")
    raised(ConfigError, lambda: Messaging.start("x", redis="http://localhost"), "'http'", "redis://")
    secret = raised(ConfigError, lambda: Messaging.start("x", redis="redis://:secret@host:99999/0"), "port")
    assert "secret" not in str(secret)


class Locked(rules.Rule):
    def __init__(self):
        self.name = "locked"
        self.lock = threading.Lock()


def test_invalid_rules_are_refused(ray_cluster):
    twice = [rules.BlackList(), rules.BlackList()]
    raised(RuleError, lambda: Messaging.start("x", rules=rules.BlackList()), "rules=[", rule="black_list")
    raised(RuleError, lambda: Messaging.start("x", rules=[Locked()]), "'locked'", "__init__", rule="locked")
    raised(RuleError, lambda: Messaging.start("x", rules=twice), "'black_list'", "another name", rule="black_list")
    for bad in ("black_list", [42], 42, None):
        raised(RuleError, lambda bad=bad: Messaging.start("x", rules=bad), "Rule" if bad == [42] else repr(bad))
    raised(UnknownName, lambda: Messaging.connect("x"))  # none of these is left behind


def test_a_server_that_does_not_start_says_why(monkeypatch):
    def fail(self):
        raise ServerFailed("no Valkey binary", log="")

    monkeypatch.setattr(EmbeddedServer, "start", fail)
    supervisor = ServerSupervisor(EmbeddedServer("127.0.0.1"))
    supervisor.start(succeed=False)
    raised(ServerFailed, supervisor.config, "no Valkey binary", log="")


def test_invalid_messages_are_refused(messaging, pair):
    west, east = pair
    a, b = west.agents[0], east.agents[0]
    elsewhere = Outgoing("exps:elsewhere:agents:1:agent-chat", {})
    raised(PayloadTooLarge, lambda: west.send(a, b, {"x": "y" * 2**23}), "limit", limit=2**23)
    raised(InvalidAddress, lambda: west.send(a, None, {}), "None", value=None)
    raised(InvalidAddress, lambda: west.ask(a, None, {}), "None", value=None)
    raised(InvalidAddress, lambda: Outgoing(None, {}), "None", "Outgoing.to_agent", value=None)
    raised(InvalidPayload, lambda: west.send_messages(["hello"]), "Outgoing")
    raised(InvalidAddress, lambda: west.send_messages([elsewhere]), "elsewhere", messaging.exp_id)
    raised(InvalidColumns, lambda: west.send_columns([a], [b, b], {}), "1 from_ids", "2 to_ids")
    raised(InvalidPayload, lambda: west.send_columns([a, a], [b, b], [{}, 7]), "row 1")
    assert len(east.fetch_messages(timeout=0.1)) == 0


@pytest.mark.parametrize("bad", ["5", True, -1, float("nan")], ids=repr)
def test_a_timeout_that_is_no_number_of_seconds_is_refused(messaging, pair, bad):
    west, a = pair[0], pair[0].agents[0]
    for call in (
        lambda: west.fetch_messages(timeout=bad),
        lambda: west.ask(a, a, {}, timeout=bad),
        lambda: west.ask_columns([a], [a], {}, timeout=bad),
        lambda: west.remove_agents([a], timeout=bad),
        lambda: west.move_agents([a], to="east", timeout=bad),
        lambda: messaging.ask(a, {}, timeout=bad),
        lambda: messaging.ask_columns([a], {}, timeout=bad),
        lambda: messaging.move_agents([a], to="east", timeout=bad),
        lambda: messaging.rebalance(timeout=bad),
    ):
        raised(ConfigError, call, f"timeout={bad!r}", "seconds")
