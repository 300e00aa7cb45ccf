"""The account of one step of a group."""

import numpy as np
import pytest
from support.batches import batch_to

from ray_messaging.model.columns import PayloadColumn
from ray_messaging.model.extension import Extension
from ray_messaging.model.fates import UNDELIVERABLE
from ray_messaging.receipt import Outcome
from ray_messaging.steps import digests
from ray_messaging.steps.digests import LaterDigests, step_digest
from ray_messaging.steps.step_account import StepAccount, StepCounts


def sent_to(to_ids, topic="agent-chat"):
    rows = len(to_ids)
    extension = Extension(deliver=5, ordinal=np.arange(rows, dtype=np.uint32))
    lines = PayloadColumn.of([b"{}"] * rows)
    return batch_to(to_ids, [1] * rows, topics=(topic,), step=4, sent_at=0.0, lines=lines, extension=extension)


def test_a_few_addresses_that_nobody_listens_to_are_named_over_all_steps():
    account = StepAccount(digest=False)
    for to_ids, topic in (([7, "ann", 7], "agent-chat"), ([None], ":town-square"), ([7, *range(20)], "agent-chat")):
        outcome = Outcome(batch := sent_to(to_ids, topic))
        outcome.settle(None, UNDELIVERABLE)
        account.of_step(4, [(batch, outcome)] * 2)  # an attempt that did not count
        counts = account.before = StepCounts.decode(account.of_step(4, [(batch, outcome)]).encode())
    assert counts.unheard == {"agent 7": 4, "agent 'ann'": 1, "channel 'town-square'": 1, "agent 0": 1, "agent 1": 1}
    assert counts.total == {"undeliverable": 25}


def accounted(later=None):
    sent = []
    for to_ids in ([3, 4, 4], [5, "ann"]):
        outcome = Outcome(batch := sent_to(to_ids))
        outcome.settle(None, UNDELIVERABLE)
        sent.append((batch, outcome))
    return StepAccount(digest=True, later=later).of_step(4, sent)


@pytest.mark.parametrize("kept", [0, 2**20], ids=["more than is kept", "all are kept"])
def test_a_digest_that_is_computed_later_is_the_same(monkeypatch, kept):
    monkeypatch.setattr(digests, "KEPT_BYTES", kept)
    at_once, later = accounted(), LaterDigests(first=4, count=64)
    for _ in range(2):  # an attempt that did not count, and another one
        left = accounted(later)
    assert left.digest == b""
    assert left.fates == at_once.fates
    assert step_digest([later.sum_of(4)]) == at_once.digest
    assert step_digest([later.sum_of(4)]) == at_once.digest  # asked for once more


def test_steps_that_nobody_can_ask_for_get_no_digest():
    early, past = LaterDigests(first=5, count=64), LaterDigests(first=0, count=3)
    for later in (early, past):
        accounted(later)
    past.keep(7, [], 0)
    assert [later.sum_of(4) for later in (early, past)] == [0, 0]
