"""Agents at a seat in a group: a person's answer is a remembered call, without the limits of a model's calls."""

import asyncio
import json

import pytest
from support.patience import WAIT_S
from support.step_society import open_step

from ray_messaging import Calls, Price
from ray_messaging.cluster.run.agent import AgentLoop
from ray_messaging.cluster.seat_desk import ABSENT, SeatAnswer, Written
from ray_messaging.errors import StepFailed
from ray_messaging.model.calls import decode_calls
from ray_messaging.steps.call_memory import CallMemory
from ray_messaging.transports.step_values import Driver, StepSettings

PRICE = Price(input="1", output="1")


class Person:
    """A person who answers each question in the same way."""

    def __init__(self, answer):
        self.answer, self.asked, self.told = answer, [], []

    async def ask(self, question):
        self.asked.append(question)
        return self.answer

    def tell(self, *note):
        self.told.append(note)


@pytest.fixture
async def memory(transports):
    """Return a function that begins the next attempt at step 0 of a group."""
    steps = (await transports()).steps
    starts = iter(range(9))

    async def begin():
        await steps.begin(StepSettings())
        await steps.join("east")
        taken = await steps.take("east", Driver("task", next(starts)), 30.0)
        await steps.open("east", taken.attempt, 0)
        return CallMemory(steps, "east", taken.attempt, 0, limit=10_000, again=True)

    return begin


def model(me, inbox):
    me.state["called"] = True


async def run(person, memory, model=model, seats=(1,), step=None, has_graph=False, **given):
    """Run a group of five with people at some seats; return it, and its step."""
    society, step = AgentLoop("east", model, **given), step or open_step()
    society.records_calls = True
    society.call_settings = Calls(budget="1 USD", cost=PRICE)  # a call of a model would have to report its tokens
    society.seat_people(frozenset(seats), person.ask, person.tell, has_graph=has_graph)
    await asyncio.wait_for(society.run(step, await memory()), WAIT_S)
    return society, step


async def test_a_person_acts_and_an_attempt_that_runs_again_asks_nobody(memory):
    person = Person(SeatAnswer(present=True, messages=(Written((2, 3), "hi"),)))
    for _ in range(2):
        society, step = await run(person, memory)
        assert society.states == {
            0: {"called": True},
            1: {},
            2: {"called": True},
            3: {"called": True},
            4: {"called": True},
        }
    assert len(person.asked) == 1
    (record,) = decode_calls(step.calls)
    assert (record.agent, record.function, record.by_content, record.source) == (1, "seat", True, "kept")
    assert json.loads(record.arguments) == {"args": [[]], "kwargs": {}}
    assert not society.call_counts  # they count the calls of models


async def test_a_person_who_waits_keeps_no_other_agent_waiting(memory):
    person, called = Person(ABSENT), asyncio.Event()

    async def ask(question):
        await called.wait()
        return ABSENT

    async def last(me, inbox):
        if me.id == 4:
            called.set()

    person.ask = ask
    await run(person, memory, last, (0, 1, 2), concurrency=1)


async def test_the_time_limit_of_a_model_is_not_that_of_a_person(memory):
    person = Person(ABSENT)

    async def ask(question):
        await asyncio.sleep(0.3)
        return ABSENT

    person.ask = ask
    await run(person, memory, timeout=0.1)


async def test_a_step_that_fails_does_not_wait_for_a_person(memory):
    person, left = Person(ABSENT), []

    async def ask(question):
        try:
            await asyncio.Event().wait()
        finally:
            left.append(question.agent)

    async def fails(me, inbox):
        raise KeyError(me.id)

    person.ask = ask
    with pytest.raises(StepFailed, match="KeyError: 0"):
        await run(person, memory, fails)


async def test_what_cannot_be_sent_is_told_to_the_person_and_does_not_end_the_run(memory):
    person = Person(SeatAnswer(present=True, messages=(Written((2,), "x" * 1500), Written((2,), "short"))))
    _, step = await run(person, memory)
    assert step.sends.to_ids == [2]
    ((agent, number, text),) = person.told
    assert (agent, number) == (1, 0)
    assert text.startswith("This was not sent: 'xxx")
    assert "1,000" in text


async def test_without_a_graph_a_person_may_write_to_all_and_with_one_to_neighbours_only(memory):
    """A person without a neighbour in the graph could write to all agents."""
    person, rows = Person(ABSENT), {1: ({}, (2, 3)), 4: ({}, ())}
    await run(person, memory, seats=(0,))
    await run(person, memory, seats=(1, 4), has_graph=True, rows=rows)
    assert [(question.agent, question.to) for question in person.asked] == [(0, None), (1, (2, 3)), (4, ())]
