"""Questions and answers: ask, reply, late answers, refusals."""

import asyncio
import re

import numpy as np
import pytest
from support.contracts import WAIT_S, as_asked_of, ended, fetch_all, fetch_batch, until
from support.interceptors import interceptor_with

from ray_messaging import rules
from ray_messaging.errors import Closed, Fenced, MailboxFull, NoAnswer, NoQuestion, QuestionBlocked


async def answer_all(messager, count, payload_of=lambda message: {"twice": 2 * message.payload["n"]}):
    """Answer so many questions."""
    for question in await fetch_all(messager, count):
        assert await messager.reply(question, payload_of(question))


@pytest.mark.parametrize("asker", [1, None], ids=["another agent", "the user"])
async def test_an_agent_is_asked(pair, messagers, asker):
    west, east = pair
    asking = west if asker else await messagers()  # the user needs no mailbox
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(answer_all(east, 1))
        answer = await asking.ask(asker, 11, {"n": 4}, timeout=WAIT_S)
    assert (answer.from_id, answer.to_id, answer.payload) == (11, asker, {"twice": 8})
    assert answer.in_reply_to.startswith(f"{asking.name}-")
    assert not await west.fetch_messages(timeout=0.5)


async def test_a_full_inbox_holds_up_no_answer(messagers):
    west = await messagers(name="west", host=[1], inbox_messages=4)
    east = await messagers(name="east", host=[11])
    for n in range(40):
        await east.send_message(east.get_agent_chat_channel(1), {"n": n}, 11)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(answer_all(east, 1))
        answer = await west.ask(1, 11, {"n": 4}, timeout=WAIT_S)
    assert answer.payload == {"twice": 8}
    assert len(await fetch_all(west, 40)) == 40


async def test_a_question_is_refused_where_its_answer_would_not_be_read(pair, serve, messagers):
    west, east = pair

    async def handler(_message):
        return {}

    async def refused():
        [found] = await asyncio.gather(west.ask(1, 11, {"n": 1}, timeout=0.2), return_exceptions=True)
        return isinstance(found, Fenced)

    serve(east, handler)
    assert await west.ask(1, 11, {"n": 1}, timeout=WAIT_S)  # its mailbox for answers is open
    successor = await messagers(name="west.answers")
    await successor.subscribe_and_start_listening([])
    await until(refused)


async def test_columns_of_questions(pair):
    west, east = pair
    asked = [11, 12, "ann", 11]

    async def serve():
        messages = await fetch_batch(east, 4)
        await east.reply_columns(messages, [{"n": message.payload["n"] + 1} for message in messages])

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(serve())
        answers = await west.ask_columns(1, asked, [{"n": n} for n in range(4)], timeout=WAIT_S)
        came = [answer.payload["n"] async for answer in answers]
    assert sorted(came) == [1, 2, 3, 4]
    assert [answers[row].payload["n"] for row in range(4)] == [1, 2, 3, 4]
    assert answers.answered.tolist() == [0, 1, 2, 3]
    assert answers.column("n").tolist() == [1, 2, 3, 4]
    assert (answers.pending.size, answers.blocked.size, answers.late) == (0, 0, 0)
    assert answers.to_pandas().fate.tolist() == ["answered"] * 4
    assert answers._repr_html_().count("<tr>") == 5  # as a notebook shows them, under a head


async def test_late_answers_are_ordinary_messages_that_come_again_until_they_are_committed(messagers):
    west, east = await messagers(name="west", host=[1]), await messagers(name="east", host=[11])
    with pytest.raises(NoAnswer, match="gave no answer") as caught:
        await west.ask(1, 11, {"n": 4}, timeout=0.5)
    assert (caught.value.agent, caught.value.fate) == (11, "delivered")
    asking = asyncio.create_task(west.ask(1, 11, {"n": 5}, timeout=None))
    first, second = await fetch_all(east, 2)
    assert (first.id, first.expects_answer) == (caught.value.question, True)
    await ended(asking)
    await east.reply(first, {"twice": 8})
    await fetch_all(west, 1)
    await west.__aexit__(RuntimeError, RuntimeError("the model failed"), None)
    await east.reply(second, {"twice": 10})
    again = await messagers(name="west", host=[1])
    late = {(late.in_reply_to, late.payload["twice"], late.to_id) for late in await fetch_all(again, 2)}
    assert late == {(first.id, 8, 1), (second.id, 10, 1)}
    await again.close()
    last = await messagers(name="west", host=[1])
    assert not await last.fetch_messages(timeout=0.1)


async def test_a_blocked_question_and_one_for_nobody(messagers):
    interceptor = interceptor_with(rules.BlackList([(1, 11)]))
    west = await messagers(interceptor, name="west", host=[1, 2])
    await messagers(interceptor, name="east", host=[11])
    with pytest.raises(QuestionBlocked) as caught:
        await west.ask(1, 11, {"n": 4}, timeout=WAIT_S)
    assert (caught.value.rule, caught.value.agent) == ("black_list", 11)
    answers = await west.ask_columns([1, 2], [11, 11], {"n": 4}, timeout=0.5)
    await answers.wait()
    assert (answers.blocked.tolist(), answers.pending.tolist()) == ([0], [1])
    assert answers.to_pandas().fate.tolist() == ["blocked", "pending"]
    with pytest.raises(NoAnswer, match="no group or messager listens") as caught:
        await west.ask(1, 99, {"n": 4}, timeout=WAIT_S)
    assert caught.value.fate == "undeliverable"


@pytest.mark.parametrize("strict", [True, False])
async def test_an_answer_of_another_agent_counts_only_where_a_setting_says_so(messagers, strict):
    west = await messagers(name="west", host=[1], strict_answers=strict)
    east = await messagers(name="east", host=[11, 12], strict_senders=False)
    asking = asyncio.create_task(west.ask(1, 11, {"n": 4}, timeout=0.5))
    [question] = await fetch_all(east, 1)
    await east.reply(as_asked_of(question, 12), {"n": 5})
    if strict:
        with pytest.raises(NoAnswer):
            await asking
        assert (await fetch_all(west, 1))[0].from_id == 12
    else:
        assert (await asking).from_id == 12


async def test_a_large_column_of_questions(messagers):
    west, east = await messagers(name="west", host=[1]), await messagers(name="east", host=range(10, 20))
    rows = 40_000

    async def serve():
        left = rows
        while left:
            messages = await east.fetch_messages(timeout=WAIT_S)
            await east.reply_columns(messages, {"ok": True})
            left -= len(messages)

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(serve())
        answers = await west.ask_columns(1, np.arange(rows) % 10 + 10, {"n": 1}, timeout=WAIT_S)
        await answers.wait()
    assert len(answers.answered) == rows
    assert {answers[row].from_id for row in range(100)} == set(range(10, 20))


async def test_columns_of_questions_that_could_not_all_be_sent(messagers):
    west = await messagers(name="west", host=[1], send_timeout_s=0.3)
    east = await messagers(name="east", host=[11], mailbox_messages=4)
    with pytest.raises(MailboxFull):
        await west.ask_columns(1, 11, [{"n": n} for n in range(8)], timeout=None)
    await answer_all(east, 4)
    late = await fetch_all(west, 4)  # nothing waits for them
    assert sorted(message.payload["twice"] for message in late) == [0, 2, 4, 6]


# -- serving ----------------------------------------------------------------------------------------------------------


async def test_many_handlers_at_once_and_each_message_is_committed_by_itself(pair, serve, messagers):
    west, east = pair
    gate, running = asyncio.Event(), []

    async def handler(message):
        running.append(message.payload["n"])
        if message.payload["n"] == 0:
            await gate.wait()
        return {"twice": 2 * message.payload["n"]}

    serving = serve(east, handler)
    answers = await west.ask_columns(1, 11, [{"n": n} for n in range(50)], timeout=WAIT_S)
    came = []
    async for answer in answers:
        came.append(answer.payload["twice"])
        if len(came) == 49:
            break
    assert sorted(came) == list(range(2, 100, 2))
    assert sorted(running) == list(range(50))
    await until(lambda: sum(task.get_name() == "ray_messaging handler" for task in asyncio.all_tasks()) == 1)
    await ended(serving)  # only the message in hand comes again
    await east.__aexit__(RuntimeError, RuntimeError("died"), None)
    again = await messagers(name="east", host=[11, 12, "ann"])
    assert [message.payload["n"] for message in await fetch_all(again, 1)] == [0]
    assert not await again.fetch_messages(timeout=0.5)


async def test_no_more_handlers_run_at_once_than_asked(pair, serve):
    west, east = pair
    running, most = 0, 0

    async def handler(message):
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        return {}

    serve(east, handler, concurrency=3)
    answers = await west.ask_columns(1, 11, [{"n": n} for n in range(40)], timeout=WAIT_S)
    await answers.wait()
    assert (len(answers.answered), most) == (40, 3)


async def test_a_question_that_waits_when_its_messager_closes_raises_closed(pair):
    west, _ = pair
    asking = asyncio.create_task(west.ask(1, 11, {}, timeout=None))
    answers = await west.ask_columns(1, 11, [{}] * 3, timeout=None)
    waiting = asyncio.create_task(answers.wait())
    await asyncio.sleep(0)
    await west.close()
    with pytest.raises(Closed, match="before the answer came"):
        await asking
    assert len((await asyncio.wait_for(waiting, WAIT_S)).pending) == 3


async def test_bad_replies_name_agent_and_question(pair):
    west, east = pair
    await west.send(1, 11, {})
    asking = asyncio.create_task(west.ask(1, 12, {}, timeout=WAIT_S))
    found = {message.to_id: message for message in await fetch_all(east, 2)}
    plain, question = found[11], found[12]
    named = f"agent 12 cannot answer message {question.id}"

    async def refused(kind, message, why):
        for call in (east.reply, east.reply_columns):
            with pytest.raises(kind, match=re.escape(why)) as caught:
                await call(message, {})
        return caught.value

    error = await refused(NoQuestion, plain, f"agent 11 cannot answer message {plain.id}, because agent 1 expects")
    assert (error.agent, error.question) == (11, plain.id)
    with pytest.raises(NoQuestion, match=f"{named}.*answered before"):
        await east.reply_columns([question, question], {})
    await east.reply(question, {"first": True})
    await refused(NoQuestion, question, f"{named}, because it was answered before")
    assert (await asking).payload == {"first": True}
    asked = asyncio.create_task(west.ask(1, 12, {}, timeout=WAIT_S))
    [last] = await fetch_all(east, 1)
    await east.close()
    await refused(Closed, last, f"agent 12 cannot answer message {last.id}: this messager is closed")
    await ended(asked)


async def test_a_messager_that_closes_while_it_asks_first_opens_no_mailbox_for_answers(messagers):
    west = await messagers(name="west", host=[1])
    asked = [asyncio.create_task(west.ask(1, 1, {}, timeout=WAIT_S)) for _ in range(2)]
    for _ in range(2):
        await asyncio.sleep(0)
    asked[0].cancel()
    await west.close()
    first, second = await asyncio.gather(*asked, return_exceptions=True)
    assert isinstance(first, asyncio.CancelledError)
    assert isinstance(second, Closed)
    left = {task.get_name() for task in asyncio.all_tasks()}
    assert "ray_messaging answers" not in left
