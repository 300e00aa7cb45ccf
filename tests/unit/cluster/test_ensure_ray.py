"""How Ray is started, or joined, where the environment says which."""

import pytest
import ray

from ray_messaging.cluster.starting.ray_clusters import ensure_ray
from ray_messaging.errors import ConfigError


@pytest.fixture
def inits(monkeypatch):
    """Return how Ray was started."""
    found = []
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", lambda **options: found.append((options["address"], options["include_dashboard"])))
    return found


@pytest.mark.parametrize(
    ("address", "init"), [(None, (None, False)), ("", (None, False)), ("10.0.0.1:1", ("10.0.0.1:1", None))]
)
def test_which_cluster(inits, monkeypatch, address, init):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    if address is not None:
        monkeypatch.setenv("RAY_ADDRESS", address)
    assert ensure_ray()
    assert inits == [init]


def test_a_cluster_that_does_not_let_us_in(inits, monkeypatch):
    def init(**options):
        raise ConnectionError("Failed to connect")

    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:1")
    with pytest.raises(ConfigError, match="RAY_AUTH_MODE=token"):
        ensure_ray()
