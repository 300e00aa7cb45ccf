"""Ids in receipts, and their equality."""

import numpy as np
import pytest
from support.batches import batch_to

from ray_messaging.model.columns import PayloadColumn
from ray_messaging.model.extension import Extension
from ray_messaging.receipt import Outcome, Receipts


@pytest.mark.parametrize("step", [4, np.array([4, 5])])
def test_a_message_of_a_step_has_the_id_of_its_step_ordinal_and_sender(step):
    extension = Extension(attempt=1, deliver=6, ordinal=np.array([0, 2], np.uint32))
    batch = batch_to([1, 2], [7, "ann"], sender="east", epoch=3, first=10, step=step, extension=extension)
    assert [Outcome(batch).message_id(row) for row in (0, 1)] == [batch.message_id(row) for row in (0, 1)]
    assert Outcome(batch).message_id(0) == "4-0-7"
    batch.extension = None
    assert Outcome(batch).message_id(1) == "east-3-11"


def test_receipts_are_found_by_their_ids():
    outcome = Outcome(batch_to([1, 2, 3], lines=PayloadColumn.of([b"{}"] * 3)))
    outcome.settle(None, 0)
    receipts = Receipts([(outcome, 0, 3)])
    assert [receipts.index(receipts[row]) for row in range(3)] == [0, 1, 2]
    assert (receipts.count(receipts[1]), receipts[2] in receipts, list(receipts) == list(receipts)) == (1, True, True)
    assert len({*receipts, *receipts}) == 3
