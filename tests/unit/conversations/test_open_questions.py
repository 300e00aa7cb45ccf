"""The questions that wait: lone ones and those of columns, among answers of any batch."""

import asyncio

import numpy as np
from support.batches import batch_to

from ray_messaging.conversations.answer_stream import Answers
from ray_messaging.conversations.open_questions import OpenQuestions
from ray_messaging.messages import Slice
from ray_messaging.model.columns import PayloadColumn
from ray_messaging.model.extension import Extension
from ray_messaging.model.fates import DELIVERED
from ray_messaging.model.message_ids import MessageIdColumn
from ray_messaging.receipt import Outcome, Receipts


def batch(first, from_ids, to_ids, **extension):
    lines = PayloadColumn.of([b"{}"] * len(from_ids))
    said = Extension(**extension) if extension else None
    return batch_to(to_ids, from_ids, sender="me", first=first, lines=lines, extension=said)


def answers_to(numbers, from_ids):
    found = batch(
        0, from_ids, [1] * len(from_ids), in_reply_to=MessageIdColumn.of([f"me-1-{number}" for number in numbers])
    )
    return Slice(found, 0, found.rows, None)


def asked(questions, first, agents):
    """Ask agents, each by a question of its own."""
    futures = [asyncio.get_running_loop().create_future() for _ in agents]
    questions.add_lone(batch(first, [1] * len(agents), agents), futures)
    return futures


async def test_one_batch_answers_lone_questions_and_those_of_columns():
    questions, answers = OpenQuestions("town"), Answers("town", 3, None)
    first, second = asked(questions, 0, [7, 8])
    questions.add(batch(2, [1, 1, 1], [7, 8, 9]), answers)
    (third,) = asked(questions, 5, [9])
    numbers, agents = [4, 5, 0, 3, 0, 9], [9, 9, 7, 7, 7, 7]  # of 3 from another agent, 0 twice, 9 of no question
    assert questions.answer(answers_to(numbers, agents)).tolist() == [3, 4, 5]
    assert (first.done(), second.done(), third.done()) == (True, False, True)
    assert np.array_equal(answers.answered, [2])


async def test_an_answer_to_a_question_of_unknown_fate_counts():
    questions, answers = OpenQuestions("town"), Answers("town", 2, None)
    said = batch(0, [1, 1], [7, 8])
    questions.add(said, answers)
    outcome = Outcome(said)
    outcome.settle(np.array([1]), DELIVERED)
    answers.sent(Receipts([(outcome, 0, 2)]))
    assert answers.pending.tolist() == [1]
    questions.answer(answers_to([0], [7]))
    assert (answers.answered.tolist(), answers.pending.tolist(), answers.done, answers.late) == ([0], [1], False, 0)
    questions.answer(answers_to([0, 1], [7, 8]))
    assert (answers.answered.tolist(), answers.done, answers.late) == ([0, 1], True, 1)


async def test_an_answer_after_its_question_was_given_up_is_late():
    questions = OpenQuestions("town")
    futures = asked(questions, 0, [7] * 200)
    for future in futures:
        future.cancel()
    (last,) = asked(questions, 200, [7])  # by then, earlier ones are dropped
    assert questions.answer(answers_to([3, 200], [7, 7])).tolist() == [0]
    assert last.done()
