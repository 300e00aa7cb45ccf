"""Server settings: accepted and refused values, and no password is ever shown."""

import math
import traceback

import pytest
from pydantic import ValidationError

from ray_messaging import MessagingConfig, RedisConfig, Steps
from ray_messaging import default_limits_and_leases as limits
from ray_messaging.compat.mqtt import MqttConfig
from ray_messaging.errors import ConfigError

SECRET = "s3cret"


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("redis://host", {"server": "host", "port": 6379}),
        ("redis://", {"server": "localhost"}),
        ("redis://host:7000/3", {"port": 7000, "db": 3}),
        ("redis://host?db=4", {"db": 4}),
        ("rediss://host", {"ssl": True}),
        ("redis://:s3cret@host", {"password": SECRET, "username": None}),
        ("redis://ann:s3cret@host", {"password": SECRET, "username": "ann"}),
        ("redis://ann:a%2Fb%40c%3Ad%25@host:1/2", {"password": "a/b@c:d%", "server": "host", "port": 1, "db": 2}),
        ("redis://[::1]:7000", {"server": "::1", "port": 7000}),
        ("unix:///run/redis.sock", {"server": "/run/redis.sock", "port": 0}),
        ("unix://:s3cret@/run/redis.sock?db=2", {"server": "/run/redis.sock", "password": SECRET, "db": 2}),
    ],
)
def test_urls(url, expected):
    config = RedisConfig.from_url(url)
    assert {key: getattr(config, key) for key in expected} == expected


BAD_URLS = [
    f"redis://:pa/{SECRET}@host:6379/0",
    f"redis://ann:{SECRET}/@host",
    f"redis://:{SECRET}@host:99999",
    f"redis://:{SECRET}@host:0",
    f"redis://:{SECRET}@host:port",
    f"redis://:{SECRET}@host/db",
    f"redis://:{SECRET}@host/-1",
    f"redis://:{SECRET}@host?db=x",
    f"redis://:pa#{SECRET}@host",
    f"redis://:pa?{SECRET}@host",
    "redis://host?ssl=1",
    f"redis://:{SECRET}@[bad",
    f"http://:{SECRET}@host",
    f"//:{SECRET}@host",
    f":{SECRET}@host:6379",
    "host:6379",
    "",
    *(f"redis+sentinel://{rest}" for rest in ("a:x/t", "a:0/t", "a", "/t", "a,/t", f"u:{SECRET}@a:70000/t", "a/t/x")),
    *(
        f"redis+cluster://{rest}"
        for rest in ("a:x", "a:0", "", "a,", f"u:{SECRET}@a:70000", "a:1/2", "a:1/town", "a#1")
    ),
    *(f"redis+cluster://a?{option}" for option in ("shards=0", "shards=x", "x=1")),
]


@pytest.mark.parametrize("url", BAD_URLS)
def test_a_url_that_cannot_be_read_says_how_to_write_it_and_shows_no_password(url):
    with pytest.raises(ConfigError, match=r"write redis[+:]") as caught:
        RedisConfig.from_url(url)
    shown = "".join(traceback.format_exception(caught.value)) + repr(caught.value)
    assert SECRET not in shown.replace(url, "")  # the source line of this test may hold it


@pytest.mark.parametrize(
    ("settings", "fields", "named"),
    [
        (RedisConfig, {}, "exactly one of server=, sentinels="),
        (RedisConfig, {"server": "x", "port": "no"}, "port"),
        (RedisConfig, {"server": "x", "port": 0}, "no server has the port 0"),
        (RedisConfig, {"server": "x", "db": -1}, "db"),
        (RedisConfig, {"server": "x", "timeout": 0}, "timeout"),
        (RedisConfig, {"server": "x", "password": [SECRET]}, "password"),
        (RedisConfig, {"server": "x", "ssl_ca_certs": "ca.pem"}, "ssl=True"),
        (RedisConfig, {"server": "x", "ssl_certfile": "our.pem"}, "ssl=True"),
        (RedisConfig, {"server": "x", "ssl_keyfile": "our.key"}, "ssl=True"),
        (RedisConfig, {"server": "x", "ssl": True, "ssl_keyfile": "our.key"}, "ssl_certfile"),
        (RedisConfig, {"server": "x", "ssl": True, "socket_dir": "/run"}, "socket_dir cannot be used with ssl=True"),
        (RedisConfig, {"server": "/x.sock", "socket_dir": "/run"}, "socket_dir cannot be used with ssl=True"),
        (RedisConfig, {"server": "x", "sentinels": ["a"], "service": "town"}, "exactly one of server=, sentinels="),
        (RedisConfig, {"sentinels": ["a"]}, "must be given together"),
        (RedisConfig, {"server": "x", "service": "town"}, "must be given together"),
        (RedisConfig, {"sentinels": ["a/b"], "service": "town"}, "host:port, not 'a/b'"),
        (RedisConfig, {"cluster": ["a:0"]}, "the address 'a:0' has the port 0, which no node has"),
        (RedisConfig, {"sentinels": ["a"], "service": "town", "sentinel_username": "u"}, "needs sentinel_password"),
        (RedisConfig, {"cluster": ["a"], "server": "x"}, "exactly one of server=, sentinels="),
        (RedisConfig, {"cluster": ["a"], "sentinels": ["b"], "service": "town"}, "exactly one of server=, sentinels="),
        (RedisConfig, {"cluster": ["a"], "db": 3}, "has only the database 0: leave db out"),
        (RedisConfig, {"cluster": ["a"], "socket_dir": "/run"}, "socket_dir cannot be used with ssl=True"),
        (RedisConfig, {"cluster": ["a/b"]}, "the address of a node is host:port, not 'a/b'"),
        (RedisConfig, {"server": "a", "shards": 3}, "shards= needs cluster="),
        (RedisConfig, {"cluster": ["a"], "shards": 129}, "less than or equal to 128"),
        (MqttConfig, {}, "username"),
        (MqttConfig, {"username": "ann", "port": 0}, "port"),
        (MqttConfig, {"username": "ann", "port": 65_536}, "port"),
        (MqttConfig, {"username": "ann", "timeout": 0}, "timeout"),
        (MqttConfig, {"username": "ann", "keepalive_s": 65_536}, "keepalive_s"),
        (MqttConfig, {"username": "ann", "db": 1}, "db"),
        (MqttConfig, {"server": f"mqtt://ann:{SECRET}@host:1883", "username": "ann"}, "the host is a URL"),
        (MqttConfig, {"username": "ann", "ssl_ca_certs": "ca.pem"}, "ssl=True"),
        (MqttConfig, {"username": "ann", "ssl": True, "ssl_keyfile": "key.pem"}, "ssl_certfile"),
    ],
    ids=repr,
)
def test_addresses_that_cannot_work_are_refused_without_their_password(settings, fields, named):
    server = {"server": "x"} if settings is MqttConfig else {}
    with pytest.raises(ValidationError, match=named) as caught:
        settings(**server | {"password": SECRET} | fields)
    assert SECRET not in str(caught.value) + repr(caught.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("mailbox_message", 5),
        ("mailbox_messages", 0),
        ("outbox_bytes", -1),
        ("send_timeout_s", 0),
        *(
            (name, seconds)
            for name in ("lease_s", "loan_s", "rule_timeout_s")
            for seconds in (0, math.inf, math.nan, 1e10)
        ),
    ],
)
def test_settings_that_cannot_work(name, value):
    with pytest.raises(ValidationError, match=name):
        MessagingConfig(**{name: value})


@pytest.mark.parametrize(
    "config", [RedisConfig(server="x", password=SECRET), MqttConfig(server="x", username="ann", password=SECRET)]
)
def test_a_config_does_not_show_its_password_and_its_fields_may_be_assigned(config):
    copy = config.model_copy(update={"port": 1})
    assert SECRET not in f"{config!r} {config!s} {copy!r} {[config]}"
    config.port = 1884  # as the seeds allow
    assert config.port == 1884


@pytest.mark.parametrize("settings", [Steps, MessagingConfig, RedisConfig, MqttConfig])
def test_a_value_without_a_name_is_refused_with_the_names_and_not_shown(settings):
    with pytest.raises(ConfigError, match=f"{settings.__name__} takes its settings by name, such as ") as caught:
        settings(SECRET)
    assert all(name in str(caught.value) for name in settings.model_fields)
    assert SECRET not in str(caught.value)


def test_a_number_of_steps_belongs_to_the_run():
    with pytest.raises(ConfigError, match=r"set by messaging\.run\(until="):
        Steps(10)


def test_sentinels_by_url_and_by_field():
    url = "redis+sentinel://u:p%40w@a:1,b,[::1]:3/town/2?allow_eviction=1"
    config = RedisConfig.from_url(url)
    assert config == RedisConfig(
        sentinels=["a:1", "b", "[::1]:3"], service="town", username="u", password="p@w", db=2, allow_eviction=True
    )
    assert config.sentinel_addresses() == [("a", 1), ("b", 26379), ("::1", 3)]
    assert RedisConfig.from_url("rediss+sentinel://a/town").ssl


def test_a_cluster_by_url_and_by_field():
    config = RedisConfig.from_url("redis+cluster://u:p%40w@a:1,b,[::1]:3?allow_eviction=1")
    assert config == RedisConfig(cluster=["a:1", "b", "[::1]:3"], username="u", password="p@w", allow_eviction=True)
    assert config.cluster_addresses() == [("a", 1), ("b", 6379), ("::1", 3)]
    assert RedisConfig.from_url("rediss+cluster://a/0").ssl
    for url in ("redis+cluster://a,b?shards=6&allow_eviction=1", "redis+cluster://a,b/?allow_eviction=1&shards=6"):
        assert RedisConfig.from_url(url) == RedisConfig(cluster=["a", "b"], shards=6, allow_eviction=True)
    assert RedisConfig.model_validate_json(config.model_dump_json()) == config


def test_a_payload_fits_a_frame_and_a_batch_fits_a_transaction():
    assert MessagingConfig(payload_bytes=limits.PAYLOAD_LIMIT).payload_bytes < limits.FRAME_LIMIT
    assert limits.FRAME_BYTES <= limits.FRAME_LIMIT
    assert limits.BATCH_BYTES < limits.TRANSACTION_BYTES
