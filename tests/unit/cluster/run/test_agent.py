"""The agents of one group of a run, in one step: models of every kind, and what fails."""

import asyncio
import contextvars
import functools
import inspect
import re
import threading
from copy import deepcopy

import numpy as np
import pytest
from support.patience import WAIT_S
from support.step_society import open_step

from ray_messaging.cluster.run import step_calls
from ray_messaging.cluster.run.agent import AgentLoop, StateChange
from ray_messaging.cluster.run.collector import Collector
from ray_messaging.cluster.run.crowd import CrowdSociety, _gathered
from ray_messaging.cluster.run.model_thread import BLOCKING_S
from ray_messaging.cluster.run.step_calls import StepCalls
from ray_messaging.errors import ConfigError, StepFailed
from ray_messaging.model.agent_sets import AgentSet
from ray_messaging.model.exact import BLOCK

AGENTS = 5


async def run_one(model, **options):
    """Run one step; return the society and the step."""
    society, step = AgentLoop("east", model, **options), open_step()
    await society.run(step)
    return society, step


async def failure(model, **options):
    with pytest.raises(StepFailed) as caught:
        await run_one(model, **options)
    return caught.value


def plain(me, inbox):
    me.state["seen"] = me.id


async def thinking(me, inbox):
    await asyncio.sleep(0)
    plain(me, inbox)


class Thinker:
    async def __call__(self, me, inbox):
        await thinking(me, inbox)

    async def think(self, me, inbox):
        await thinking(me, inbox)


def with_more(me, inbox, more):
    return thinking(me, inbox)


def decorated(me, inbox):
    """Return a coroutine, as a decorator's plain wrapper round an async model does."""
    return thinking(me, inbox)


def sometimes(me, inbox):
    return thinking(me, inbox) if me.id % 2 else plain(me, inbox)


@pytest.mark.parametrize(
    "model",
    [
        plain,
        thinking,
        Thinker(),
        Thinker().think,
        functools.partial(Thinker()),
        functools.partial(with_more, more=1),
        decorated,
        sometimes,
    ],
)
async def test_a_model_of_any_kind_runs_for_each_agent(model):
    society, step = await run_one(model, concurrency=2)
    assert society.states == {agent: {"seen": agent} for agent in range(AGENTS)}
    assert step.state is not None


HERE = contextvars.ContextVar("here")


async def test_plain_models_run_in_one_other_thread_with_the_context_of_their_caller():
    HERE.set("town")
    society, seen = AgentLoop("east", lambda me, inbox: seen.add((threading.get_ident(), HERE.get()))), set()
    for _ in range(20):
        await society.run(open_step())
    ((thread, here),) = seen
    assert (thread != threading.get_ident(), here) == (True, "town")


async def test_the_groups_event_loop_goes_on_while_a_plain_model_is_long():
    loop, goes_on = asyncio.get_running_loop(), threading.Event()

    def think(me, inbox):
        loop.call_soon_threadsafe(goes_on.set)
        assert goes_on.wait(WAIT_S)

    society = AgentLoop("east", think)
    for _ in range(2):
        goes_on.clear()
        await society.run(open_step())


COMMON = []


@pytest.mark.parametrize(
    "part",
    [
        lambda state: state,
        lambda state: state["a"],
        lambda state: state["b"][0]["c"],
        lambda state: state.setdefault("common", COMMON),
    ],
)
async def test_a_state_shares_nothing_with_what_the_model_keeps(part):
    kept, wanted = [], {}

    def model(me, inbox):
        me.state |= {"a": [], "b": [{"c": {}}]}
        kept.append(part(me.state))
        wanted[me.id] = deepcopy(me.state)

    society, _ = await run_one(model)
    for found in kept:
        found.append(1) if isinstance(found, list) else found.update(more=1)
    assert society.states == wanted


async def test_no_more_agents_than_concurrency_run_at_once():
    running, most = 0, 0

    async def model(me, inbox):
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1

    await run_one(model, concurrency=2)
    assert most == 2


@pytest.mark.parametrize(
    "answer", [pytest.param({"mood": 1}, id="a state"), pytest.param(iter([1]), id="an iterator"), 0, False]
)
async def test_a_model_that_returns_something_is_refused(answer):
    async def later(me, inbox):
        return answer

    for model in (later, lambda me, inbox: answer):
        error = await failure(model)
        assert f"returned an object of type {type(answer).__name__}, but must return None" in str(error)
        assert (str(error)[-1], error.trace) == ("s", "")  # there is no line of the user's code to name


ERRORS = [ValueError("no idea"), SystemExit(3), TimeoutError("the provider is slow"), asyncio.CancelledError("cut")]


@pytest.mark.parametrize("kind", ["plain", "slow", "plain with a timeout", "async", "async with a timeout"])
@pytest.mark.parametrize("error", ERRORS)
async def test_a_model_that_raises_names_the_agent(error, kind):
    def model(me, inbox):
        if me.id == 3:
            threading.Event().wait(0.05 * (kind == "slow"))  # for which the group's event loop does not wait
            raise error

    async def async_model(me, inbox):
        model(me, inbox)

    timeout = 60 if "timeout" in kind else None
    found = await failure(async_model if "async" in kind else model, timeout=timeout)
    assert (found.agent, found.step, found.group) == (3, 0, "east")
    assert str(found).startswith("the model failed for agent 3 of group 'east' in step 0, which is not committed: ")
    assert f"{type(error).__name__}: {error} ({__file__}:" in str(found)


@pytest.fixture
def gate(monkeypatch):
    """Return an event for which threads of models wait, for ever where it is not set; it is set when the test ends."""
    monkeypatch.setattr(step_calls, "_END_S", 0.01)
    event = threading.Event()
    yield event
    event.set()


@pytest.mark.parametrize("kind", ["waiting", "plain", "async", "deaf"])
async def test_an_agent_that_never_returns_is_named_although_nothing_can_end_it(gate, kind):
    async def waiting(me, inbox):
        if me.id == 2:
            await asyncio.Event().wait()

    def model(me, inbox):
        if me.id == 2:
            assert gate.wait(WAIT_S)

    async def blocking(me, inbox):
        await asyncio.sleep(0)
        model(me, inbox)

    async def deaf(me, inbox):
        while me.id == 2 and not gate.is_set():
            try:
                await asyncio.sleep(WAIT_S)
            except asyncio.CancelledError:
                gate.wait(0.1)

    found = await failure({"waiting": waiting, "plain": model, "async": blocking, "deaf": deaf}[kind], timeout=0.2)
    assert (found.agent, found.step, found.group) == (2, 0, "east")
    assert "the model had not ended after timeout=0.2 s" in str(found)
    assert (", and blocked the event loop" in str(found)) == (kind == "async")


async def test_the_one_that_blocks_is_named_and_not_those_that_wait_for_it(gate):
    async def model(me, inbox):
        if me.id == 3:
            await asyncio.sleep(0.1)  # the others have begun, and wait
            assert gate.wait(WAIT_S)
        await asyncio.sleep(0.2)

    found = await failure(model, timeout=0.4)
    assert found.agent == 3
    assert "asyncio.to_thread" in str(found)


async def test_an_agent_that_was_late_but_could_not_be_ended_is_named_when_it_returns(monkeypatch):
    monkeypatch.setattr(StepCalls, "_look", lambda self: None)  # as where the model keeps all threads from running

    async def model(me, inbox):
        if me.id == 1:
            threading.Event().wait(0.02)

    found = await failure(model, timeout=0.01)
    assert found.agent == 1
    assert "the model had not ended after timeout=0.01 s" in str(found)


async def test_a_model_that_blocks_its_event_loop_is_told_once_and_does_not_block_the_groups_own(gate, caplog):
    loop, blocked = asyncio.get_running_loop(), asyncio.Event()

    async def model(me, inbox):
        if me.id in {2, 3}:
            loop.call_soon_threadsafe(blocked.set)
            assert me.id == 3 or gate.wait(WAIT_S)
            threading.Event().wait(2 * BLOCKING_S)

    run = asyncio.create_task(run_one(model))
    await asyncio.wait_for(blocked.wait(), WAIT_S)
    gate.set()
    await run
    (warning,) = [record.getMessage() for record in caplog.records if "blocks the event loop" in record.getMessage()]
    assert "group 'east': agent 2 held it for" in warning
    assert "in step 0" in warning


LOOKS = "in collect=, which may only read: do so in the model's function"


@pytest.mark.parametrize(
    ("what", "function", "text"),
    [
        ("start", lambda me: 1 / 0, "ZeroDivisionError"),
        ("start", lambda me: None, "start must return a dict, not NoneType"),
        ("start", lambda me: me.send(1, {}), "cannot send in start="),
        ("collect", lambda me: me.send(1, {}) or {"n": 1}, LOOKS),
        ("collect", lambda me: me.ask(1, {}) or {"n": 1}, LOOKS),
        ("collect", lambda me: me.broadcast("all", {}) or {"n": 1}, LOOKS),
        ("collect", lambda me: me.move("west") or {"n": 1}, LOOKS),
    ],
)
async def test_a_start_that_fails_and_a_collect_that_does_more_than_look_are_named(what, function, text):
    found = await failure(plain, **({"start": function} if what == "start" else {"collector": Collector(function, 1)}))
    assert str(found).startswith(f"{what} failed for agent 0 of group 'east' in step 0, which is not committed: ")
    assert text in str(found)
    assert (found.agent, found.step, found.group) == (0, 0, "east")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"start": lambda group: None}, "start failed for group 'east' in step 0.*must return a dict of arrays"),
        ({"start": lambda group: 1 / 0}, "start failed for group 'east' in step 0.*ZeroDivisionError"),
        ({"model": lambda group, step: 1 / 0}, "the model failed for group 'east' in step 0.*ZeroDivisionError"),
        (
            {"start": lambda group: {"n": [2**53 + 1, 1.5]}},
            "start failed for group 'east'.*group.state.'n'. mixes floats and whole numbers",
        ),
        ({"start": lambda group: {"n": [1, "a"]}}, "group.state.'n'. has values of the types int and str"),
        ({"start": lambda group: {"n": np.ma.array([1], mask=[1])}}, "group.state.'n'. has masked values"),
        ({"start": lambda group: {"t": np.str_("a\0")}}, "group.state.'t'. has a text that ends with a null"),
        ({"start": lambda group: {1: np.zeros(3)}}, "group.state.1. has a key of type int"),
        ({"model": lambda group, step: {}}, "returned an object of type dict, .* keep results in group.state"),
        ({"model": lambda group, step: next(iter([]))}, "the model failed for group 'east'.*raised StopIteration"),
        ({"start": lambda group: next(iter([]))}, "start failed for group 'east'.*raised StopIteration"),
    ],
)
async def test_a_crowd_that_fails_is_named(options, text):
    society = CrowdSociety("east", **{"model": lambda group, step: None} | options)
    with pytest.raises(StepFailed, match=text) as caught:
        await asyncio.wait_for(society.run(open_step()), WAIT_S)
    assert (caught.value.agent, caught.value.step, caught.value.group) == (None, 0, "east")


async def test_a_crowds_arrays_are_its_own_as_after_a_restart():
    shared = np.zeros(5)

    def grow(group, step):
        group.state["a"] += 1

    def start(group):
        zeros = np.zeros(5)
        return {"a": zeros, "b": zeros, "c": group.shared, "d": np.zeros(5, np.longlong)}

    def society():
        return CrowdSociety("east", grow, start=start, shared=shared)

    going, state = society(), None
    for number in range(3):
        restarted, step = society(), open_step(number, state)
        await restarted.run(open_step(number, state))
        await going.run(step)
        state = step.state
        for name, array in restarted.states["east"].items():
            other = going.states["east"][name]
            assert (array.tolist(), array.dtype.char) == (other.tolist(), other.dtype.char)
    going.states["east"]["c"] += 1
    assert not shared.any()


async def test_a_state_set_from_outside_is_each_agents_own():
    given = [0]

    def model(me, inbox):
        me.state["x"].append(me.id)

    society, step = AgentLoop("east", model), open_step()
    society.change = StateChange(0, {agent: {"x": given, "y": given} for agent in range(AGENTS)})
    await society.run(step)
    assert society.states == {agent: {"x": [0, agent], "y": [0]} for agent in range(AGENTS)}
    society = AgentLoop("east", model)
    society.change = StateChange(0, {2: {"x": [], "y": [{3: object()}]}})
    with pytest.raises(StepFailed, match=r'states= failed for agent 2 .*states\[2\]\["y"\]\[0\]\[3\] is <object'):
        await society.run(open_step())


@pytest.mark.parametrize(
    ("array", "value", "text"),
    [
        (np.zeros(5, np.uint64), -1, "uint64, which cannot hold the int -1 exactly"),
        (np.zeros(5, np.int64), 2**64 - 1, "int64, which cannot hold the int 18446744073709551615 exactly"),
        (np.zeros(5, np.int64), np.datetime64("2020-01-01"), "cannot hold"),
        (np.zeros(5, np.bool_), "True", "cannot hold the str 'True' exactly"),
        (
            np.zeros(9, np.int64),
            7,
            r"must have a row for each agent, but its shape is \(9,\), and the group has 5 agents",
        ),
    ],
)
async def test_a_state_set_from_outside_that_an_array_cannot_hold_is_refused(array, value, text):
    society = CrowdSociety("east", lambda group, step: None, start=lambda group: {"a": array})
    society.change = StateChange(0, {2: {"a": value}})
    with pytest.raises(StepFailed, match=text):
        await society.run(open_step())


@pytest.mark.parametrize("is_async", [False, True])
async def test_a_failure_names_the_line_of_the_users_code_and_keeps_its_frames_alone(is_async):
    def choose(me):
        me.rng.choice([])  # numpy raises

    async def thinks(me, inbox):
        choose(me)

    line = choose.__code__.co_firstlineno + 1
    found = await failure(thinks if is_async else lambda me, inbox: choose(me))
    assert str(found).endswith(f" ({__file__}:{line})")
    frames = re.findall(r'File "(.*)", line', found.trace)
    assert frames[:2] == [__file__, __file__]
    assert inspect.getfile(AgentLoop) not in frames
    assert found.trace.splitlines()[-1].startswith("ValueError: ")


@pytest.mark.parametrize("model", [lambda me, inbox: me.send(0, {"n": object()}), lambda me, inbox: next(iter([]))])
async def test_a_failure_in_a_call_of_ours_names_the_line_of_the_users_code(model):
    assert str(await failure(model)).endswith(f" ({__file__}:{model.__code__.co_firstlineno})")


async def test_a_decorated_async_model_may_send_in_both_of_its_parts():
    def sends_first(me, inbox):
        me.send(0, {"n": 1})
        return sends_later(me)

    async def sends_later(me):
        await asyncio.sleep(0)
        me.send(0, {"n": 2})

    _, step = await run_one(sends_first)
    assert sum(batch.rows for batch in step.sends.batches()) == 2 * AGENTS


async def test_what_cannot_be_kept_is_named_with_its_agent_and_place():
    def model(me, inbox):
        me.state["t"] = [0, {"x": object() if me.id == 3 else (me.id, {"ann", "bob"})}]

    found = await failure(model)
    assert (found.agent, found.step) == (3, 0)
    assert 'which is not committed: me.state["t"][1]["x"] is <object' in str(found)


MANY = 2 * BLOCK + 20  # more agents than are examined together


async def test_states_that_are_examined_apart_share_nothing_either():
    common = []

    def model(me, inbox):
        me.state["all"] = common if me.id % BLOCK == 7 else [me.id]

    society, step = AgentLoop("east", model), open_step(agents=MANY, state_bytes=2**20)
    await society.run(step)
    for agent in (7, BLOCK + 7):
        society.states[agent]["all"].append(1)
    assert society.states[2 * BLOCK + 7] == {"all": []}
    assert common == []
    restarted = AgentLoop("east", model)
    restarted.read(range(MANY), step.state)
    assert restarted.states == {agent: {"all": [] if agent % BLOCK == 7 else [agent]} for agent in range(MANY)}


async def test_a_state_that_cannot_be_kept_is_named_among_many():
    def model(me, inbox):
        me.state["x"] = object() if me.id >= BLOCK + 5 else me.id

    with pytest.raises(StepFailed) as caught:
        await AgentLoop("east", model).run(open_step(agents=MANY, state_bytes=2**20))
    assert caught.value.agent == BLOCK + 5


async def test_a_society_that_stores_no_states_gives_them_to_no_step_and_cannot_begin_again():
    society, step = AgentLoop("east", lambda me, inbox: me.state.update(n=me.step), stores_states=False), open_step()
    await society.run(step)
    assert step.state is None
    assert {state["n"] for state in society.states.values()} == {step.number}
    with pytest.raises(StepFailed, match=f"in step {step.number}.*does not store its states: begin the run anew"):
        await society.run(open_step())


def gathered(*states):
    """Return the state of group a, agents 0 and 1, after agents 2 and 3 have come to it from group b."""
    parts = zip((AgentSet.of([0, 1]), AgentSet.of([2, 3])), states, strict=True)
    return _gathered(AgentSet.of(range(4)), [*parts])


def test_agents_that_come_to_a_crowd_keep_their_values():
    found = gathered(
        {"v": np.array([1, 2]), "name": np.array(["a", "b"]), "sum": np.array(5.0)},
        {
            "v": np.array([2.5, 3.5]),
            "name": np.array(["long", "longer"]),
            "only": np.array([7, 8]),
            "sum": np.array(9.0),
        },
    )
    assert {name: array.tolist() for name, array in found.items()} == {
        "v": [1, 2, 2.5, 3.5],
        "name": ["a", "b", "long", "longer"],
        "only": [0, 0, 7, 8],
        "sum": 5.0,
    }


def test_agents_that_come_to_a_crowd_without_agents_bring_their_types():
    parts = [(AgentSet.of([]), {"v": np.array([])}), (AgentSet.of([2, 3]), {"v": np.array([["a", "b"], ["c", "d"]])})]
    assert _gathered(AgentSet.of([2, 3]), parts)["v"].tolist() == [["a", "b"], ["c", "d"]]


@pytest.mark.parametrize("other", [np.array(["a", "b"]), np.zeros((2, 3)), np.array([0.5, 1.5])])
def test_crowds_whose_arrays_differ_so_that_values_would_be_lost_are_refused(other):
    with pytest.raises(ConfigError, match=r"group\.state\['v'\] differ: int64 of shape \('n',\), "):
        gathered({"v": np.array([1, 2**60 + 1])}, {"v": other})
