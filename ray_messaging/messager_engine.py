"""The class `Engine`, which sends and receives for one messager."""

import asyncio
import logging
import secrets
from collections.abc import Callable, Iterable, Sequence
from contextlib import AsyncExitStack
from operator import index
from typing import TYPE_CHECKING, Any

from ray_messaging.addressing import channels as names
from ray_messaging.addressing.channels import INT64_MAX, INT64_MIN, AgentId
from ray_messaging.addressing.directory import Directory, MailboxRecord
from ray_messaging.audiences.cache import AudienceCache
from ray_messaging.audiences.source import AudienceSource
from ray_messaging.common.awaitables import Life, at_loop_end
from ray_messaging.common.process_tuning import keep_memory
from ray_messaging.common.task_health import TaskHealth
from ray_messaging.config import MessagingConfig
from ray_messaging.errors import (
    Closed,
    ConfigError,
    MessagingError,
    NotListening,
    TransitError,
)
from ray_messaging.interception.verdict_client import PassAll, RemoteVerdictClient, VerdictClient, verdict_client_for
from ray_messaging.model.agent_sets import AgentSet
from ray_messaging.observability.observer import Observer
from ray_messaging.observability.tracing.settings import Tracing, tracer_of
from ray_messaging.receiving.agent_mover import check_leaving
from ray_messaging.receiving.call_checks import check_timeout
from ray_messaging.receiving.fetcher import Fetcher
from ray_messaging.receiving.mailbox_lease import KEEP_S, IsDead
from ray_messaging.receiving.subscription import Subscription
from ray_messaging.receiving.unfolder import Unfolder
from ray_messaging.sending.accumulator import Accumulator
from ray_messaging.sending.bulk_sender import BulkSender
from ray_messaging.sending.frame_sender import FrameSender
from ray_messaging.sending.local_log import LocalLog
from ray_messaging.sending.message_checks import MessageChecks
from ray_messaging.sending.pending_batch import TransactionBatch
from ray_messaging.transports.step_values import StepSettings

if TYPE_CHECKING:
    from ray_messaging.transports.transport import RedisTransport

logger = logging.getLogger(__name__)

_LEAVE_S = 2.0  # the longest wait for the server when `close` deletes the sender's state


class Engine:
    """What a messager consists of: a transport, an accumulator of sends, a subscription, and a local log.

    With a `name` the mailbox outlives this process. Without a name the mailbox is removed when the engine closes. A
    from_id of None stands for the user, who is outside of the simulation. If `user_is_explicit` is False, None may also
    mean that the caller left from_id out. In this case, if only the hosted agents may send, None is refused.
    """

    def __init__(
        self,
        transport: "RedisTransport",
        interceptor: object = None,
        *,
        name: str | None = None,
        settings: MessagingConfig | None = None,
        user_is_explicit: bool = False,
        observer: Observer | None = None,
        audiences: AudienceSource | None = None,
        tracing: Tracing | None = None,
    ) -> None:
        self.exp_id = transport.exp_id
        self.name = names.check_name("name", name) if name is not None else f"anon-{secrets.token_hex(8)}"
        self.named = name is not None
        self.settings = settings or MessagingConfig()
        self.transport = transport
        self.observer = observer
        self.tracer = tracer_of(tracing, self.exp_id, self.name)
        if observer is not None:
            self.transport.observe(observer)
        if self.named:
            self.transport.called_by(repr(self.name))
        self.directory = Directory(self.exp_id)
        # The setting is read once, because pydantic's attributes are slow.
        payload_bytes = self.settings.payload_bytes
        self.checks = MessageChecks(self.exp_id, self.name, payload_bytes, user_is_explicit=user_is_explicit)
        self.log = LocalLog(self.exp_id, self.settings.log_list_messages, self.settings.log_list_bytes)
        self.closed = self.closing = False  # `closing` is true from the beginning of `Messager.close`
        keep_s = 0 if self.named else KEEP_S
        self.frame_sender = FrameSender(
            transport, self.directory, self.name, keep_s, mirror=self.settings.mirror, observer=observer
        )
        self.accumulator: Accumulator | None = None
        self._bulk_sender: BulkSender | None = None
        # None while this engine accepts no sends: before `open`, after `close`, and, in an experiment with steps, after
        # it has begun to host agents.
        self.accepting: Accumulator | None = None
        self.subscription: Subscription | None = None
        self.audiences = AudienceCache(audiences)
        self.fetcher = Fetcher(transport, self.name, self.settings, self.observer, self.tracer)
        self.fetcher.unavailable = self._not_listening
        self._interceptor = interceptor
        self._listened = False
        self.agents_changed: Callable[[], None] = lambda: None  # called after agents have come or left
        self.hostings = 0  # the number of calls of `host` and `add`
        self.steps: StepSettings | None = None  # None if the experiment has no steps, or if this engine hosts no agents
        self.step_loops = 0  # the number of step loops that were made
        self._step: int | None = None
        # The last client is in use. The earlier clients are kept, because batches may still wait for their verdicts.
        self._clients: list[VerdictClient] = []
        self._opening = asyncio.Lock()
        self._life: Life | None = None
        self._loop_ended = False

    # -- life -----------------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Connect, unless this engine is connected already.

        Raises: the same errors as `Messager.init`, such as ConnectionFailed and Closed.
        """
        async with self._opening:
            if self.closed:
                raise self.not_open(Closed)
            if self.accumulator is None:
                await self._open()

    async def _open(self) -> None:
        keep_memory()
        verdict_client = self._client_of(self._interceptor)
        self.transport.ask_when_cut(self._ended)
        await self.transport.connect()
        try:
            await self._start(verdict_client)
        except BaseException:
            await self.transport.close()
            raise
        self._life = await at_loop_end(self._end_with_loop)

    async def _end_with_loop(self) -> None:
        """Close this engine when its event loop ends.

        The loop has cancelled the engine's tasks. If the engine stayed open, calls in another loop would never return.
        """
        if self.closed:
            return
        self._life = None  # `close` must not end the generator that is calling this function
        await asyncio.sleep(0)  # lets a user's generator, which ends with the loop too, close this messager first
        if self.closed or self.closing:
            return
        self.closed = self._loop_ended = True
        self.accepting, self.fetcher.unavailable = None, self._not_listening
        logger.info("messager %s was not closed before its event loop ended", self.name)
        await self._disconnect()

    async def _disconnect(self) -> None:
        async with AsyncExitStack() as last_first:
            last_first.push_async_callback(self.transport.close)
            for verdict_client in self._clients:
                last_first.push_async_callback(verdict_client.close)

    async def _start(self, verdict_client: VerdictClient) -> None:
        await self.frame_sender.reload()
        unfolder = Unfolder(self.audiences)
        self.subscription = Subscription(
            self.transport, self.directory, self.fetcher, self.settings, unfolder, named=self.named
        )
        self.subscription.agents_changed = self._agents_changed
        self.fetcher.unavailable = None
        log = self.log if self.settings.log_list_messages else None
        self.accumulator = Accumulator(self.frame_sender, verdict_client, self.settings, self.checks, log, self.tracer)
        self._bulk_sender = BulkSender(self.accumulator, self.frame_sender, self.audiences)
        self._clients.append(verdict_client)
        self.accumulator.step = self._step
        self.accepting = self.accumulator

    async def close(self, *, commit: bool = True) -> None:
        """Send accepted messages, commit fetched ones (if `commit`), and disconnect; do nothing in a second call."""
        if self.closed:
            return
        self.closed = True
        if commit:
            self.tracer.committed()
        self.accepting, self.fetcher.unavailable = None, self._not_listening
        accumulator, subscription = self.accumulator, self.subscription
        async with AsyncExitStack() as last_first:
            if self._life is not None:
                last_first.push_async_callback(self._life.aclose)
            last_first.push_async_callback(self._disconnect)
            last_first.push_async_callback(self._leave)
            if subscription is not None:
                last_first.push_async_callback(subscription.close, commit=commit)
            if accumulator is not None:
                last_first.push_async_callback(accumulator.close)

    async def _leave(self) -> None:
        """Delete this sender's state on the server, unless the mailbox stays for a later messager of the same name."""
        waits = self.named and (self._listened or self.name in self.directory.records)
        if not self.frame_sender.epoch or waits:
            return
        try:
            async with asyncio.timeout(_LEAVE_S):
                # The epoch of a named sender is kept for a while, because the next sender of this name needs a higher
                # epoch.
                await self.transport.leave(self.name, self.frame_sender.epoch, keep_s=KEEP_S if self.named else 0)
        except (TransitError, TimeoutError, Closed) as error:
            logger.info("the state of sender %s could not be removed from the server: %r", self.name, error)

    def _not_listening(self) -> MessagingError:
        return self.not_open(NotListening)

    def not_open(self, kind: type[MessagingError]) -> MessagingError:
        """Build the error for a call that this engine refuses at present.

        After `close`, or after the end of the event loop, the error is Closed. If the engine sends and receives only in
        its steps, the error is ConfigError. Otherwise the engine is not open yet, and the error is of the given kind.
        """
        if self._loop_ended:
            return Closed(
                "the event loop in which this messager was opened has ended: open, use and close it in one asyncio.run"
            )
        if self.closed:
            return Closed("this messager is closed: open another one")
        if self.steps is not None:
            return ConfigError(
                f"{self.name!r} is a group of an experiment with steps: it sends and receives in its steps, by "
                "`async for step in messager.steps(until=...)`"
            )
        return kind("this messager is not open yet: `await messager.init()` first, or use `async with`")

    # -- the interceptor, the step --------------------------------------------------------------------------------

    def _client_of(self, interceptor: object) -> VerdictClient:
        if interceptor is None:
            return PassAll()
        settings = self.settings
        return verdict_client_for(
            interceptor, settings.interceptor_timeout_s, self.exp_id, delegate_rules=settings.delegate_rules
        )

    async def _ended(self) -> Closed | None:
        """Return the error for calls after the experiment's end; None if the interceptor has not reported that end."""
        started = self.accumulator
        verdict_client = self._client_of(self._interceptor) if started is None else started.send_loop.verdict_client
        return await verdict_client.ended() if isinstance(verdict_client, RemoteVerdictClient) else None

    @property
    def verdict_client(self) -> VerdictClient:
        """Return the client that asks for verdicts now; raise Closed if this engine is not open."""
        if self.accumulator is None or self.closed:
            raise self.not_open(Closed)
        return self.accumulator.send_loop.verdict_client

    @property
    def interceptor(self) -> object:
        """Return the interceptor's handle, or None if messages are sent without verdicts."""
        return self._interceptor

    @interceptor.setter
    def interceptor(self, interceptor: object) -> None:
        verdict_client = self._client_of(interceptor)
        self._interceptor = interceptor
        if self.accumulator is not None:
            self._clients.append(verdict_client)
            self.accumulator.send_loop.verdict_client = verdict_client

    @property
    def step(self) -> int | None:
        """Return the simulation step that is stamped on messages as they are sent."""
        return self._step

    @step.setter
    def step(self, step: int | None) -> None:
        if self.steps is not None:
            raise ConfigError(
                "the step of a group in an experiment with steps cannot be set: its `steps()` loop decides which step "
                "it is"
            )
        self._step = check_step(step)
        if self.accumulator is not None:
            self.accumulator.step = self._step

    # -- sending --------------------------------------------------------------------------------------------------

    @property
    def sending(self) -> Accumulator:
        """Return the accumulator.

        Raises: Closed if this engine is not open; ConfigError if it hosts agents in an experiment with steps.
        """
        if self.accepting is None:
            raise self.not_open(Closed)
        return self.accepting

    @property
    def bulk_sender(self) -> BulkSender:
        """Return the sender of many messages in one call.

        Raises: Closed if this engine is not open; ConfigError if it hosts agents in an experiment with steps.
        """
        if self.accepting is None or self._bulk_sender is None:
            raise self.not_open(Closed)
        return self._bulk_sender

    # -- receiving ------------------------------------------------------------------------------------------------

    @property
    def receiving(self) -> Subscription:
        """Return the subscription; raise NotListening before `open`, Closed after `close`."""
        if self.subscription is None or self.closed:
            raise self.not_open(NotListening)
        return self.subscription

    async def subscribe(self, channels: Iterable[str]) -> None:
        """Listen on channels and patterns, in addition to those of earlier calls."""
        await self.receiving.subscribe(channels)
        await self._take_name()

    async def host(
        self, agents: Iterable[AgentId], subtopics: Sequence[str], *, owner: str, gone: IsDead | None = None
    ) -> None:
        """Claim agents for this messager, and listen on their channels.

        Raises: the same errors as `Messager.host_agents`, such as AlreadyExists.
        """
        hosted = AgentSet.of(agents)
        await self.receiving.host(hosted, subtopics, owner=owner, gone=gone)
        await self._take_name()
        await self._join_steps()
        self.hostings += 1
        if self.settings.strict_senders:
            self.checks.allow_only(hosted)

    async def add(self, agents: Iterable[AgentId]) -> None:
        """Claim more agents, on the subtopics of the agents that are hosted already.

        Raises: the same errors as `Messager.add_agents`, such as AlreadyExists and ConfigError.
        """
        record = await self._own_record()
        await self.host(agents, [*record.by_subtopic()], owner=self.receiving.owner)

    async def release(self, agents: Iterable[AgentId], target: str | None, timeout: float) -> None:
        """Move agents with their waiting messages to mailbox `target`, or (None) stop hosting the agents.

        Raises: the same errors as `Messager.move_agents`; ConfigError if this engine hosts no agents or has no name;
        Fenced if a newer process has taken over the mailbox.
        """
        check_timeout(timeout, optional=False)
        leaving, record = AgentSet.of(agents), await self._own_record()
        check_leaving(leaving, record, target)
        if not leaving:
            return
        if (
            not self.receiving.stepped and self.receiving.epoch is None
        ):  # the record is that of an earlier messager with this name
            raise ConfigError(f"{self.name!r} does not receive messages yet: `await messager.host_agents(...)` first")
        try:
            if self.steps is None:
                self.checks.refuse(leaving)
                # The messages that these agents have already sent go out first, because the agents may send from their
                # new group at once.
                accumulator, question = self.sending, TransactionBatch()
                await accumulator.transact(question)
                await asyncio.shield(question.future)
            await self.receiving.let_go(leaving, target, timeout)
        except BaseException:
            if self.settings.strict_senders:
                self.checks.allow_only(leaving & self.receiving.hosted)
            raise

    async def _own_record(self) -> MailboxRecord:
        await self.receiving.adopt()
        record = self.directory.records.get(self.name)
        if record is None or not record.exclusive:
            raise ConfigError(f"{self.name!r} hosts no agents: `await messager.host_agents(ids, subtopics)` first")
        if not self.named:
            raise ConfigError(
                "this messager has no name, so its mailbox ends with its process, and it cannot add, move or remove "
                "agents: give the messager a name"
            )
        return record

    def _agents_changed(self, came: AgentSet, went: AgentSet) -> None:
        if self.settings.strict_senders:
            self.checks.allow_only(came)
        self.checks.refuse(went)
        self.agents_changed()

    async def _join_steps(self) -> None:
        """Join the experiment's steps, if it has any. From then on this engine sends and receives only in its steps."""
        store = self.transport.steps
        self.steps = await store.settings()
        if self.steps is not None:
            await store.join(self.name)
            self.accepting, self.fetcher.unavailable = None, self._not_listening
            self.receiving.stepped = True

    async def _take_name(self) -> None:
        """If this messager has a name, make the server refuse an earlier sender of the same name.

        Only the messager that owns the mailbox may send under the mailbox's name.
        """
        self._listened = True
        if self.named:
            await self.frame_sender.begin()

    def loops(self) -> list[TaskHealth]:
        """Return the health of this engine's background tasks."""
        sending = [] if self.accumulator is None else [self.accumulator.health()]
        return sending if self.subscription is None else [*sending, *self.subscription.loops()]

    def stats(self) -> dict[str, Any]:
        """Return a dict of counters of sending and receiving.

        Its item "name" is the messager's name, and its item "interceptor" says how this engine asks for verdicts.
        """
        accumulator, subscription = self.accumulator, self.subscription
        verdict_client = None if accumulator is None else accumulator.send_loop.verdict_client
        return {
            "name": self.name,
            "interceptor": "none" if verdict_client is None else verdict_client.route,
            "delegated": verdict_client.delegated if isinstance(verdict_client, RemoteVerdictClient) else 0,
            "outbox": 0 if accumulator is None else accumulator.rows,
            "deferred": 0 if accumulator is None else len(accumulator.send_loop.deferred),
            "batches": 0 if accumulator is None else accumulator.send_loop.batches,
            "log_dropped": self.log.dropped,
        } | ({} if subscription is None else subscription.stats())


def check_step(step: object) -> int | None:
    """Return a simulation step as an int, or None; raise ConfigError unless it is None or fits into int64."""
    try:
        number = None if step is None else index(step)  # type: ignore[arg-type]  # others raise
    except TypeError:
        number = 2**64
    if number is not None and not INT64_MIN <= number <= INT64_MAX:
        raise ConfigError(f"step {step!r} must be an int of 64 bits, or None")
    return number
