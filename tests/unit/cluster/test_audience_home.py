"""The folder in which a start of an experiment keeps the files of its audiences."""

from types import SimpleNamespace

import pytest

from ray_messaging import RedisConfig
from ray_messaging.cluster import lifecycle

SERVER = RedisConfig(server="10.0.0.1")


@pytest.fixture
def home(monkeypatch):
    """Return a function that gives the folder of a start."""
    monkeypatch.setattr(lifecycle, "context", lambda: SimpleNamespace(get_node_id=lambda: "node"))
    return lambda run, log_dir, config: lifecycle._audience_home("town", run, log_dir, config, None).folder


def test_a_later_start_finds_the_files_beside_the_log_or_by_the_server(home):
    assert home("one", "/runs/town", SERVER) == home("two", "/runs/town", SERVER) == "/runs/town/audiences"
    assert home("one", None, SERVER) == home("two", None, SERVER)
    assert home("one", None, None) != home("two", None, None)


def test_a_start_with_a_log_on_a_store_takes_no_copies_of_an_earlier_experiment(home):
    assert home("one", "s3://runs/fork", SERVER) != home("two", "s3://runs/other-fork", SERVER)
