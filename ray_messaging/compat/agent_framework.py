"""Workflows of Microsoft's agent-framework on groups: `RayWorkflowRunner(messaging).run(workflow, message)`.

This module needs agent-framework-core 1.23 (extra `[agent-framework]`). The framework's own runner decides who gets
which message, and makes events and checkpoints. Each of its supersteps is a step of the experiment: the messages pass
the experiment's rules, are in its log, and their executors run in its groups.
"""

import asyncio
import copy
import threading
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from ray.exceptions import RayError

from ray_messaging.cluster.messaging import Messaging
from ray_messaging.cluster.unpicklable import unpicklable
from ray_messaging.common.task_health import logs_failure
from ray_messaging.compat.versions import needs, warn_unless_tested
from ray_messaging.errors import Closed, ConfigError, MessagingError, TransitError
from ray_messaging.model.fates import STORED
from ray_messaging.outgoing import Outgoing
from ray_messaging.receipt import Receipts

with needs("agent-framework", "'ray-messaging[agent-framework]'"):
    from agent_framework import Workflow, WorkflowEvent
    from agent_framework._workflows._const import EDGE_STATE_KEY, EXECUTOR_STATE_KEY, INTERNAL_SOURCE_PREFIX
    from agent_framework._workflows._runner import RunnerImpl
    from agent_framework._workflows._runner_context import WorkflowMessage

    from ray_messaging.compat.agent_framework_checkpoints import WorkflowCheckpoints
    from ray_messaging.compat.agent_framework_executors import (
        DELETE,
        ERROR,
        EVENT,
        MESSAGE,
        REQUEST,
        SET,
        Act,
        Delivery,
        PassingContext,
        RecordedState,
        Shared,
        Source,
        ToldEvent,
        event_of,
        message_of,
        message_told,
        of_json,
        run_executor,
    )
    from ray_messaging.compat.agent_framework_values import UNCHANGED, Values, error_of
warn_unless_tested("agent-framework-core", "1.23", "runner")

if TYPE_CHECKING:
    from agent_framework import ResponseStream, WorkflowRunResult

    from ray_messaging.cluster.run.run import Run

T = TypeVar("T")
_BEGINS_S: Final = 0.05  # the pause before a group's process that has died, or has not loaded the run, is asked again
# Keys of the shared state that belong to the framework. Executors in other processes do not get these values.
_OWN_KEYS = (EXECUTOR_STATE_KEY, EDGE_STATE_KEY)


class RayWorkflowRunner(AbstractContextManager["RayWorkflowRunner"]):
    """A runner for a workflow of agent-framework. It runs the workflow's executors in the groups of an experiment.

    Close the runner, or use it as a context manager. Until it is closed, the workflow's own `run` also runs in the
    groups. `workflow` is the workflow of this process, or None before the first run.

    Args:
        messaging: An experiment with `steps=Steps()`. Without an experiment, the executors run in this process, and
            their messages are converted as if they were sent to another process.
        groups: The number of groups, or {name: ids of executors}, as for `Messaging.run`.
        types: Further types of values that executors send, yield or keep. Types in the annotations of handlers are
            known without this.
        timeout: Seconds for one executor in one superstep. None: no limit.
    """

    def __init__(
        self,
        messaging: Messaging | None = None,
        *,
        groups: int | Mapping[str, Sequence[str]] = 4,
        types: Iterable[type] = (),
        timeout: float | None = None,
    ) -> None:
        self._messaging = messaging
        self._groups = groups
        self._types = tuple(types)
        self._values = Values(self._types)
        self._timeout = timeout
        self._given: Any = None  # the workflow, builder or factory of the first run
        self._before: Any = None  # the runner that the workflow had before `attach`; `close` gives it back
        self.workflow: Workflow | None = None

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(
        self, workflow: "Workflow | Callable[[], Workflow] | Any", message: Any = None, **of_framework: Any
    ) -> "Awaitable[WorkflowRunResult] | ResponseStream[WorkflowEvent[Any], WorkflowRunResult]":
        """Run a workflow; return the same as `Workflow.run`.

        Args:
            workflow: The workflow. If it cannot be pickled, pass its WorkflowBuilder, or a function that builds it.
                Each process then builds a workflow of its own.
            message: The message for the start executor.
            of_framework: The other arguments of `Workflow.run`, such as `stream`, `responses`, `checkpoint_id` and
                `checkpoint_storage`.

        Raises: InvalidPayload for a value that cannot be sent as JSON, with the name of the value; ConfigError for a
        workflow that cannot be pickled, for a second workflow, and for an experiment without steps; and the errors of
        `Workflow.run`.
        """
        attached: Any = self.attach(workflow)
        running: Awaitable[WorkflowRunResult] = attached.run(message, **of_framework)
        return running

    def attach(self, workflow: "Workflow | Callable[[], Workflow] | Any") -> "Workflow":
        """Let a workflow run in the groups from now on, such as for `workflow.as_agent()`; return the workflow.

        Args: `workflow` is a workflow, its WorkflowBuilder, or a function that builds it, as for `run`.
        Raises: the same errors as `run`, such as ConfigError for a workflow that cannot be pickled.
        """
        if self.workflow is not None and workflow in (self._given, self.workflow):
            return self.workflow
        if self._given is not None:
            raise ConfigError(
                "this runner already has a workflow: make another RayWorkflowRunner for another workflow. If its "
                "executors run in groups, start another experiment for it, because an experiment has one workflow"
            )
        make = _maker(workflow)
        found = workflow if isinstance(workflow, Workflow) else make()
        if not isinstance(found, Workflow):
            raise ConfigError(
                f"{workflow!r} builds {found!r}, which is not a Workflow of executors: build one with WorkflowBuilder. "
                "A functional workflow cannot be divided among groups, because it is one function"
            )
        values = self._values
        values.add_workflow(found)
        carrier: _Carrier
        if self._messaging is None:
            carrier = _Here(found, values)
        else:
            source = Source(make, self._types, found.graph_signature_hash)
            carrier = _Groups(self._messaging, self._groups, [*found.executors], source, self._timeout)
            vars(found)["cancel_pending_requests"] = _refused
        self._before, found._runner = found._runner, SuperstepRunner(found, carrier, values)
        self._given, self.workflow, self._carrier = workflow, found, carrier
        return found

    @property
    def checkpoints(self) -> WorkflowCheckpoints:
        """Return a CheckpointStorage for `checkpoint_storage=`. It keeps checkpoints as files beside the event log.

        If a runner dies, another runner of the experiment can use these checkpoints. Give that runner a workflow with
        the same types first.

        Raises: ConfigError if the runner has no experiment, or if the experiment's log_dir is None or a URI.
        """
        folder = None if self._messaging is None else self._messaging.log_dir
        if folder is None or "://" in folder:
            raise ConfigError(
                "checkpoints are files beside the event log, and this runner has no experiment with an event log in a "
                "folder: pass log_dir=<folder> to Messaging.start, or another storage of agent-framework as "
                "checkpoint_storage="
            )
        return WorkflowCheckpoints(Path(f"{folder}-workflow"), self._values)

    def close(self) -> None:
        """Leave the groups, and give the workflow its own runner back."""
        if self.workflow is not None and isinstance(self.workflow._runner, SuperstepRunner):
            self.workflow._runner = self._before
            vars(self.workflow).pop("cancel_pending_requests", None)
            self._carrier.close()


async def _refused(*_: object, **__: object) -> None:
    raise ConfigError(
        "requests cannot be cancelled while executors run in groups, because the executor that asked is in another "
        "process: answer the request with a value that its handler understands as a refusal"
    )


def _maker(workflow: Any) -> Callable[[], Any]:
    if isinstance(workflow, Workflow):
        return partial(_same, workflow)
    make = getattr(workflow, "build", workflow)
    if not callable(make):
        raise ConfigError(
            f"{workflow!r} is no workflow: pass a Workflow, a WorkflowBuilder, or a function that builds one"
        )
    found: Callable[[], Any] = make
    return found


def _same(workflow: Any) -> Any:
    """Return a deep copy of a workflow.

    Executors made from the copy begin in the present states of the workflow's executors.
    """
    return copy.deepcopy(workflow)


class StandInExecutor:
    """An object that the framework's edges use in place of an executor of another process.

    The edges ask the stand-in whether the executor can handle a message, and then give the message to the stand-in.
    """

    def __init__(self, executor: Any, deliver: Callable[[Delivery], Awaitable[None]]) -> None:
        self.can_handle = executor.can_handle
        self._name = executor.id
        self._deliver = deliver

    async def execute(
        self,
        message: WorkflowMessage,
        sources: list[str],
        _state: object,
        _context: object,
        trace_contexts: Any = None,
        source_span_ids: Any = None,
    ) -> None:
        """Deliver a message. The framework calls this in place of `Executor.execute`."""
        await self._deliver(Delivery(self._name, message, sources, trace_contexts, source_span_ids))


class Blocked(NamedTuple):
    """A delivery that a rule has blocked."""

    reason: str


class _Carrier:
    """Base class of objects that pass a superstep's deliveries to executors, and return what the executors did."""

    async def deliver(self, delivery: Delivery) -> None:
        """Add a delivery to the superstep."""
        raise NotImplementedError

    async def superstep(
        self, state: "SharedState", tell: Callable[[ToldEvent], Awaitable[None]] | None
    ) -> Sequence[tuple[Delivery, Sequence[Act] | Blocked]]:
        """Return the deliveries of the superstep, each with what its executor did, or with the rule that blocked it.

        Args: `tell` is called with the events of each executor as they happen, up to the executor's first request for
        information (None: the workflow was started without stream=True). The events are also in the result.
        """
        raise NotImplementedError

    def reset(self) -> None:
        """Forget the deliveries of a superstep that was given up."""

    def check(self, context: Any) -> None:
        """Raise ConfigError if the run was given something that executors in other processes would not get."""

    def begin(self, snapshots: Mapping[str, Any] | None) -> None:
        """Make the executors again, with the states that a checkpoint has for them.

        If `snapshots` is None, there is no checkpoint, and the executors begin in their first states.
        """

    def snapshots(self) -> Mapping[str, Any] | None:
        """Return the states of the executors that have run, as JSON, by executor id.

        Return None if the executors are in this process.
        """

    def close(self) -> None:
        """Leave the groups."""


class SuperstepRunner(RunnerImpl):
    """The framework's runner, which does not run the executors itself, but gives their messages to a _Carrier."""

    def __init__(self, workflow: Any, carrier: _Carrier, values: Values) -> None:
        before = workflow._runner
        stand_ins: Any = {name: StandInExecutor(each, carrier.deliver) for name, each in workflow.executors.items()}
        super().__init__(
            workflow.edge_groups,
            stand_ins,
            before.state,
            before.context,
            workflow.name,
            workflow.graph_signature_hash,
            workflow.max_iterations,
        )
        for mine, its in zip(self._edge_runners, before._edge_runners, strict=True):
            mine.restore_state(its.snapshot_state())
        self._executors = workflow.executors
        self._iteration, self._previous_checkpoint_id = before._iteration, before._previous_checkpoint_id
        self._carrier, self._values = carrier, values
        self._shared = SharedState(values)

    async def _run_iteration(self) -> None:
        self._carrier.reset()
        self._carrier.check(self._ctx)
        await super()._run_iteration()  # the framework's edges bring the messages to each StandInExecutor
        self._shared.look(self._state)
        passed = Counter[str]()  # by executor, the number of its events that were passed on during the superstep

        async def tell(told: ToldEvent) -> None:
            # A process that was restarted reports events again. Events that were passed on before are skipped.
            if told.place == passed[told.executor]:
                event = event_of(self._values, told.event)
                passed[told.executor] += 1
                await self._ctx.add_event(event)

        found = await self._carrier.superstep(self._shared, tell if self._ctx.is_streaming() else None)
        for delivery, acts in found:
            if isinstance(acts, Blocked):
                told = f"a message from {delivery.sources} to executor {delivery.target!r} was blocked: {acts.reason}"
                await self._ctx.add_event(WorkflowEvent.warning(told))
                continue
            for what, told in acts:
                if what == EVENT and passed[delivery.target]:
                    passed[delivery.target] -= 1
                else:
                    await self._do(what, told)

    async def _do(self, what: str, told: Any) -> None:
        if what == EVENT:
            await self._ctx.add_event(event_of(self._values, told))
        elif what == MESSAGE:
            await self._ctx.send_message(message_of(self._values, told))
        elif what == REQUEST:
            await self._ctx.add_request_info_event(event_of(self._values, told))
        elif what == SET:
            key, value = told
            self._state._pending[key] = self._values.decode(value)
        elif what == DELETE:
            if self._state.has(told):
                self._state.delete(told)
        elif what == ERROR:
            raise error_of(told["type"], told["text"])

    async def _save_executor_states(self) -> None:
        snapshots = self._carrier.snapshots()
        if snapshots is None:
            return await super()._save_executor_states()
        states = {}
        for name, executor in self._executors.items():
            if name in snapshots:
                states[name] = self._values.decode(snapshots[name])
            else:  # the executor has not run yet
                states[name] = await executor.on_checkpoint_save()
        self._state.set(EXECUTOR_STATE_KEY, states)
        return None

    async def _restore_executor_states(self) -> None:
        await super()._restore_executor_states()
        states = self._state.get(EXECUTOR_STATE_KEY, {})
        places = {name: f"the checkpoint of executor {name!r}" for name in states}
        self._carrier.begin({name: self._values.encode(each, places[name]) for name, each in states.items()})
        self._shared.begin()


class SharedState:
    """The workflow's shared state as JSON, and the number of the version that each executor got last."""

    def __init__(self, values: Values) -> None:
        self.values = values
        self._version = 0
        self._parts: dict[str, tuple[int, Any, Any]] = {}  # by key: the version, the value, its JSON
        self._gone: dict[str, int] = {}
        self._seen: dict[str, int] = {}  # by executor: the version of the state that the executor got last

    def begin(self) -> None:
        """Forget the values of the shared state, and which version each executor has, because a run begins."""
        self._parts, self._gone, self._seen = {}, {}, {}

    def look(self, state: Any) -> None:
        """Read the changes that the framework has committed to the shared state."""
        committed, self._version = state._committed, self._version + 1
        for key, value in committed.items():
            if key not in _OWN_KEYS and (key not in self._parts or self._parts[key][1] is not value):
                self._parts[key] = self._version, value, self.values.encode(value, f"the state {key!r}")
                self._gone.pop(key, None)
        for key in [key for key in self._parts if key not in committed]:
            del self._parts[key]
            self._gone[key] = self._version

    def news(self, executor: str) -> tuple[dict[str, Any], list[str]]:
        """Return the changes that an executor does not have yet: new values by key, and deleted keys."""
        seen = self._seen.get(executor, 0)
        changed = {key: told for key, (version, _, told) in self._parts.items() if version > seen}
        return changed, [key for key, version in self._gone.items() if version > seen]

    def has(self, executor: str) -> None:
        """Record that an executor has the newest version of the shared state."""
        self._seen[executor] = self._version


class _Here(_Carrier):
    """Executors that run in this process.

    Their sends and events take effect immediately, as with the framework's runner.
    """

    def __init__(self, workflow: Any, values: Values) -> None:
        self._workflow = workflow
        self._values = values

    def reset(self) -> None:
        self._done: list[tuple[Delivery, list[Act]]] = []
        self._seen: dict[str, RecordedState] = {}

    async def deliver(self, delivery: Delivery) -> None:
        name, message, sources, traces, spans = delivery
        runner, acts = self._workflow._runner, list[Act]()
        if (seen := self._seen.get(name)) is None:
            seen = self._seen[name] = RecordedState(runner.state)
        self._done.append((delivery, acts))
        if type(message.data) not in UNCHANGED:
            message = copy.copy(message)
            message.data = self._values.passed(message.data, f"the message for executor {name!r}")
        context: Any = PassingContext(runner.context, self._values)
        execute = self._workflow.executors[name].execute
        await execute(message, sources, seen, context, trace_contexts=traces, source_span_ids=spans)
        acts += seen.taken(self._values)

    async def superstep(
        self,
        state: "SharedState",  # noqa: ARG002 - the executors see the state itself
        tell: Callable[[ToldEvent], Awaitable[None]] | None,  # noqa: ARG002 - events take effect at once
    ) -> Sequence[tuple[Delivery, Sequence[Act] | Blocked]]:
        return self._done


class _Groups(_Carrier):
    """Executors that run in the groups of an experiment."""

    def __init__(
        self,
        messaging: Messaging,
        groups: int | Mapping[str, Sequence[str]],
        names: list[str],
        source: Source,
        timeout: float | None,
    ) -> None:
        if (reason := unpicklable(source)) is not None:
            raise ConfigError(
                f"the workflow cannot be sent to the groups: {reason}. Pass a function that builds the workflow, as in "
                "RayWorkflowRunner(...).run(make_workflow, message): then each group builds its own workflow"
            )
        self._driver, self._lives = uuid.uuid4().hex, 0
        self._messaging = messaging
        self._names = names
        count = min(groups, len(names)) if isinstance(groups, int) else groups
        self._run: Run = messaging.start_run(
            run_executor,
            agents=names,
            groups=count,
            shared=Shared(source, self._driver),
            only_active=True,
            concurrency=len(names),
            timeout=timeout,
        )
        # If a superstep of an earlier runner failed, or the earlier runner's program died, a step may still be open.
        # This step is run now, and the executors ignore the earlier runner's messages. Messages that are sent from now
        # on are read in the next step.
        if messaging.steps.progress().latest >= self._run.step:
            self._run.advance()
        self._turn = threading.Lock()
        # The task that opens a step on the server, while Ray calls tell the groups to run the step.
        self._opening: asyncio.Task[None] | None = None
        self._asked: dict[str, Any] = {}  # by group, the call that waits for events of its executors
        self._seen: dict[str, tuple[str, int]] = {}  # by group, the position that `events_after` returned last
        self.begin(None)

    def begin(self, snapshots: Mapping[str, Any] | None) -> None:
        self._lives += 1
        self._life, self._given = f"{self._driver}.{self._lives}", {} if snapshots is None else dict(snapshots)
        self._snapshots: dict[str, Any] = dict(self._given)
        # The executors that have run since the last call of `begin`. Their stored states are not sent again.
        self._known: set[str] = set()

    def snapshots(self) -> Mapping[str, Any] | None:
        return {name: of_json(each) if isinstance(each, bytes) else each for name, each in self._snapshots.items()}

    async def deliver(self, delivery: Delivery) -> None:
        self._deliveries.append(delivery)

    def reset(self) -> None:
        self._deliveries: list[Delivery] = []

    def check(self, context: Any) -> None:
        if context.get_runtime_tools() is not None:
            raise ConfigError(
                "tools= of a run are functions, which cannot be sent to other processes: give the tools to the agents"
            )

    async def superstep(
        self, state: "SharedState", tell: Callable[[ToldEvent], Awaitable[None]] | None
    ) -> Sequence[tuple[Delivery, Sequence[Act] | Blocked]]:
        deliveries = self._deliveries
        if not deliveries:
            return ()
        outgoing: list[Outgoing] = []
        numbers: list[int] = []
        for n, each in enumerate(deliveries):
            parts = self._parts(n, each, state, streaming=tell is not None)
            outgoing += parts
            numbers += [n] * len(parts)
        begun: list[int] = []
        receipts, states = await self._passing_on(tell, begun, asyncio.to_thread(self._step, outgoing, begun))
        blocked: dict[int, Blocked] = {}
        for n, receipt in zip(numbers, receipts, strict=True):
            if receipt.fate not in STORED:
                blocked[n] = Blocked(f"{receipt.fate} {receipt.rule or ''}: {receipt.reason or ''}")
        found: list[Sequence[Act] | Blocked] = [()] * len(deliveries)
        groups: dict[str, list[int]] = {}
        for n, each in enumerate(deliveries):
            if n in blocked:
                found[n] = blocked[n]
            else:
                groups.setdefault(each.target, []).append(n)
        for name, own in groups.items():
            acts = of_json(states[name]["acts"])
            self._snapshots[name] = states[name]["snapshot"]
            self._known.add(name)
            state.has(name)
            for n, each in zip(own, acts, strict=False):
                found[n] = each
        return [*zip(deliveries, found, strict=True)]

    async def _passing_on(
        self,
        tell: Callable[[ToldEvent], Awaitable[None]] | None,
        begun: Sequence[int],
        step: Coroutine[Any, Any, T],
    ) -> T:
        """Await a step, and meanwhile pass the events of the workflow's executors to `tell` as they happen.

        Args: `begun` gets the number of the step when the step begins. Events of other steps are not passed on. If
        `tell` is None, no events are passed on.
        """
        if tell is None:
            return await step
        tasks = [asyncio.create_task(self._pass_on(group, begun, tell)) for group in self._run._actors]
        try:
            return await step
        finally:
            for task in tasks:
                task.cancel()
            for error in await asyncio.gather(*tasks, return_exceptions=True):
                if isinstance(error, Exception):  # and not a cancellation
                    raise error

    async def _pass_on(self, group: str, begun: Sequence[int], tell: Callable[[ToldEvent], Awaitable[None]]) -> None:
        """Pass the events of a group's executors on to `tell`, until this task is cancelled.

        Args: `begun` has the numbers of the steps whose events are passed on.
        """
        while True:
            # If a call for events has no answer when a superstep ends, the call stays in `_asked`, and is awaited again
            # in the next superstep.
            if (asked := self._asked.get(group)) is None:
                seen = self._seen.get(group, ("", 0))
                ask = self._run._actors[group].of_shared.options(max_task_retries=0)
                asked = self._asked[group] = ask.remote("events_after", seen)
            answer = None
            # A RayError says that the group's process has died. Ray starts the process again, or the run fails.
            with suppress(RayError):
                answer = await asyncio.wrap_future(asked.future())
            del self._asked[group]
            if answer is None:
                await asyncio.sleep(_BEGINS_S)
                continue
            self._seen[group], events = answer
            for event in events:
                if event.step in begun:
                    await tell(event)

    def _parts(self, n: int, delivery: Delivery, state: "SharedState", *, streaming: bool) -> list[Outgoing]:
        """Return the messages that bring a delivery to its executor: one from each executor that sent a part of it.

        If the data do not have one part for each of these executors, the first executor sends all data in one message.
        The first message also has what is needed only once.

        Args: `n` is the delivery's number in its superstep. `streaming` is True if the workflow was started with
        stream=True.
        """
        changed, gone = state.news(delivery.target)
        told = message_told(state.values, delivery.message, f"the message for executor {delivery.target!r}")
        data, sources = told.pop("data"), delivery.sources
        if delivery.traces is not None:
            told["traces"], told["spans"] = delivery.traces, delivery.spans
        place: dict[str, Any] = {"n": n, "life": self._life, "parts": 1}
        of: dict[str, Any] = {
            **place,
            "sources": sources,
            "message": told,
            "stream": streaming,
            "shared": changed,
            "gone": gone,
        }
        if delivery.target not in self._known and delivery.target in self._given:
            of["snapshot"] = self._given[delivery.target]
        if len(sources) == 1 or len(sources) != len(data):
            return [_outgoing(sources[0], delivery.target, {"data": data, "of": of})]
        of["parts"] = place["parts"] = len(sources)
        return [
            _outgoing(source, delivery.target, {"data": each, "of": {**(place if part else of), "part": part}})
            for part, (source, each) in enumerate(zip(sources, data, strict=True))
        ]

    def _step(self, outgoing: list[Outgoing], begun: list[int]) -> tuple[Any, Mapping[Any, Any]]:
        """Send the messages of a superstep, and run the step in which they are read.

        Return the receipts of the messages, and the states of the executors that the step called, by id.

        The number of this step is appended to `begun`. If no message was stored, no step is run.
        """
        with self._turn:
            if not self._run._open:
                raise Closed(
                    "this runner was closed, or an earlier superstep of it failed: make another RayWorkflowRunner, "
                    "and go on from a checkpoint"
                )
            run, step, user = self._run, self._run.step, self._messaging._user
            opens = self._messaging._fork is None  # in a fork, groups may have to send messages before the step opens

            async def open_step() -> None:
                with suppress(MessagingError):  # if the call fails, the step opens when the groups ask for the step
                    store = user.messager.engine.transport.steps
                    await store.go_on(step, step, [*run._actors], block_s=0.0)

            async def send() -> Receipts:
                receipts = await user.messager.send_messages(outgoing)
                if opens and any(each.fate in STORED for each in receipts):
                    self._opening = asyncio.create_task(open_step(), name="ray_messaging superstep")
                    self._opening.add_done_callback(
                        logs_failure(f"step {step} could not be opened at once; it begins when its groups ask for it")
                    )
                return receipts

            try:
                receipts = user.run(send())
            except TransitError:
                # Some of the messages may have been sent. If the run went on, executors would read them in a later
                # superstep. So the run is closed.
                self._run.close()
                raise
            if all(each.fate not in STORED for each in receipts):
                return receipts, {}
            begun.append(step)
            parts = run._go_on(step + 1, progress=False, with_states="called", stands=True, opened=opens)
            return receipts, {name: state for part in parts for name, state in part.states.items()}

    def close(self) -> None:
        self._run.close()


def _outgoing(source: str, target: str, payload: dict[str, Any]) -> Outgoing:
    from_id = None if source.startswith(f"{INTERNAL_SOURCE_PREFIX}:") else source
    return Outgoing.to_agent(target, payload, from_id)
