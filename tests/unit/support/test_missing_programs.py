"""A machine with only Python and pip: some tests are skipped with a reason, none fails."""

import pytest
from support.servers import MissingServer, RedisProcess, find_binary


@pytest.fixture
def bare(monkeypatch, tmp_path):
    """Take every program away."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("RAY_MESSAGING_REQUIRE_SERVERS", raising=False)


@pytest.mark.parametrize("name", ["redis-server", "mosquitto", "openssl", "chromium"])
def test_a_program_that_is_not_here_is_a_skip_that_says_how_to_install_it(bare, name):
    with pytest.raises(MissingServer, match=f"apt-get install {name}"):
        find_binary(name)


@pytest.mark.parametrize("name", ["redis-server", "mosquitto", "openssl", "chromium"])
def test_it_is_a_failure_where_servers_are_required(bare, monkeypatch, name):
    monkeypatch.setenv("RAY_MESSAGING_REQUIRE_SERVERS", "1")
    with pytest.raises(LookupError, match=f"{name} is not on PATH.*RAY_MESSAGING_REQUIRE_SERVERS"):
        find_binary(name)


def test_a_server_of_the_tests_own_is_the_packages_valkey_then(bare, tmp_path):
    process = RedisProcess(tmp_path)
    try:
        with process.start().client() as client:
            assert client.info("server")["server_name"] == "valkey"
    finally:
        process.kill()
