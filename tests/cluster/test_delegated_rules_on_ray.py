"""Delegated rules with a real interceptor: delegated, changed, stopped, killed."""

import pytest
import ray
from support.cluster import PATIENCE_S, control, drain, kill, pid_of, stopped, wait_for

from ray_messaging import Messaging, MessagingConfig, rules
from ray_messaging.errors import InterceptorUnavailable

pytestmark = pytest.mark.long


@pytest.fixture
def society(ray_cluster, exp_id):
    """Give an experiment with a black list, and groups west (0 to 9) and east (10 to 19)."""
    settings = MessagingConfig(interceptor_timeout_s=2.0)
    listed = [rules.BlackList([(9, 19)]), rules.AllowGraph(networks={"all": range(20)})]
    with Messaging.start(exp_id, rules=listed, settings=settings) as started:
        yield started, started.create_group("west", range(10)), started.create_group("east", range(10, 20))


def passes(west):
    """Send until messages pass by delegated rules."""
    before = west.stats()["delegated"]

    def sent():
        try:
            assert west.send(1, 11, {}).fate == "delivered"
        except InterceptorUnavailable:  # it starts again
            return False
        return west.stats()["delegated"] > before

    wait_for(sent, "a message that passes by granted rules")


def test_rules_are_delegated_and_no_send_escapes_a_change(society):
    messaging, west, east = society
    for _ in range(5):
        passes(west)
        control(messaging, "add_to_black_set", [(1, 11)])
        assert west.send(1, 11, {}).rule == "black_list"
        assert west.send(9, 19, {}).reason == "agent 9 may not write to agent 19"
        control(messaging, "remove_from_black_set", [(1, 11)])
    control(messaging, "insert_rule", rules.MaxLength(10))
    assert west.send(1, 11, {"text": "x" * 20}).rule == "max_length"
    assert not messaging.stats()["delegated"]
    control(messaging, "pop_rule", "max_length")
    wait_for(lambda: messaging.stats()["delegated"], "rules that are calm")
    stats = messaging.stats()
    waiting = stats["waiting"]["east"]
    assert len(drain(east, waiting)) == waiting
    wait_for(lambda: messaging.stats()["judged"] == waiting + 11, "the count of all")


def test_a_stopped_interceptor_stops_no_sender_that_has_the_rules_and_a_dead_one_is_replaced(society):
    messaging, west, _ = society
    passes(west)
    with stopped(pid_of(messaging.interceptor)):
        for _ in range(5):
            assert west.send(1, 12, {}).fate == "delivered"
        with pytest.raises(InterceptorUnavailable):  # a message that the rules block is the interceptor's
            west.send(9, 19, {})
    passes(west)
    kill(messaging.interceptor)
    passes(west)
    control(messaging, "add_to_black_set", [(1, 11)])
    assert west.send(1, 11, {}).rule == "black_list"
    ray.get(messaging.interceptor.ready.remote(), timeout=PATIENCE_S)
