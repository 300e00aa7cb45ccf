"""The executors of a workflow of agent-framework in one process: they run, and what they do is recorded."""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from copy import copy
from itertools import count
from typing import Any, Final, NamedTuple
from uuid import uuid4

import msgspec
from agent_framework import WorkflowEvent
from agent_framework._workflows._runner_context import MessageType, WorkflowMessage
from agent_framework._workflows._state import State, _DeleteSentinel

from ray_messaging.compat.agent_framework_values import UNCHANGED, Values
from ray_messaging.errors import ConfigError, InvalidPayload

logger = logging.getLogger(__name__)

to_json: Callable[[Any], bytes] = msgspec.json.Encoder().encode
of_json: Callable[[Any], Any] = msgspec.json.Decoder().decode

# What an executor did: it emitted an event, asked for information, sent a message, set or deleted a value of the shared
# state, or failed with an error. An `Act` is one of these words, and the details.
EVENT, REQUEST, MESSAGE, SET, DELETE, ERROR = "event", "request", "message", "set", "delete", "error"
Act = tuple[str, Any]
_WAIT_S: Final = 60.0  # one call of `events_after` waits at most this long, so that calls of dead drivers end


class Source(NamedTuple):
    """How a process makes its executors. It can be pickled; `make` returns a new workflow with the executors."""

    make: Callable[[], Any]
    types: tuple[type, ...]
    signature: str  # the hash of the driver's workflow; the workflow that `make` returns must have the same hash


class Delivery(NamedTuple):
    """One message for the executor `target`. `sources` has the ids of executors that sent the message or its parts."""

    target: str
    message: WorkflowMessage
    sources: list[str]
    traces: list[dict[str, str]] | None = None
    spans: list[str] | None = None


class ToldEvent(NamedTuple):
    """An event of an executor, as JSON, that is passed on to the runner while the step still runs.

    `place` is the number of events that the executor has reported in the step before this event.
    """

    step: int
    executor: str
    place: int
    event: Any


class Recorder:
    """The framework's context for an executor in a group. It records what the executor does, in order, as JSON.

    Args: `values` encodes values as JSON. `classify` says what kind of event an output is. `tell` is called with each
    event when it happens, until the executor asks for information (None: events are only recorded).
    """

    def __init__(
        self,
        values: Values,
        classify: Callable[[str], Any],
        tell: Callable[[Any], None] | None,
        *,
        streaming: bool,
    ) -> None:
        self.acts: list[Act] = []
        self.tell = tell
        self._values = values
        self._classify = classify
        self._streaming = streaming

    async def send_message(self, message: WorkflowMessage) -> None:
        """Record a message that the executor sends."""
        told = message_told(self._values, message, f"a message of executor {message.source_id!r}")
        self.acts.append((MESSAGE, told))

    async def add_event(self, event: WorkflowEvent[Any]) -> None:
        """Record an event."""
        told = event_told(self._values, event)
        self.acts.append((EVENT, told))
        if self.tell is not None:
            self.tell(told)

    async def add_request_info_event(self, event: WorkflowEvent[Any]) -> None:
        """Record a request for information from outside."""
        if event.type != "request_info":
            raise ValueError(f"the event has the type {event.type!r}: its type must be 'request_info'")
        self.acts.append((REQUEST, event_told(self._values, event)))
        # If the process dies now, the executor will ask again, and the new request has another id. So the request, and
        # the events after it, are passed on only at the end of the superstep.
        self.tell = None

    def is_streaming(self) -> bool:
        """Return whether the workflow was started with stream=True."""
        return self._streaming

    def get_runtime_tools(self) -> None:
        """Return None, because functions are not sent to groups."""

    def classify_yielded_output(self, executor_id: str) -> Any:
        """Return the kind of event that an output of an executor becomes."""
        return self._classify(executor_id)

    def has_checkpointing(self) -> bool:
        """Return False, because the driver makes the checkpoints."""
        return False


class PassingContext:
    """The context of executors that run in the process of the runner, without groups.

    Values that the executors send are converted as if they came from another process.

    Args: `context` is the framework's own context, which gets the messages and events.
    """

    def __init__(self, context: Any, values: Values) -> None:
        self._context = context
        self._values = values
        self.is_streaming = context.is_streaming
        self.get_runtime_tools = context.get_runtime_tools
        self.classify_yielded_output = context.classify_yielded_output
        self.has_checkpointing = context.has_checkpointing
        self.get_pending_request_info_events = context.get_pending_request_info_events

    async def send_message(self, message: WorkflowMessage) -> None:
        """Send a message through the framework's own context, with its data as another process would get them."""
        message.data = self._values.passed(message.data, f"a message of executor {message.source_id!r}")
        await self._context.send_message(message)

    async def add_event(self, event: WorkflowEvent[Any]) -> None:
        """Pass an event on to the framework's own context, with its data as another process would get them."""
        await self._context.add_event(self._passed(event))

    async def add_request_info_event(self, event: WorkflowEvent[Any]) -> None:
        """Pass a request for information from outside on to the framework's own context."""
        await self._context.add_request_info_event(self._passed(event))

    def _passed(self, event: WorkflowEvent[Any]) -> WorkflowEvent[Any]:
        if type(event.data) not in UNCHANGED:
            event = copy(event)
            event.data = self._values.passed(event.data, f"the {event.type} of executor {event.executor_id!r}")
        return event


class RecordedState(State):
    """The shared state that an executor sees in one superstep: the committed state with the executor's own changes.

    Args: `state` is the state from which the committed values are copied (None: there are no values).
    """

    def __init__(self, state: State | None = None) -> None:
        super().__init__()
        if state is not None:
            self._committed = {**state._committed}

    def taken(self, values: Values) -> list[Act]:
        """Return the executor's changes of the state as JSON, and commit them to this object."""
        acts: list[Act] = []
        for key, value in self._pending.items():
            if value is _DeleteSentinel:
                acts.append((DELETE, key))
            else:
                acts.append((SET, (key, values.encode(value, f"the state {key!r}"))))
        self.commit()
        return acts


async def run_deliveries(
    executor: Any,
    deliveries: Sequence[Delivery],
    state: RecordedState,
    values: Values,
    classify: Callable[[str], Any],
    tell: Callable[[Any], None] | None,
    *,
    streaming: bool,
) -> list[list[Act]]:
    """Let an executor handle its messages, one by one, until an error; return what it did for each message.

    Args: `tell` is called with each event when it happens, up to the executor's first request for information.
    """
    done: list[list[Act]] = []
    for each in deliveries:
        recorder = Recorder(values, classify, tell, streaming=streaming)
        done.append(recorder.acts)
        try:
            await executor.execute(
                each.message, each.sources, state, recorder, trace_contexts=each.traces, source_span_ids=each.spans
            )
            recorder.acts += state.taken(values)
            tell = recorder.tell
        except Exception as error:  # noqa: BLE001 - the user's handler may raise any error
            recorder.acts.append((ERROR, {"type": type(error).__name__, "text": str(error)}))
            break
    return done


class Executors:
    """The executors of a workflow in a process of a group.

    All executors are made anew when a new runner begins, or when the runner has restored a checkpoint.

    Args: `tell` is called with the events of executors as they happen, if the workflow was started with stream=True.
    """

    def __init__(self, source: Source, tell: Callable[[ToldEvent], None]) -> None:
        self._source = source
        self._tell = tell
        self._life: str | None = None
        self._workflow: Any = None
        self._current: dict[str, int] = {}  # by executor: the last step that its object has run
        self._begun: set[str] = set()  # executors that have begun a step and not ended it
        self._values = Values(source.types)

    def _begin(self, life: str) -> None:
        if life == self._life:
            return
        workflow = self._source.make()
        if workflow.graph_signature_hash != self._source.signature:
            raise ConfigError(
                "the workflow that was made in a group differs from the driver's: its factory must give executors the "
                "same ids, types and edges each time"
            )
        self._life, self._workflow, self._current = life, workflow, {}
        self._begun.clear()
        self._values.add_workflow(workflow)

    async def run(
        self, name: str, told: Sequence[Mapping[str, Any]], kept: Mapping[str, Any], step: int
    ) -> list[bytes]:
        """Let an executor handle the messages of a step; return what it did and its state for a checkpoint, as JSON.

        Args: `kept` is the executor's stored state, from its last step or from a checkpoint.
        """
        of = told[0]["of"]
        self._begin(of["life"])
        at, snapshot = kept.get("step", -1), kept.get("snapshot")
        if name in self._begun:  # an earlier try of this step failed in the middle
            self._workflow.executors[name] = self._source.make().executors[name]
        executor = self._workflow.executors[name]
        if snapshot is not None and self._current.get(name, -1) != at:
            await executor.on_checkpoint_restore(self._values.decode(of_json(snapshot)))
        self._current.pop(name, None)
        self._begun.add(name)
        state = RecordedState()
        state._committed = {key: self._values.decode(each) for key, each in kept["shared"].items()}
        deliveries = [delivery_of(self._values, name, each) for each in told]
        classify = self._workflow._output_designation.classify
        places = count()

        def tell(event: Any) -> None:
            self._tell(ToldEvent(step, name, next(places), event))

        done = await run_deliveries(
            executor, deliveries, state, self._values, classify, tell if of["stream"] else None, streaming=of["stream"]
        )
        after = {}
        try:
            after = await snapshot_told(self._values, executor)
        except Exception as error:  # noqa: BLE001 - the user's code may raise any error
            done[-1].append((ERROR, {"type": type(error).__name__, "text": str(error)}))
        self._current[name] = step
        self._begun.discard(name)
        return [to_json(done), to_json(after)]


async def snapshot_told(values: Values, executor: Any) -> Any:
    """Return what an executor keeps in checkpoints, as JSON."""
    found = await executor.on_checkpoint_save()
    if not isinstance(found, dict) or not all(isinstance(key, str) for key in found):
        raise InvalidPayload(
            f"the state of executor {executor.id!r} cannot be saved: its on_checkpoint_save must return a dict "
            "with strs as keys"
        )
    return values.encode(found, f"the checkpoint of executor {executor.id!r}")


def message_told(values: Values, message: WorkflowMessage, place: str) -> dict[str, Any]:
    """Return a message as a dict that can be encoded as JSON. Errors use `place` as the name of the message's data."""
    told: dict[str, Any] = {"data": values.encode(message.data, place), "source": message.source_id}
    if message.target_id is not None:
        told["target"] = message.target_id
    if message.type is not MessageType.STANDARD:
        told["type"] = message.type.value
    if message.trace_contexts is not None:
        told["traces"], told["spans"] = message.trace_contexts, message.source_span_ids
    if (request := message.original_request_info_event) is not None:
        told["request"] = event_told(values, request)
    return told


def message_of(values: Values, told: Mapping[str, Any]) -> WorkflowMessage:
    """Decode a message from the JSON that `message_told` returns."""
    request = told.get("request")
    return WorkflowMessage(
        values.decode(told["data"]),
        told["source"],
        told.get("target"),
        MessageType(told.get("type", "standard")),
        told.get("traces"),
        told.get("spans"),
        None if request is None else event_of(values, request),
    )


_EVENT = WorkflowEvent("warning")
_DEFAULTS: dict[str, Any] = dict.fromkeys(vars(_EVENT))


def event_told(values: Values, event: WorkflowEvent[Any]) -> dict[str, Any]:
    """Return an event as JSON: the fields that are set."""
    if type(event) is not WorkflowEvent:
        raise InvalidPayload(f"an event of type {type(event).__name__} cannot be sent: emit a WorkflowEvent with data")
    told: dict[str, Any] = {}
    for name, value in vars(event).items():
        if value is None:
            continue
        if name in ("type", "origin", "executor_id"):
            told[name] = str.__str__(value) if type(value) is str else value.value
        elif type(value) in UNCHANGED:
            told[name] = value
        else:
            told[name] = values.encode(value, f"the {event.type} of executor {event.executor_id!r}: {name}")
    return told


_ORIGINS = {each.value: each for each in type(_EVENT.origin)}


def event_of(values: Values, told: Mapping[str, Any]) -> WorkflowEvent[Any]:
    """Decode an event from the JSON that `event_told` returns."""
    event: WorkflowEvent[Any] = object.__new__(WorkflowEvent)
    fields = _DEFAULTS | {
        name: value if name in ("type", "origin", "executor_id") else values.decode(value)
        for name, value in told.items()
        if name in _DEFAULTS
    }
    fields["origin"] = _ORIGINS[fields["origin"]]
    vars(event).update(fields)
    return event


def delivery_of(values: Values, target: str, told: Mapping[str, Any]) -> Delivery:
    """Return the delivery that a payload (`told`) contains. It is for the executor `target`."""
    of = told["of"]
    message = message_of(values, of["message"] | {"data": told["data"]})
    return Delivery(target, message, of["sources"], message.trace_contexts, message.source_span_ids)


class Shared:
    """The object that all groups get. It has the `Source` with which each process makes its executors.

    A process makes its executors when it first needs them.

    Args: `driver` is the id of the runner. Messages that other runners have sent to executors are ignored.
    """

    def __init__(self, source: Source, driver: str) -> None:
        self.driver = driver
        self._source = source
        self._executors: Executors | None = None
        self._id = uuid4().hex  # new after a restart of the process, so that `events_after` ignores older positions
        # The number of events in all steps before the last step, and the events of the last step.
        self._told: tuple[int, list[ToldEvent]] = 0, []
        self._reader: tuple[asyncio.AbstractEventLoop, asyncio.Event] | None = None

    def __reduce__(self) -> Any:
        return Shared, (self._source, self.driver)

    @property
    def executors(self) -> Executors:
        """Return the executors of this process."""
        if self._executors is None:
            self._executors = Executors(self._source, self._tell)
        return self._executors

    def _tell(self, event: ToldEvent) -> None:
        before, told = self._told
        if told and told[-1].step != event.step:
            before, told = self._told = before + len(told), []
        told.append(event)
        if self._reader is not None:
            loop, told_more = self._reader
            loop.call_soon_threadsafe(told_more.set)

    async def events_after(self, seen: tuple[str, int]) -> tuple[tuple[str, int], list[ToldEvent]]:
        """Wait up to a minute for new events of the executors of this process, which run in another thread.

        Return a position and the events. The next call passes this position as `seen`, to get the events after this
        position. If `seen` is from an earlier process, all events of the last step are returned.
        """
        number = seen[1] if seen[0] == self._id else 0
        told_more = asyncio.Event()
        self._reader = asyncio.get_running_loop(), told_more
        with suppress(TimeoutError):
            async with asyncio.timeout(_WAIT_S):
                if self._told[0] + len(self._told[1]) <= number:
                    await told_more.wait()
        before, told = self._told
        found = told[max(0, number - before) :]
        return (self._id, max(number, before) + len(found)), found


async def run_executor(me: Any, inbox: Any) -> None:
    """Handle the messages that an executor reads in a step. This function is the model that `Messaging.run` gets.

    Afterwards the executor's state says what the executor did.
    """
    if not inbox:
        return
    payloads = [each.payload for each in inbox]
    own = [each for each in payloads if is_of(each, me.shared.driver)]
    if len(own) < len(payloads):
        logger.warning("executor %r ignores %d messages that are not of its workflow", me.id, len(payloads) - len(own))
    told = joined(own)
    if not told:
        return
    first, kept = told[0]["of"], me.state
    if kept.get("life") != first["life"]:
        kept = {"life": first["life"], "step": -1, "shared": {}, "snapshot": None}
    for each in told:
        of = each["of"]
        if "snapshot" in of:
            kept = {**kept, "step": -2, "snapshot": to_json(of["snapshot"])}
        shared = {key: value for key, value in kept["shared"].items() if key not in of["gone"]} | of["shared"]
        kept = {**kept, "shared": shared}
    step: int = me.step
    executors: Executors = me.shared.executors

    async def executor_superstep() -> list[bytes]:
        return await executors.run(me.id, told, kept, step)

    acts, snapshot = await me.remember(executor_superstep)
    me.state.clear()
    me.state.update(kept, step=step, snapshot=snapshot, acts=acts)


def is_of(payload: Any, driver: str) -> bool:
    """Return whether a payload is a message that the runner named `driver` has sent to an executor.

    Return False for a payload of an earlier runner or of another program.
    """
    of = payload.get("of") if isinstance(payload, dict) else None
    return isinstance(of, dict) and str(of.get("life")).startswith(f"{driver}.")


def joined(payloads: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Put together messages for an executor that were sent in several parts, and return the complete ones in order.

    If a part of a message is missing, the message is left out.
    """
    parts: dict[int, list[Mapping[str, Any]]] = {}
    for each in payloads:
        parts.setdefault(each["of"]["n"], []).append(each)
    found: list[Mapping[str, Any]] = []
    for _, own in sorted(parts.items()):
        if len(own) < own[0]["of"]["parts"]:
            continue
        if len(own) == 1:
            found += own
        else:
            ordered = sorted(own, key=lambda part: int(part["of"]["part"]))
            found.append({"data": [part["data"] for part in ordered], "of": ordered[0]["of"]})
    return found
