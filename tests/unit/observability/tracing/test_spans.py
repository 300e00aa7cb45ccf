"""Spans of messages in one process: their parents and attributes."""

import asyncio
import contextlib

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from support.step_society import open_step

from ray_messaging import Calls, Messager, Tracing, report_usage, rules
from ray_messaging.cluster.run.agent import AgentLoop
from ray_messaging.errors import ConfigError, MailboxFull, StepFailed
from ray_messaging.interception.interceptor.interceptor import Interceptor
from ray_messaging.observability.tracing.settings import tracer_of
from ray_messaging.steps.call_memory import CallMemory


class Spans:
    """The spans that have ended."""

    def __init__(self, provider, exporter):
        self.tracer = provider.get_tracer("the program")
        self._exporter = exporter

    def all(self):
        return list(self._exporter.get_finished_spans())

    def of(self, name):
        return [span for span in self.all() if span.name == name]

    def one(self, name):
        [found] = self.of(name)
        return found

    def parent(self, span):
        """Return the span that is the parent of another one; None: it has none, or it has not ended."""
        parent = None if span.parent is None else span.parent.span_id
        return next((each for each in self.all() if each.context.span_id == parent), None)


@pytest.fixture
def spans(monkeypatch):
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    return Spans(provider, exporter)


@contextlib.asynccontextmanager
async def traced(local, sample, interceptor=None):
    """Open a messager that hosts agents 1 and 2, and traces a share of its batches."""
    async with Messager(local, "e", interceptor, name="west", tracing=Tracing(sample=sample)) as messager:
        await messager.host_agents([1, 2], ["agent-chat"])
        yield messager


@pytest.fixture
async def west(local):
    async with traced(local, 1.0) as messager:
        yield messager


async def test_a_message_has_a_span_for_each_stage(spans, west):
    await west.send_columns([1, 1], [2, 2], [{"n": 1}] * 2)
    assert len(await west.fetch_messages(timeout=30)) == 2
    assert spans.of("handle") == []
    await west.fetch_messages()
    accept, judge, write, fetch, handle = map(spans.one, ("accept", "judge", "write", "fetch", "handle"))
    assert accept.parent is None
    assert [*map(spans.parent, (judge, write, fetch, handle))] == [accept, accept, write, fetch]
    assert {span.context.trace_id for span in spans.all()} == {accept.context.trace_id}
    assert {span.attributes["messaging.batch.message_count"] for span in spans.all()} == {2}
    assert {span.attributes["messaging.client.id"] for span in spans.all()} == {"west"}
    assert write.attributes["ray_messaging.delivered"] == 2
    assert accept.end_time <= judge.start_time <= judge.end_time <= write.start_time
    assert fetch.end_time <= handle.start_time <= handle.end_time


async def test_no_frame_carries_a_trace_without_a_sample(spans, local):
    async with traced(local, 0) as west:
        for n in range(20):
            await west.send(1, 2, {"n": n})
        [first, *_] = await west.fetch_messages(timeout=30, limit=1)
        assert first._batch.trace is None
    assert spans.all() == []


async def test_the_callers_span_is_the_parent_whatever_the_sample(spans, local):
    async with traced(local, 0) as west:
        with spans.tracer.start_as_current_span("my work"):
            await west.send(1, 2, {})
            await west.send_columns([1], [2], [{}])
        await west.send(1, 2, {})
    assert {spans.parent(accept).name for accept in spans.of("accept")} == {"my work"}
    assert len(spans.of("accept")) == 2


async def test_a_span_that_has_ended_is_no_parent(spans, local):
    async with traced(local, 0) as west:
        begin = asyncio.Event()

        async def work():
            await begin.wait()
            await west.send(1, 2, {})

        with spans.tracer.start_as_current_span("a constructor"):
            task = asyncio.create_task(work())
        begin.set()
        await task
    assert spans.of("accept") == []


async def test_a_fetch_within_a_span_is_linked_to_it(spans, west):
    await west.send(1, 2, {})
    with spans.tracer.start_as_current_span("my task") as task:
        await west.fetch_messages(timeout=30)
    assert [link.context.span_id for link in spans.one("fetch").links] == [task.get_span_context().span_id]


async def test_what_a_handler_sends_belongs_to_the_trace_of_its_message(spans, west):
    handled = asyncio.Event()

    async def handler(message):
        if message.to_id == 2:
            await west.send(2, 1, {"heard": message.payload})
        else:
            handled.set()

    serving = asyncio.create_task(west.serve(handler))
    await west.send(1, 2, {"say": "hi"})
    async with asyncio.timeout(30):
        await handled.wait()
    serving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await serving
    assert {span.context.trace_id for span in spans.all()} == {spans.of("accept")[0].context.trace_id}
    first, second = spans.of("accept")
    assert spans.parent(first) is None
    assert spans.parent(second).name == "handle"
    assert spans.parent(second).attributes["messaging.batch.message_count"] == 1


async def test_the_span_of_a_handler_has_the_error_of_a_lost_reply(spans, west, monkeypatch):
    async def reply(*_):
        raise MailboxFull("no room", mailbox="west")

    async def handler(message):
        return {}

    monkeypatch.setattr(west, "reply", reply)
    await west.send(1, 2, {})
    with pytest.raises(MailboxFull):
        await asyncio.wait_for(west.serve(handler), 30)
    [event] = spans.one("handle").events
    assert event.attributes["exception.type"] == "ray_messaging.errors.MailboxFull"


async def test_blocked_messages_are_counted_in_the_spans(spans, local):
    blocking = Interceptor("e", [rules.BlackList([(1, 2)])])
    async with traced(local, 1.0, blocking) as west:
        await west.send_columns([1, 2, 1], [2, 1, 2], [{}] * 3)
    assert spans.one("judge").attributes["ray_messaging.blocked"] == 2
    assert spans.one("write").attributes["ray_messaging.blocked"] == 2
    assert spans.one("write").attributes["ray_messaging.delivered"] == 1


async def test_the_messages_of_a_transaction_are_traced(spans, west):
    async with west.transaction() as tx:
        tx.send_message(west.get_agent_chat_channel(2), {}, 1)
    await west.fetch_messages(timeout=30)
    assert spans.parent(spans.one("fetch")) == spans.one("write")


async def test_acknowledged_messages_are_handled(spans, west):
    await west.send_columns([1, 1], [2, 2], [{}] * 2)
    messages = await west.fetch_messages(timeout=30, commit="acked")
    assert spans.of("handle") == []
    await west.ack(messages)
    assert spans.parent(spans.one("handle")) == spans.one("fetch")


@pytest.mark.parametrize("sample", [-0.1, 1.1, float("nan"), "often"])
def test_an_impossible_sample_is_refused(sample):
    with pytest.raises(ConfigError, match="must be a share from 0 to 1"):
        Tracing(sample=sample)


def test_something_else_in_its_place_is_refused(local):
    with pytest.raises(ConfigError, match="is not a Tracing object: write tracing=Tracing"):
        Messager(local, "e", tracing=0.5)


class Kept:
    """A server that keeps the results of calls at once."""

    async def remember(self, *_kept):
        return True


async def play(tracing, person, calls):
    """Run a step of a model, as the actor of a group does."""
    tracer = tracer_of(tracing, "e", "west")
    society = AgentLoop("west", person)
    society.tracer, society.call_settings = tracer, calls
    memory = CallMemory(Kept(), "west", 0, 3, limit=1000, again=False)
    with contextlib.suppress(StepFailed), tracer.step(3):
        await society.run(open_step(), memory)


async def test_calls_of_a_model_have_spans_below_their_steps_by_the_conventions_for_generative_ai(spans):
    tried = []

    async def ask(prompt):
        tried.append(prompt)
        with spans.tracer.start_as_current_span("of the client"):
            report_usage(model="small", input_tokens=20, cached_tokens=5, output_tokens=3)
        if len(tried) == 1:
            raise TimeoutError(prompt)
        return prompt

    def plain(prompt):
        return trace.get_current_span().is_recording()

    async def person(me, inbox):
        if me.id == 0:
            await me.remember(ask, "Who are you?")
            assert await me.remember(plain, "Is it sunny?")

    await play(Tracing(1.0), person, Calls(retries=1))
    step, late = spans.one("step"), spans.one(f"remember {plain.__qualname__}")
    first, second = sorted(spans.of("chat small"), key=lambda span: span.start_time)
    assert (step.parent, step.attributes["ray_messaging.step"]) == (None, 3)
    assert [*map(spans.parent, (first, second, late))] == [step] * 3
    assert [*map(spans.parent, spans.of("of the client"))] == [first, second]
    assert second.kind == trace.SpanKind.CLIENT
    assert dict(second.attributes) == {
        "ray_messaging.function": ask.__qualname__,
        "gen_ai.agent.id": "0",
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": "small",
        "gen_ai.usage.input_tokens": 20,
        "gen_ai.usage.output_tokens": 3,
        "gen_ai.usage.cache_read.input_tokens": 5,
    }
    assert (first.attributes["error.type"], first.status.is_ok) == ("TimeoutError", False)


async def test_calls_of_a_step_that_is_not_sampled_have_no_spans(spans):
    async def person(me, inbox):
        await me.remember(str, me.id)

    await play(Tracing(0.0), person, Calls())
    await play(None, person, Calls())
    assert spans.all() == []
