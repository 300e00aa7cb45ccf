"""Ids in receipts, and their equality."""

import pickle

import numpy as np
import pytest
from support.batches import batch_to
from support.frames import frames_of_sends

from ray_messaging import Outgoing
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


def own(array):
    """Return whether an array is no view, and so keeps no other memory alive."""
    return array is None or isinstance(array, float) or array.base is None


async def test_receipts_keep_no_frame_alive(messagers):
    sender, _ = await messagers(log_list_messages=0), await messagers(host=range(10))
    sends = [Outgoing.to_agent(n % 10, {"t": "x" * 1000}, from_id=1) for n in range(100)]
    frames = frames_of_sends(sender.exp_id, sends)
    for receipts in (
        await sender.relay(frames),
        await sender.send_messages(sends),
        await sender.send_columns([1] * 100, [1] * 100, {"n": 1}),
    ):
        assert receipts.counts()["delivered"] == 100
        for outcome, _, _ in receipts.parts:
            assert own(outcome.sent_at)
            assert own(outcome.fates)
            assert own(outcome.numbers)
        assert len(pickle.dumps(receipts)) < 5000
