"""Questions by handles of groups, from the driver and from tasks."""

import uuid

import pytest
import ray

from ray_messaging import Messaging, NoAnswer, NoQuestion

WAIT_S = 30.0


@pytest.fixture(scope="module")
def town(ray_cluster):
    with Messaging.start(f"questions-{uuid.uuid4().hex[:8]}") as messaging:
        groups = messaging.create_groups({"west": range(10), "east": range(10, 20)})
        yield groups["west"], groups["east"]


@ray.remote(num_cpus=0)
def answer(group, count):
    """Answer so many questions, each with twice its number."""
    found = []
    while len(found) < count:
        with group.fetch(timeout=WAIT_S) as messages:
            group.reply_columns(messages, [{"twice": 2 * message.payload["n"]} for message in messages])
            found += [message.payload["n"] for message in messages]
    return found


def test_a_handle_asks_and_a_task_answers(town):
    west, east = town
    answering = answer.remote(east, 1)
    found = west.ask(1, 11, {"n": 4}, timeout=WAIT_S)
    assert (found.from_id, found.to_id, found.payload) == (11, 1, {"twice": 8})
    assert ray.get(answering) == [4]


def test_a_handle_asks_many(town):
    west, east = town
    answering = answer.remote(east, 50)
    answers = west.ask_columns(1, [10 + n % 10 for n in range(50)], [{"n": n} for n in range(50)], timeout=WAIT_S)
    assert sorted(message.payload["twice"] for message in answers) == list(range(0, 100, 2))
    assert [answers[row].payload["twice"] for row in range(50)] == list(range(0, 100, 2))
    assert (answers.wait() is answers, answers.late, len(answers.pending)) == (True, 0, 0)
    ray.get(answering)


def test_a_late_answer_comes_by_a_fetch(town):
    west, east = town
    with pytest.raises(NoAnswer) as caught:
        west.ask(1, 11, {"n": 4}, timeout=0.1)
    ray.get(answer.remote(east, 1))
    [late] = west.fetch(timeout=WAIT_S)
    assert (late.payload, late.in_reply_to) == ({"twice": 8}, caught.value.question)
    west.ack()


def test_a_reply_to_an_ordinary_message(town):
    west, east = town
    west.send(1, 11, {"n": 4})
    with east.fetch(timeout=WAIT_S) as messages, pytest.raises(NoQuestion):
        east.reply(messages[0], {})
