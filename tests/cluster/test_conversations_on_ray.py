"""Questions by handles of groups, from the driver and from tasks."""

import sys
import uuid
from concurrent.futures import ThreadPoolExecutor
from copy import copy

import pytest
import ray
from support.cluster import wait_for
from support.patience import WAIT_S

from ray_messaging import Messaging, NoAnswer, NoQuestion, QuestionBlocked, Steps, rules


@pytest.fixture(scope="module")
def messaging(ray_cluster):
    with Messaging.start(f"questions-{uuid.uuid4().hex[:8]}", rules=[rules.Pattern(["secret"])]) as messaging:
        messaging.create_groups({"west": range(10), "east": range(10, 20)})
        yield messaging


@pytest.fixture(scope="module")
def town(messaging):
    return messaging.group("west"), messaging.group("east")


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


def test_answers_that_came_in_time_are_read_later_too(messaging, town):
    west, east = town
    answering = answer.remote(east, 20)
    by_group = west.ask_columns(1, 11, [{"n": n} for n in range(10)], timeout=3)
    by_user = messaging.ask_columns(11, [{"n": n} for n in range(10)], timeout=3)
    ray.get(answering)
    wait_for(lambda: by_group.done and by_user.done)
    assert [len(found.wait().answered) for found in (by_group, by_user)] == [10, 10]
    assert (by_group[9].payload, by_user[9].payload) == ({"twice": 18}, {"twice": 18})


def test_answers_to_many_calls_are_read_in_any_order(town):
    west, east = town
    answering = answer.remote(east, 40)
    asked = [west.ask_columns(1, 11, [{"n": n}], timeout=WAIT_S) for n in range(40)]
    ray.get(answering)
    assert [found.wait()[0].payload["twice"] for found in asked] == list(range(0, 80, 2))


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


def test_the_user_asks_from_the_driver(messaging, town):
    _, east = town
    answering = answer.remote(east, 3)
    found = messaging.ask(12, {"n": 4}, timeout=WAIT_S)
    assert (found.from_id, found.to_id, found.payload) == (12, None, {"twice": 8})
    questions = [{"n": 0}, {"n": 1}, {"n": 2, "word": "secret"}]
    answers = messaging.ask_columns([10, 11, 19], questions, timeout=WAIT_S)
    assert sorted(message.payload["twice"] for message in answers) == [0, 2]
    assert (answers.blocked.tolist(), answers.wait().pending.tolist()) == ([2], [])
    with pytest.raises(NoAnswer) as caught:
        messaging.ask(99, {}, timeout=WAIT_S)
    assert (caught.value.agent, caught.value.fate) == (99, "undeliverable")
    with pytest.raises(QuestionBlocked) as caught:
        messaging.ask(19, {"word": "secret"}, timeout=WAIT_S)
    assert (caught.value.agent, caught.value.rule) == (19, "pattern")
    with pytest.raises(NoAnswer):
        messaging.ask(1, {}, timeout=0.1)
    assert messaging.ask_columns(1, {}, timeout=0.1).wait().pending.tolist() == [0]
    assert ray.get(answering, timeout=WAIT_S) == [4, 0, 1]


def person(me, inbox):
    for message in inbox:
        if message.expects_answer:
            other = copy(me)
            other.id = 99
            with pytest.raises(NoQuestion, match=f"agent 99 cannot answer message .*, because agent {me.id} was asked"):
                other.reply(message, {})
            me.reply(message, {"step": me.step, "heard": me.state.get("heard", [])})
        elif message.in_reply_to is not None:
            assert message.in_reply_to == me.state["asked"]
            me.state["heard"] = [me.step, message.payload["step"]]
    if me.step == 0 and me.id == 1:
        me.state["asked"] = me.ask(0, {})


def test_the_user_asks_agents_of_a_run_in_steps(ray_cluster):
    with (
        Messaging.start(f"questions-{uuid.uuid4().hex[:8]}", steps=Steps()) as messaging,
        ThreadPoolExecutor(1) as thread,
    ):
        ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import a test's module
        running = thread.submit(messaging.run, person, agents=4, groups=2, until=300, progress=False)
        wait_for(lambda: len(messaging.steps.groups) == 2 and messaging.steps.now > 3)
        found = messaging.ask(1, {}, timeout=WAIT_S)
        assert (found.from_id, found.payload["heard"]) == (1, [2, 1])  # asked in 0, answered in 1, read in 2
        answers = messaging.ask_columns([0, 1, 2, 3], {}, timeout=WAIT_S).wait()
        assert len({answers[row].payload["step"] for row in range(4)}) <= 2
        assert running.result(WAIT_S).states[1]["asked"] == "0-0-1"
        ray.cloudpickle.unregister_pickle_by_value(sys.modules[__name__])
