"""Surveys: asked once, answered once, read again by any process; the record is on the server."""

import asyncio
import dataclasses
from typing import TypedDict

import msgspec
import numpy as np
import pytest
from pydantic import BaseModel, field_validator
from support.contracts import WAIT_S, fetch_all, vanish
from support.interceptors import interceptor_with
from support.survey_records import ask_survey, not_there, surveys_of, unanswered

from ray_messaging import columns, rules
from ray_messaging.errors import AlreadyExists, Closed, ConfigError, InvalidAddress, UnknownName

QUESTION = {"text": "How are you?"}


class Mood(BaseModel):
    mood: int
    why: str = ""


class Verdict(BaseModel):
    """A type with a rule of its own."""

    score: float

    @field_validator("score")
    @classmethod
    def is_allowed(cls, score):
        return 1 / score


class Short(msgspec.Struct):
    mood: int


@dataclasses.dataclass
class Plain:
    mood: int


class Private(rules.Rule):
    """Block the questions to some agents."""

    name = "private"

    def __init__(self, agents):
        self.agents = agents

    def check(self, message):
        asked = message.to_id in self.agents
        return rules.block(f"agent {message.to_id} gives no interviews") if asked else rules.ALLOW


@pytest.fixture
def surveys(messagers):
    """Give the surveys of a new process, with an interceptor if there is one."""

    async def open_one(interceptor=None, **settings):
        return surveys_of(await messagers(interceptor, **settings))

    return open_one


@pytest.fixture
async def town(messagers):
    return await messagers(name="town", host=[1, 2, 3, "ann"])


async def create(surveys, agents=(1, 2, 3, "ann"), model=Mood, **options):
    options = {"survey_id": "mood", "subtopic": "agent-chat", "timeout": WAIT_S} | options
    return await ask_survey(surveys, model, agents, QUESTION, **options)


async def answer(town, payload_of, count):
    """Answer so many questions; an agent with the payload None stays silent."""
    for question in await fetch_all(town, count):
        assert question.expects_answer
        assert question.from_id is None
        payload = payload_of(question.to_id)
        if payload is not None:
            await town.reply(question, payload)


async def arrived(survey, count):
    """Wait for so many valid answers."""
    while len(survey.tally.arrived) < count:
        await survey.more(WAIT_S)


async def finished(survey):
    while await survey.more(WAIT_S):
        pass
    return survey.tally


async def test_all_agents_answer(surveys, town):
    survey = await create(await surveys())
    assert unanswered(survey) == [1, 2, 3, "ann"]
    await answer(town, lambda agent: {"mood": len(str(agent))}, 4)
    tally = await finished(survey)
    assert tally.answers == {1: Mood(mood=1), 2: Mood(mood=1), 3: Mood(mood=1), "ann": Mood(mood=3)}
    assert sorted(map(str, tally.arrived)) == ["1", "2", "3", "ann"]
    assert (tally.done, tally.late, tally.invalid, tally.blocked, tally.unasked) == (True, 0, {}, {}, [])
    assert repr(tally) == "4 answered"


@pytest.mark.parametrize(
    ("model", "good", "bad", "reason"),
    [
        pytest.param(Short, {"mood": 5}, {"mood": "good"}, "int", id="a msgspec struct"),
        pytest.param(Plain, {"mood": 5}, {"mood": "good"}, "int", id="a dataclass"),
        pytest.param(Verdict, {"score": 2}, {"score": 0}, "float division by zero", id="a validator that fails"),
    ],
)
async def test_other_types_of_answers(surveys, town, model, good, bad, reason):
    survey = await create(await surveys(), model=model)
    await answer(town, lambda agent: good if agent != 2 else bad, 4)
    tally = await finished(survey)
    assert tally.answers == dict.fromkeys([1, 3, "ann"], model(**good))
    assert reason in tally.invalid[2].reason


class Typed(TypedDict):
    mood: int


class Whole(BaseModel):
    mood: int


@pytest.mark.parametrize("model", [Whole, Plain, Typed, Short])
async def test_an_answer_counts_alike_with_every_kind_of_type_and_without_it(surveys, messagers, model):
    given = [1, "1", True, 1.0, "1.0", 1.5, None, 2]
    town, survey = await messagers(name="town", host=[*range(8)]), await create(await surveys(), [*range(8)], model)
    await answer(town, lambda agent: {"mood": given[agent]}, 8)
    others = [await (await surveys()).open("mood", *types) for types in ([], [model])]
    for each in (survey, *others):
        tally = await finished(each)
        assert sorted(tally.answers) == [0, 7]
        assert sorted(tally.invalid) == [*range(1, 7)]
        assert (tally.invalid[1].reason, tally.invalid[2].reason) == (REASON.format("str"), REASON.format("bool"))
    assert await others[0].remind(WAIT_S) == 6
    assert {question.to_id for question in await fetch_all(town, 6)} == {*range(1, 7)}


REASON = "mood: Expected `int`, got `{}`"


async def test_answers_in_typed_columns(surveys, town):
    survey = await create(await surveys(), agents=[1, 2, 3])
    questions = await fetch_all(town, 3)
    await town.reply_columns(questions, columns(mood=np.array([5, 6, 7]), why=["rain", "sun", "wind"]))
    assert (await finished(survey)).answers[2] == Mood(mood=6, why="sun")


async def test_an_answer_that_does_not_fit_is_invalid_until_a_reminder_brings_another(surveys, town):
    survey = await create(await surveys())
    replies = {1: {"mood": 1}, 2: {"mood": "bad"}, 3: {"why": "no mood"}, "ann": None}
    await answer(town, replies.get, 4)
    while len(survey.tally.invalid) < 2:
        await survey.more(WAIT_S)
    tally = survey.tally
    assert set(tally.invalid) == {2, 3}
    assert tally.invalid[2].reason.startswith("mood: Input should be a valid integer")
    assert (tally.invalid[3].reason, tally.invalid[3].payload) == ("mood: Field required", {"why": "no mood"})
    assert unanswered(survey) == ["ann"]
    assert await survey.remind(None) == 3  # agent 1 is not asked again
    assert not tally.done
    await answer(town, lambda agent: {"mood": 7} if agent != 3 else {"mood": None}, 3)
    tally = await finished(survey)
    assert tally.answers == {1: Mood(mood=1), 2: Mood(mood=7), "ann": Mood(mood=7)}
    assert set(tally.invalid) == {3}
    assert tally.arrived[0] == 1


async def test_a_dead_process_loses_nothing_and_the_next_one_counts_each_answer_once(messagers, town):
    first = await messagers()
    survey = await create(surveys_of(first))
    await answer(town, lambda agent: {"mood": 1} if agent in {1, 2} else {"mood": "x"} if agent == 3 else None, 4)
    await arrived(survey, 2)
    await vanish(first)
    again = await surveys_of(await messagers()).open("mood", Mood)
    assert again.tally.answers == {1: Mood(mood=1), 2: Mood(mood=1)}
    assert (set(again.tally.invalid), unanswered(again), again.tally.late) == ({3}, ["ann"], 0)
    assert again.record.question == survey.record.question
    assert await again.remind(None) == 2
    await answer(town, lambda agent: {"mood": 2}, 2)
    tally = await finished(again)
    assert {agent: found.mood for agent, found in tally.answers.items()} == {1: 1, 2: 1, 3: 2, "ann": 2}


async def test_several_processes_read_a_survey_at_once_also_without_its_type(surveys, town):
    survey = await create(await surveys())
    other = await (await surveys()).open("mood")
    await answer(town, lambda agent: {"mood": 3 if agent != 2 else "x"}, 4)
    mine, theirs = await asyncio.gather(finished(survey), finished(other))
    assert list(mine.answers) == list(theirs.answers)
    assert theirs.answers[1] == {"mood": 3}
    assert {agent: found.reason for agent, found in theirs.invalid.items()} == {2: REASON.format("str")}


async def test_threads_that_share_a_survey_count_each_answer_once(surveys, town):
    mine = await surveys()
    survey, other = await create(mine), await create(mine, survey_id="other", timeout=0.5)
    waiting = [asyncio.create_task(finished(each)) for each in (survey, other, survey)]
    await answer(town, lambda agent: {"mood": 3}, 4)
    await asyncio.gather(*waiting)
    assert (len(survey.tally.answers), survey.tally.late, survey.tally.questions) == (4, 0, 4)


async def test_only_the_first_answer_of_an_agent_counts(surveys, messagers, town):
    survey = await create(await surveys(), agents=[1])
    [question] = await fetch_all(town, 1)
    await town.reply(question, {"mood": 1})
    await town.__aexit__(RuntimeError, RuntimeError("it died"), None)  # the question comes again
    town = await messagers(name="town", host=[1, 2, 3, "ann"])
    await answer(town, lambda agent: {"mood": 2}, 1)
    await finished(survey)
    while not survey.tally.late:
        await survey.update(WAIT_S)
    assert (survey.tally.answers, survey.tally.late) == ({1: Mood(mood=1)}, 1)
    again = await (await surveys()).open("mood", Mood)
    assert (again.tally.answers, again.tally.late) == ({1: Mood(mood=1)}, 1)


async def test_a_blocked_question_has_its_rule_and_reason(messagers, surveys):
    interceptor = interceptor_with(Private([2]))
    town = await messagers(interceptor, name="town", host=[1, 2])
    survey = await create(await surveys(interceptor), agents=[1, 2, 99])
    assert survey.tally.blocked == {2: ("private", "agent 2 gives no interviews")}
    assert not_there(survey) == [99]
    await answer(town, lambda agent: {"mood": 1}, 1)
    assert (await finished(survey)).done
    again = await (await surveys(interceptor)).open("mood", Mood)
    assert again.tally.blocked == survey.tally.blocked
    assert await again.remind(None) == 0


async def test_a_reminder_that_is_blocked_changes_no_invalid_answer_in_any_process(messagers, surveys):
    private = Private([])
    interceptor = interceptor_with(private)
    town = await messagers(interceptor, name="town", host=[1])
    survey = await create(await surveys(interceptor), agents=[1])
    await answer(town, lambda agent: {"mood": "good"}, 1)
    assert (await finished(survey)).done
    private.agents = [1]
    await survey.remind(None)
    for found in (survey, await (await surveys(interceptor)).open("mood", Mood)):
        assert (list(found.tally.invalid), found.tally.blocked) == ([1], {})


async def test_a_reminder_that_is_blocked_leaves_the_delivered_question_pending(messagers, surveys):
    private = Private([])
    interceptor = interceptor_with(private)
    town = await messagers(interceptor, name="town", host=[1])
    survey = await create(await surveys(interceptor), agents=[1])
    private.agents = [1]
    await survey.remind(None)
    for found in (survey, await (await surveys(interceptor)).open("mood", Mood)):
        assert (found.tally.done, found.tally.blocked) == (False, {})
    await answer(town, lambda agent: {"mood": 1}, 1)
    assert (await finished(survey)).answers == {1: Mood(mood=1)}


async def test_the_time_is_up(surveys, town):
    survey = await create(await surveys(), timeout=0.2)
    while await survey.more(WAIT_S):
        pass
    assert len(unanswered(survey)) == 4
    assert survey.seconds_left == 0
    await answer(town, lambda agent: {"mood": 1}, 4)
    while not survey.tally.done:  # an answer that comes later counts all the same
        await survey.update(WAIT_S)
    assert len(survey.tally.answers) == 4


async def test_nothing_counts_after_the_end(surveys, town):
    mine, others = await surveys(), await surveys()
    survey, other = await create(mine), await others.open("mood", Mood)
    questions = await fetch_all(town, 4)
    await town.reply(questions[0], {"mood": 1})
    await arrived(survey, 1)
    await survey.end()
    await town.reply_columns(questions[1:3], {"mood": 2})
    while other.tally.late < 2:
        await other.update(WAIT_S)
    assert (len(other.tally.answers), other.ended, other.waits) == (1, True, False)
    assert not mine.ends
    assert not others.ends
    await survey.end()
    with pytest.raises(Closed, match="has ended"):
        await other.remind(None)


async def test_ids_of_surveys(surveys, town):
    mine = await surveys()
    survey = await create(mine)
    with pytest.raises(AlreadyExists, match="'mood' already"):
        await create(mine)
    named_by_us = await create(mine, survey_id=None)
    assert await mine.ids() == ["mood", named_by_us.id]
    with pytest.raises(UnknownName, match="no survey 'other'"):
        await mine.open("other")
    with pytest.raises(InvalidAddress):
        await create(mine, survey_id="a:b")
    with pytest.raises(ConfigError, match="another type"):
        await mine.open("mood", Verdict)
    await mine.remove("mood")
    assert [*mine.ends] == [named_by_us.id]  # nothing stays of the other
    assert await mine.ids() == [named_by_us.id]
    for call in (mine.remove("mood"), survey.remind(None), mine.open("mood")):
        with pytest.raises(UnknownName):
            await call


async def test_answers_to_a_removed_survey_do_not_count_in_the_next_one_of_its_name(surveys, town, store):
    mine = await surveys()
    await create(mine)
    await answer(town, lambda agent: {"mood": 1} if agent == 1 else None, 4)
    await mine.remove("mood")
    survey = await create(mine)
    assert survey.tally.answers == {}
    await answer(town, lambda agent: {"mood": 2}, 4)
    assert {found.mood for found in (await finished(survey)).answers.values()} == {2}
    assert await store.dead() == []


class Pair(msgspec.Struct, array_like=True):
    one: int


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"agents": []}, "this survey would ask no agent"),
        ({"model": int}, "an answer must be a JSON object"),
        ({"model": Pair}, "it is a JSON array, and an answer must be a JSON object"),
        ({"model": "Mood"}, "it is not a type"),
        ({"model": object()}, "it is not a type"),
        ({"timeout": 0}, "timeout=0"),
        ({"timeout": True}, "timeout=True"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
async def test_surveys_that_cannot_be(surveys, town, options, message):
    mine = await surveys()
    with pytest.raises(ConfigError, match=message):
        await create(mine, **options)
    assert await mine.ids() == []


async def test_the_agents_of_groups(surveys, messagers, town):
    await messagers(name="east", host=[11])
    mine = await surveys()
    assert [*await mine.agents_of(None)] == [1, 2, 3, 11, "ann"]
    assert [*await mine.agents_of(["east"])] == [11]
    with pytest.raises(UnknownName, match="no group 'west'"):
        await mine.agents_of(["west"])


async def test_many_agents(surveys, messagers):
    count = 40_000
    town = await messagers(name="town", host=range(count))
    survey = await create(await surveys(), agents=range(count))

    async def serve():
        left = count
        while left:
            questions = await town.fetch_messages(timeout=WAIT_S)
            await town.reply_columns(questions, [{"mood": agent % 7} for agent in questions.to_ids.tolist()])
            left -= len(questions)

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(serve())
        tally = await finished(survey)
    assert (len(tally.answers), tally.late) == (count, 0)
    assert sum(found.mood for found in tally.answers.values()) == sum(agent % 7 for agent in range(count))
