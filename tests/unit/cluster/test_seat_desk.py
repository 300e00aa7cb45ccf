"""The desk of seats: what groups ask, what people answer, and what is kept."""

import asyncio

import pytest
from support.patience import WAIT_S

from ray_messaging.cluster.seat_desk import ABSENT, HeardMessage, SeatAnswer, SeatDesk, SeatQuestion, Written
from ray_messaging.errors import ConfigError, NoQuestion, UnknownName

HELLO = HeardMessage("0-0-8", 8, "hello", asks=True)


def desk_of(server, *, timeout_s=WAIT_S, limit=10_000):
    """Return a desk whose records are in a dict, as on a server."""

    async def load():
        return dict(server)

    async def keep(field, record):
        await asyncio.sleep(0)
        server[field] = record

    return SeatDesk(load, keep, limit, timeout_s)


def question(step=0, agent=7, **given):
    return SeatQuestion(agent, step, (HELLO,), **given)


async def asked(desk, what):
    """Ask as a group does; return the call, once the question waits."""
    call = asyncio.create_task(desk.ask(what))
    view = await desk.news(what.agent, -1)
    while not call.done() and view.question != what:
        view = await desk.news(what.agent, view.version)
    return call


async def test_a_person_reads_and_answers_and_the_conversation_goes_on_in_a_later_start():
    desk = desk_of(server := {})
    token = await desk.open(7, "")
    await desk.set_ready(7)
    call = await asked(desk, question())
    messages = [{"to": [8, "9"], "text": "hi"}, {"text": "yes", "answers": HELLO.id}]
    await desk.answer(7, 0, messages)
    said = SeatAnswer(present=True, messages=(Written((8, 9), "hi"), Written((8,), "yes", HELLO.id)))
    assert await call == said
    await desk.answer(7, 0, messages)  # the page did not hear that the answer arrived
    again = desk_of(server)
    assert await again.open(7, "") == token
    view = await again.news(7, -1)
    assert [(line.kind, line.who, line.text) for line in view.lines] == [
        ("heard", (8,), "hello"), ("said", (8, 9), "hi"), ("said", (8,), "yes"),
    ]  # fmt: skip
    assert view.ready
    assert await again.ask(question()) == said  # the step runs again after its driver died: nobody is asked again


async def test_a_question_that_is_asked_again_waits_for_the_same_answer():
    desk = desk_of({})
    await desk.open(7, "")
    await desk.set_ready(7)
    calls = [await asked(desk, question()) for _ in range(2)]
    await desk.answer(7, 0, [])
    assert await asyncio.gather(*calls) == [SeatAnswer(present=True)] * 2


async def test_the_time_is_limited_and_a_late_answer_is_refused():
    desk = desk_of({}, timeout_s=0.01)
    await desk.open(7, "")
    await desk.set_ready(7)
    assert await desk.ask(question()) == ABSENT
    with pytest.raises(ConfigError, match="Step 0 is over"):
        await desk.answer(7, 0, [{"to": [8], "text": "late"}])
    assert "nothing was sent" in (await desk.news(7, -1)).lines[-1].text


async def test_what_another_page_has_written_for_an_answered_step_is_refused_and_not_lost_in_silence():
    desk = desk_of({})
    await desk.open(7, "")
    await desk.set_ready(7)
    await asked(desk, question())
    await desk.answer(7, 0, [{"to": [8], "text": "of the laptop"}])
    with pytest.raises(ConfigError, match="Step 0 is over"):
        await desk.answer(7, 0, [{"to": [8], "text": "of the phone"}])


async def test_an_answer_to_an_earlier_step_is_refused_after_the_desk_has_started_again():
    desk = desk_of(server := {})
    await desk.open(7, "")
    await desk.set_ready(7)
    desk = desk_of(server)
    call = await asked(desk, question(2))
    with pytest.raises(ConfigError, match="Step 0 is over"):  # NoQuestion would let the page try again without end
        await desk.answer(7, 0, [{"to": [8], "text": "late"}])
    with pytest.raises(NoQuestion):
        await desk.answer(7, 3, [])
    await desk.answer(7, 2, [])
    assert (await call).present


async def test_what_comes_at_the_same_time_is_kept_as_it_is_told():
    server, keeps = {}, asyncio.Semaphore(0)
    desk = desk_of(server)
    tokens = await asyncio.gather(desk.open(7, ""), desk.open(7, ""))
    assert tokens == [await desk_of(server).open(7, "")] * 2
    await desk.set_ready(7)
    call, keep = await asked(desk, question()), desk._keep

    async def slow(field, record):
        await keeps.acquire()
        await keep(field, record)

    desk._keep = slow
    messages = [{"to": [8], "text": "mine"}]
    twice = [asyncio.create_task(desk.answer(7, 0, messages)) for _ in range(2)]  # a page that tries again
    others = asyncio.create_task(desk.answer(7, 0, [{"to": [8], "text": "of another page"}]))
    away = asyncio.create_task(desk.set_away(7, away=True))
    await asyncio.sleep(0)
    for _ in range(4):
        keeps.release()
    await asyncio.gather(*twice, away)
    with pytest.raises(ConfigError, match="Step 0 is over"):
        await others
    said = await call
    assert said.messages == (Written((8,), "mine"),)
    again = desk_of(server)
    assert await again.ask(question()) == said
    assert (await again.news(7, -1)).away


async def test_an_answer_whose_time_was_over_while_it_was_kept_is_not_given_later():
    desk = desk_of(server := {})
    await desk.open(7, "")
    await desk.set_ready(7)
    call, keep = await asked(desk, question()), desk._keep

    async def late(field, record):
        await keep(field, record)
        desk._time_over(seat, seat.answer)

    seat, desk._keep = await desk._seat(7), late
    with pytest.raises(ConfigError, match="Step 0 is over"):
        await desk.answer(7, 0, [{"to": [8], "text": "late"}])
    assert await call == ABSENT
    again = desk_of(server, timeout_s=0.01)
    assert await again.ask(question()) == ABSENT


async def test_who_leaves_is_not_waited_for_until_they_come_back():
    desk = desk_of({}, timeout_s=None)
    await desk.open(7, "")
    await desk.set_ready(7)
    call = await asked(desk, question())
    await desk.set_away(7, away=True)
    assert await call == ABSENT
    assert await desk.ask(question(1)) == ABSENT
    await desk.set_away(7, away=False)
    call = await asked(desk, question(2))
    await desk.answer(7, 2, [])
    assert (await call).present


async def test_an_agent_without_a_seat_is_absent_at_once():
    desk = desk_of({}, timeout_s=None)
    assert await desk.ask(question()) == ABSENT
    with pytest.raises(UnknownName, match=r"messaging.seat\(7\) makes one"):
        await desk.answer(7, 0, [])


async def test_a_new_text_of_consent_needs_a_new_consent():
    desk = desk_of({})
    await desk.open(7, "one")
    await desk.set_ready(7)
    await desk.open(7, "one")
    assert await desk.wait_ready(7, 0)
    await desk.open(7, "two")
    assert not await desk.wait_ready(7, 0)
    waiting = asyncio.create_task(desk.wait_ready(7, WAIT_S))
    await desk.set_ready(7)
    assert await waiting


async def test_the_page_is_told_of_each_change_and_of_the_end():
    desk = desk_of({})
    await desk.open(7, "")
    view = await desk.news(7, -1)
    news = asyncio.create_task(desk.news(7, view.version))
    await desk.set_ready(7)
    assert (await news).ready
    news = asyncio.create_task(desk.news(7, (await news).version))
    await asyncio.sleep(0)
    await desk.end()
    assert (await news).ended


@pytest.mark.parametrize(
    ("messages", "text"),
    [
        ([{"to": [8], "text": " "}], "needs a text"),
        ([{"to": [8], "text": 5}], "needs a text"),
        ([{"to": [], "text": "x"}], "at least one recipient"),
        ([{"to": 8, "text": "x"}], "at least one recipient"),
        ([{"to": [8.5], "text": "x"}], "cannot be sent to this recipient"),
        ([{"to": [{}], "text": "x"}], "cannot be sent to this recipient"),
        ([{"to": ["a\nb"], "text": "x"}], "cannot be sent to this recipient"),
        ([{"to": [99], "text": "x"}], "cannot write to agent 99"),
        ([{"to": [8], "text": "x" * 4001}], "at most 4,000 characters"),
        ([{"to": [8], "text": "\ud800"}], "cannot be sent"),
        ([{"text": "x", "answers": "other"}], "was not asked in this step: reload the page"),
        ([{"to": [8], "text": "x"}] * 21, "at most 20 messages"),
        ([{"to": [8], "text": "x" * 600}], "too long"),
    ],
)
async def test_what_cannot_be_sent_is_refused_and_the_person_may_try_again(messages, text):
    desk = desk_of({}, limit=500)
    await desk.open(7, "")
    await desk.set_ready(7)
    call = await asked(desk, question(to=(8, 9)))
    with pytest.raises(ConfigError, match=text):
        await desk.answer(7, 0, messages)
    await desk.answer(7, 0, [{"to": [9], "text": "short"}])
    assert (await call).messages == (Written((9,), "short"),)


async def test_a_person_without_a_neighbour_in_the_graph_may_write_to_whom_it_hears():
    desk = desk_of({})
    await desk.open(7, "")
    await desk.set_ready(7)
    call = await asked(desk, question(to=()))
    with pytest.raises(ConfigError, match="cannot write to agent 9"):
        await desk.answer(7, 0, [{"to": [9], "text": "x"}])
    await desk.answer(7, 0, [{"to": [8], "text": "x"}])
    assert (await call).messages == (Written((8,), "x"),)


async def test_an_answer_that_cannot_be_kept_is_not_given_to_the_group():
    server = {}
    desk = desk_of(server)
    await desk.open(7, "")
    await desk.set_ready(7)
    call = await asked(desk, question())

    async def fail(*_):
        raise ConnectionError

    desk._keep, keep = fail, desk._keep
    with pytest.raises(ConnectionError):
        await desk.answer(7, 0, [{"to": [8], "text": "x"}])
    assert not call.done()
    desk._keep = keep
    await desk.answer(7, 0, [{"to": [8], "text": "x"}])
    assert (await call).present
