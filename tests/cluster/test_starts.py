"""Starts of many actors at a time."""

import pytest
import ray

from ray_messaging.cluster.handles.connection import start_in_turn


@pytest.fixture
def two_at_once(ray_cluster, monkeypatch):
    monkeypatch.setattr("ray_messaging.cluster.handles.connection._LEAST", 2)
    monkeypatch.setattr("ray_messaging.cluster.handles.connection._PER_PROCESSOR", 0)


@ray.remote(num_cpus=0)
class Counter:
    def __init__(self):
        self.ended = 0

    def end(self):
        self.ended += 1
        return self.ended

    def count(self):
        return self.ended


def test_no_more_are_under_way_than_may_be(two_at_once):
    counter, begun, checked = Counter.remote(), [], []

    def start(number):
        assert ray.get(counter.count.remote()) >= number - 1, f"{begun} are under way"
        begun.append(number)
        return after_a_while.remote(counter)

    @ray.remote(num_cpus=0)
    def after_a_while(counter):
        return ray.get(counter.end.remote())

    start_in_turn([lambda n=n: start(n) for n in range(6)], lambda done: checked.append(ray.get(done)))
    assert begun == [*range(6)]
    assert sorted(checked) == [*range(1, 7)]
    ray.kill(counter)


def test_the_first_error_ends_it(two_at_once):
    begun = []

    @ray.remote(num_cpus=0)
    def fail():
        raise ValueError("no room")

    def start(number):
        begun.append(number)
        return fail.remote()

    with pytest.raises(ValueError, match="no room"):
        start_in_turn([lambda n=n: start(n) for n in range(5)], ray.get)
    assert len(begun) < 5
