"""AutoGen's agent runtime on this engine: `SingleThreadedAgentRuntime()` becomes `RayAgentRuntime()`.

Needs autogen-core 0.7 (extra `[autogen]`). Each message between agents is a message of the experiment, so it is stored
before it is handled, passes the experiment's rules, and is in its log. Agents of a type can live in a Ray actor.
"""

import asyncio
import base64
import builtins
import inspect
import io
import json
import logging
import warnings
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import lru_cache
from importlib.metadata import version
from typing import Any, TypeVar, cast

import ray

from ray_messaging.addressing.channels import AGENT_CHAT, agent_channel
from ray_messaging.cluster.messaging import Messaging
from ray_messaging.config import MessagingConfig
from ray_messaging.embedded.local_server import LocalServer
from ray_messaging.errors import AnswerFailed, MessagingError, NoAnswer, QuestionBlocked
from ray_messaging.message import Message
from ray_messaging.messager import Messager

try:
    from autogen_core import (
        JSON_DATA_CONTENT_TYPE,
        PROTOBUF_DATA_CONTENT_TYPE,
        Agent,
        AgentId,
        AgentMetadata,
        AgentType,
        CancellationToken,
        DropMessage,
        InterventionHandler,
        MessageContext,
        MessageHandlerContext,
        SingleThreadedAgentRuntime,
        TopicId,
        exceptions,
        try_get_known_serializers_for_type,
    )
    from opentelemetry import trace
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError(
        f"AutoGen needs the extra: pip install 'ray-messaging[autogen]' (there is no module {missing.name!r})",
        name=missing.name,
    ) from missing

logger = logging.getLogger(__name__)

TESTED = "0.7"
_NAME = "autogen"  # of the mailbox
_HANDLERS = 1_000_000  # messages that may be handled at once: AutoGen has no limit
_PLAIN = (str, int, float, bool, list, dict, type(None))  # answers of these types need no serializer
_TOPICS = "ray-messaging-topics"  # the type of the agent to which a Ray actor sends what it publishes
_OF_A_PROCESS = (asyncio.Queue, asyncio.Event, asyncio.Lock, asyncio.Condition, asyncio.Future)
_NO_SPAN = nullcontext()
_T = TypeVar("_T", bound=Agent)

if not (_found := version("autogen-core")).startswith(TESTED):
    warnings.warn(
        f"ray_messaging.compat.autogen is tested with autogen-core {TESTED}, and {_found} is here", stacklevel=2
    )


class RayAgentRuntime(SingleThreadedAgentRuntime):
    """AutoGen's AgentRuntime over an experiment.

    An agent `type/key` of AutoGen has the id "type/key" in rules and in the log. Events whose handler fails become
    dead letters. Close it, or use it as an async context manager.

    Args: `messaging` is the experiment; without one, a server of this process's own carries the messages. With
    `actors`, agents of each type that is registered by a factory live in a Ray actor, unless the factory holds what
    belongs to this process, as the manager of an AgentChat team does. The other arguments are AutoGen's.
    """

    def __init__(
        self,
        messaging: Messaging | None = None,
        *,
        actors: bool = False,
        name: str = _NAME,
        intervention_handlers: list[InterventionHandler] | None = None,
        tracer_provider: Any = None,
        ignore_unhandled_exceptions: bool = True,
    ) -> None:
        super().__init__(
            intervention_handlers=intervention_handlers,
            tracer_provider=tracer_provider,
            ignore_unhandled_exceptions=ignore_unhandled_exceptions,
        )
        if actors and messaging is None:
            raise ValueError("actors=True needs an experiment on Ray: pass messaging=Messaging.start(...)")
        if actors and intervention_handlers:
            raise ValueError("intervention_handlers are of one process: with actors=True give the experiment rules=")
        self._message_queue = cast("Any", _Outbox(self))
        self._traces = tracer_provider is not None or not isinstance(
            trace.get_tracer_provider(), trace.ProxyTracerProvider
        )
        self._messaging = messaging
        self._actors: dict[str, Any] | None = {} if actors else None
        self._planned: dict[str, tuple[Any, Any]] = {}  # factories of actors that the first message starts
        self._learned: list[Any] = []  # classes of agents
        settings = MessagingConfig(strict_senders=False)
        server, exp_id = (LocalServer(), "autogen") if messaging is None else (messaging.redis, messaging.exp_id)
        interceptor = None if messaging is None else messaging.interceptor
        self._messager = Messager(server, exp_id, interceptor, name=name, settings=settings)
        self._opening = asyncio.Lock()
        self._service: asyncio.Task[None] | None = None
        self._started = asyncio.Event()
        self._saving = 0
        self._resumed = asyncio.Event()
        self._resumed.set()
        self._waiting: list[asyncio.Future[None]] = []  # for a change of the counts
        self._sent = self._handled = self._running = 0
        self._held: dict[str, Message] = {}  # events that wait until the runtime starts, or a state has been saved
        self._tokens: dict[str, CancellationToken] = {}  # of questions that this process has asked
        self._decoded_last: tuple[Mapping[str, Any], Any] = {}, None  # all hearers of an event get one object
        self._errors: dict[str, BaseException] = {}  # of questions that this process has asked itself
        self._locks: dict[AgentId, asyncio.Lock] = {}
        self._types = {_TOPICS} if actors else set[str]()

    async def __aenter__(self) -> "RayAgentRuntime":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # -- life -----------------------------------------------------------------------------------------------------

    async def _opened(self) -> Messager:
        async with self._opening:
            if self._service is None:
                await self._messager.init()
                await self._listen(self._types)
                await self._place()
                self._service = asyncio.create_task(self._messager.serve(self._handle, concurrency=_HANDLERS))
        if self._service.done():
            self._service.result()  # raises why messages are read no longer
        return self._messager

    async def _listen(self, types: Iterable[str]) -> None:
        """Read the messages for all agents of some types."""
        patterns = [
            agent_channel(self._messager.exp_id, f"{kind}/", AGENT_CHAT).replace(f"/:{AGENT_CHAT}", f"/*:{AGENT_CHAT}")
            for kind in types
        ]
        if patterns:
            await self._messager.subscribe_and_start_listening(patterns)

    def start(self) -> None:
        """Handle messages from now on."""
        if self._started.is_set():
            raise RuntimeError("Runtime is already started")
        self._started.set()

    async def stop(self) -> None:
        """Begin no message from now on. Those that come wait for the next `start`."""
        self._check_started()
        self._started.clear()

    async def stop_when_idle(self) -> None:
        """Stop when every message is handled; raise the first error of an event, unless such errors are ignored."""
        self._check_started()
        try:
            await self._quiet("_counts")
        finally:
            self._started.clear()

    async def stop_when(self, condition: Callable[[], bool]) -> None:
        """Stop when a condition of this process holds. It is asked whenever a message has been handled here."""
        self._check_started()
        await self._until(lambda: condition() or self._background())
        self._started.clear()
        self._raise_background()

    async def close(self) -> None:
        """Close all agents and the connection. Messages that are not handled stay in the experiment."""
        self._started.clear()
        for agent in [*self._instantiated_agents.values()]:
            await agent.close()
        if self._service is not None:
            self._service.cancel()
            await asyncio.gather(self._service, return_exceptions=True)
        await self._messager.close()
        if self._actors:
            await self._of_actors("close")
            for actor in self._actors.values():
                ray.kill(actor)

    def _check_started(self) -> None:
        if not self._started.is_set():
            raise RuntimeError("Runtime is not started")

    def _background(self) -> bool:
        return self._background_exception is not None

    def _raise_background(self) -> None:
        error, self._background_exception = self._background_exception, None
        if error is not None:
            raise error

    async def _quiet(self, ask: str) -> list[Any]:
        """Ask all processes until they say the same twice, and meanwhile no message waited but those that they hold.

        Then none of them has sent or handled one in between, so there is none on the way, whoever has died.
        """
        before, pause = None, 0.001
        while True:
            found = [await getattr(self, ask)(), *await self._of_actors(ask)]
            if found == before:
                return found
            held = sum(counts[-1] for counts, *_ in found)
            before = found if await self._on_server() == held else None
            if before is None:  # a message is on its way, or the commit of one
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._change(), pause := min(2 * pause, 0.1))

    async def _on_server(self) -> int:
        """Return the number of messages that are not committed, in the mailboxes of all processes."""
        transport = self._messager.engine.transport
        names = [self._messager.name, *(f"{_NAME}.{kind}" for kind in self._actors or ())]
        return sum(
            [int(await transport.link.command("HGET", transport.keys.state(name), "messages") or 0) for name in names]
        )

    async def _counts(self) -> tuple[tuple[int, ...]]:
        """Return what has been sent and handled here, and what is held back, when no handler runs; raise its error."""
        await self._opened()
        await self._until(lambda: self._background() or not self._running)
        self._raise_background()
        return ((self._sent, self._handled, len(self._held)),)

    async def _of_actors(self, call: str, *given: object) -> list[Any]:
        actors = (self._actors or {}).values()
        return await asyncio.gather(*(actor.call.remote(call, *given) for actor in actors))

    # -- sending --------------------------------------------------------------------------------------------------

    async def _send(self, envelope: Any) -> None:
        """Send a question, and give its future the answer: what `send_message` of AutoGen's runtime queues.

        The future gets UndeliverableException if no runtime has agents of the recipient's type, and
        MessageDroppedException if a rule or an intervention handler drops the question.
        """
        future, message_id, token = envelope.future, envelope.message_id, envelope.cancellation_token
        try:
            context = MessageContext(envelope.sender, None, True, token, message_id)
            message = await self._intervened(
                "on_send", envelope.message, message_context=context, recipient=envelope.recipient
            )
            payload, messager = self._encoded(message) | {"id": message_id}, await self._opened()
            self._count(sent=1)
            self._tokens[message_id] = token
            told = (await messager.ask(_text(envelope.sender), str(envelope.recipient), payload, timeout=None)).payload
            error = self._errors.pop(message_id, None) or _error_of(told) if "error" in told else None
            answer = None if error else self._decoded(told)
        except BaseException as found:  # noqa: BLE001 - the caller gets it
            error = self._of_autogen(found, envelope.recipient)
        finally:
            self._tokens.pop(message_id, None)
        if future.done():  # it was cancelled
            return
        if error is None:
            future.set_result(answer)
        else:
            future.set_exception(error)

    def _of_autogen(self, error: BaseException, recipient: AgentId) -> BaseException:
        """Return an error of a question as AutoGen's; take back the count of a question that nobody will handle."""
        if isinstance(error, MessagingError) and not isinstance(error, AnswerFailed):
            self._count(sent=-1)
        if isinstance(error, QuestionBlocked):
            return exceptions.MessageDroppedException(f"rule {error.rule} blocked it: {error.reason}")
        if isinstance(error, NoAnswer) and not isinstance(error, AnswerFailed):
            return exceptions.UndeliverableException(f"Recipient not found: {recipient}: {error}")
        return error

    async def _publish(self, envelope: Any) -> None:
        """Store an event for all that a subscription names: what `publish_message` of AutoGen's runtime queues."""
        topic, token, message_id = envelope.topic_id, envelope.cancellation_token, envelope.message_id
        context = MessageContext(envelope.sender, topic, False, token, message_id)
        with suppress(exceptions.MessageDroppedException):
            message = await self._intervened("on_publish", envelope.message, message_context=context)
            await self._spread(
                self._encoded(message) | {"id": message_id, "topic": [topic.type, topic.source]}, topic, envelope.sender
            )

    async def _spread(self, payload: dict[str, Any], topic_id: TopicId, sender: AgentId | None) -> None:
        recipients = await self._subscription_manager.get_subscribed_recipients(topic_id)
        recipients = [each for each in recipients if each != sender]
        if not recipients:
            logger.info("nobody subscribes to topic %s", topic_id)
            return
        messager = await self._opened()
        receipts = await messager.send_columns(_text(sender), [*map(str, recipients)], payload)
        delivered = int((receipts.fates == "delivered").sum())
        self._count(sent=delivered)
        if delivered < len(recipients):
            logger.warning("%d of %d messages of topic %s: %r", delivered, len(recipients), topic_id, receipts)

    def _span(self, operation: Any, of: Any) -> AbstractContextManager[Any]:
        """Begin a span, if somebody collects spans: one that nobody does would cost as much as the message."""
        return self._tracer_helper.trace_block(operation, of, parent=None) if self._traces else _NO_SPAN

    async def _intervened(self, call: str, message: Any, **given: Any) -> Any:
        """Return what the intervention handlers make of a message; raise MessageDroppedException if one drops it."""
        for handler in self._intervention_handlers or ():
            found = await getattr(handler, call)(message, **given)
            if found is None:
                warnings.warn(f"Intervention handler {call} returned None", RuntimeWarning, stacklevel=3)
            if found is DropMessage or isinstance(found, DropMessage):
                raise exceptions.MessageDroppedException(f"{type(handler).__name__}.{call} dropped it")
            message = found
        return message

    def _encoded(self, message: Any) -> dict[str, Any]:
        """Return a message as a payload: its type, and its fields."""
        if type(message) in _PLAIN:
            return {"type": None, "message": message}
        registry, name = self._serialization_registry, self._serialization_registry.type_name(message)
        if not any(
            registry.is_registered(name, content) for content in (JSON_DATA_CONTENT_TYPE, PROTOBUF_DATA_CONTENT_TYPE)
        ):
            self.add_message_serializer(try_get_known_serializers_for_type(type(message)))
        if registry.is_registered(name, JSON_DATA_CONTENT_TYPE):
            data = registry.serialize(message, type_name=name, data_content_type=JSON_DATA_CONTENT_TYPE)
            return {"type": name, "message": json.loads(data)}
        data = registry.serialize(message, type_name=name, data_content_type=PROTOBUF_DATA_CONTENT_TYPE)
        return {"type": name, "protobuf": base64.b64encode(data).decode()}

    def _decoded(self, payload: Mapping[str, Any]) -> Any:
        before, found = self._decoded_last
        if payload != before:
            found = self._decode(payload)
            self._decoded_last = payload, found
        return found

    def _decode(self, payload: Mapping[str, Any]) -> Any:
        name = payload["type"]
        if name is None:
            return payload["message"]
        protobuf = payload.get("protobuf")
        data = json.dumps(payload["message"]).encode() if protobuf is None else base64.b64decode(protobuf)
        content = JSON_DATA_CONTENT_TYPE if protobuf is None else PROTOBUF_DATA_CONTENT_TYPE
        try:
            return self._serialization_registry.deserialize(data, type_name=name, data_content_type=content)
        except TypeError:  # AgentChat's messages have fields of abstract classes, which pydantic cannot make
            known: Any = getattr(self._serialization_registry._serializers[name, content], "cls", None)
            if not hasattr(known, "model_validate"):
                raise
            return known.model_validate(_concrete(payload["message"]))

    # -- handling -------------------------------------------------------------------------------------------------

    async def _handle(self, message: Message) -> dict[str, Any] | None:
        """Give a message to its agent. Return the answer to a question: what the agent has returned, or its error."""
        is_rpc, told = message.expects_answer, message.payload
        if message.in_reply_to is not None:
            return None  # the answer to a question that was cancelled
        await self._may_begin(message)
        self._running += 1
        recipient = _id(message.to_id)
        sender = None if message.from_id is None else _id(message.from_id)
        topic = told.get("topic") and TopicId(*told["topic"])
        token = self._tokens.get(told["id"]) or CancellationToken()
        context = MessageContext(sender, topic, is_rpc=is_rpc, cancellation_token=token, message_id=told["id"])
        try:
            if recipient.type == _TOPICS:
                await self._spread(told, topic, sender)
                return None
            agent = await self._get_agent(recipient)
            with (
                self._span("process", recipient),
                MessageHandlerContext.populate_context(recipient),
            ):
                answer = await agent.on_message(self._decoded(told), ctx=context)
            if is_rpc:
                answer = await self._intervened("on_response", answer, sender=recipient, recipient=sender)
                return self._encoded(answer)
        except BaseException as error:  # AutoGen's own ToolExecutionException is no Exception
            if isinstance(error, (SystemExit, KeyboardInterrupt)) or (
                isinstance(error, asyncio.CancelledError) and not token.is_cancelled()
            ):
                raise  # this process or this runtime ends: the message will be handled by the next one
            if is_rpc:
                if told["id"] in self._tokens:
                    self._errors[told["id"]] = error
                return {"error": type(error).__name__, "text": str(error)}
            logger.exception("Error processing publish message for %s", recipient)
            if not self._ignore_unhandled_handler_exceptions and self._background_exception is None:
                self._background_exception = error
            raise RuntimeError(f"{type(error).__name__}: {error}") from error  # the reason of the dead letter
        finally:
            self._running -= 1
            self._count(handled=1)
        return None

    async def _may_begin(self, message: Message) -> None:
        """Wait until the runtime has started, and with an event until a state has been saved."""
        self._held[message.id] = message
        self._count()
        while not (self._started.is_set() and (message.expects_answer or self._resumed.is_set())):
            await self._started.wait()
            if not message.expects_answer:
                await self._resumed.wait()
        del self._held[message.id]

    def _count(self, *, sent: int = 0, handled: int = 0) -> None:
        self._sent += sent
        self._handled += handled
        for each in self._waiting:
            if not each.done():
                each.set_result(None)
        self._waiting.clear()

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            await self._change()

    async def _change(self) -> None:
        self._waiting.append(asyncio.get_running_loop().create_future())
        await self._waiting[-1]

    # -- agents ---------------------------------------------------------------------------------------------------

    async def register_factory(
        self,
        type: str | AgentType,  # noqa: A002 - AutoGen's name
        agent_factory: Callable[[], _T | Awaitable[_T]],
        *,
        expected_class: builtins.type[_T] | None = None,
    ) -> AgentType:
        """Register the factory of a type's agents: in a Ray actor, or in this process (see `actors`).

        Raises: ValueError if the type is registered already.
        """
        found = await super().register_factory(type, agent_factory, expected_class=expected_class)
        self._learn(expected_class)
        if self._actors is None or not _travels(agent_factory):
            await self._host(found.type)
            return found
        self._planned[found.type] = agent_factory, expected_class
        if self._service is not None:
            await self._of_actors("_learn", expected_class)
            await self._place()
        return found

    async def _place(self) -> None:
        """Start the Ray actors of the types that have none yet."""
        options = {"num_cpus": 0, "max_restarts": -1, "max_task_retries": -1, "max_concurrency": 1000}
        for kind, (factory, expected) in self._planned.items():
            given = kind, factory, expected, self._learned, self._ignore_unhandled_handler_exceptions
            actor = cast("Any", ray.remote(_Host)).options(**options)
            assert self._messaging is not None
            assert self._actors is not None
            self._actors[kind] = actor.remote(self._messaging.exp_id, *given)
        self._planned.clear()
        await self._of_actors("_counts")  # they listen

    def _learn(self, agent_class: Any) -> None:
        """Register serializers of the messages that agents of a class hear and answer."""
        if agent_class in self._learned:
            return
        self._learned.append(agent_class)
        for _, serializers in getattr(agent_class, "_handles_types", list)():
            self.add_message_serializer(serializers)
        for handler in getattr(agent_class, "_discover_handlers", list)():
            for produced in handler.produces_types:
                if inspect.isclass(produced):
                    self.add_message_serializer(try_get_known_serializers_for_type(produced))

    async def register_agent_instance(self, agent_instance: Agent, agent_id: AgentId) -> AgentId:
        """Register an agent that lives in this process."""
        found = await super().register_agent_instance(agent_instance, agent_id)
        await self._host(found.type)
        return found

    async def _host(self, kind: str) -> None:
        if kind not in self._types:
            self._types.add(kind)
            if self._service is not None:
                await self._listen([kind])

    async def _get_agent(self, agent_id: AgentId) -> Agent:
        """Return an agent of this process, and make it at its first message, once however many come together."""
        if agent_id.type in (self._actors or ()) or agent_id.type in self._planned:
            raise exceptions.NotAccessibleError(f"agent {agent_id} lives in a Ray actor")
        if (found := self._instantiated_agents.get(agent_id)) is not None:
            return found
        async with self._locks.setdefault(agent_id, asyncio.Lock()):
            found = await super()._get_agent(agent_id)
        self._locks.pop(agent_id, None)
        self._learn(type(found))
        return found

    async def get(self, id_or_type: Any, /, key: str = "default", *, lazy: bool = True) -> AgentId:
        """Return the id of an agent; make the agent now unless `lazy`."""
        found = await super().get(id_or_type, key)
        if not lazy:
            await self._on(found, "metadata")
        return found

    async def _on(self, agent: AgentId, call: str, *given: Any) -> Any:
        """Call a method of an agent where it lives, and return the result."""
        await self._opened()
        if self._actors and agent.type in self._actors:
            return await self._actors[agent.type].call.remote("_on", agent, call, *given)
        found = getattr(await self._get_agent(agent), call)
        result = found(*given) if callable(found) else found
        return await result if inspect.isawaitable(result) else result

    async def agent_metadata(self, agent: AgentId) -> AgentMetadata:
        return cast("AgentMetadata", await self._on(agent, "metadata"))

    async def agent_save_state(self, agent: AgentId) -> Mapping[str, Any]:
        return cast("Mapping[str, Any]", await self._on(agent, "save_state"))

    async def agent_load_state(self, agent: AgentId, state: Mapping[str, Any]) -> None:
        await self._on(agent, "load_state", state)

    # -- states ---------------------------------------------------------------------------------------------------

    async def save_state(self) -> Mapping[str, Any]:
        """Return the states of all agents, and the events that no agent has begun to handle.

        Events are held back meanwhile; those that an agent has begun, and questions, are finished first.
        """
        await self._opened()
        await self._hold(True)
        try:
            found = await self._quiet("_held_here")
        finally:
            await self._hold(False)
        agents = {agent: state for *_, states in found for agent, state in states.items()}
        return {"agents": agents, "messages": [each for _, messages, _ in found for each in messages]}

    async def _hold(self, hold: bool) -> None:
        await self._of_actors("_hold_here", hold)
        self._hold_here(hold)

    def _hold_here(self, hold: bool) -> None:
        """Begin no event from now on, or go on."""
        self._saving += 1 if hold else -1
        (self._resumed.clear if self._saving else self._resumed.set)()

    async def _held_here(self) -> tuple[tuple[int, ...], list[dict[str, Any]], dict[str, Any]]:
        """Return the counts, the events that are held back here, and the states of agents, when no handler runs."""
        (counts,) = await self._counts()
        held = [each for each in self._held.values() if not each.expects_answer]
        events = [{"from": each.from_id, "to": each.to_id, "payload": each.payload} for each in held]
        return counts, events, dict(await super().save_state())

    async def load_state(self, state: Mapping[str, Any]) -> None:
        """Give all agents their states, and send the events that had not been handled.

        Raises: UndeliverableException for an event whose agent's type is not registered anywhere.
        """
        for agent, of_agent in state["agents"].items():
            agent_id = AgentId.from_str(agent)
            if agent_id.type in self._known_agent_names:
                await self.agent_load_state(agent_id, of_agent)
        for each in state["messages"]:
            receipt = await (await self._opened()).send(each["from"], each["to"], each["payload"])
            if receipt.fate != "delivered":
                raise exceptions.UndeliverableException(f"the event for {each['to']} is {receipt.fate}: {receipt}")
            self._count(sent=1)


class _Outbox:
    """What AutoGen's runtime takes for its queue: it sends what is put into it."""

    def __init__(self, runtime: "RayAgentRuntime") -> None:
        self._runtime = runtime

    async def put(self, envelope: Any) -> None:
        runtime = self._runtime
        if hasattr(envelope, "topic_id"):
            await runtime._publish(envelope)
        else:
            task = asyncio.create_task(runtime._send(envelope))
            runtime._background_tasks.add(task)
            task.add_done_callback(runtime._background_tasks.discard)
            envelope.future.add_done_callback(lambda future: future.cancelled() and task.cancel())

    def qsize(self) -> int:
        """Return the number of messages that this process has sent, and no handler has begun."""
        return self._runtime._sent - self._runtime._handled - self._runtime._running


def _text(agent: AgentId | None) -> str | None:
    return None if agent is None else str(agent)


@lru_cache(100_000)
def _id(agent: int | str) -> AgentId:
    return AgentId.from_str(str(agent))


def _travels(factory: object) -> bool:
    """Return whether another process can run a factory: it holds nothing that belongs to this process."""

    class Pickler(ray.cloudpickle.CloudPickler):
        def reducer_override(self, given: object) -> Any:
            if isinstance(given, _OF_A_PROCESS):
                raise TypeError(f"{given!r} belongs to this process")
            return super().reducer_override(given)  # type: ignore[no-untyped-call]

    try:
        cast("Any", Pickler)(io.BytesIO()).dump(factory)
    except Exception as error:  # noqa: BLE001 - a part of the factory may raise any error
        logger.info("agents of %r live in this process: %s", factory, error)
        return False
    return True


def _concrete(data: Any) -> Any:
    """Return parts of AgentChat's messages as objects of the classes that their `type` names."""
    if isinstance(data, list):
        return [_concrete(each) for each in data]
    if not isinstance(data, dict):
        return data
    data = {key: _concrete(value) for key, value in data.items()}
    found = _classes().get(data.get("type", ""))
    return data if found is None else found.model_validate(data)


def _classes() -> dict[str, Any]:
    """Return all classes of AgentChat's messages and events that this process has imported, by name."""
    from autogen_agentchat.messages import BaseAgentEvent, BaseChatMessage  # noqa: PLC0415 - only AgentChat needs it

    found, left = {}, [BaseAgentEvent, BaseChatMessage]
    while left:
        each = left.pop()
        found[each.__name__] = each
        left += each.__subclasses__()
    return found


def _error_of(told: Mapping[str, Any]) -> BaseException:
    """Return the error that an agent of another process has raised, as its own class where that is known here."""
    name, text = told["error"], told["text"]
    if name == "CancelledError":
        return asyncio.CancelledError(text)
    found = getattr(exceptions, name, None) or getattr(builtins, name, None)
    if isinstance(found, type) and issubclass(found, Exception):
        with suppress(TypeError):  # it takes other arguments
            return found(text)
    return RuntimeError(f"{name}: {text}")


def _elsewhere() -> Agent:
    raise LookupError("agents of this type live in another process")


class _HostRuntime(RayAgentRuntime):
    """The runtime of a Ray actor: what it publishes, the runtime with the subscriptions passes on."""

    async def send_message(self, message: Any, recipient: AgentId, **given: Any) -> Any:
        self._agent_factories.setdefault(recipient.type, _elsewhere)  # it may be another process's: the server knows
        return await super().send_message(message, recipient, **given)

    async def _spread(self, payload: dict[str, Any], topic_id: TopicId, sender: AgentId | None) -> None:
        messager = await self._opened()
        receipt = await messager.send(_text(sender), f"{_TOPICS}/{topic_id.type}", payload)
        if receipt.fate == "delivered":
            self._count(sent=1)
        else:
            logger.warning("an event of topic %s is %s: %r", topic_id, receipt.fate, receipt)


class _Host:
    """Ray actor with the agents of one type."""

    async def __init__(  # type: ignore[misc]
        self, exp_id: str, kind: str, factory: Any, expected: Any, learned: list[Any], ignore: bool
    ) -> None:
        messaging = await asyncio.to_thread(Messaging.connect, exp_id)
        runtime = _HostRuntime(messaging, name=f"{_NAME}.{kind}", ignore_unhandled_exceptions=ignore)
        for each in learned:
            runtime._learn(each)
        await runtime.register_factory(kind, factory, expected_class=expected)
        runtime.start()
        await runtime._opened()
        self._runtime = runtime

    async def call(self, name: str, *given: object) -> Any:
        """Call a method of the runtime."""
        result = getattr(self._runtime, name)(*given)
        return await result if inspect.isawaitable(result) else result
