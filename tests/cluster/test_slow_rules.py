"""Messages that wait for a slow rule survive the interceptor, and delay no others."""

import logging
import threading
import time
import uuid
from collections import Counter

import pytest
import ray
from support.cluster import (
    PATIENCE_S,
    AskGate,
    Gate,
    drain,
    fates,
    kill_and_wait,
    new_handle,
    numbered,
    numbers,
    wait_for,
)

from ray_messaging import rules

logger = logging.getLogger(__name__)


@pytest.fixture
def gate(ray_cluster):
    name = f"gate-{uuid.uuid4().hex[:8]}"
    made = Gate.options(name=name, namespace="tests").remote()
    yield name, made
    ray.kill(made)


def test_deferred_messages_survive_the_interceptor(town, gate):
    name, gate = gate
    messaging, west, east = town(rules.Moderator(AskGate(name), concurrency=1000, cache=0, timeout_s=100))
    slow = [payload | {"slow": 1} for payload in numbered(100)]
    waiting = threading.Thread(target=lambda: found.append(west.send_columns([1] * 100, [11] * 100, slow)))
    found = []
    waiting.start()
    wait_for(lambda: len(ray.get(gate.questions.remote())) >= 100, "the questions")
    other = new_handle(west)
    assert fates(other.send_columns([2] * 3, [11] * 3, numbered(3, 1000))) == ["delivered"] * 3
    kill_and_wait(messaging.interceptor)
    wait_for(lambda: len(ray.get(gate.questions.remote())) >= 200, "the questions of the successor")
    assert fates(other.send_columns([2] * 3, [12] * 3, numbered(3, 2000))) == ["delivered"] * 3
    assert numbers(east.fetch(timeout=60)) == [1000, 1001, 1002, 2000, 2001, 2002]
    assert not found
    ray.get(gate.open.remote())
    waiting.join(PATIENCE_S)
    assert found[0].counts()["delivered"] == 100
    assert numbers(drain(east, 100)) == list(range(100))
    assert Counter(ray.get(gate.questions.remote())) == dict.fromkeys(range(100), 2)


@pytest.mark.long
def test_500_deferred_messages_delay_no_others(town, gate):
    name, gate = gate
    messaging, west, east = town(rules.Moderator(AskGate(name), concurrency=1000, cache=0, timeout_s=100))
    other_handle = new_handle(west)
    other_handle.send(2, 12, {"n": -1})
    slow = [payload | {"slow": 1} for payload in numbered(500)]
    found = []
    waiting = threading.Thread(
        target=lambda: found.append(west.send_columns([1] * 500, [10 + n % 5 for n in range(500)], slow))
    )
    waiting.start()
    wait_for(lambda: len(ray.get(gate.questions.remote())) == 500, "the questions")
    took = []
    for n in range(200):
        began = time.perf_counter()
        receipt = other_handle.send(2, 12, {"n": n})
        took.append(time.perf_counter() - began)
        assert receipt
    assert not found
    assert messaging.stats()["deferred"] == 500
    assert numbers(drain(east, 201)) == list(range(-1, 200))
    ray.get(gate.open.remote())
    waiting.join(PATIENCE_S)
    assert found[0].counts()["delivered"] == 500
    arrived = drain(east, 500)
    for receiver in range(10, 15):
        assert numbers(m for m in arrived if m.to_id == receiver) == list(range(receiver - 10, 500, 5))
    took.sort()
    logger.info("lone sends beside 500 that wait: median %.1f ms, p99 %.1f ms", took[100] * 1e3, took[197] * 1e3)
