"""AutoGen's agent runtime on an experiment: replace `SingleThreadedAgentRuntime()` by `RayAgentRuntime()`.

This module needs autogen-core 0.7 (extra `[autogen]`). Each message between agents is a message of the experiment, so
it is stored before it is handled, passes the experiment's rules, and is in its log. Agents of a type can live in a Ray
actor.
"""

import asyncio
import base64
import builtins
import io
import json
import logging
import uuid
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, contextmanager, nullcontext, suppress
from functools import lru_cache, partial, partialmethod
from typing import Any, cast

import msgspec
import ray

from ray_messaging.addressing.channels import AGENT_CHAT, agent_channel
from ray_messaging.cluster.messaging import Messaging
from ray_messaging.cluster.ray_calls import kill, start_actor
from ray_messaging.common.backoff import AT_REST_RETRY, Backoff
from ray_messaging.compat.versions import needs, warn_unless_tested
from ray_messaging.config import MessagingConfig
from ray_messaging.embedded.local_server import LocalServer
from ray_messaging.errors import AnswerFailed, NoAnswer, QuestionBlocked
from ray_messaging.message import Message
from ray_messaging.messager import Messager
from ray_messaging.model.fates import IS_STORED, STORED

with needs("AutoGen", "'ray-messaging[autogen]'"):
    import autogen_core as core
    from autogen_core.exceptions import MessageDroppedException, NotAccessibleError, UndeliverableException
    from opentelemetry.trace import ProxyTracerProvider
warn_unless_tested("autogen-core", "0.7", "runtime")

logger = logging.getLogger(__name__)

_PLAIN = (str, int, float, bool, list, dict, type(None))  # messages of these types need no serializer
_JSON, _PROTOBUF = core.JSON_DATA_CONTENT_TYPE, core.PROTOBUF_DATA_CONTENT_TYPE
_TOPICS = "ray-messaging-topics"  # the type of the agents to which Ray actors send the events that they publish


class RayAgentRuntime(core.SingleThreadedAgentRuntime, AbstractAsyncContextManager["RayAgentRuntime"]):
    """AutoGen's AgentRuntime, which sends the messages between agents through an experiment.

    An agent `type/key` of AutoGen has the id "type/key" in rules and in the log. Events whose handler fails become dead
    letters. Close the runtime at the end, or use it as an async context manager.

    Args: `messaging` is the experiment; without one, this process starts a server for the messages. With `actors`, each
    type that is registered by a factory gets a Ray actor, in which its agents live. Only if the factory refers to
    objects of this process, as the factory of an AgentChat team's manager does, its agents live in this process. `name`
    is the name of this runtime's Messager. The other arguments are AutoGen's.
    """

    def __init__(
        self, messaging: Messaging | None = None, *, actors: bool = False, name: str = "autogen", **of_autogen: Any
    ) -> None:
        super().__init__(**of_autogen)
        del self._message_queue  # AutoGen's queue is not used, because the server stores the messages
        if actors and messaging is None:
            raise ValueError("actors=True needs an experiment on Ray: pass messaging=Messaging.start(...)")
        if actors and self._intervention_handlers:
            raise ValueError(
                "intervention_handlers work only in one process, and so not with actors=True: use rules instead, "
                "Messaging.start(rules=...)"
            )
        self._on_ray = actors
        self._planned: dict[str, tuple[Any, Any]] = {}  # by type: the factory of agents that live in Ray actors
        self._actors: dict[str, Any] = {}
        self._placed: set[str] = set()  # types whose agents can get messages
        server, exp_id = (LocalServer(), "autogen") if messaging is None else (messaging.redis, messaging.exp_id)
        settings, interceptor = MessagingConfig(strict_senders=False), messaging and messaging.interceptor
        self._messager = Messager(server, exp_id, interceptor, name=name, settings=settings)
        self._service: asyncio.Task[None] | None = None
        self._opening, self._saving = asyncio.Lock(), asyncio.Lock()
        self._started, self._resumed, self._changed = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._resumed.set()
        self._held: dict[str, Message] = {}  # messages that wait until the runtime starts, or a state has been saved
        self._unbegun = self._running = 0
        # By the id of a question: the question's cancellation token, or, if its handler has failed in this process, the
        # handler's error.
        self._asked: dict[str, Any] = {}
        self._decoded = lru_cache(16)(self._decode)  # so that all recipients of an event get the same object
        self._locks: dict[core.AgentId, asyncio.Lock] = {}
        # If no tracing is set up, no spans are made, because they would take as much time as the messages.
        helper: Any = self._tracer_helper
        unseen = isinstance(helper.tracer_provider, ProxyTracerProvider)
        self._span = (lambda *_, **__: nullcontext()) if unseen else helper.trace_block

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _opened(self) -> Messager:
        """Return the messager, once all registered agents can be reached; raise the error that has ended receiving."""
        async with self._opening:
            await self._messager.init()
            if len(self._placed) < len(self._agent_factories):
                await self._place(self._agent_factories.keys() - self._placed)
        if self._service is not None and self._service.done():
            self._service.result()
        return self._messager

    async def _place(self, kinds: set[str]) -> None:
        """Start Ray actors for some types of agents, and begin to read the messages for the types of this process."""
        serializers = [*self._serialization_registry._serializers.values()]
        common = self._messager.exp_id, self._ignore_unhandled_handler_exceptions, serializers
        options = {"num_cpus": 0, "max_restarts": -1, "max_task_retries": -1, "max_concurrency": 1000}
        start = partial(start_actor, self._messager.exp_id, _ActorRuntime, options)
        for kind in kinds & self._planned.keys():
            self._actors[kind] = start(*common, f"{kind}.{self._messager.name}", kind, *self._planned[kind])
        here = kinds - self._planned.keys() | ({_TOPICS} if self._on_ray else set())
        channels = [agent_channel(self._messager.exp_id, f"{kind}/", AGENT_CHAT) for kind in here]
        await self._messager.subscribe_and_start_listening([each.replace("/:", "/*:") for each in channels])
        if self._service is None:
            self._service = asyncio.create_task(self._messager.serve(self._handle, concurrency=1_000_000))
        await self._on_actors("add_message_serializer", serializers)  # an actor answers this call once it listens
        self._placed |= kinds

    async def _on_actors(self, call: str, *given: Any) -> list[Any]:
        return await asyncio.gather(*(getattr(actor, call).remote(*given) for actor in self._actors.values()))

    def start(self) -> None:
        """Begin to handle messages."""
        if self._started.is_set():
            raise RuntimeError("Runtime is already started")
        self._started.set()

    async def stop(self) -> None:
        """Stop handling messages. Messages that arrive from now on wait for the next `start`."""
        with self._stopping():
            pass

    async def stop_when_idle(self) -> None:
        """Stop when every message is handled.

        Raises the first error of an event's handler, unless such errors are ignored.
        """
        with self._stopping():
            await self._quiet(save=False)

    async def stop_when(self, condition: Callable[[], bool]) -> None:
        """Call `condition` now, and after each message that this process handles. Stop when it returns True.

        Raises the first error of an event's handler, unless such errors are ignored.
        """
        with self._stopping():
            await self._until(condition)

    @contextmanager
    def _stopping(self) -> Iterator[None]:
        if not self._started.is_set():
            raise RuntimeError("Runtime is not started")
        try:
            yield
        finally:
            self._started.clear()

    async def close(self) -> None:
        """Close all agents and the connection. Messages that are not handled stay in the experiment's mailboxes."""
        self._started.clear()
        for agent in [*self._instantiated_agents.values()]:
            await agent.close()
        if self._service is not None:
            self._service.cancel()
            await asyncio.gather(self._service, return_exceptions=True)
        await self._messager.close()
        await self._on_actors("close")
        for actor in self._actors.values():
            kill(actor)

    async def _until(self, condition: Callable[[], bool]) -> None:
        """Wait until `condition` returns True. The first error of an event's handler is raised, but only once."""
        while not condition() and self._background_exception is None:
            self._changed.clear()
            await self._changed.wait()
        error, self._background_exception = self._background_exception, None
        if error is not None:
            raise error

    async def _quiet(self, *, save: bool) -> list[Any]:
        """Wait until all processes are idle, so that each mailbox has only messages that its process holds back.

        All processes report the states of their mailboxes, again and again. If all are idle in two successive rounds,
        and no message came to a mailbox in between, no message is on its way, even if a process has died.

        Args: with `save`, the reports have the states of agents.
        Returns: the reports of the last round.
        """
        backoff, before = Backoff(AT_REST_RETRY), None
        while True:
            found = [await self._at_rest(save), *await self._on_actors("_at_rest", save)]
            now = [mailbox for mailbox, *_ in found]
            quiet = all(waiting == held for _, waiting, held in now)
            if quiet and now == before:
                return found
            if not quiet:
                await backoff.sleep()
            before = now

    async def _at_rest(self, save: bool) -> tuple[tuple[Any, int, int], list[Any], dict[str, Any]]:
        """Wait until no handler runs in this process, and report the state of its mailbox.

        Returns: (state, events, agents). `state` is the mailbox's last entry, the number of its unhandled messages, and
        the number of messages that this process holds back. `events` are the events that this process holds back.
        `agents` has the states of agents if `save` is true.

        Raises: the error of an event's handler.
        """
        messager = await self._opened()
        await self._until(lambda: not self._running)
        transport, fields = messager.engine.transport, ("last", "messages", "acked_messages")
        last, messages, acked = await transport.link.command("HMGET", transport.keys.state(messager.name), *fields)
        mailbox = last, int(messages or 0) - int(acked or 0), len(self._held)
        held = [each for each in self._held.values() if not each.expects_answer]
        found = [{"from": each.from_id, "to": each.to_id, "payload": each.payload} for each in held]
        return mailbox, found, dict(await super().save_state()) if save else {}

    async def save_state(self) -> Mapping[str, Any]:
        """Return the states of all agents, and the events that no agent has begun to handle.

        No event is handed to a handler until the states are read. Questions, and events whose handlers are running, are
        finished first.
        """
        await self._opened()
        async with self._saving:
            try:
                await self._hold(True)
                found = await self._quiet(save=True)
            finally:
                await self._hold(False)
        agents = {agent: state for *_, states in found for agent, state in states.items()}
        return {"agents": agents, "messages": [each for _, messages, _ in found for each in messages]}

    async def _hold(self, hold: bool) -> None:
        """Stop handing events to handlers, in this process and in all actors. With `hold` False, begin again."""
        (self._resumed.clear if hold else self._resumed.set)()
        await self._on_actors("_hold", hold)

    async def load_state(self, state: Mapping[str, Any]) -> None:
        """Give the agents their states, and send the events that had not been handled.

        The states of agents whose type is not registered in this runtime are left out.

        Raises: UndeliverableException for an event that is not delivered, because a rule blocks it, for example, or
        because its agent's type is not registered anywhere.
        """
        for agent, of_agent in state["agents"].items():
            agent_id = core.AgentId.from_str(agent)
            if agent_id.type in self._known_agent_names:
                await self.agent_load_state(agent_id, of_agent)
        messager = await self._opened()
        for each in state["messages"]:
            receipt = await messager.send(each["from"], each["to"], each["payload"])
            if receipt.fate not in STORED:
                raise UndeliverableException(
                    f"the saved event for {each['to']} is {receipt.fate}, not delivered: {receipt}"
                )
            self._unbegun += 1

    async def send_message(self, message: Any, recipient: core.AgentId, **given: Any) -> Any:
        """Ask an agent; return its answer.

        Raises: the error of the agent's handler; UndeliverableException if no runtime has agents of this type;
        MessageDroppedException if a rule or an intervention handler drops the question.
        """
        with self._sending(message, recipient, **given) as context:
            asking = asyncio.create_task(self._ask(message, recipient, context))
            context.cancellation_token.link_future(asking)
            return await asking

    async def _ask(self, message: Any, recipient: core.AgentId, context: Any) -> Any:
        message = await self._intervened("on_send", message, message_context=context, recipient=recipient)
        payload, messager = self._encoded(message) | {"id": context.message_id}, await self._opened()
        self._asked[context.message_id] = context.cancellation_token
        try:
            told = await messager.ask(context.sender and str(context.sender), str(recipient), payload, timeout=None)
        except AnswerFailed:
            raise
        except NoAnswer as error:
            raise UndeliverableException(f"Recipient not found: {recipient}: {error}") from error
        except QuestionBlocked as error:
            raise MessageDroppedException(
                f"rule {error.rule} blocked the message to {recipient}: {error.reason}"
            ) from error
        finally:
            found = self._asked.pop(context.message_id)
        if "error" in told.payload:
            raise found if isinstance(found, BaseException) else _error_of(told.payload)
        return self._decode(told.data)

    async def publish_message(self, message: Any, topic_id: core.TopicId, **given: Any) -> None:
        """Send an event to all subscribed agents except the sender; return when it is stored."""
        with self._sending(message, topic_id, **given) as context, suppress(MessageDroppedException):
            message = await self._intervened("on_publish", message, message_context=context)
            about = {"id": context.message_id, "topic": [topic_id.type, topic_id.source]}
            await self._spread(self._encoded(message) | about, context)

    async def _spread(self, payload: dict[str, Any], context: Any) -> None:
        recipients = await self._subscription_manager.get_subscribed_recipients(context.topic_id)
        others = [str(each) for each in recipients if each != context.sender]
        receipts = await (await self._opened()).send_columns(context.sender and str(context.sender), others, payload)
        delivered = int(IS_STORED[receipts.codes].sum())
        self._unbegun += delivered
        level = logging.WARNING if delivered < len(others) else logging.INFO
        logger.log(
            level, "delivered %d of %d messages of topic %s: %r", delivered, len(others), context.topic_id, receipts
        )

    @property
    def unprocessed_messages_count(self) -> int:
        """Return the number of events from this process, and of questions to its agents, that wait for a handler.

        Raises: RuntimeError with actors=True, because other processes handle events of this process.
        """
        if self._on_ray:
            raise RuntimeError(
                "unprocessed_messages_count is known only if all agents live in one process: with actors=True, await "
                "stop_when_idle()"
            )
        return self._unbegun + sum(each.expects_answer for each in self._held.values())

    @contextmanager
    def _sending(
        self, message: Any, to: Any, *, sender: Any = None, cancellation_token: Any = None, message_id: Any = None
    ) -> Iterator[core.MessageContext]:
        """Yield the MessageContext of a message to an agent or topic.

        The `with` block is traced as a span of AutoGen.
        """
        asks, token = isinstance(to, core.AgentId), cancellation_token or core.CancellationToken()
        with self._span("create", to, parent=None, extraAttributes={"message_type": type(message).__name__}):
            yield core.MessageContext(sender, None if asks else to, asks, token, message_id or str(uuid.uuid4()))

    async def _intervened(self, call: str, message: Any, **given: Any) -> Any:
        """Pass a message through the method `call` of each intervention handler; return the message that results.

        Raises MessageDroppedException if a handler drops the message.
        """
        for handler in self._intervention_handlers or ():
            message = await getattr(handler, call)(message, **given)
            if message is None:
                warnings.warn(f"Intervention handler {call} returned None", RuntimeWarning, stacklevel=3)
            if message is core.DropMessage or isinstance(message, core.DropMessage):
                raise MessageDroppedException(f"{type(handler).__name__}.{call} dropped the message")
        return message

    def _encoded(self, message: Any) -> dict[str, Any]:
        """Return a payload with a message: the name of the message's type, and the message as JSON or Protobuf."""
        if type(message) in _PLAIN:
            return {"type": None, "message": message}
        registry, name = self._serialization_registry, self._serialization_registry.type_name(message)
        if not any(registry.is_registered(name, content) for content in (_JSON, _PROTOBUF)):
            self.add_message_serializer(core.try_get_known_serializers_for_type(type(message)))
        content = _JSON if registry.is_registered(name, _JSON) else _PROTOBUF
        data = registry.serialize(message, type_name=name, data_content_type=content)
        if content == _JSON:
            return {"type": name, "message": json.loads(data)}
        return {"type": name, "protobuf": base64.b64encode(data).decode()}

    def _decode(self, payload: bytes) -> Any:
        told = msgspec.json.decode(payload)
        name, protobuf = told["type"], told.get("protobuf")
        if name is None:
            return told["message"]
        content = _JSON if protobuf is None else _PROTOBUF
        data = msgspec.json.encode(told["message"]) if protobuf is None else base64.b64decode(protobuf)
        try:
            return self._serialization_registry.deserialize(data, type_name=name, data_content_type=content)
        except TypeError:  # AgentChat's messages have fields of abstract classes, which pydantic cannot make
            known: Any = getattr(self._serialization_registry._serializers[name, content], "cls", None)
            if not hasattr(known, "model_validate"):
                raise
            return known.model_validate(_of_agentchat(data))

    async def _handle(self, message: Message) -> dict[str, Any] | None:
        """Give a message to its agent. If the message is an event from an actor, send it to all subscribed agents.

        If the message is a question, return what the agent has returned, or its error.
        """
        if message.in_reply_to is not None:
            return None  # a late answer: nobody waits for it, because the question was cancelled
        await self._may_begin(message)
        asks, told = message.expects_answer, message.payload
        sender, recipient, topic = _id(message.from_id), _id(message.to_id), told.get("topic")
        token = self._asked.get(told["id"]) or core.CancellationToken()
        context = core.MessageContext(sender, topic and core.TopicId(*topic), asks, token, told["id"])
        self._unbegun -= not asks
        self._running += 1
        try:
            if recipient.type == _TOPICS:
                await self._spread(told, context)
                return None
            agent, heard = await self._get_agent(recipient), self._decoded(message.data)
            with self._span("process", recipient, parent=None), core.MessageHandlerContext.populate_context(recipient):
                answer = await agent.on_message(heard, ctx=context)
            if asks:
                return self._encoded(await self._intervened("on_response", answer, sender=recipient, recipient=sender))
        # BaseException is caught, because AutoGen's ToolExecutionException does not derive from Exception.
        except BaseException as error:
            cancelled = isinstance(error, asyncio.CancelledError) and token.is_cancelled()
            if isinstance(error, (SystemExit, KeyboardInterrupt, asyncio.CancelledError)) and not cancelled:
                raise  # this runtime is ending; the runtime that replaces it will handle the message
            if asks:
                if told["id"] in self._asked:
                    self._asked[told["id"]] = error
                return {"error": type(error).__name__, "text": str(error)}
            logger.exception("Error processing publish message for %s", recipient)
            if not self._ignore_unhandled_handler_exceptions and self._background_exception is None:
                self._background_exception = error
            raise RuntimeError(f"{type(error).__name__}: {error}") from error  # the dead letter's reason
        finally:
            self._running -= 1
            self._changed.set()
        return None

    async def _may_begin(self, message: Message) -> None:
        """Wait until the runtime has started. For an event, also wait until no state is being saved."""
        gates = (self._started,) if message.expects_answer else (self._started, self._resumed)
        self._held[message.id] = message
        while closed := [gate for gate in gates if not gate.is_set()]:
            await closed[0].wait()
        del self._held[message.id]

    async def register_factory(
        self, type: str | core.AgentType, agent_factory: Callable[[], Any], *, expected_class: Any = None
    ) -> core.AgentType:
        """Register the factory that makes a type's agents.

        The agents live in a Ray actor or in this process (see `actors` of RayAgentRuntime).
        """
        found = await super().register_factory(type, agent_factory, expected_class=expected_class)
        self.add_message_serializer(_serializers_of(expected_class))
        if self._on_ray and _travels(agent_factory):
            self._planned[found.type] = agent_factory, expected_class
        if self._service is not None:  # agents of other processes may send to this type from now on
            await self._opened()
        return found

    async def register_agent_instance(self, agent_instance: core.Agent, agent_id: core.AgentId) -> core.AgentId:
        """Register an agent that lives in this process."""
        found = await super().register_agent_instance(agent_instance, agent_id)
        if self._service is not None:
            await self._opened()
        return found

    async def _get_agent(self, agent_id: core.AgentId) -> core.Agent:
        """Return an agent of this process.

        The agent is made only once, even if several messages to it come together.
        """
        if agent_id.type in self._planned:
            raise NotAccessibleError(
                f"agent {agent_id} lives in a Ray actor, so this process has no object of it: send it a message"
            )
        if (found := self._instantiated_agents.get(agent_id)) is None:
            async with self._locks.setdefault(agent_id, asyncio.Lock()):
                found = await super()._get_agent(agent_id)
            self._locks.pop(agent_id, None)
            self.add_message_serializer(_serializers_of(type(found)))
        return found

    async def get(self, id_or_type: Any, /, key: str = "default", *, lazy: bool = True) -> core.AgentId:
        """Return the id of an agent; make the agent now unless `lazy`."""
        found = await super().get(id_or_type, key)
        if not lazy:
            await self.agent_metadata(found)
        return found

    async def _on(self, call: str, agent: core.AgentId, *given: Any) -> Any:
        """Call a method of the runtime in whose process an agent lives, and return the result."""
        await self._opened()
        if agent.type in self._actors:
            return await self._actors[agent.type]._on.remote(call, agent, *given)
        return await getattr(super(), call)(agent, *given)

    agent_metadata = partialmethod(_on, "agent_metadata")
    agent_save_state = partialmethod(_on, "agent_save_state")
    agent_load_state = partialmethod(_on, "agent_load_state")


class _ActorRuntime(RayAgentRuntime):
    """Ray actor with the agents of one type.

    What these agents publish goes to the RayAgentRuntime that started this actor, which has the subscriptions.
    """

    async def __init__(  # type: ignore[misc]
        self, exp_id: str, ignore: bool, serializers: list[Any], name: str, kind: str, factory: Any, expected: Any
    ) -> None:
        messaging = await asyncio.to_thread(Messaging.connect, exp_id)
        super().__init__(messaging, name=name, ignore_unhandled_exceptions=ignore)
        self.add_message_serializer(serializers)
        await self.register_factory(kind, factory, expected_class=expected)
        await self._opened()
        self.start()

    async def _spread(self, payload: dict[str, Any], context: Any) -> None:
        sender, messager = context.sender and str(context.sender), await self._opened()
        receipt = await messager.send(sender, f"{_TOPICS}/{context.topic_id.type}", payload)
        if receipt.fate not in STORED:
            logger.warning(
                "an event of topic %s was not delivered; its fate is %r: %r", context.topic_id, receipt.fate, receipt
            )


@lru_cache(100_000)
def _id(text: Any) -> Any:
    return None if text is None else core.AgentId.from_str(text)


def _travels(factory: object) -> bool:
    """Return whether a factory can be sent to another process. It cannot if it refers to objects of this process."""

    class Pickler(ray.cloudpickle.CloudPickler):
        def persistent_id(self, given: object) -> None:
            if isinstance(given, (asyncio.Queue, asyncio.Event, asyncio.Lock, asyncio.Condition, asyncio.Future)):
                raise TypeError(
                    f"{given!r} cannot be sent to another process: make it there, in the function that makes the agent"
                )

    try:
        cast("Any", Pickler)(io.BytesIO()).dump(factory)
    except Exception as error:  # noqa: BLE001 - a part of the factory may raise any error
        logger.info("agents of %r live in this process: %s", factory, error)
        return False
    return True


@lru_cache
def _serializers_of(agent_class: Any) -> list[Any]:
    """Return serializers for the messages that agents of a class handle, and for their answers."""
    heard = [each for _, found in getattr(agent_class, "_handles_types", list)() for each in found]
    handlers: list[Any] = getattr(agent_class, "_discover_handlers", list)()
    answers = [kind for handler in handlers for kind in handler.produces_types if isinstance(kind, type)]
    return heard + [each for kind in answers for each in core.try_get_known_serializers_for_type(kind)]


def _of_agentchat(data: bytes) -> Any:
    """Return the fields of a message of AgentChat.

    A dict whose `type` is the name of a message class becomes an object of this class.
    """
    from autogen_agentchat.messages import BaseMessage  # noqa: PLC0415 - only AgentChat needs it

    classes: list[Any] = [BaseMessage]
    for each in classes:
        classes += each.__subclasses__()
    named = {each.__name__: each for each in classes}

    def concrete(part: dict[str, Any]) -> Any:
        found = named.get(str(part.get("type")))
        return part if found is None else found.model_validate(part)

    return json.loads(data, object_hook=concrete)


def _error_of(told: Mapping[str, Any]) -> BaseException:
    """Rebuild an error that an agent of another process raised.

    The error has its original class if this is an exception of Python or AutoGen that can be made from a text alone.
    Any other error becomes a RuntimeError.
    """
    known = vars(builtins) | vars(core.exceptions) | {"CancelledError": asyncio.CancelledError}
    found = known.get(told["error"])
    if isinstance(found, type) and issubclass(found, (Exception, asyncio.CancelledError)):
        with suppress(TypeError):  # the class has other parameters
            return found(told["text"])
    return RuntimeError(f"{told['error']}: {told['text']}")
