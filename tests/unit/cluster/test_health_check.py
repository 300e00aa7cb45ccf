"""A health check ends with findings, whatever happens to Ray."""

from ray_messaging.cluster import health_check


def test_a_ray_head_that_is_gone_is_a_finding(monkeypatch):
    def gone(_name):
        raise RuntimeError("there is no head")

    monkeypatch.setattr(health_check, "check_ray", lambda _: None)
    monkeypatch.setattr(health_check, "on_ray_client", lambda: False)
    monkeypatch.setattr(health_check, "find_actor", gone)
    monkeypatch.setattr(health_check, "named_actors", gone)
    assert health_check.check_health("town", None, {}).level == "critical"
