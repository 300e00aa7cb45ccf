"""A server returns without its last confirmed changes: bans stay in force, also after later deaths."""

import os
import signal
from functools import partial

import pytest
from faults import injector
from support.cluster import Shouting, alive, control, drain, fates, kill, numbered, numbers, pid_of, wait_for

from ray_messaging import rules

pytestmark = pytest.mark.long


@pytest.fixture
def start(own_server, start):
    """Start the experiment on the server that forgets."""
    return partial(start, redis=own_server.config, interceptor_timeout_s=60)


def forget(server, change):
    """Make the server forget a change that has returned, and other events meanwhile."""
    [aof] = [path for path in injector.aof_files(server.folder) if ".incr." in path.name]
    before = aof.stat().st_size
    change()
    server.kill()
    injector.tear(server, aof.stat().st_size - before)
    server.start()


def noticed(messaging):
    """Wait until the interceptor has noticed; return the health finding."""

    def said():
        return [finding for finding in messaging.health().problems if "server_behind" in finding.what]

    return wait_for(said, "a finding")


def test_an_epoch_and_a_ban_lost_by_the_server_are_written_anew(start, own_server):
    messaging, west, east = start(rules.BlackList([(9, 19)]))
    assert fates(west.send_columns([1, 9], [11, 19], numbered(2))) == ["delivered", "blocked"]
    control(messaging, "add_to_black_set", (2, 12))

    def change():
        control(messaging, "add_to_black_set", (1, 11))
        kill(messaging.interceptor)
        assert control(messaging, "black_set") == {(1, 11), (2, 12), (9, 19)}

    forget(own_server, change)
    [finding] = noticed(messaging)
    assert finding.level == "warning"
    assert "and the interceptor wrote them again" in finding.value
    assert fates(west.send_columns([1, 3], [11, 11], numbered(2, 2))) == ["blocked", "delivered"]
    kill(messaging.interceptor)
    assert control(messaging, "black_set") == {(1, 11), (2, 12), (9, 19)}
    assert control(messaging, "violation_counts") == {9: 1, 1: 1}
    assert numbers(drain(east, 2)) == [0, 3]


def test_a_rule_survives_the_death_of_server_and_interceptor(start, own_server):
    messaging, west, _ = start()
    assert west.send(1, 11, {"n": 0})
    pid = pid_of(messaging.interceptor)

    def change():
        control(messaging, "insert_rule", Shouting())
        os.kill(pid, signal.SIGSTOP)  # it notices nothing

    forget(own_server, change)
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not alive(pid), "its end")
    assert west.send(1, 11, {"text": "HEY"}).rule == "shouting"
