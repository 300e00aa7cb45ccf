"""Starts of many actors at a time."""

import pytest
import ray

from ray_messaging.cluster.handles.connection import start_in_turn


@pytest.mark.parametrize("fails", [False, True], ids=["all start", "the first error ends it"])
def test_no_more_are_under_way_than_may_be(ray_cluster, monkeypatch, fails):
    monkeypatch.setattr("ray_messaging.cluster.handles.connection._LEAST", 2)
    monkeypatch.setattr("ray_messaging.cluster.handles.connection._PER_PROCESSOR", 0)
    begun, checked = [], []

    @ray.remote(num_cpus=0)
    def begin(number):
        if fails:
            raise ValueError("no room")
        return number

    def start(number):
        assert len(begun) - len(checked) < 2
        begun.append(number)
        return begin.remote(number)

    def start_all():
        start_in_turn([lambda n=n: start(n) for n in range(6)], lambda done: checked.append(ray.get(done)))

    if fails:
        with pytest.raises(ValueError, match="no room"):
            start_all()
        assert len(begun) == 2
    else:
        start_all()
        assert begun == sorted(checked) == [*range(6)]
