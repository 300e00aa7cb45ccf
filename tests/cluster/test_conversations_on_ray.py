"""Questions by handles of groups, from the driver and from tasks."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

import pytest
import ray
import redis
from support.cluster import serving, wait_for
from support.patience import WAIT_S

from ray_messaging import Messaging, Steps
from ray_messaging.errors import AnswerFailed, NoAnswer, NoQuestion, QuestionBlocked


@pytest.fixture
def messaging(asked):
    return asked[0]


@pytest.fixture
def town(asked):
    return asked[1:]


@ray.remote(num_cpus=0)
def answer(group, count):
    """Answer so many questions, each with twice its number."""
    found = []
    while len(found) < count:
        with group.fetch_messages(timeout=WAIT_S) as messages:
            group.reply_columns(messages, [{"twice": 2 * message.payload["n"]} for message in messages])
            found += [message.payload["n"] for message in messages]
    return found


def test_a_handle_asks_and_a_task_answers(town):
    west, east = town
    answering = answer.remote(east, 1)
    found = west.ask(1, 11, {"n": 4}, timeout=WAIT_S)
    assert (found.from_id, found.to_id, found.payload) == (11, 1, {"twice": 8})
    assert ray.get(answering) == [4]


def test_answers_that_came_in_time_are_read_later_too(messaging, town):
    west, east = town
    answering = answer.remote(east, 20)
    by_group = west.ask_columns(1, 11, [{"n": n} for n in range(10)], timeout=3)
    by_user = messaging.ask_columns(11, [{"n": n} for n in range(10)], timeout=3)
    ray.get(answering)
    wait_for(lambda: by_group.done and by_user.done)
    assert [len(found.wait().answered) for found in (by_group, by_user)] == [10, 10]
    assert (by_group[9].payload, by_user[9].payload) == ({"twice": 18}, {"twice": 18})


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
    assert messaging.ask_columns(1, {}, timeout=2.0).wait().pending.tolist() == [0]
    assert ray.get(answering, timeout=WAIT_S) == [4, 0, 1]


# -- handles that serve, and their askers ---------------------------------------------------------------------------

LONG_S = 600.0  # a question that waits for this long has not been told that it waits in vain


async def told(asking):
    """Return the error of a question, which comes long before its timeout."""
    async with asyncio.timeout(WAIT_S):
        with pytest.raises(NoAnswer) as caught:
            await asking
    return caught.value


async def test_a_handle_serves_on_where_its_handler_fails_and_health_counts_it(messaging, town, caplog):
    west, east = town

    async def handler(message):
        if message.payload["n"] == 1:
            raise ValueError("no model")
        return {}

    async with serving(east, handler):
        failed = await told(west.aio.ask(1, 11, {"n": 1}, timeout=LONG_S))
        assert isinstance(failed, AnswerFailed)
        assert (failed.agent, failed.error, failed.text) == (11, "ValueError", "no model")
        many = await west.aio.ask_columns(1, 11, [{"n": 1}, {"n": 2}], timeout=LONG_S)
        by_user = await asyncio.to_thread(messaging.ask_columns, 11, [{"n": 1}, {"n": 2}], timeout=LONG_S)
        await many.wait()
        await asyncio.to_thread(by_user.wait)
        assert [found.failed.tolist() for found in (many, by_user)] == [[0], [0]]
        assert {letter.reason for letter in messaging.dead_letters} == {"its handler failed: ValueError: no model"}
        [finding] = [each for each in messaging.health().of("mailbox 'east'") if "failed on" in each.value]
        assert finding.value == "the handler of `serve` has failed on 3 messages"
        with redis.Redis(messaging.redis.server, messaging.redis.port, password=messaging.redis.password) as client:
            client.publish(f"exps:{messaging.exp_id}:agents:11:agent-chat", b'{"n": 1}')
        lost = "a message of a plain Redis client is lost: its handler failed: ValueError: no model"
        await asyncio.to_thread(wait_for, lambda: lost in caplog.text, "the warning")
    messaging.dead_letters.drop(everything=True)


async def test_a_handle_that_serves_no_more_is_named_and_the_next_one_goes_on_at_once(messaging, town):
    west, east = town

    async def broken(message):
        raise ValueError("no model")

    async with serving(east, broken, on_error="end", concurrency=1) as service:
        first = await told(west.aio.ask(1, 11, {"n": 1}, timeout=LONG_S))
        assert isinstance(first, AnswerFailed)
        with pytest.raises(ValueError, match="no model"):
            await service
    later = await told(west.aio.ask(1, 11, {"n": 2}, timeout=LONG_S))
    assert "`serve` of 'east' has ended (ValueError: no model)" in str(later)
    [finding] = [each for each in messaging.health().of("mailbox 'east'") if each.level == "critical"]
    assert "`serve` has ended (ValueError: no model), so 2 messages wait" in finding.value
    seen = asyncio.Queue()

    async def handler(message):
        seen.put_nowait(message.payload["n"])

    async with serving(east, handler):
        async with asyncio.timeout(WAIT_S):  # and not after `loan_s`
            assert [await seen.get(), await seen.get()] == [1, 2]
        assert not [each for each in messaging.health().of("mailbox 'east'") if each.level == "critical"]


async def test_handles_whose_agents_ask_each_other_are_told(town):
    west, east = town

    def asks(group, from_id, to_id):
        async def handler(message):
            if not message.payload["asks"]:
                return {}
            await group.aio.ask(from_id, to_id, {"asks": message.payload["asks"] - 1}, timeout=LONG_S)
            return {}

        return handler

    async with serving(west, asks(west, 1, 11), concurrency=1), serving(east, asks(east, 11, 1), concurrency=1):
        error = await told(west.aio.ask(2, 1, {"asks": 2}, timeout=LONG_S))
        assert isinstance(error, AnswerFailed)
        for way in ("agent 1 waits for agent 11", "agent 11 waits for agent 1"):
            assert way in error.text
        assert await west.aio.ask(2, 1, {"asks": 1}, timeout=WAIT_S)


def person(me, inbox):
    for message in inbox:
        if message.expects_answer:
            other = type(me)(me._society, 99, me._place)
            with pytest.raises(NoQuestion, match=f"agent 99 cannot answer message .*, because agent {me.id} was asked"):
                other.reply(message, {})
            me.reply(message, {"step": me.step, "heard": me.state.get("heard", [])})
        elif message.in_reply_to is not None:
            assert message.in_reply_to == me.state["asked"]
            me.state["heard"] = [me.step, message.payload["step"]]
    if me.step == 0 and me.id == 1:
        me.state["asked"] = me.ask(0, {})


@pytest.mark.long
def test_the_user_asks_agents_of_a_run_in_steps(by_value, exp_id):
    with (
        Messaging.start(exp_id, steps=Steps()) as messaging,
        ThreadPoolExecutor(1) as thread,
    ):
        running = thread.submit(messaging.run, person, agents=4, groups=2, until=300, progress=False)
        wait_for(lambda: len(messaging.steps.groups) == 2 and messaging.steps.now > 3)
        found = messaging.ask(1, {}, timeout=WAIT_S)
        assert (found.from_id, found.payload["heard"]) == (1, [2, 1])  # asked in 0, answered in 1, read in 2
        answers = messaging.ask_columns([0, 1, 2, 3], {}, timeout=WAIT_S).wait()
        assert len({answers[row].payload["step"] for row in range(4)}) <= 2
        assert running.result(WAIT_S).states[1]["asked"] == "0-0-1"
