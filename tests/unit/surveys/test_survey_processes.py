"""Surveys whose processes have other clocks, count at other times, or break off."""

import time

import msgspec
import pytest
from support.contracts import WAIT_S, fetch_all
from support.survey_records import ask_survey, surveys_of

from ray_messaging.errors import Closed

QUESTION = {"text": "How are you?"}


class Mood(msgspec.Struct):
    mood: int


@pytest.fixture
def surveys(messagers):
    """Give the surveys of a new process."""

    async def open_one(**settings):
        return surveys_of(await messagers(**settings))

    return open_one


@pytest.fixture
async def town(messagers):
    return await messagers(name="town", host=[1, 2, 3, "ann"])


async def create(surveys, *, timeout=WAIT_S):
    options = {"survey_id": "mood", "subtopic": "agent-chat", "timeout": timeout}
    return await ask_survey(surveys, Mood, [1, 2, 3, "ann"], QUESTION, **options)


async def answer(town, count):
    for question in await fetch_all(town, count):
        await town.reply(question, {"mood": 1})


async def arrived(survey, count):
    """Wait for so many valid answers."""
    while len(survey.tally.arrived) < count:
        await survey.more(WAIT_S)


async def finished(survey):
    while await survey.more(WAIT_S):
        pass
    return survey.tally


@pytest.mark.parametrize("hours", [1, -1])
async def test_the_time_does_not_go_by_a_clock_that_is_set(surveys, town, monkeypatch, hours):
    survey = await create(await surveys(), timeout=60)
    other = await (await surveys()).open("mood", Mood)
    monkeypatch.setattr("ray_messaging.surveys.surveys.time.time", lambda real=time.time: real() + 3600 * hours)
    assert 0 < survey.seconds_left <= 60
    assert 0 < other.seconds_left <= 60
    await survey.remind(120)
    await survey.update()
    assert 60 < survey.seconds_left <= 120
    # A process with another clock than the one that asked waits no longer than from now on.
    assert (await (await surveys()).open("mood", Mood)).seconds_left <= 120


async def test_a_process_that_counted_beyond_the_end_goes_back_to_it(surveys, town):
    survey, other = await create(await surveys()), await (await surveys()).open("mood", Mood)
    questions = await fetch_all(town, 4)
    await town.reply(questions[0], {"mood": 1})
    await arrived(survey, 1)
    await town.reply(questions[1], {"mood": 1})
    await arrived(other, 2)
    await survey._store.add("mood", "end", survey._read_to.encode())
    await other.update()
    assert (len(other.tally.answers), other.tally.late, other.tally.unasked) == (1, 1, [])


async def test_an_asking_that_broke_off_leaves_agents_unasked(surveys, messagers, town):
    mine = await surveys(send_timeout_s=0.3)
    mine.engine.accepting = None  # as when its server is out of reach
    with pytest.raises(Closed) as caught:
        await create(mine)
    assert "messaging.survey('mood').remind()" in caught.value.__notes__[0]
    survey = await (await surveys()).open("mood", Mood)
    assert survey.tally.unasked == [1, 2, 3, "ann"]
    assert await survey.remind(None) == 4
    await answer(town, 4)
    assert len((await finished(survey)).answers) == 4
