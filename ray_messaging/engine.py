"""The engine: what every messager has below its names: a transport, an outbox, a subscription, a local log."""

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AsyncExitStack
from functools import partial
from operator import index
from typing import Any

from ray_messaging.addressing import channels as names
from ray_messaging.addressing.channels import (
    INT64_MAX,
    INT64_MIN,
    OMITTED,
    Address,
    AgentId,
    SenderId,
    check_id,
    check_recipient,
)
from ray_messaging.addressing.directory import Directory
from ray_messaging.common.task_health import TaskHealth
from ray_messaging.config import MessagingConfig
from ray_messaging.errors import Closed, ConfigError, MessagingError, NotListening, TransitError
from ray_messaging.interception.client.verdict_client import PassAll, VerdictClient, verdict_client_for
from ray_messaging.message import Outgoing
from ray_messaging.model.agent_sets import AgentSet
from ray_messaging.model.id_column import IdColumn
from ray_messaging.model.payload_column import encode_payload
from ray_messaging.receipt import Receipt
from ray_messaging.receiving.lease_watch import Gone
from ray_messaging.receiving.mailbox_lease import KEEP_S
from ray_messaging.receiving.subscription import Subscription
from ray_messaging.sending.accumulation.accumulator import Accumulator
from ray_messaging.sending.accumulation.allowed_senders import AllowedSenders, unnamed
from ray_messaging.sending.accumulation.bulk_input import ColumnChunk, columns_of, entries_of
from ray_messaging.sending.accumulation.bulk_sender import BulkSender
from ray_messaging.sending.accumulation.pending_batch import Entry
from ray_messaging.sending.delivery.frame_router import FrameRouter
from ray_messaging.sending.delivery.in_flight_batch import InFlightBatch
from ray_messaging.sending.delivery.transaction_sender import Concluder
from ray_messaging.sending.local_log import LocalLog
from ray_messaging.transports.base import Transport

logger = logging.getLogger(__name__)

# Accepts a message (channel, payload, from_id, to_id): see `Accumulator.accept`.
Accept = Callable[[str, object, SenderId, AgentId | None], Awaitable[Receipt]]

_ADDRESSES_KEPT = 200_000
_LEAVE_S = 2.0  # a server that is away is waited for no longer at the end


class Engine:
    """Send and receive by one transport under one name.

    Args: `parse` turns what a user sends to into an Address (None: it is a channel), `make_judge` an interceptor's
    handle into the way to ask it. With a `name` the mailbox outlives this process; without one it goes when the engine
    closes. `says_user`: a from_id of None is the user; else it may have been left out, which counts where we send for
    our agents alone.
    """

    def __init__(
        self,
        transport: Transport,
        interceptor: object = None,
        *,
        name: str | None = None,
        settings: MessagingConfig | None = None,
        parse: Callable[[str], Address] | None = None,
        make_judge: Callable[[object], VerdictClient] | None = None,
        says_user: bool = False,
    ) -> None:
        self.exp_id = transport.exp_id
        self.name = names.check_name("name", name) if name is not None else f"anon-{secrets.token_hex(8)}"
        self.settings = settings or MessagingConfig()
        self.transport = transport
        self.directory = Directory(self.exp_id, transport.patterns)
        self.parse = parse or partial(names.parse_channel, self.exp_id, patterns=transport.patterns)
        self._addresses: dict[str, tuple[AgentId | None, str]] = {}
        self._payload_bytes = self.settings.payload_bytes  # pydantic's attributes are slow
        self.log = LocalLog(self.exp_id, self.settings.log_list_messages, self.settings.log_list_bytes)
        self.closed = False
        self.shipper: Concluder | None = None
        self.outbox: Accumulator | None = None
        self.subscription: Subscription | None = None
        self.named = name is not None
        self._make_judge = make_judge or self._ask
        self._interceptor = interceptor
        self.accept: Accept = self._refuse  # the outbox's, while this is open
        self._listened = False
        self._step: int | None = None
        self._senders: AllowedSenders | None = None  # whom we send for; None: for anybody
        self._says_user = says_user
        self._retired: list[VerdictClient] = []

    # -- life -----------------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Connect; doing so twice does no harm. Raises ConnectionFailed within 5 s, ServerRefused at once."""
        if self.closed:
            raise self._not_open(Closed)
        if self.outbox is not None:
            return
        judge = self._judge(self._interceptor)
        await self.transport.connect()
        try:
            await self._start(judge)
        except BaseException:
            await self.transport.close()
            raise

    async def _start(self, judge: VerdictClient) -> None:
        keep_s = 0 if self.named else KEEP_S
        cutter = FrameRouter(self.directory, mirror=self.settings.mirror, logs_apart=self.transport.logs_apart)
        self.shipper = Concluder(self.transport, self.directory, cutter, self.name, keep_s)
        await self.shipper.reload()
        self.subscription = Subscription(self.transport, self.directory, self.name, self.settings, named=self.named)
        self.outbox = Accumulator(self.shipper, judge, self.settings, self._settled, self._addresses, self.checked)
        self.outbox.step = self._step
        self.accept = self.outbox.accept
        self.transport.ask_when_cut(self._ended)

    async def close(self, *, commit: bool = True) -> None:
        """Send what was accepted, commit what was fetched (unless told not to), and leave; twice does no harm."""
        if self.closed:
            return
        self.closed = True
        self.accept = self._refuse
        outbox, subscription = self.outbox, self.subscription
        async with AsyncExitStack() as last_first:
            last_first.push_async_callback(self.transport.close)
            for judge in self._retired if outbox is None else (*self._retired, outbox.judge):
                last_first.push_async_callback(judge.close)
            last_first.push_async_callback(self._leave)
            if subscription is not None:
                last_first.push_async_callback(subscription.close, commit=commit)
            if outbox is not None:
                last_first.push_async_callback(outbox.close)

    async def _leave(self) -> None:
        """Leave nothing of a sender on the server for long, unless a mailbox of its name waits for a successor."""
        waits = self.named and (self._listened or self.name in self.directory.records)
        if self.shipper is None or waits:
            return
        try:
            async with asyncio.timeout(_LEAVE_S):
                # A name may come again, whose epoch must be a higher one; of the nameless none does.
                await self.shipper.leave(KEEP_S if self.named else 0)
        except (TransitError, TimeoutError, Closed) as error:
            logger.info("the server keeps what it knows of sender %s: %r", self.name, error)

    def _settled(self, posting: InFlightBatch) -> None:
        self.log.add(posting.outgoing, posting.outcome)

    def _refuse(self, *_message: object) -> Awaitable[Receipt]:
        raise self._not_open(Closed)

    def _not_open(self, kind: type[MessagingError]) -> MessagingError:
        if self.closed:
            return Closed("this messager is closed: make another one")
        return kind("this messager is not open yet: `await messager.init()` first, or use `async with`")

    # -- the interceptor, the step --------------------------------------------------------------------------------

    def _judge(self, interceptor: object) -> VerdictClient:
        return PassAll() if interceptor is None else self._make_judge(interceptor)

    def _ask(self, interceptor: object) -> VerdictClient:
        delegate_rules = self.settings.delegate_rules and self.transport.checks_verdicts
        return verdict_client_for(
            interceptor, self.settings.interceptor_timeout_s, self.exp_id, delegate_rules=delegate_rules
        )

    async def _ended(self) -> Closed | None:
        """Return that the experiment has ended, where an interceptor can say so."""
        ask = None if self.outbox is None else getattr(self.outbox.judge, "ended", None)
        return None if ask is None else await ask()

    @property
    def interceptor(self) -> object:
        """Return the interceptor's handle; None: nobody is asked, which counts where the experiment has none."""
        return self._interceptor

    @interceptor.setter
    def interceptor(self, interceptor: object) -> None:
        judge = self._judge(interceptor)
        self._interceptor = interceptor
        if self.outbox is not None:
            self._retired.append(self.outbox.judge)  # a batch may be with it: it is closed when we are
            self.outbox.judge = judge

    @property
    def step(self) -> int | None:
        """Return the simulation step that is stamped on what is sent."""
        return self._step

    @step.setter
    def step(self, step: int | None) -> None:
        self._step = check_step(step)
        if self.outbox is not None:
            self.outbox.step = self._step

    # -- sending --------------------------------------------------------------------------------------------------

    @property
    def sending(self) -> Accumulator:
        """Return the outbox; raise Closed."""
        if self.outbox is None or self.closed:
            raise self._not_open(Closed)
        return self.outbox

    @property
    def in_parts(self) -> BulkSender:
        """Return what sends much; raise Closed."""
        return BulkSender(self.sending)

    def checked(
        self, channel: str, payload: object, from_id: SenderId, to_id: AgentId | None
    ) -> tuple[AgentId | None, AgentId | None, str, bytes]:
        """Return a message as the outbox takes it: from_id, to_id, topic, payload as JSON.

        Raises: InvalidAddress, UnknownSender, InvalidPayload, PayloadTooLarge.
        """
        recipient, topic = self.address(channel)
        if to_id is not None and (to_id.__class__ is not int or to_id != recipient):
            recipient = check_recipient(channel, recipient, to_id)
        if from_id is None or from_id is OMITTED:
            if self._senders is not None and (from_id is OMITTED or not self._says_user):
                raise unnamed(self.name)
            from_id = None
        else:
            from_id = check_id(from_id)
            if self._senders is not None:
                self._senders.check(from_id)
        return from_id, recipient, topic, encode_payload(payload, self._payload_bytes)

    def entries(self, messages: Sequence[Outgoing]) -> list[Entry]:
        """Check and encode messages; raises as `checked`, before any is sent."""
        entries = entries_of(messages, self.address, self._payload_bytes, None if self._senders is None else self.name)
        if self._senders is not None:
            self._senders.check_all(entry.from_id for entry in entries)
        return entries

    def columns(self, from_ids: object, to_ids: object, payloads: object) -> list[ColumnChunk]:
        """Check and encode columns; raises as `checked`, and InvalidColumns, before anything is sent."""
        chunks = columns_of(from_ids, to_ids, payloads, self._payload_bytes)
        self.check_senders(chunk.from_ids for chunk in chunks)
        return chunks

    def check_senders(self, columns: Iterable[IdColumn]) -> None:
        """Raise UnknownSender where we do not send for one of these."""
        if self._senders is not None:
            for column in columns:
                self._senders.check_column(column)

    def address(self, channel: str) -> tuple[AgentId | None, str]:
        """Return the agent (None: none) and the topic of a channel; raise InvalidAddress."""
        known = self._addresses
        try:
            return known[channel]
        except KeyError:
            agent_id, topic = self.parse(channel)
        except TypeError:  # unhashable
            return self.parse(channel)
        if len(known) >= _ADDRESSES_KEPT:
            known.clear()  # all are parsed anew
        known[channel] = agent_id, topic  # a plain tuple, which is the fastest to take apart
        return agent_id, topic

    # -- receiving ------------------------------------------------------------------------------------------------

    @property
    def receiving(self) -> Subscription:
        """Return the subscription; raise NotListening, Closed."""
        if self.subscription is None or self.closed:
            raise self._not_open(NotListening)
        return self.subscription

    async def subscribe(self, channels: Iterable[str]) -> None:
        """Listen on channels and patterns; more can be added later."""
        await self.receiving.subscribe(channels)
        await self._succeed()

    async def host(
        self, agents: Iterable[AgentId], subtopics: Sequence[str], *, owner: str, gone: Gone | None = None
    ) -> None:
        """Claim agents for this messager alone and listen on their channels; raise AlreadyExists."""
        hosted = AgentSet.of(agents)
        await self.receiving.host(hosted, subtopics, owner=owner, gone=gone)
        await self._succeed()
        if self.settings.strict_senders:
            self._send_for(hosted)

    def _send_for(self, agents: AgentSet) -> None:
        """Send for these agents from now on, and for those before, but for nobody else."""
        self._senders = self._senders or AllowedSenders(self.name)
        self._senders.add(agents)
        self.sending.known = self._senders.known

    async def _succeed(self) -> None:
        """Stop whoever sent under this name before: now that the mailbox is ours, the name is, too."""
        self._listened = True
        if self.named and self.shipper is not None:
            await self.shipper.begin()

    def loops(self) -> list[TaskHealth]:
        """Tell how the loops in the background are doing."""
        sending = [] if self.outbox is None else [self.outbox.loop()]
        return sending if self.subscription is None else [*sending, *self.subscription.loops()]

    def stats(self) -> dict[str, Any]:
        """Return counters."""
        outbox, subscription = self.outbox, self.subscription
        delegated = 0 if outbox is None else getattr(outbox.judge, "delegated", 0)
        return {
            "name": self.name,
            "interceptor": "none" if outbox is None else outbox.judge.route,
            "delegated": delegated,
            "standing": delegated,  # the former name of the key
            "outbox": 0 if outbox is None else outbox.rows,
            "deferred": 0 if outbox is None else outbox.deferred,
            "batches": 0 if outbox is None else outbox.batches,
            "log_dropped": self.log.dropped,
        } | ({} if subscription is None else subscription.stats())


def check_step(step: object) -> int | None:
    """Return a simulation step as it is stamped; raise ConfigError."""
    try:
        number = None if step is None else index(step)  # type: ignore[arg-type]  # others raise
    except TypeError:
        number = 2**64
    if number is not None and not INT64_MIN <= number <= INT64_MAX:
        raise ConfigError(f"step {step!r} must be an int of 64 bits, or None")
    return number
