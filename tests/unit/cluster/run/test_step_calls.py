"""Calls that agents remember: once for each agent and content, whatever attempts their step has."""

import asyncio
import contextlib
import functools
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pydantic
import pytest
from support.patience import WAIT_S
from support.step_society import open_step

from ray_messaging import Price, by_content, report_usage
from ray_messaging.cluster.run import step_calls
from ray_messaging.cluster.run.agent import AgentLoop
from ray_messaging.cluster.run.model_thread import BLOCKING_S, Holder
from ray_messaging.cluster.run.step_calls import Flights, RememberedCalls
from ray_messaging.common.backoff import RetryPolicy
from ray_messaging.config import Calls
from ray_messaging.errors import Closed, InvalidPayload, PayloadTooLarge, StepAborted, StepFailed
from ray_messaging.model.call_usage import CallUsage
from ray_messaging.model.calls import decode_calls
from ray_messaging.steps.call_memory import CallMemory
from ray_messaging.steps.call_store import CallStore
from ray_messaging.transports.step_values import Driver, StepSettings


@pytest.fixture
async def attempt(transports):
    """Return a function that begins the next attempt at step 0 of a group: a step, and the memory of its calls."""
    steps = (await transports()).steps
    starts = iter(range(9))

    async def begin():
        await steps.begin(StepSettings())
        await steps.join("east")
        taken = await steps.take("east", Driver("task", next(starts)), 30.0)
        await steps.open("east", taken.attempt, 0)
        return open_step(), CallMemory(steps, "east", taken.attempt, 0, limit=100, again=True)

    return begin


@pytest.fixture
def run_again(attempt):
    """Return a function that runs a model in further attempts at step 0, and returns the states after each."""

    async def run(person, attempts=2):
        found = []
        for _ in range(attempts):
            society = AgentLoop("east", person)
            await asyncio.wait_for(society.run(*await attempt()), WAIT_S)
            found.append(society.states)
        return found

    return run


class Oracle:
    """A model of which each call has another answer, and counts."""

    def __init__(self):
        self.calls = 0

    def ask(self, question):
        self.calls += 1
        return question, self.calls

    def count(self, function, *, about):
        return self.ask(function)

    async def ask_later(self, question):
        await asyncio.sleep(0)
        return self.ask(question)


@pytest.mark.parametrize("name", ["ask", "ask_later", "by_partial"])
async def test_a_step_that_runs_again_gets_the_answers_of_the_first_time(run_again, name):
    oracle = Oracle()
    oracle.by_partial = functools.partial(oracle.ask_later)

    async def person(me, inbox):
        function = getattr(oracle, name)
        me.state["heard"] = [await me.remember(function, me.id), await me.remember(function, question="more")]

    states = await run_again(person)
    assert states[0] == states[1]
    assert oracle.calls == 10
    assert states[0][3]["heard"][0] == (3, states[0][3]["heard"][0][1])  # a tuple, as it was returned


async def test_a_call_that_is_asked_alike_is_answered_alike_whatever_comes_before_it(run_again):
    oracle, heard = Oracle(), []

    async def person(me, inbox):
        asked = ["a", "b", "a"] if not heard else ["new", "a", "b", "a", "a"]
        me.state = {"heard": [await me.remember(oracle.ask, question=each) for each in asked]}

    for calls in (15, 15 + 2 * 5):  # "new", and "a" for the third time
        (states,) = await run_again(person, 1)
        heard.append([*states.values()])
        assert oracle.calls == calls
    assert [state["heard"][1:4] for state in heard[1]] == [state["heard"] for state in heard[0]]


@dataclass
class Point:
    x: float


class Offer(pydantic.BaseModel):
    price: int
    zones: set[str]


@pytest.mark.parametrize(
    ("first", "again"),
    [
        ({"b": 1, "a": [{"d": 1, "c": 2}]}, {"a": [{"c": 2, "d": 1}], "b": 1}),
        ({2: "two", 1: {"x", "y"}}, {1: {"y", "x"}, 2: "two"}),
        ({(1, 2): {3, "a"}}, {(1, 2): {"a", 3}}),
        (Point(0.5), Point(0.5)),
        (Offer(price=3, zones={"a", "b"}), Offer(price=3, zones={"b", "a"})),
        (np.arange(3), np.arange(3)),
        (2**80, 2**80),
    ],
)
async def test_equal_arguments_make_one_call_and_others_another(run_again, first, again):
    oracle, given = Oracle(), iter([first, again, [again]])

    async def person(me, inbox):
        if me.id == 0:
            me.state["n"] = (await me.remember(oracle.count, "question", about=next(given)))[1]

    assert [states[0]["n"] for states in await run_again(person, 3)] == [1, 1, 2]


async def test_arguments_that_cannot_be_encoded_count_by_their_place_among_such_calls(attempt):
    oracle, heard = Oracle(), []

    async def person(me, inbox):
        if heard:
            await me.remember(oracle.count, "more", about=None)  # one by its content takes no place
        me.state["n"] = [(await me.remember(oracle.count, "question", about=object()))[1] for _ in range(2)]

    for calls in (10, 15):
        society = AgentLoop("east", person)
        society.records_calls = True
        step, memory = await attempt()
        await society.run(step, memory)
        heard.append(society.states)
        assert oracle.calls == calls
    assert heard[0] == heard[1]
    records = decode_calls(step.calls)
    assert [record.by_content for record in records] == [True, False, False] * 5
    assert [record.source for record in records] == ["model", "kept", "kept"] * 5
    assert {json.loads(record.arguments)["args"][0] for record in records} == {"more", "question"}


async def test_calls_of_one_agent_at_once_keep_their_places(run_again):
    oracle = Oracle()

    async def person(me, inbox):
        me.state["heard"] = await asyncio.gather(*(me.remember(oracle.ask_later, n) for n in range(3)))

    states = await run_again(person)
    assert states[0] == states[1]
    assert oracle.calls == 15


async def test_an_exception_is_not_kept_and_a_second_try_takes_its_place(run_again):
    calls = []

    def think(agent):
        calls.append(agent)
        if calls.count(agent) == 1:
            raise ConnectionError("the provider is busy")
        return calls.count(agent)

    async def person(me, inbox):
        try:
            me.state["n"] = await me.remember(think, me.id)
        except ConnectionError:
            me.state["n"] = await me.remember(think, me.id)

    assert [states[0] for states in await run_again(person)] == [{"n": 2}, {"n": 2}]
    assert len(calls) == 10


@pytest.mark.parametrize(
    ("answer", "error", "text"),
    [
        ({"a": [object()]}, InvalidPayload, r'the result of me.remember\["a"\]\[0\] is <object .*in a dict'),
        ("x" * 200, PayloadTooLarge, r"202 bytes.*payload_bytes, is 100"),
    ],
)
async def test_a_result_that_cannot_be_kept_is_refused_and_the_model_may_catch_that(attempt, answer, error, text):
    async def person(me, inbox):
        with pytest.raises(error, match=text):
            await me.remember(lambda: answer)
        me.state["then"] = await me.remember(lambda: "short")
        if me.id == 3:
            await me.remember(lambda: answer)

    society = AgentLoop("east", person, concurrency=1)
    with pytest.raises(StepFailed, match=text) as caught:
        await society.run(*await attempt())
    assert caught.value.agent == 3
    assert society.states[2] == {"then": "short"}


def plain(me, inbox):
    me.remember(print)


async def careless(me, inbox):
    task = asyncio.create_task(me.remember(asyncio.sleep, 0.0))
    me.state["left"] = task is None


@pytest.mark.parametrize(
    ("model", "start", "text"),
    [
        (plain, None, "needs an async model"),
        (careless, None, "write `await me.remember"),
        (plain, lambda me: me.remember(print), "cannot call me.remember in start="),
    ],
)
async def test_a_model_that_cannot_wait_for_its_call(attempt, model, start, text):
    with pytest.raises(StepFailed, match=text):
        await AgentLoop("east", model, start=start).run(*await attempt())


async def test_an_attempt_with_a_successor_is_aborted_although_its_model_catches_that(attempt):
    step, memory = await attempt()
    await attempt()

    async def person(me, inbox):
        try:
            await me.remember(len, "no")
        except StepAborted:
            me.state["answer"] = "made up"

    with pytest.raises(StepAborted, match="another process runs this group now"):
        await AgentLoop("east", person).run(step, memory)


async def test_a_function_that_raises_stop_iteration_raises_in_the_model(run_again):
    async def person(me, inbox):
        with pytest.raises(RuntimeError, match="raised StopIteration"):
            await me.remember(lambda: next(iter([])))
        me.state["caught"] = True

    (states,) = await run_again(person, 1)
    assert all(state["caught"] for state in states.values())


def after_turns(function, turns=20):
    """Call a function after some turns of the event loop."""
    loop = asyncio.get_running_loop()
    loop.call_soon(*((function,) if not turns else (after_turns, function, turns - 1)))


class Provider:
    """A provider of answers that come once the step of its first four askers has failed."""

    def __init__(self):
        self.asked, self.all_asked = [], asyncio.Event()
        self._loop, self._failed = asyncio.get_running_loop(), threading.Event()

    def plain(self, agent):
        self.asked.append(agent)
        if len(self.asked) == 4:
            self._loop.call_soon_threadsafe(self.all_asked.set)
        assert self._failed.wait(WAIT_S)
        return f"answer of {agent}"

    async def later(self, agent):
        return await asyncio.to_thread(self.plain, agent)

    async def fail(self, failure):
        """Fail as an agent that is not asking, once all others are; tell it."""
        try:
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self.all_asked.wait(), self._loop))
            if failure == "raises":
                raise ConnectionError("no provider")
            await asyncio.Event().wait()
        finally:
            after_turns(self._failed.set)


@pytest.mark.parametrize("kind", ["plain", "later"])
@pytest.mark.parametrize("failure", ["raises", "is late", "is of another group"])
async def test_calls_that_are_under_way_where_a_step_fails_are_kept(attempt, kind, failure):
    provider, attempts = Provider(), []

    async def person(me, inbox):
        if me.id:
            me.state["heard"] = await me.remember(getattr(provider, kind), me.id)
        elif not attempts:
            await provider.fail(failure)

    society = AgentLoop("east", person, timeout=1.0 if failure == "is late" else None)
    running = asyncio.create_task(society.run(*await attempt()))
    await asyncio.wait_for(provider.all_asked.wait(), WAIT_S)
    if failure == "is of another group":
        await society.end()
    with pytest.raises((StepFailed, Closed)):
        await running
    attempts.append("failed")
    again = AgentLoop("east", person)
    await again.run(*await attempt())
    assert sorted(provider.asked) == [1, 2, 3, 4]
    assert again.states == {0: {}} | {agent: {"heard": f"answer of {agent}"} for agent in range(1, 5)}


async def test_a_call_that_does_not_end_delays_a_failure_for_a_while_only(attempt, monkeypatch):
    monkeypatch.setattr(step_calls, "CALLS_END_S", 0.01)
    asked = asyncio.Event()

    async def never():
        loop.call_soon_threadsafe(asked.set)
        await asyncio.Event().wait()

    async def person(me, inbox):
        if me.id:
            await me.remember(never)
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(asked.wait(), loop))
        raise ConnectionError("no provider")

    loop = asyncio.get_running_loop()
    with pytest.raises(StepFailed, match="no provider") as caught:
        await AgentLoop("east", person).run(*await attempt())
    assert caught.value.agent == 0


async def test_a_call_that_the_model_gives_up_is_cut_and_its_place_is_free(run_again):
    async def never():
        await asyncio.Event().wait()

    async def person(me, inbox):
        try:
            me.state["heard"] = await asyncio.wait_for(me.remember(never), 0.01)
        except TimeoutError:
            me.state["heard"] = await me.remember(lambda: next(answers))

    answers = iter(range(100))
    states = await run_again(person)
    assert states[0] == states[1]
    assert next(answers) == 5


async def test_an_async_function_that_blocks_is_told_as_the_one_that_is_remembered(run_again, caplog):
    async def ask():
        threading.Event().wait(2 * BLOCKING_S)

    async def person(me, inbox):
        await me.remember(ask)

    await run_again(person, 1)
    (warning,) = [record.getMessage() for record in caplog.records if "blocks the event loop" in record.getMessage()]
    assert "an async function that is remembered" in warning
    assert "pass a plain function to me.remember" in warning


class ReadTimeout(Exception):
    """An error as httpx has it."""


class Refused(Exception):
    def __init__(self, **fields):
        self.__dict__ |= fields


@pytest.mark.parametrize(
    ("error", "tries"),
    [
        (Refused(status_code=429), 3),
        (Refused(status=503), 3),
        (Refused(response=Refused(status_code=500)), 3),
        (TimeoutError(), 3),
        (ReadTimeout(), 3),
        (Refused(status_code=400), 1),
        (Refused(status="429 of old"), 1),
        (ValueError(429), 1),
    ],
)
@pytest.mark.parametrize("plain", [True, False])
async def test_what_may_pass_is_tried_again_and_the_tries_are_recorded(attempt, monkeypatch, error, tries, plain):
    monkeypatch.setattr(step_calls, "CALL_RETRY", RetryPolicy(0.001, 0.001))
    made = []

    def ask():
        made.append(1)
        if len(made) < 3:
            raise error
        return "at last"

    async def ask_later():
        return ask()

    async def person(me, inbox):
        if me.id == 0:
            me.state["heard"] = await me.remember(ask if plain else ask_later)

    society = AgentLoop("east", person)
    society.records_calls, society.call_settings = True, Calls(retries=2)
    step, memory = await attempt()
    if tries == 1:
        with pytest.raises(StepFailed, match="agent 0"):
            await society.run(step, memory)
        assert len(made) == 1
    else:
        await society.run(step, memory)
        assert [(record.tries, record.source) for record in decode_calls(step.calls)] == [(3, "model")]
        assert society.call_counts == {"model": 1, "retries": 2}


async def test_what_a_call_has_used_that_failed_is_in_the_log_once_it_succeeds_or_is_given_up(attempt):
    """A later attempt does not know what the server was paid for, unless the step has kept it."""
    tried = []

    async def ask(prompt):
        tried.append(prompt)
        report_usage(model="small", input_tokens=10, output_tokens=len(tried))
        if len(tried) != 3:
            raise ValueError(prompt)
        return prompt

    async def person(me, inbox):
        if me.id == 0:
            with contextlib.suppress(ValueError):
                await me.remember(ask, "first")
            if len(tried) == 1:
                raise RuntimeError("the step ends")
            me.state["heard"] = await me.remember(ask, "first")
            with contextlib.suppress(ValueError):
                await me.remember(ask, "last")

    society = AgentLoop("east", person)
    society.records_calls, society.call_settings = True, Calls(cost=Price(input=1, output=1))
    with pytest.raises(StepFailed, match="the step ends"):
        await society.run(*await attempt())
    step, memory = await attempt()
    await society.run(step, memory)
    found = [(record.source, record.usage) for record in decode_calls(step.calls)]
    parts = 10**6  # of a token's price
    assert found == [
        ("model", CallUsage("small", 30, 0, 6, 36 * parts)),
        ("failed", CallUsage("small", 10, 0, 4, 14 * parts)),
    ]
    assert society.call_counts["failed"] == 3


async def test_what_a_call_has_used_is_in_the_log_once_although_several_agents_wait_for_its_answer(attempt, tmp_path):
    async def ask(prompt):
        await asyncio.sleep(0)
        report_usage(model="small", input_tokens=10, output_tokens=1)
        return prompt

    async def person(me, inbox):
        me.state["heard"] = await me.remember(ask, "mood?")

    society = AgentLoop("east", person)
    society.records_calls, society.call_store = True, CallStore.at(str(tmp_path))
    step, memory = await attempt()
    await society.run(step, memory)
    records = decode_calls(step.calls)
    assert [record.source for record in records].count("model") == 1 < len(records)
    assert [record.usage for record in records if record.usage is not None] == [CallUsage("small", 10, 0, 1, None)]
    assert sum(record.tries for record in records) == 1


class Paid:
    """A model whose first call fails, after it was paid."""

    def __init__(self):
        self.tries = 0

    def call_content(self):
        return "Paid"

    async def __call__(self, prompt):
        self.tries += 1
        report_usage(model="small", input_tokens=10, output_tokens=self.tries)
        if self.tries == 1:
            raise ValueError(prompt)
        return prompt


@pytest.mark.parametrize("aborted", [False, True])
async def test_what_a_failed_call_has_used_stays_in_the_log_if_the_store_then_has_its_answer(
    attempt, tmp_path, aborted
):
    ask = Paid()

    async def person(me, inbox):
        if me.id == 0:
            if not ask.tries:
                with contextlib.suppress(ValueError):
                    await me.remember(ask, "mood?")
                if aborted:
                    raise RuntimeError("the step ends")
            failed.set()
            await stored.wait()
            me.state["heard"] = await me.remember(ask, "mood?")
        if me.id == 1:
            await failed.wait()
            me.state["heard"] = await me.remember(ask, "mood?")
            stored.set()

    failed, stored = asyncio.Event(), asyncio.Event()
    society = AgentLoop("east", person)
    society.records_calls, society.call_store = True, CallStore.at(str(tmp_path))
    if aborted:
        with pytest.raises(StepFailed, match="the step ends"):
            await society.run(*await attempt())
    step, memory = await attempt()
    await society.run(step, memory)
    assert [(record.agent, record.source, record.usage) for record in decode_calls(step.calls)] == [
        (0, "store", CallUsage("small", 10, 0, 1, None)),
        (1, "model", CallUsage("small", 10, 0, 2, None)),
    ]


async def test_what_a_call_has_used_whose_result_is_too_large_is_in_the_log(attempt):
    async def ask(prompt):
        report_usage(model="small", input_tokens=10, output_tokens=1)
        return prompt * 200

    async def person(me, inbox):
        if me.id == 0:
            with pytest.raises(PayloadTooLarge):
                await me.remember(ask, "?")

    society = AgentLoop("east", person)
    society.records_calls = True
    step, memory = await attempt()
    await society.run(step, memory)
    assert [(record.source, record.usage) for record in decode_calls(step.calls)] == [
        ("failed", CallUsage("small", 10, 0, 1, None))
    ]


async def test_what_a_call_has_used_that_the_model_gives_up_is_in_the_log(attempt):
    async def ask(prompt):
        report_usage(model="small", input_tokens=10, output_tokens=1)
        paid.set()
        await asyncio.Event().wait()

    async def person(me, inbox):
        if me.id == 0:
            asking = asyncio.ensure_future(me.remember(ask, "?"))
            await paid.wait()
            asking.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await asking

    paid = asyncio.Event()
    society = AgentLoop("east", person)
    society.records_calls = True
    step, memory = await attempt()
    await society.run(step, memory)
    assert [(record.source, record.usage) for record in decode_calls(step.calls)] == [
        ("failed", CallUsage("small", 10, 0, 1, None))
    ]


class Kept:
    """A server's store of results. The second call to keep a result waits until it may go on."""

    def __init__(self):
        self.known, self.calls = {}, 0
        self.second, self.free = asyncio.Event(), asyncio.Event()

    async def remember(self, group, attempt, step, results):
        self.calls += 1
        if self.calls == 2:
            self.second.set()
            await self.free.wait()
        self.known |= results
        return True

    async def remembered(self, group, step):
        return self.known


def both(flights, kept, *, again=False, store=None):
    """Return the calls of the look-ahead and of the step itself, which share `flights`."""
    memory = CallMemory(kept, "east", 1, 5, limit=1000, again=again)
    given = {"recorded": True, "store": store, "flights": flights}
    holder, threads = Holder("east"), ThreadPoolExecutor(2)
    return [RememberedCalls(memory, threads, holder, early=early, **given) for early in (True, False)]


AGENT = SimpleNamespace(id=7, step=5, _society=SimpleNamespace(seed=0))


def paid():
    report_usage(input_tokens=3, output_tokens=4)
    return "yes"


async def test_a_call_that_is_made_ahead_is_that_of_the_step_even_if_the_store_has_it_already(tmp_path):
    kept = Kept()
    ahead, step = both(Flights(), kept, store=CallStore(str(tmp_path)))
    function = by_content(paid, uses="paid")
    early = asyncio.create_task(waiting(ahead.call(AGENT, function, (), {})))
    await asyncio.wait_for(kept.second.wait(), WAIT_S)  # the store on the disk has the answer by then
    later = asyncio.create_task(waiting(step.call(AGENT, function, (), {})))
    await asyncio.sleep(0)
    kept.free.set()
    assert [await early, await later] == ["yes", "yes"]
    (record,) = step.records()
    assert (record.source, record.usage.tokens, step.counts) == ("model", 7, {"model": 1})


async def test_a_call_that_an_earlier_attempt_has_made_ahead_was_not_made_in_vain():
    flights, kept = Flights(), Kept()
    kept.free.set()
    ahead, _ = both(flights, kept)
    assert await ahead.call(AGENT, paid, (), {}) == "yes"
    _, step = both(flights, kept, again=True)
    assert await step.call(AGENT, str, (1,), {}) == "1"  # now the results of the earlier attempt are loaded
    assert await step.call(AGENT, paid, (), {}) == "yes"
    assert flights.in_vain() == ([], [])


async def waiting(call):
    return await call
