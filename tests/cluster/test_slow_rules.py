"""Messages that wait for a slow rule survive the interceptor, and delay no others."""

import threading
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


@pytest.fixture
def gate(ray_cluster):
    name = f"gate-{uuid.uuid4().hex[:8]}"
    made = Gate.options(name=name, namespace="tests").remote()
    yield name, made
    ray.kill(made)


@pytest.mark.long
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
    assert numbers(east.fetch_messages(timeout=60)) == [1000, 1001, 1002, 2000, 2001, 2002]
    assert messaging.stats()["deferred"] == 100
    assert not found
    ray.get(gate.open.remote())
    waiting.join(PATIENCE_S)
    assert found[0].counts()["delivered"] == 100
    assert numbers(drain(east, 100)) == list(range(100))
    assert Counter(ray.get(gate.questions.remote())) == dict.fromkeys(range(100), 2)
