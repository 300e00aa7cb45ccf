"""Batches of messages, with a value for all that a test does not say."""

from ray_messaging.model.batch import Batch
from ray_messaging.model.columns import IdColumn


def batch_to(to_ids, from_ids=None, **facts):
    """Build a batch of a message to each of some agents, by default from these agents."""
    to_ids = IdColumn.of([*to_ids])
    from_ids = to_ids if from_ids is None else IdColumn.of([*from_ids])
    said = {"sender": "s", "epoch": 1, "first": 0, "topics": ("agent-chat",)} | facts
    return Batch(from_ids=from_ids, to_ids=to_ids, rows=len(to_ids), **said)
