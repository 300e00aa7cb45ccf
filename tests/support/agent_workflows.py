"""Workflows of agent-framework, each with its message and the answers to its requests; and what a run of one shows."""

import re
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise

from agent_framework import (
    AgentResponse,
    AgentResponseUpdate,
    BaseAgent,
    Case,
    Content,
    Default,
    Executor,
    InMemoryCheckpointStorage,
    Message,
    WorkflowBuilder,
    WorkflowContext,
    WorkflowEvent,
    WorkflowExecutor,
    handler,
    response_handler,
)

from ray_messaging.compat.agent_framework_executors import event_told, message_told
from ray_messaging.compat.agent_framework_values import Values


class Mood(Enum):
    CALM = 1
    CROSS = 2


@dataclass
class Part:
    """A message of several types."""

    words: tuple[str, ...]
    mood: Mood = Mood.CALM
    n: int = 0


class Step(Executor):
    """It adds its id to a text, counts its messages, and sends the text on, or yields it."""

    def __init__(self, name, *, last=False):
        super().__init__(name)
        self.last, self.heard = last, 0

    @handler
    async def hear(self, text: str, ctx: WorkflowContext[str, str]) -> None:
        self.heard += 1
        text = f"{text}>{self.id}{self.heard}"
        await (ctx.yield_output if self.last else ctx.send_message)(text)

    async def on_checkpoint_save(self):
        return {"heard": self.heard}

    async def on_checkpoint_restore(self, state):
        self.heard = state["heard"]


class Join(Step):
    """It joins texts."""

    @handler
    async def join(self, texts: list[str], ctx: WorkflowContext[str, str]) -> None:
        self.heard += len(texts)
        await (ctx.yield_output if self.last else ctx.send_message)(f"{self.id}({' + '.join(texts)})")


class Split(Executor):
    """It sends each word as a Part of a mood."""

    @handler
    async def split(self, text: str, ctx: WorkflowContext[Part]) -> None:
        for n, word in enumerate(text.split()):
            await ctx.send_message(Part((word, word.upper()), Mood.CROSS if "!" in word else Mood.CALM, n))


class Take(Executor):
    """It takes Parts, and keeps them in the shared state."""

    @handler
    async def take(self, part: Part, ctx: WorkflowContext[Part, str]) -> None:
        ctx.set_state(self.id, [*ctx.get_state(self.id, []), part])
        await ctx.add_event(WorkflowEvent("data", executor_id=self.id, data={"n": part.n, "of": part}))
        await ctx.yield_output(f"{self.id} takes {part.words[1]}")
        await ctx.send_message(part)


class Tell(Executor):
    """It tells what the shared state has."""

    @handler
    async def tell(self, part: Part, ctx: WorkflowContext[None, dict]) -> None:
        known = {key: [each.n for each in ctx.get_state(key, [])] for key in ("calm", "cross")}
        await ctx.yield_output({"part": part.n, "known": known})


class Count(Executor):
    """It counts down, by messages to itself and its partner."""

    @handler
    async def count(self, n: int, ctx: WorkflowContext[int, int]) -> None:
        await (ctx.send_message(n - 1) if n else ctx.yield_output(n))


class Ask(Executor):
    """It asks the outside what to do."""

    def __init__(self, name):
        super().__init__(name)
        self.asked = []

    @handler
    async def ask(self, text: str, ctx: WorkflowContext[str, str]) -> None:
        self.asked.append(text)
        await ctx.request_info(Part((text,)), str, request_id=f"{self.id}-{text}")

    @response_handler
    async def answered(self, request: Part, answer: str, ctx: WorkflowContext[str, str]) -> None:
        if answer == "again":
            await ctx.request_info(Part((*request.words, "again")), str, request_id=f"{self.id}-again")
        else:
            await ctx.send_message(f"{'/'.join(request.words)}: {answer}")

    async def on_checkpoint_save(self):
        return {"asked": self.asked}

    async def on_checkpoint_restore(self, state):
        self.asked = list(state["asked"])


class Sayer(BaseAgent):
    """An agent that says how many messages it has heard."""

    def __init__(self, name):
        super().__init__(id=name, name=name, description=f"{name} says something.")

    def run(self, messages=None, *, stream=False, session=None, **_):
        text = f"{self.name} heard {len(messages)}: {messages[-1].text}"
        return self._streamed(text) if stream else self._said(text)

    async def _said(self, text):
        return AgentResponse(messages=[Message("assistant", [text], author_name=self.name, message_id=self.name)])

    async def _streamed(self, text):
        for part in text.split():
            contents = [Content.from_text(text=f"{part} ")]
            yield AgentResponseUpdate(contents=contents, role="assistant", author_name=self.name, message_id=self.name)


def chain(n=5):
    steps = [Step(f"step{k}", last=k == n - 1) for k in range(n)]
    built = WorkflowBuilder(start_executor=steps[0], name="chain")
    for one, next_one in pairwise(steps):
        built.add_edge(one, next_one)
    return built.build()


def fan(n=4):
    first, many, last = Step("first"), [Step(f"part{k}") for k in range(n)], Join("last", last=True)
    built = WorkflowBuilder(start_executor=first, name="fan")
    return built.add_fan_out_edges(first, many).add_fan_in_edges(many, last).build()


def uneven():
    """Of two ways to a fan-in one is longer, so that it waits for a superstep."""
    first, near, far, beyond = Step("first"), Step("near"), Step("far"), Step("beyond")
    built = WorkflowBuilder(start_executor=first, name="uneven").add_fan_out_edges(first, [near, far])
    built.add_edge(far, beyond).add_fan_in_edges([near, beyond], Join("last", last=True))
    return built.build()


def switch():
    split, calm, cross = Split("split"), Take("calm"), Take("cross")
    built = WorkflowBuilder(start_executor=split, name="switch")
    built.add_switch_case_edge_group(
        split, [Case(condition=lambda part: part.mood is Mood.CROSS, target=cross), Default(target=calm)]
    )
    tell = Tell("tell")
    return built.add_edge(calm, tell).add_edge(cross, tell).build()


def chosen():
    split, calm, cross = Split("split"), Take("calm"), Take("cross")
    built = WorkflowBuilder(start_executor=split, name="chosen", output_from=[calm], intermediate_output_from=[cross])

    def which(part, targets):
        return targets if part.n == 0 else [targets[part.n % 2]]

    return built.add_multi_selection_edge_group(split, [calm, cross], which).build()


def conditions():
    one, many, few = Step("one"), Step("many", last=True), Step("few", last=True)
    built = WorkflowBuilder(start_executor=one, name="conditions")
    built.add_edge(one, many, condition=lambda text: len(text) > 8)
    return built.add_edge(one, few, condition=lambda text: len(text) <= 8).build()


def loop():
    one, other = Count("one"), Count("other")
    return WorkflowBuilder(start_executor=one, name="loop").add_edge(one, other).add_edge(other, one).build()


def asking():
    first, asks, last = Step("first"), [Ask("ann"), Ask("bob")], Step("last", last=True)
    built = WorkflowBuilder(start_executor=first, name="asking").add_fan_out_edges(first, asks)
    for each in asks:
        built.add_edge(each, last)
    return built.build()


def nested():
    inner = WorkflowExecutor(chain(3), id="inner")
    first, last = Step("first"), Step("last", last=True)
    built = WorkflowBuilder(start_executor=first, name="nested")
    return built.add_edge(first, inner).add_edge(inner, last).build()


def sequential():
    from agent_framework_orchestrations import SequentialBuilder

    return SequentialBuilder(participants=[Sayer("ann"), Sayer("bob")]).build()


def concurrent():
    from agent_framework_orchestrations import ConcurrentBuilder

    return ConcurrentBuilder(participants=[Sayer("ann"), Sayer("bob"), Sayer("cleo")]).build()


def group_chat():
    from agent_framework_orchestrations import GroupChatBuilder

    def next_one(state):
        return ["ann", "bob"][state.current_round % 2]

    people = [Sayer("ann"), Sayer("bob")]
    return GroupChatBuilder(participants=people, selection_func=next_one, max_rounds=3).build()


def magentic():
    from agent_framework_orchestrations import (
        MagenticBuilder,
        MagenticManagerBase,
        MagenticProgressLedger,
        MagenticProgressLedgerItem,
    )

    class Manager(MagenticManagerBase):
        """It lets each of two people speak once."""

        name = "manager"

        async def plan(self, magentic_context):
            return Message("assistant", [f"a plan for {magentic_context.task}"], author_name="manager")

        replan = plan

        async def create_progress_ledger(self, magentic_context):
            said = len(magentic_context.chat_history) - 1
            ledger = {
                "is_request_satisfied": said >= 2,
                "is_in_loop": False,
                "is_progress_being_made": True,
                "next_speaker": ["ann", "bob"][said % 2],
                "instruction_or_question": f"speak, as number {said}",
            }
            return MagenticProgressLedger(
                **{key: MagenticProgressLedgerItem(reason="so", answer=each) for key, each in ledger.items()}
            )

        async def prepare_final_answer(self, magentic_context):
            return Message("assistant", [f"{len(magentic_context.chat_history)} messages"], author_name="manager")

    return MagenticBuilder(participants=[Sayer("ann"), Sayer("bob")], manager=Manager()).build()


def handoff():
    from agent_framework import Agent, BaseChatClient, ChatResponse, FunctionInvocationLayer
    from agent_framework._middleware import ChatMiddlewareLayer
    from agent_framework_orchestrations import HandoffBuilder

    class Client(FunctionInvocationLayer, ChatMiddlewareLayer, BaseChatClient):
        """It says something, and hands off if it is told to whom."""

        def __init__(self, to=None):
            ChatMiddlewareLayer.__init__(self)
            FunctionInvocationLayer.__init__(self)
            BaseChatClient.__init__(self)
            self.to = to

        def _inner_get_response(self, *, messages, stream, options, **_):
            async def said():
                contents = [Content.from_text(text=f"one of {len(messages)}")]
                if self.to:
                    told = {"handoff_to": self.to}
                    contents.append(Content.from_function_call("call", f"handoff_to_{self.to}", arguments=told))
                return ChatResponse(messages=Message("assistant", contents), response_id="response")

            return said()

    def agent(name, to=None):
        return Agent(
            Client(to), id=name, name=name, description=name, require_per_service_call_history_persistence=True
        )

    people = [agent("ann", "bob"), agent("bob", "cleo"), agent("cleo")]
    builder = HandoffBuilder(
        participants=people, termination_condition=lambda found: sum(each.role == "user" for each in found) > 1
    )
    return builder.with_start_agent(people[0]).build()


# The workflows of agent-framework-core alone: how each is made, its message, and each executor's answers in order.
SAMPLES = {
    "chain": (chain, "x", {}),
    "fan": (fan, "x", {}),
    "uneven": (uneven, "x", {}),
    "switch": (switch, "a b! c! d", {}),
    "chosen": (chosen, "a b c! d", {}),
    "conditions": (conditions, "a long text", {}),
    "loop": (loop, 7, {}),
    "asking": (asking, "x", {"ann": ["yes"], "bob": ["again", "no"]}),
    "nested": (nested, "x", {}),
}
ORCHESTRATIONS = {
    "sequential": (sequential, "hello", {}),
    "concurrent": (concurrent, "hello", {}),
    "group_chat": (group_chat, "hello", {}),
    "magentic": (magentic, "hello", {}),
    "handoff": (handoff, "hello", {"cleo": [[Message("user", ["thank you"])]]}),
}
_RANDOM = re.compile(
    r"af-call-[0-9a-f]{32}|[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|\d{4}-\d\d-\d\dT[0-9:.+]*Z?"
)


async def shown(make, message, answers, run, **options):
    """Run a workflow with its answers; return its events, outputs, states and checkpoints, as they compare equal.

    Args: `run` is given the workflow, and the arguments of its `run`.
    """
    workflow, storage = make(), InMemoryCheckpointStorage()
    values = Values()
    values.add_workflow(workflow)
    events, states, left = [], [], {executor: [*each] for executor, each in answers.items()}
    given = {"message": message}
    while given:
        found = await run(workflow, checkpoint_storage=storage, **given, **options)
        events += found
        states.append(found.get_final_state().value)
        asked = {each.request_id: left.get(each.source_executor_id) for each in found.get_request_info_events()}
        responses = {request: answer.pop(0) for request, answer in asked.items() if answer}
        given = {"responses": responses} if responses else {}
    checkpoints = await storage.list_checkpoints(workflow_name=workflow.name)
    places = {each.checkpoint_id: n for n, each in enumerate(checkpoints)}
    told = [checkpoint_told(values, each, places) for each in checkpoints]
    return unnamed([[event_told(values, each) for each in events], states, told])


def checkpoint_told(values, checkpoint, places):
    """Return what a checkpoint holds, as JSON."""
    messages = {
        source: [message_told(values, each, "a message") for each in found]
        for source, found in checkpoint.messages.items()
    }
    pending = {key: event_told(values, each) for key, each in checkpoint.pending_request_info_events.items()}
    before = places.get(checkpoint.previous_checkpoint_id)
    state = values.encode(checkpoint.state, "the state")
    return [checkpoint.iteration_count, before, messages, pending, state, checkpoint.graph_signature_hash]


def unnamed(told):
    """Return JSON without random ids and times."""
    if isinstance(told, dict):
        return {unnamed(key): unnamed(each) for key, each in told.items()}
    if isinstance(told, list):
        return [unnamed(each) for each in told]
    return _RANDOM.sub("#", told) if isinstance(told, str) else told


async def own(workflow, **given):
    """Run a workflow by its own runner."""
    return await workflow.run(**given)
