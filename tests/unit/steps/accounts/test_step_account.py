"""The account of one step of a group."""

import numpy as np

from ray_messaging.model.batch import Batch
from ray_messaging.model.columns import IdColumn, PayloadColumn
from ray_messaging.model.extension import Extension
from ray_messaging.receipt import DELIVERED, Outcome
from ray_messaging.steps.accounts.step_account import StepAccount


def test_a_batch_with_rows_that_failed_is_added_without_an_error():
    batch = Batch(
        sender="east",
        epoch=1,
        first=0,
        from_ids=IdColumn.of([1, 1]),
        to_ids=IdColumn.of([2, 3]),
        topics=("agent-chat",),
        step=4,
        sent_at=0.0,
        lines=PayloadColumn.of([b"{}", b"{}"]),
        rows=2,
        extension=Extension(deliver=5, ordinal=np.arange(2, dtype=np.uint32)),
    )
    outcome = Outcome(batch)
    outcome.settle(np.array([0]), DELIVERED)  # the other row has an error, and its step is not committed
    account = StepAccount(digest=True)
    account.add(batch, outcome)
    assert account.take().fates == {"delivered": 1}
