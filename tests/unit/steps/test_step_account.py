"""The account of one step of a group."""

import numpy as np
from support.batches import batch_to

from ray_messaging.model.columns import PayloadColumn
from ray_messaging.model.extension import Extension
from ray_messaging.model.fates import UNDELIVERABLE
from ray_messaging.receipt import Outcome
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
        account.add(batch, outcome)
        before = account.copy()
        account.add(batch, outcome)
        account.restore(before)  # an attempt that did not count
        counts = StepCounts.decode(account.take().encode())
    assert counts.unheard == {"agent 7": 4, "agent 'ann'": 1, "channel 'town-square'": 1, "agent 0": 1, "agent 1": 1}
    assert counts.total == {"undeliverable": 25}
