"""The garbage collector of a process that opens a messager: relaxed, unless its owner has chosen otherwise."""

import gc

import pytest

from ray_messaging.cluster.tuning import relax_collector


@pytest.fixture(autouse=True)
def _as_before():
    enabled, thresholds = gc.isenabled(), gc.get_threshold()
    yield
    gc.set_threshold(*thresholds)
    (gc.enable if enabled else gc.disable)()


def test_a_collector_that_nobody_touched_looks_less_often_and_freezes_nothing():
    gc.set_threshold(700, 10, 10)
    frozen = gc.get_freeze_count()
    relax_collector()
    assert gc.get_threshold() == (50_000, 20, 100)
    assert gc.get_freeze_count() == frozen


def test_thresholds_that_somebody_chose_stay():
    gc.set_threshold(5_000, 5, 5)
    relax_collector()
    assert gc.get_threshold() == (5_000, 5, 5)


def test_a_collector_that_was_switched_off_stays_off():
    gc.set_threshold(700, 10, 10)
    gc.disable()
    relax_collector()
    assert (gc.isenabled(), gc.get_threshold()) == (False, (700, 10, 10))
