"""Workflows of agent-framework on our runner without Ray, beside their own runner."""

import asyncio
import math
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

pytest.importorskip("agent_framework", reason="agent-framework is not here: pip install --group agent-framework")
from agent_framework import (
    Content,
    Executor,
    Message,
    WorkflowBuilder,
    WorkflowCheckpointException,
    WorkflowContext,
    executor,
    handler,
)
from pydantic import BaseModel
from support.agent_workflows import ORCHESTRATIONS, SAMPLES, Mood, Part, own, shown

from ray_messaging.compat.agent_framework import RayWorkflowRunner, _Groups
from ray_messaging.compat.agent_framework_checkpoints import WorkflowCheckpoints
from ray_messaging.compat.agent_framework_executors import joined, of_json, to_json
from ray_messaging.compat.agent_framework_values import Values
from ray_messaging.errors import ConfigError, InvalidPayload


@pytest.mark.parametrize("sample", [*SAMPLES, *ORCHESTRATIONS])
async def test_events_outputs_and_checkpoints_are_those_of_its_own_runner(sample):
    if sample in ORCHESTRATIONS:
        reason = "agent-framework-orchestrations is not here: pip install --group agent-framework"
        pytest.importorskip("agent_framework_orchestrations", reason=reason)
    parts = (SAMPLES | ORCHESTRATIONS)[sample]
    expected = await shown(*parts, own)
    with RayWorkflowRunner() as runner:
        assert await shown(*parts, runner.run) == expected


class Odd:
    """A class that no handler names."""

    def __init__(self):
        self.here = {"n": [1, 2.5, None]}


class Sends(Executor):
    """It sends what it was made with."""

    def __init__(self, value, name="sends"):
        super().__init__(name)
        self.value = value

    @handler
    async def begin(self, _: str, ctx: WorkflowContext[Any, Any]) -> None:
        await ctx.send_message({"parts": [0, self.value]})

    @handler
    async def take(self, told: dict, ctx: WorkflowContext[Any, Any]) -> None:
        await ctx.yield_output(told["parts"][1])


def sending(value):
    one, other = Sends(value), Sends(None, "takes")
    return WorkflowBuilder(start_executor=one, name="sending").add_edge(one, other).build()


async def outputs(value, **options):
    with RayWorkflowRunner(**options) as runner:
        return (await runner.run(sending(value), "x")).get_outputs()


@pytest.mark.parametrize(
    "value",
    [
        {3: {"$": "no tag"}, (1, "a"): {frozenset([1])}},
        (1 << 80, -1.5, float("inf"), 2j, b"\x00\xff", Decimal("1.20"), UUID(int=7)),
        [datetime(2026, 1, 2, 3, 4, 5, 6, timezone(timedelta(hours=2))), date(2026, 1, 2), timedelta(-1, 2, 3)],
        [Mood.CROSS, Part(("a",), Mood.CALM, 7)],
        [int, list[int], dict[str, Part | None]],
        Message("user", ["hello", Content.from_function_call("1", "add", arguments={"a": 1})], author_name="ann"),
    ],
    ids=["keys", "numbers", "dates", "objects", "types", "messages"],
)
async def test_a_value_arrives_equal_and_of_its_type(value):
    (found,) = await outputs(value, types=[Mood, Part])
    told = [each.to_dict() if isinstance(each, Message) else each for each in (found, value)]
    assert told[0] == told[1]
    assert type(found) is type(value)
    assert found is not value


@pytest.mark.parametrize("value", [Odd(), print, [{"lock": asyncio.Event}], RayWorkflowRunner, bytearray(b"a")])
async def test_what_cannot_travel_is_refused_with_its_place(value):
    with pytest.raises(InvalidPayload, match=r"a message of executor 'sends'\['parts'\]\[1\].* is "):
        await outputs(value)


async def test_a_plain_class_travels_once_it_is_named():
    (found,) = await outputs(Odd(), types=[Odd])
    assert found.here == {"n": [1, 2.5, None]}


class Slotted:
    __slots__ = ("__hidden", "shown")

    def __init__(self):
        self.__hidden, self.shown = 1, 2

    def parts(self):
        return self.__hidden, self.shown


class Scores(BaseModel):
    best: float | None = 0.0
    total: int = 0
    of: dict[str, int] = {}


def between_processes(value):
    """Return a value as an executor in another process gets it."""
    values = Values([Slotted, Scores])
    return values.decode(of_json(to_json(values.encode(value, "it"))))


def test_slots_with_private_names_travel():
    assert between_processes(Slotted()).parts() == (1, 2)


def test_numbers_of_a_model_that_plain_json_lacks_travel():
    found = between_processes(Scores(best=float("nan"), total=1 << 80, of={"$": 7}))
    assert math.isnan(found.best)
    assert (found.total, found.of) == (1 << 80, {"$": 7})
    assert between_processes(Scores(best=float("-inf"))).best == float("-inf")


@pytest.mark.parametrize(
    "told",
    [
        {"$": "object", "t": "os:system", "v": {}},
        {"$": "object", "t": "builtins:eval", "v": {}},
        {"$": "object", "t": "agent_framework._agents:Agent", "v": {}},
        {"$": "type", "v": "subprocess:Popen"},
        {"$": "enum", "t": "support.agent_workflows:Part", "v": "CALM"},
        {"$": "enum", "t": "support.agent_workflows:Mood", "v": "ANGRY"},
        {"$": "pickle", "v": "gASVAAAA"},
        {"$": "bytes", "v": 7},
        {"$": "alias", "t": {"$": "type", "v": "builtins:print"}, "v": []},
        {"$": "set", "v": [{}]},
    ],
)
def test_json_of_another_process_makes_no_object_of_an_unknown_class(told):
    with pytest.raises(InvalidPayload):
        Values([Part, Mood]).decode([told])


async def test_a_checkpoint_in_a_file_is_resumed_by_another_runner_with_the_answer(tmp_path):
    make, message, _ = SAMPLES["asking"]
    values = Values()
    values.add_workflow(make())
    storage = WorkflowCheckpoints(tmp_path, values)
    with RayWorkflowRunner() as runner:
        await runner.run(make(), message, checkpoint_storage=storage)
    last = await storage.get_latest(workflow_name="asking")
    ids = await storage.list_checkpoint_ids(workflow_name="asking")
    assert ids[-1] == last.checkpoint_id
    assert b"pickle" not in b"".join(path.read_bytes() for path in tmp_path.iterdir())
    with RayWorkflowRunner() as runner:
        answers = {"ann-x>first1": "yes", "bob-x>first1": "no"}
        given = {"responses": answers, "checkpoint_id": last.checkpoint_id, "checkpoint_storage": storage}
        found = await runner.run(make(), **given)
        assert sorted(found.get_outputs()) == ["x>first1: no>last2", "x>first1: yes>last1"]
    assert await storage.delete(ids[0])
    assert not await storage.delete(ids[0])
    for name in (ids[0], "../other", ""):
        with pytest.raises(WorkflowCheckpointException, match="checkpoint"):
            await storage.load(name)
    with pytest.raises(ConfigError, match="log_dir"):
        _ = runner.checkpoints


class Fails(Executor):
    @handler
    async def fail(self, told: dict, ctx: WorkflowContext[Any, Any]) -> None:
        raise LookupError("no such word")


async def test_an_error_of_an_executor_is_raised_and_the_workflow_gets_its_own_runner_back():
    one, other = Sends(1), Fails("fails")
    workflow = WorkflowBuilder(start_executor=one).add_edge(one, other).build()
    before = workflow._runner
    with RayWorkflowRunner() as runner:
        seen = []

        async def listen():
            async for event in runner.run(workflow, "x", stream=True):
                seen.append(event.type)  # noqa: PERF401 - the error must not lose what came before

        with pytest.raises(LookupError, match="no such word"):
            await listen()
        assert seen[-3:] == ["executor_failed", "failed", "status"]
        assert runner.attach(workflow) is workflow
        with pytest.raises(ConfigError, match="already has a workflow"):
            runner.attach(sending(1))
    assert workflow._runner is before


async def test_executors_see_the_shared_state_as_it_was_committed_and_the_last_one_wins():
    @executor(id="begin")
    async def begin(text: str, ctx: WorkflowContext[str]) -> None:
        ctx.set_state("who", ["begin"])
        await ctx.send_message(text)

    def adds(name):
        @executor(id=name)
        async def add(_: str, ctx: WorkflowContext[str]) -> None:
            ctx.set_state("who", [*ctx.get_state("who"), name])
            await ctx.send_message(name)

        return add

    @executor(id="end")
    async def end(_: list[str], ctx: WorkflowContext[None, list]) -> None:
        await ctx.yield_output(ctx.get_state("who"))

    both = [adds("one"), adds("two")]
    built = WorkflowBuilder(start_executor=begin).add_fan_out_edges(begin, both).add_fan_in_edges(both, end)
    with RayWorkflowRunner() as runner:
        assert (await runner.run(built, "x")).get_outputs() == [["begin", "two"]]


def test_the_parts_of_a_delivery_are_joined_in_order_and_none_is_delivered_without_the_others():
    parts = [{"data": f"text {n}", "of": {"n": 4, "parts": 3, "part": n}} for n in range(3)]
    parts[0]["of"]["sources"] = ["ann", "bob", "cleo"]
    alone = {"data": "alone", "of": {"n": 3, "parts": 1, "sources": ["dan"]}}
    whole = {"data": ["text 0", "text 1", "text 2"], "of": parts[0]["of"]}
    assert joined([parts[2], alone, *parts[:2]]) == [alone, whole]
    for missing in parts:
        assert joined([alone, *(each for each in parts if each is not missing)]) == [alone]


def test_what_is_no_workflow_is_refused():
    with pytest.raises(ConfigError, match="is no workflow"):
        RayWorkflowRunner().attach(7)
    with pytest.raises(ConfigError, match="which is not a Workflow"):
        RayWorkflowRunner().attach(lambda: 7)


async def test_an_error_of_a_streamed_event_is_raised():
    groups = object.__new__(_Groups)
    groups._run = SimpleNamespace(_actors={"group0": None})

    async def fails(*_):
        raise ValueError("no such event")

    groups._pass_on = fails
    with pytest.raises(ValueError, match="no such event"):
        await groups._passing_on(fails, [], asyncio.sleep(0))
