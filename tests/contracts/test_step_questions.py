"""Questions and answers in steps: asked in one, answered in the next, read in the one after."""

import asyncio
from contextlib import aclosing
from functools import partial

import msgspec
import pytest
from support.patience import WAIT_S
from support.step_society import LoggedGroups, digests_of
from support.stepped import fates_in, steps_of
from support.survey_records import ask_survey, surveys_of

from ray_messaging import EventLog, columns
from ray_messaging.errors import Closed, NoAnswer, NoQuestion, UnknownSender

AGENTS = 24


@pytest.fixture
def groups(stepped_groups):
    return partial(stepped_groups, agents=AGENTS, seed=7, digest=True)


async def test_a_name_that_has_asked_hosts_agents_and_so_does_its_successor(groups, messagers):
    await groups(1)
    west = await messagers(name="west")
    with pytest.raises(NoAnswer):
        await west.ask(1, 999, {}, timeout=WAIT_S)
    await west.host_agents([777], ["agent-chat"])
    await west.close()
    await messagers(name="west", host=[777])


async def test_asked_in_one_step_answered_in_the_next_and_read_in_the_one_after(groups):
    (group,) = await groups(1)
    asked, found = [], []
    async for step in group.steps(until=4):
        found += [(step.number, m.to_id, m.from_id, m.payload, m.in_reply_to) for m in step.messages]
        if step.number == 0:
            step.send(1, 2, {"n": 0})
            asked.append(step.ask(1, 2, {"n": 1}))
            step.send(1, 2, {"n": 2})
            asked.append(step.ask(1, 3, {"n": 3}, deliver_at=2))
        for message in step.messages:
            if message.expects_answer:
                step.reply(message, {"of": message.id})
    assert asked == ["0-1-1", "0-3-1"]
    answers = [(2, 1, 2, {"of": "0-1-1"}, "0-1-1"), (3, 1, 3, {"of": "0-3-1"}, "0-3-1")]
    assert [row for row in found if row[4] is not None] == answers


async def test_questions_and_answers_as_columns(groups):
    (group,) = await groups(1)
    asked, answers, topics = [], [], ["user-chat", "agent-chat", "user-chat"]
    async for step in group.steps(until=3):
        questions = [message for message in step.messages if message.expects_answer]
        if step.number == 0:
            single = step.ask(5, 0, {"n": 9})
            ids = step.ask_columns([5, 5, 6], [1, 2, 3], [{"n": n} for n in range(3)])
            assert (ids[1:], len(ids)) == (["0-2-5", "0-0-6"], 3)
            asked = [single, *ids, *(step.ask(7, 1, {"n": n}, subtopic=topic) for n, topic in enumerate(topics))]
        elif questions:
            step.reply_columns(questions, [{"twice": 2 * message.payload["n"]} for message in questions])
            step.reply_columns([], [])
        answers += [(m.in_reply_to, m.id, m.payload["twice"], m.subtopic) for m in step.messages if m.in_reply_to]
    assert asked == ["0-0-5", "0-1-5", "0-2-5", "0-0-6", "0-0-7", "0-1-7", "0-2-7"]
    first = [("0-0-5", "1-0-0", 18), ("0-1-5", "1-0-1", 0), ("0-2-5", "1-0-2", 2), ("0-0-6", "1-0-3", 4)]
    more = [(f"0-{n}-7", f"1-{n + 1}-1", 2 * n, topic) for n, topic in enumerate(topics)]
    assert answers == [(*each, "agent-chat") for each in first] + more


async def test_answers_in_typed_columns(groups):
    (group,) = await groups(1)
    answers = []
    async for step in group.steps(until=3):
        if step.number == 0:
            step.ask_columns([5, 5, 6], [1, 2, 3], columns(n=[0, 1, 2]))
            step.ask(7, 1, {"n": 3}, subtopic="user-chat")
        elif step.number == 1:
            step.reply_columns(step.messages, columns(twice=2 * step.messages.column("n"), by=["a", "b", "c", "d"]))
        else:
            answers = [(m.in_reply_to, m.id, m.payload, m.subtopic) for m in step.messages]
    assert answers == [
        ("0-0-5", "1-0-1", {"twice": 0, "by": "a"}, "agent-chat"),
        ("0-1-5", "1-0-2", {"twice": 2, "by": "c"}, "agent-chat"),
        ("0-0-6", "1-0-3", {"twice": 4, "by": "d"}, "agent-chat"),
        ("0-0-7", "1-1-1", {"twice": 6, "by": "b"}, "user-chat"),
    ]


async def test_bad_input(groups):
    (group,) = await groups(1)
    kept = []
    async for step in group.steps(until=4):
        if step.number == 0:
            step.ask(1, 2, {"n": 1})
            step.send(1, 3, {})
            with pytest.raises(UnknownSender):
                step.ask(AGENTS, 1, {})
            assert step.ask(1, 2, {"n": 2}) == "0-2-1"  # what was refused has no number
        elif step.number == 1:
            question, other = step.inbox(2)
            (plain,) = step.inbox(3)
            for ask in (step.reply, step.reply_columns):
                with pytest.raises(NoQuestion, match="agent 3 cannot answer message 0-1-1") as caught:
                    ask(plain, {})
                assert (caught.value.agent, caught.value.question) == (3, "0-1-1")
            with pytest.raises(NoQuestion, match=r"agent 2 cannot answer message 0-0-1.*answered before"):
                step.reply_columns([question, question], {})
            step.reply(question, {})
            for ask in (step.reply, step.reply_columns):
                with pytest.raises(NoQuestion, match=r"agent 2 cannot answer message 0-0-1.*answered before"):
                    ask(question, {})
            step.reply_columns([other], {})
            with pytest.raises(NoQuestion, match=r"agent 2 cannot answer message 0-2-1.*answered before"):
                step.reply(other, {})
            kept = [step, other]
        elif step.number == 2:
            assert [message.in_reply_to for message in step.inbox(1)] == ["0-0-1", "0-2-1"]
            step.ask(1, 2, {})
            with pytest.raises(NoQuestion, match="agent 2 cannot answer message 0-2-1"):
                step.reply(kept[1], {})
        else:
            (late,) = step.inbox(2)
    with pytest.raises(Closed, match="agent 2 cannot answer message 2-0-1: step 3 is over"):
        step.reply(late, {})


# -- from outside -----------------------------------------------------------------------------------------------------


@pytest.fixture
async def user(messagers):
    return await messagers()


async def live_until(group, done, *, reply=lambda step, message: step.reply(message, {"of": message.id}), anew=()):
    """Drive a group, which answers all questions, until a task is done; return the messages that it reads."""
    read, anew = [], set(anew)
    while not done.done():
        async with aclosing(group.steps(until=10_000)) as steps:
            async for step in steps:
                for message in step.messages:
                    if message.expects_answer:
                        reply(step, message)
                if step.messages and anew:
                    anew.clear()
                    break  # this attempt's answers are not seen
                read += step.messages
                if done.done():
                    return read
                await asyncio.sleep(0)
    return read


async def lived_through(groups, awaitable, reply):
    """Drive groups until something is done; return its result."""
    done = asyncio.ensure_future(awaitable)
    async with asyncio.timeout(WAIT_S):
        lives = [asyncio.create_task(live_until(group, done, reply=reply)) for group in groups]
        found = await done
    for each in lives:
        each.cancel()
    await asyncio.gather(*lives, return_exceptions=True)
    return found


@pytest.fixture
async def society(server, exp_id, tmp_path):
    """Give the log of the experiment a folder."""
    async with LoggedGroups(server, exp_id, tmp_path / "log") as found:
        yield found


async def test_the_user_asks_an_agent_of_a_group_in_steps_and_the_log_has_it_once(groups, user, society):
    (group,) = await groups(1)
    writer = await society.writer()
    asking = asyncio.create_task(user.ask(None, 3, {"n": 1}, subtopic="user-chat", timeout=20))
    replies = iter([{"first": True}, {"second": True}])
    async with asyncio.timeout(WAIT_S):
        (question,) = await live_until(
            group, asking, reply=lambda step, message: step.reply(message, next(replies)), anew=[1]
        )
    answer = await asking
    assert (answer.from_id, answer.to_id, answer.payload) == (3, None, {"second": True})
    assert (question.from_id, question.payload, question.subtopic) == (None, {"n": 1}, "user-chat")
    assert answer.in_reply_to.startswith("anon-")  # as the receipt of the question says
    assert answer.id == f"{question.step}-0-3"
    await user.close()
    await writer.close()
    counted = await digests_of(await steps_of(group), answer.step + 1)
    log = EventLog.open(society.folder)
    thread = log.thread(answer.id)
    assert thread["message_id"].to_pylist() == [question.id, answer.id]
    assert thread["fate"].to_pylist() == ["delivered"] * 2
    assert thread["expects_answer"].to_pylist() == [True, None]
    assert thread["from_id"].to_pylist() == [None, 3]
    assert log.query().num_rows == 2
    for step in (answer.step - 1, answer.step):
        assert log.digest(step) == counted[step]


async def test_the_user_asks_many_by_columns_and_answers_come_later(groups, user):
    opened = await groups(2)

    def reply(step, message):
        step.reply(message, {"twice": 2 * message.payload["n"]}, deliver_at=step.number + 1 + message.to_id % 3)

    async def ask():
        payloads = [{"n": n} for n in range(AGENTS)]
        return await (await user.ask_columns(None, list(range(AGENTS)), payloads, timeout=20)).wait()

    answers = await lived_through(opened, ask(), reply)
    assert [answers[row].payload["twice"] for row in range(AGENTS)] == list(range(0, 2 * AGENTS, 2))


async def test_an_asker_that_has_gone_holds_up_nothing(groups, user):
    (group,) = await groups(1)
    with pytest.raises(NoAnswer):
        await user.ask(None, 3, {}, timeout=1.0)  # its mailbox for answers opens in this time, too
    await user.close()
    answered = []
    async for step in group.steps(until=4):
        for message in step.messages:
            step.reply(message, {})
            answered.append(step.number)
    assert answered == [1] or answered == [0]
    assert [*(await fates_in(await steps_of(group), answered[0])).values()] == [{"delivered": 1}]


class Mood(msgspec.Struct):
    mood: int


async def test_a_survey_of_agents_in_steps(groups, user):
    opened = await groups(2)

    async def survey():
        found = await ask_survey(surveys_of(user), Mood, range(AGENTS), {"text": "How?"}, subtopic="user-chat")
        while len(found.tally.answers) < AGENTS:
            await found.more(1.0)
        return found.tally.answers

    def reply(step, message):
        step.reply(message, {"mood": message.to_id})

    assert await lived_through(opened, survey(), reply) == {agent: Mood(agent) for agent in range(AGENTS)}
