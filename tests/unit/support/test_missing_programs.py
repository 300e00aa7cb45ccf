"""A machine with only Python and pip: some tests are skipped with a reason, none fails."""

import pytest
from support.servers import MissingServer, RedisProcess, find_binary


@pytest.fixture
def bare(monkeypatch, tmp_path):
    """Take every program away."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("RAY_MESSAGING_REQUIRE_SERVERS", raising=False)


def test_a_program_that_is_not_here_is_a_skip_and_a_failure_where_servers_are_required(bare, monkeypatch):
    with pytest.raises(MissingServer, match="apt-get install mosquitto"):
        find_binary("mosquitto_passwd")
    monkeypatch.setenv("RAY_MESSAGING_REQUIRE_SERVERS", "1")
    with pytest.raises(LookupError, match=r"redis-server is not on PATH.*RAY_MESSAGING_REQUIRE_SERVERS"):
        find_binary("redis-server")


def test_a_server_of_the_tests_own_is_the_packages_valkey_then(bare, tmp_path):
    with RedisProcess(tmp_path) as process, process.client() as client:
        assert client.info("server")["server_name"] == "valkey"
