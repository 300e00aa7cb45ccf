"""The doctor names a server whose version has known security holes."""

import pytest

from ray_messaging.observability.health.known_holes import MENDED, check_known_holes


@pytest.mark.parametrize(
    ("info", "level", "words"),
    [
        ({"redis_version": "7.0.15"}, "warning", "gets no fixes; releases without known holes are 7.2.15, 7.4.10"),
        ({"redis_version": "7.4.9"}, "warning", "Redis 7.4.9 has known security holes, which Redis 7.4.10 closes"),
        ({"redis_version": "7.4.10"}, "ok", "no security holes that were known in"),
        ({"redis_version": "9.0.0"}, "ok", "Redis 9.0.0"),
        ({"redis_version": "7.2.4", "valkey_version": "9.1.2"}, "ok", "Valkey 9.1.2"),
        ({"redis_version": "7.2.4", "valkey_version": "9.1.0"}, "warning", "which Valkey 9.1.1 closes"),
        ({"redis_version": "7.2.4", "valkey_version": "8.1.3"}, "warning", "which Valkey 8.1.9 closes"),
        ({"redis_version": "255.255.255"}, "ok", "Redis 255.255.255"),
        ({"redis_version": "8.2-rc1"}, "ok", "Redis 8.2-rc1"),
        ({}, "ok", "of an unknown version"),
    ],
)
def test_a_version_is_judged_by_its_line(info, level, words):
    found = check_known_holes(info)
    assert (found.what, found.level) == ("server version", level)
    assert words in found.value
    assert bool(found.remedy) == (level == "warning")


def test_the_lines_are_in_order():
    for versions in MENDED.values():
        assert sorted(versions) == list(versions)
        assert len({version[:2] for version in versions}) == len(versions)
