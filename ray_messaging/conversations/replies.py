"""The batches that carry answers to questions, and checks of whether a question can be answered."""

import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from ray_messaging.addressing.channels import is_survey_mailbox, payback_channel
from ray_messaging.errors import Closed, NoQuestion
from ray_messaging.messages import Slice
from ray_messaging.model.batch import Batch, topic_column
from ray_messaging.model.columns import NONE
from ray_messaging.model.extension import Extension
from ray_messaging.model.fates import BLOCKED
from ray_messaging.model.typed.typed_table import Payloads
from ray_messaging.receipt import Receipts
from ray_messaging.sending.bulk_input import payload_column


def replies_to(
    questions: Sequence[Slice],
    payloads: object,
    exp_id: str,
    payload_bytes: int,
    step: int | None,
    *,
    failed: bool = False,
) -> list[Batch]:
    """Build the answers to questions, which are given as slices of batches: one batch for each slice.

    Args: `payloads` has one payload for each question, or is one payload for all questions. `payload_bytes` is
    the limit for a payload, in bytes of JSON. `step` is the step in which the answers are sent (None: outside of
    steps). With `failed`, the answers say that the handlers of the questions have failed.
    Raises: NoQuestion if a message expects no answer or was already answered; InvalidColumns, InvalidPayload or
    PayloadTooLarge if the payloads are not valid.
    """
    check_questions(questions)
    lines = payload_column(payloads, sum(part.high - part.low for part in questions), payload_bytes)
    batches, low = [], 0
    for part in questions:
        high = low + part.high - part.low
        batches.append(_replies(part, lines.take(np.arange(low, high)), exp_id, step, failed=failed))
        low = high
    return batches


def _replies(part: Slice, lines: Payloads, exp_id: str, step: int | None, *, failed: bool) -> Batch:
    batch, rows = part.batch, np.arange(part.low, part.high)
    to_ids, topics, topic = batch.from_ids.take(rows), batch.topics, None if batch.topic is None else batch.topic[rows]
    users = np.zeros(len(rows), np.bool_) if to_ids.kinds is None else to_ids.kinds == NONE
    if users.any():
        topics = (*topics, ":" + payback_channel(exp_id))
        topic = topic_column(np.where(users, len(topics) - 1, 0 if topic is None else topic), len(topics))
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
        extension=Extension(in_reply_to=batch.message_ids(rows), reply_mailbox=asker_of(batch), failed=failed),
    )


def answer_topic(batch: Batch, row: int, exp_id: str) -> str:
    """Return the topic of the answer to a question: the question's topic, or the user's channel if the user asked."""
    return ":" + payback_channel(exp_id) if batch.from_ids[row] is None else batch.topic_of(row)


def asker_of(batch: Batch) -> str:
    """Return the mailbox that gets the answers to a batch of questions, or "" if the batch expects no answers."""
    return "" if batch.extension is None else batch.extension.reply_mailbox


def check_question(question: Slice) -> None:
    """Raise NoQuestion for a message that expects no answer, or that this process has already answered."""
    batch, row, *_ = question
    expects = None if batch.extension is None else batch.extension.expects_answer
    if expects is None or not expects[row]:
        raise _no_question(batch, row, f"{_asker(batch, row)} expects no answer to it: send an ordinary message")
    if is_answered(question):
        raise _answered_before(batch, row)


def is_answered(question: Slice) -> bool:
    """Return whether this process has answered a question."""
    batch, row, *_ = question
    return batch.replied is not None and row in batch.replied


def check_questions(parts: Iterable[Slice]) -> None:
    """Raise NoQuestion if a message expects no answer, was already answered by this process, or occurs twice."""
    seen: dict[int, set[int]] = {}
    for part in parts:
        batch, rows = part.batch, range(part.low, part.high)
        expects = None if batch.extension is None else batch.extension.expects_answer
        if expects is None or batch.replied or not expects[part.low : part.high].all():
            for row in rows:
                check_question(part._replace(low=row))
        before = seen.setdefault(id(batch), set())
        twice = before.intersection(rows)
        if twice:
            raise _answered_before(batch, min(twice))
        before.update(rows)


@contextmanager
def naming(questions: Sequence[Slice]) -> Iterator[None]:
    """Replace a Closed error in the `with` block by one that names the first question, and the agent that was asked."""
    try:
        yield
    except Closed as error:
        raise cannot_answer(questions[0], error) from error


def cannot_answer(question: Slice, error: Closed) -> Closed:
    """Build the error for a question that cannot be answered because the messager is closed."""
    batch, row, *_ = question
    return Closed(
        f"agent {batch.to_ids[row]!r} cannot answer message {batch.message_id(row)}: {error}", unsent=error.unsent
    )


def _answered_before(batch: Batch, row: int) -> NoQuestion:
    return _no_question(batch, row, "it was answered before, and a question can have only one answer")


def _no_question(batch: Batch, row: int, why: str) -> NoQuestion:
    question, agent = batch.message_id(row), batch.to_ids[row]
    return NoQuestion(
        f"agent {agent!r} cannot answer message {question}, because {why}", question=question, agent=agent
    )


def _asker(batch: Batch, row: int) -> str:
    return "the user" if batch.from_ids[row] is None else f"agent {batch.from_ids[row]!r}"


def waits_for_failure(question: Slice) -> bool:
    """Return whether the asker of a message is told that the message's handler has failed.

    The asker is not told if it expects no answer, has an answer already, or is a survey, which only counts answers.
    """
    batch, row, *_ = question
    expects = None if batch.extension is None else batch.extension.expects_answer
    asks = expects is not None and bool(expects[row])
    return asks and not is_answered(question) and not is_survey_mailbox(asker_of(batch))


def blocked_among(receipts: Receipts) -> Collection[int]:
    """Return the indices of the answers that a rule blocked. `receipts` has the receipt of each answer."""
    return {*np.flatnonzero(receipts.codes == BLOCKED).tolist()}


def note_replied(questions: Iterable[Slice], blocked: Collection[int] = ()) -> None:
    """Mark questions as answered, except those whose answers a rule blocked.

    Args: `blocked` has the indices, among all the questions, of those whose answers were blocked.
    """
    place = 0
    for part in questions:
        rows = range(part.low, part.high)
        part.batch.replied = part.batch.replied or set()
        part.batch.replied.update(
            rows if not blocked else (row for at, row in enumerate(rows, place) if at not in blocked)
        )
        place += len(rows)
