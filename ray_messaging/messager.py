"""The messager: sends and receives for the agents of one process."""

import secrets
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import AsyncExitStack
from functools import lru_cache, partial
from operator import index
from types import TracebackType
from typing import Any, Self

from ray_messaging import channels as names
from ray_messaging.channels import AgentId
from ray_messaging.config import MessagingConfig
from ray_messaging.directory import Directory
from ray_messaging.errors import Closed, ConfigError, MessagingError, NotListening
from ray_messaging.frames import decode
from ray_messaging.interception.judges import judge_for
from ray_messaging.interception.verdicts import Judge, PassAll
from ray_messaging.lines import encode_payload
from ray_messaging.local_log import LocalLog
from ray_messaging.message import Message, Outgoing
from ray_messaging.messages import Messages
from ray_messaging.receipt import Receipt, Receipts
from ray_messaging.receiving.subscription import KEEP_S, Subscription
from ray_messaging.sending.bulk import columns_of, entries_of
from ray_messaging.sending.cutter import Cutter
from ray_messaging.sending.outbox import Outbox
from ray_messaging.sending.posting import Posting
from ray_messaging.sending.shipper import Shipper
from ray_messaging.transports import open_transport

_ADDRESSES_KEPT = 200_000


class Messager(names.ChannelNames):
    """Send to channels and fetch what comes to your own; AgentSociety's Messager and more.

    Args: `config` is a RedisConfig, its URL or a MemoryServer. `message_interceptor` is `messaging.interceptor`, or any
    Ray actor that answers `forward(from_id, to_id, msg) -> bool`. With a `name` the mailbox outlives this process and
    its successor of that name goes on where it stopped; without one it goes when this messager does.
    Use it as an async context manager, or call `init` and `close`.
    """

    def __init__(
        self,
        config: object,
        exp_id: str,
        message_interceptor: object = None,
        *,
        name: str | None = None,
        settings: MessagingConfig | None = None,
    ) -> None:
        super().__init__(exp_id)
        self.name = names.check_name("name", name) if name is not None else f"anon-{secrets.token_hex(8)}"
        self.settings = settings or MessagingConfig()
        self._named = name is not None
        self._interceptor = message_interceptor
        self._transport = open_transport(config, exp_id, self.settings)
        self._directory = Directory(exp_id)
        self._address = lru_cache(_ADDRESSES_KEPT)(partial(names.parse_channel, exp_id))
        self._log = LocalLog(exp_id, self.settings.log_list_messages, self.settings.log_list_bytes)
        self._shipper: Shipper | None = None
        self._outbox: Outbox | None = None
        self._subscription: Subscription | None = None
        self._step: int | None = None
        self._retired: list[Judge] = []
        self._closed = False

    # -- life -----------------------------------------------------------------------------------------------------

    async def init(self) -> None:
        """Connect; doing so twice does no harm. Raises ConnectionFailed within 5 s, ServerRefused at once."""
        if self._closed:
            raise self._not_open(Closed)
        if self._outbox is not None:
            return
        judge = self._judge(self._interceptor)
        await self._transport.connect()
        try:
            await self._start(judge)
        except BaseException:
            await self._transport.close()
            raise

    async def _start(self, judge: Judge) -> None:
        cutter, keep_s = Cutter(self._directory, mirror=self.settings.mirror), 0 if self._named else KEEP_S
        self._shipper = shipper = Shipper(self._transport, self._directory, cutter, self.name, keep_s)
        await shipper.reload()
        self._subscription = Subscription(self._transport, self._directory, self.name, self.settings, named=self._named)
        self._outbox = Outbox(shipper, judge, self.settings, self._settled)
        self._outbox.step = self._step

    async def close(self) -> None:
        """Send what was accepted, commit what was fetched, and leave; closing twice does no harm."""
        await self._close(commit=True)

    async def _close(self, *, commit: bool) -> None:
        if self._closed:
            return
        self._closed = True
        outbox, subscription = self._outbox, self._subscription
        async with AsyncExitStack() as last_first:
            last_first.push_async_callback(self._transport.close)
            for judge in self._retired if outbox is None else (*self._retired, outbox.judge):
                last_first.push_async_callback(judge.close)
            if subscription is not None:
                last_first.push_async_callback(subscription.close, commit=commit)
            if outbox is not None:
                last_first.push_async_callback(outbox.close)

    async def __aenter__(self) -> Self:
        await self.init()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Who leaves by an exception has not handled its messages: they come again.
        await self._close(commit=error is None)

    def _judge(self, interceptor: object) -> Judge:
        if interceptor is None:
            return PassAll()
        return judge_for(interceptor, self.settings.interceptor_timeout_s, self.exp_id)

    def _settled(self, posting: Posting) -> None:
        self._log.add(posting.outgoing, posting.outcome)

    @property
    def _sending(self) -> Outbox:
        if self._outbox is None or self._closed:
            raise self._not_open(Closed)
        return self._outbox

    @property
    def _receiving(self) -> Subscription:
        if self._subscription is None or self._closed:
            raise self._not_open(NotListening)
        return self._subscription

    def _not_open(self, kind: type[MessagingError]) -> MessagingError:
        if self._closed:
            return Closed("this messager is closed: make another one")
        return kind("this messager is not open yet: `await messager.init()` first, or use `async with`")

    @property
    def message_interceptor(self) -> object:
        """Return the interceptor's handle; None: nobody is asked, which counts where the experiment has none."""
        return self._interceptor

    def set_message_interceptor(self, message_interceptor: object) -> None:
        """Have messages judged by another interceptor, from the next batch on (None: nobody, where there is none)."""
        judge = self._judge(message_interceptor)
        self._interceptor = message_interceptor
        if self._outbox is not None:
            self._retired.append(self._outbox.judge)  # a batch may be with it: it is closed when we are
            self._outbox.judge = judge

    @property
    def step(self) -> int | None:
        """Return the simulation step that is stamped on what is sent."""
        return self._step

    @step.setter
    def step(self, step: int | None) -> None:
        try:
            number = None if step is None else index(step)
        except TypeError:
            number = 2**64
        if number is not None and not names.INT64_MIN <= number <= names.INT64_MAX:
            raise ConfigError(f"step {step!r} must be an int of 64 bits, or None")
        self._step = number
        if self._outbox is not None:
            self._outbox.step = self._step

    # -- sending --------------------------------------------------------------------------------------------------

    async def send_message(
        self, channel: str, payload: dict[str, Any], from_id: AgentId | None = None, to_id: AgentId | None = None
    ) -> Receipt:
        """Send one message and return its receipt.

        Raises: InvalidAddress, InvalidPayload, PayloadTooLarge at once; MailboxFull, InterceptorUnavailable,
        OutcomeUnknown when it could not be brought there.
        """
        outbox = self._outbox
        if outbox is None or self._closed:
            outbox = self._sending
        try:
            recipient, topic = self._address(channel)
        except TypeError:  # unhashable
            recipient, topic = names.parse_channel(self.exp_id, channel)
        if to_id is not None and (to_id.__class__ is not int or to_id != recipient):
            recipient = names.check_recipient(channel, recipient, to_id)
        if from_id.__class__ is not int:
            from_id = None if from_id is None else names.check_id(from_id)
        elif not names.INT64_MIN <= from_id <= names.INT64_MAX:
            names.check_id(from_id)
        line = encode_payload(payload, self.settings.payload_bytes)
        if outbox.room.crowded:
            await outbox.room.wait()
        return await outbox.append(from_id, recipient, topic, line)

    async def send_messages(self, messages: Sequence[Outgoing]) -> Receipts:
        """Send many messages; one receipt for each message and recipient, in order. Raises as `send_message`.

        Everything is checked before anything is sent.
        """
        outbox = self._sending
        entries = entries_of(messages, self._address, self.settings.payload_bytes)
        return await outbox.gather(entries)

    async def send_columns(
        self, from_ids: object, to_ids: object, payloads: object, *, subtopic: str = names.AGENT_CHAT
    ) -> Receipts:
        """Send n messages given as columns; one receipt for each. Raises as `send_message`, and InvalidColumns.

        Args: from_ids and to_ids are integer arrays or sequences of ids (n,), from_ids may be one id for all; payloads
        is a sequence of n dicts, or one dict for all.
        """
        outbox = self._sending
        columns = columns_of(from_ids, to_ids, payloads, self.settings.payload_bytes)
        return await outbox.put_columns(columns, names.check_subtopic(subtopic))

    async def relay(self, frames: Sequence[bytes]) -> Receipts:
        """Send batches that `sending.bulk` made in another process; one receipt for each row."""
        return await self._sending.relay([decode(frame) for frame in frames])

    async def flush(self) -> None:
        """Wait until everything accepted has its receipt."""
        await self._sending.flush()

    # -- receiving ------------------------------------------------------------------------------------------------

    async def subscribe_and_start_listening(self, channels: list[str]) -> None:
        """Listen on channels, and on patterns that hold Redis's * ? [ ]; more can be added later."""
        await self._receiving.subscribe(channels)
        await self._succeed()

    async def host_agents(self, agents: Iterable[AgentId], subtopics: Sequence[str], *, owner: str = "") -> None:
        """Claim agents for this messager alone and listen on their channels; raise AlreadyExists if one is claimed.

        Args: owner names who holds the mailbox: while one lives, no other can take it over.
        """
        await self._receiving.host(agents, subtopics, owner=owner)
        await self._succeed()

    async def _succeed(self) -> None:
        """Stop whoever sent under this name before: now that the mailbox is ours, the name is, too."""
        if self._named and self._shipper is not None:
            await self._shipper.begin()

    async def fetch_messages(self, *, limit: int | None = None, timeout: float | None = 0.0) -> Messages:
        """Return what has arrived, at most `limit`; wait up to `timeout` seconds (None: for ever) for the first.

        What the last fetch returned is committed now: whoever dies with messages in hand gets them again.
        Raises: NotListening, Fenced.
        """
        return await self._receiving.fetch(limit, timeout)

    async def ack(self) -> None:
        """Commit what was fetched, now."""
        await self._receiving.ack()

    def __aiter__(self) -> AsyncIterator[Message]:
        """Iterate over messages as they come; each is committed when the next one is asked for."""
        return self._receiving.iterate()

    @property
    def subscription(self) -> Subscription:
        """Return the receiving side, for those who lend messages out (`cluster.group_host`)."""
        return self._receiving

    @property
    def directory(self) -> Directory:
        """Return who listens where, as of the last look."""
        return self._directory

    # -- the local log --------------------------------------------------------------------------------------------

    def get_log_list(self) -> list[dict[str, Any]]:
        """Return the latest sends as dicts, the oldest first."""
        return self._log.rows()

    def clear_log_list(self) -> None:
        """Forget the local log."""
        self._log.clear()

    def stats(self) -> dict[str, Any]:
        """Return counters of this messager."""
        outbox, subscription = self._outbox, self._subscription
        return {
            "name": self.name,
            "interceptor": "none" if outbox is None else outbox.judge.way,
            "outbox": 0 if outbox is None else outbox.room.rows,
            "deferred": 0 if outbox is None else outbox.deferred,
            "batches": 0 if outbox is None else outbox.batches,
            "log_dropped": self._log.dropped,
        } | ({} if subscription is None else subscription.stats())
