"""Batches of answers to questions."""

import time
from collections.abc import Iterable, Sequence

import numpy as np

from ray_messaging.addressing.channels import payback_channel
from ray_messaging.errors import NoQuestion
from ray_messaging.message import Slice
from ray_messaging.model.batch import Batch
from ray_messaging.model.columns import NONE, PayloadColumn
from ray_messaging.model.extension import Extension
from ray_messaging.sending.accumulation.bulk_input import payload_column


def replies_to(
    questions: Sequence[Slice], payloads: object, exp_id: str, payload_bytes: int, step: int | None
) -> list[Batch]:
    """Build the answers to questions, a batch for each slice.

    Args: payloads are one for each question, or one for all, of at most `payload_bytes` as JSON.
    Raises: NoQuestion, InvalidColumns, InvalidPayload, PayloadTooLarge.
    """
    lines = payload_column(payloads, sum(part.high - part.low for part in questions), payload_bytes)
    batches, low = [], 0
    for part in questions:
        check_questions(part)
        high = low + part.high - part.low
        batches.append(_replies(part, lines.take(np.arange(low, high)), exp_id, step))
        low = high
    return batches


def _replies(part: Slice, lines: PayloadColumn, exp_id: str, step: int | None) -> Batch:
    batch, rows = part.batch, np.arange(part.low, part.high)
    to_ids, topics, topic = batch.from_ids.take(rows), batch.topics, None if batch.topic is None else batch.topic[rows]
    users = np.zeros(len(rows), np.bool_) if to_ids.kinds is None else to_ids.kinds == NONE
    if users.any():
        topics = (*topics, ":" + payback_channel(exp_id))
        topic = np.zeros(len(rows), np.uint16) if topic is None else topic.copy()
        topic[users] = len(topics) - 1
    return Batch(
        sender="",
        epoch=0,
        first=0,
        from_ids=batch.to_ids.take(rows),
        to_ids=to_ids,
        topics=topics,
        topic=topic,
        step=step,
        sent_at=time.time(),
        lines=lines,
        rows=len(rows),
        extension=Extension(in_reply_to=batch.message_ids(rows), reply_mailbox=asker_of(batch)),
    )


def asker_of(batch: Batch) -> str:
    """Return the mailbox that takes the answers to a batch of questions."""
    return "" if batch.extension is None else batch.extension.reply_mailbox


def check_questions(part: Slice) -> None:
    """Raise NoQuestion for a message that expects no answer, or has one of this process."""
    batch = part.batch
    expects = None if batch.extension is None else batch.extension.expects_answer
    for row in range(part.low, part.high):
        if expects is None or not expects[row]:
            why = f"agent {batch.from_ids[row]!r} expects no answer to it: send an ordinary message"
        elif batch.replied is not None and row in batch.replied:
            why = "it was answered before, and a question has one answer"
        else:
            continue
        question = batch.message_id(row)
        raise NoQuestion(f"message {question} cannot be answered, because {why}", question=question)


def note_replied(questions: Iterable[Slice]) -> None:
    """Note that questions are answered."""
    for part in questions:
        part.batch.replied = (part.batch.replied or set()) | set(range(part.low, part.high))
