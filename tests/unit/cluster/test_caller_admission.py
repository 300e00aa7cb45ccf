"""Admission of calls and questions from other processes: in order, once, and forgotten in time."""

import asyncio
from types import SimpleNamespace

import pytest
from support.patience import WAIT_S

from ray_messaging.cluster.actors import group_host as module
from ray_messaging.cluster.actors.group_host import _MOST_KEPT, CallerAdmission, GroupQuestions
from ray_messaging.errors import OutcomeUnknown


class Calls:
    """Count the runs of numbered calls; their answers are their numbers."""

    def __init__(self):
        self.admission = CallerAdmission()
        self.ran = []

    async def admit(self, number, *, caller="handle", oldest=0):
        async def run():
            self.ran.append((caller, number))
            return f"{caller} {number}"

        return await asyncio.wait_for(self.admission.admit(caller, number, oldest, run), WAIT_S)

    def kept(self):
        return sum(len(caller.calls) for caller in self.admission._callers.values())


@pytest.fixture
def calls():
    return Calls()


async def test_a_call_that_has_begun_is_known_and_its_answer_kept_until_its_caller_has_seen_it(calls):
    assert not calls.admission.knows("handle", 0)
    for number in range(5):
        await calls.admit(number, oldest=number)
        assert calls.kept() == 1
    assert [calls.admission.knows("handle", number) for number in range(6)] == [True] * 5 + [False]
    assert not calls.admission.knows("other", 0)


async def test_a_call_whose_caller_is_gone_goes_on(calls):
    gate = asyncio.Event()

    async def run():
        await gate.wait()
        return "done"

    first = asyncio.create_task(calls.admission.admit("handle", 0, 0, run))
    while not calls.kept():  # noqa: ASYNC110 - what is awaited has no event
        await asyncio.sleep(0)
    first.cancel()
    again = asyncio.create_task(calls.admission.admit("handle", 0, 0, run))
    gate.set()
    assert await asyncio.wait_for(again, WAIT_S) == "done"
    assert first.cancelled()


async def test_a_finished_call_is_forgotten_after_its_time(calls, monkeypatch):
    monkeypatch.setattr(module, "_REPEATED_S", 0.01)
    for number in range(3):
        await calls.admit(number)
    async with asyncio.timeout(WAIT_S):
        while calls.kept():  # noqa: ASYNC110 - as above
            await asyncio.sleep(0.001)
    with pytest.raises(OutcomeUnknown):  # not run again: its outcome is unknown
        await calls.admit(1)
    assert await calls.admit(3) == "handle 3"
    assert [number for _, number in calls.ran] == [0, 1, 2, 3]


async def test_callers_are_bounded(calls, monkeypatch):
    monkeypatch.setattr(module, "CALLERS", 3)
    for number in range(2):
        await calls.admit(number, caller="busy")
        for n in range(10):
            await calls.admit(0, caller=f"task-{number}-{n}")
            assert len(calls.admission._callers) <= 3
            await calls.admit(number, caller="busy")  # repeated: it is known as long as it is heard of
    assert calls.ran.count(("busy", 0)) == calls.ran.count(("busy", 1)) == 1


async def test_few_answers_are_kept_after_many_questions_at_once(monkeypatch):
    async def ask_batch(*_arguments):
        await asyncio.sleep(0)
        return "an answer"

    monkeypatch.setattr(module, "decode", bytes)
    questions = GroupQuestions(SimpleNamespace(conversation=SimpleNamespace(ask_batch=ask_batch)))
    await asyncio.gather(*(questions.ask(str(number), b"", None) for number in range(100)))
    await asyncio.sleep(0)
    assert len(questions._calls) == _MOST_KEPT
