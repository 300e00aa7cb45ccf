"""Errors that a receiver must notice."""

import numpy as np
import pytest
from support.traffic import arrive, plan_of

from ray_messaging.replay.worker import Checker

# Agents 1 and "ann" in group 0, agent 2 in group 1; 0, 2, 4 and 5 go to group 0.
ROWS = [(2, 1), (1, 2), (2, 1), (2, 2), (2, 1), ("ann", 1)]
TEXTS = ["zero", "one", "", "three", "fo\nur", "fünf"]


@pytest.fixture
def plan():
    return plan_of(ROWS, {1: 0, 2: 1, "ann": 0}, texts=TEXTS)


@pytest.fixture
def checker(plan):
    return Checker(plan.reference(), 0)


def faults(checker):
    tally = checker.tally
    found = {name: getattr(tally, name) for name in ("out_of_order", "misdirected", "changed", "unexpected")}
    found["duplicates"] = int(np.maximum(tally.seen.astype(int) - 1, 0).sum())
    return {name: count for name, count in found.items() if count}


@pytest.mark.parametrize("batches", [[[0, 4, 2]], [[0, 4], [2]], [[4], [5, 2], [0]]])
def test_order_breaks_within_and_across_batches(plan, checker, batches):
    for batch in batches:
        arrive(checker, plan, batch)
    assert faults(checker) == {"out_of_order": sum(map(len, batches)) - 2 if [0] in batches else 1}


@pytest.mark.parametrize("line", [b"no JSON", b"[]", b'{"n": "1", "time": 0}', b'{"time": 0}', b"\xff"])
def test_foreign_messages_are_noticed_and_the_others_still_checked(plan, checker, line):
    lines = [b'{"n": 0, "time": 0, "text": "zero"}', line, b'{"n": 2, "time": 2, "text": "changed"}']
    checker.take(lines, np.array([2, None, 2], object), np.array([1, 1, 1]), np.zeros(3), 1.0)
    assert faults(checker) == {"unexpected": 1, "changed": 1}
    assert checker.tally.seen.tolist() == [1, 0, 1, 0, 0, 0]
