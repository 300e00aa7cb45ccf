"""An experiment on a real Ray cluster with a backend of the test's own: the cluster names no server."""

from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.cluster import wait_for

from ray_messaging import Messaging, RedisConfig, rules
from ray_messaging.config import ServerConfig
from ray_messaging.transports.backend import RedisBackend


class Counted:
    """A store that writes the name of each used method to a file."""

    def __init__(self, store, path):
        self._store, self._path = store, path

    def __getattr__(self, name):
        with Path(self._path).open("a") as file:
            file.write(f"{type(self._store).__name__}.{name}\n")
        found = getattr(self._store, name)
        return Counted(found, self._path) if name == "log" else found


class CountedBackend:
    """A backend that counts; a real one would connect to another kind of server."""

    def __init__(self, config):
        self._path = config.path
        redis = RedisConfig(server=config.server, port=config.port, password=config.password)
        self._backend = RedisBackend(redis)

    def transport(self, exp_id, settings):
        return Counted(self._backend.transport(exp_id, settings), self._path)

    def stores(self, exp_id, settings, *, run="", reset=False):
        stores = self._backend.stores(exp_id, settings, run=run)
        names = ("transport", "dead_letters", "experiment")
        return SimpleNamespace(**{name: Counted(getattr(stores, name), self._path) for name in names})

    def probe(self, exp_id=None):
        return Counted(self._backend, self._path).probe(exp_id)

    def closed_names(self, exp_id):
        return Counted(self._backend, self._path).closed_names(exp_id)


class CountedConfig(ServerConfig):
    """The address of a server of the test's own kind."""

    server: str
    port: int
    password: str | None = None
    path: str

    def open_backend(self):
        """Make the backend."""
        return CountedBackend(self)


@pytest.fixture
def counted(by_value, redis_config, tmp_path):
    """Return a config of the test's own, and a function that counts the uses of its stores."""
    path = tmp_path / "uses"
    config = CountedConfig(
        server=redis_config.server, port=redis_config.port, password=redis_config.password, path=str(path)
    )
    return config, lambda: Counter(path.read_text().splitlines())


@pytest.mark.long
def test_an_experiment_runs_on_a_custom_backend(counted, exp_id, tmp_path):
    config, uses = counted
    limits = [rules.BlackList([(1, 4)]), rules.RateLimit(1000)]
    with Messaging.start(exp_id, redis=config, rules=limits, log_dir=tmp_path / "log") as messaging:
        west, east = messaging.create_group("west", [1, 2]), messaging.create_group("east", [3, 4])
        fates = [west.send(1, to, {"n": to}).fate for to in (3, 4, 99)]
        assert fates == ["delivered", "blocked", "undeliverable"]
        assert [message.payload for message in east.fetch_messages(timeout=60)] == [{"n": 3}]
        east.ack()
        west.send(2, 4, {"n": 5})
        messaging.remove_group("east")  # with an unread message
        assert [letter.mailbox for letter in messaging.dead_letters] == ["east"]
        assert messaging.dead_letters.drop(everything=True) == 1
        assert messaging.closed_messagers() == []
        assert messaging.stats()["blocked"] == 1
        assert {"server", "interceptor"} <= {finding.what.split()[0] for finding in messaging.health().findings}
        assert wait_for(lambda: len(messaging.log.query()) == 4, "the log")
        assert isinstance(messaging.redis, CountedConfig)
        assert isinstance(Messaging.connect(exp_id).redis, CountedConfig)
    with Messaging.start(exp_id, redis=config, on_existing="reset"):
        pass
    found = uses()
    for use in (
        *("RedisTransport.listen", "RedisTransport.send", "RedisTransport.commit", "RedisTransport.remove"),
        *("RedisLog.register", "RedisLog.read", "RedisLog.note_written"),
        *("RedisDeadLetters.page", "RedisDeadLetters.drop", "RedisDeadLetters.facts"),
        *("RedisExperimentStore.claim", "RedisExperimentStore.take_interceptor_epoch", "RedisExperimentStore.beat"),
        *("RedisExperimentStore.write", "RedisExperimentStore.erase_earlier", "RedisExperimentStore.forget_sender"),
        *("RedisBackend.probe", "RedisBackend.closed_names"),
    ):
        assert found[use] > 0, (use, found)
