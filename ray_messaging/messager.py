"""The messager: sends and receives for the agents of one process, by AgentSociety's names and ours."""

from collections.abc import AsyncIterator, Iterable, Sequence
from types import TracebackType
from typing import Any, Self

from ray_messaging.addressing import channels as names
from ray_messaging.addressing.channels import AgentId
from ray_messaging.addressing.directory import Directory
from ray_messaging.compat.msg import Payload
from ray_messaging.config import MessagingConfig
from ray_messaging.engine import Engine
from ray_messaging.message import Message, Messages, Outgoing
from ray_messaging.receipt import Receipt, Receipts
from ray_messaging.receiving.fetch_options import Commit
from ray_messaging.receiving.lease_watch import Gone
from ray_messaging.receiving.subscription import Subscription
from ray_messaging.transaction import Transaction
from ray_messaging.transports.backend import open_transport
from ray_messaging.wire.frames import decode


class Messager(names.ChannelNames):
    """Send to channels and fetch what comes to your own; AgentSociety's Messager and more.

    Args: `config` is a RedisConfig, its URL, an MqttConfig or a MemoryServer. `message_interceptor` is
    `messaging.interceptor`, or any Ray actor that answers `forward(from_id, to_id, msg) -> bool`. With a `name` the
    mailbox outlives this process and its successor of that name goes on where it stopped; without one it goes when this
    messager does.
    Use it as an async context manager, or call `init` and `close`.
    """

    _says_user = False  # AgentSociety's signature: a from_id of None, the user's, may just have been left out

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
        self.settings = settings or MessagingConfig()
        transport = open_transport(config, exp_id, self.settings)
        self.engine = Engine(
            transport, message_interceptor, name=name, settings=self.settings, says_user=self._says_user
        )
        self.name = self.engine.name

    def __repr__(self) -> str:
        return f"Messager(exp_id={self.exp_id!r}, name={self.name!r})"

    # -- life -----------------------------------------------------------------------------------------------------

    async def init(self) -> None:
        """Connect; doing so twice does no harm. Raises ConnectionFailed within 5 s, ServerRefused at once."""
        await self.engine.open()

    async def close(self) -> None:
        """Send what was accepted, commit what was fetched, and leave; closing twice does no harm."""
        await self.engine.close()

    async def __aenter__(self) -> Self:
        await self.init()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Who leaves by an exception has not handled its messages: they come again.
        await self.engine.close(commit=error is None)

    @property
    def message_interceptor(self) -> object:
        """Return the interceptor's handle; None: nobody is asked, which counts where the experiment has none."""
        return self.engine.interceptor

    def set_message_interceptor(self, message_interceptor: object) -> None:
        """Have messages judged by another interceptor, from the next batch on (None: nobody, where there is none)."""
        self.engine.interceptor = message_interceptor

    @property
    def step(self) -> int | None:
        """Return the simulation step that is stamped on what is sent."""
        return self.engine.step

    @step.setter
    def step(self, step: int | None) -> None:
        self.engine.step = step

    # -- sending --------------------------------------------------------------------------------------------------

    async def send_message(
        self, channel: str, payload: Payload, from_id: AgentId | None = None, to_id: AgentId | None = None
    ) -> Receipt:
        """Send one message and return its receipt; from_id None is the user.

        Raises: InvalidAddress, UnknownSender, InvalidPayload, PayloadTooLarge at once; MailboxFull,
        InterceptorUnavailable, OutcomeUnknown when it could not be brought there; Closed.
        """
        return await self.engine.accept(channel, payload, from_id, to_id)

    async def send_messages(self, messages: Sequence[Outgoing]) -> Receipts:
        """Send many messages; one receipt for each message and recipient, in order. Raises as `send_message`.

        Everything is checked before anything is sent.
        """
        in_parts = self.engine.in_parts
        return await in_parts.send_entries(self.engine.entries(messages))

    async def send_columns(
        self, from_ids: object, to_ids: object, payloads: object, *, subtopic: str = names.AGENT_CHAT
    ) -> Receipts:
        """Send n messages given as columns; one receipt for each. Raises as `send_message`, and InvalidColumns.

        Args: from_ids and to_ids are integer arrays or sequences of ids (n,), from_ids may be one id for all; payloads
        is a sequence of n dicts, or one dict for all.
        """
        in_parts = self.engine.in_parts
        columns = self.engine.columns(from_ids, to_ids, payloads)
        return await in_parts.send_columns(columns, names.check_subtopic(subtopic))

    async def relay(self, frames: Sequence[bytes]) -> Receipts:
        """Send batches that `sending.accumulation.bulk_input` made in another process; one receipt for each row."""
        batches = [decode(frame) for frame in frames]
        self.engine.check_senders(batch.from_ids for batch in batches)
        return await self.engine.in_parts.relay(batches)

    async def flush(self) -> None:
        """Wait until everything accepted has its receipt."""
        await self.engine.sending.flush()

    # -- receiving ------------------------------------------------------------------------------------------------

    async def subscribe_and_start_listening(self, channels: list[str]) -> None:
        """Listen on channels, and on patterns (Redis's * ? [ ], MQTT's + #); more can be added later."""
        await self.engine.subscribe(channels)

    async def host_agents(
        self, agents: Iterable[AgentId], subtopics: Sequence[str], *, owner: str = "", gone: Gone | None = None
    ) -> None:
        """Claim agents for this messager alone and listen on their channels; raise AlreadyExists if one is claimed.

        Args: owner names who holds the mailbox: while one lives, no other can take it over. gone tells of another owner
        whether it is known to be dead: then nobody waits for its lease.
        """
        await self.engine.host(agents, subtopics, owner=owner, gone=gone)

    async def fetch_messages(
        self,
        *,
        limit: int | None = None,
        timeout: float | None = 0.0,
        commit: Commit = "next",
        complete: bool = False,
    ) -> Messages:
        """Return what has arrived, at most `limit`; wait up to `timeout` seconds (None: for ever) for the first.

        What the last fetch returned is committed now: whoever dies with messages in hand gets them again.

        Args: with commit="acked" what this fetch returns is committed by `ack` alone, in any order: for coroutines that
        handle messages side by side. With complete=True it returns all that the server had when it was called, in as
        many reads as that takes (see docs/receiving.md).
        Raises: NotListening, Fenced, FetchTooLarge, ConfigError for commit="acked" or complete=True on MQTT.
        """
        return await self.engine.receiving.fetch(limit, timeout, commit, complete=complete)

    async def ack(self, messages: Message | Iterable[Message] | None = None) -> None:
        """Commit what was fetched, now: a message, some of them, or all that is not committed.

        It returns when that is durable, whatever is still out before it. Doing so twice does no harm.

        Raises: ConfigError for messages that were not fetched here, and on MQTT for some of them; CommitFailed where
        too many ranges would lie apart; Fenced.
        """
        await self.engine.receiving.ack(messages)

    def __aiter__(self) -> AsyncIterator[Message]:
        """Iterate over messages as they come; each is committed when the next one is asked for."""
        return self.engine.receiving.iterate()

    def transaction(self) -> Transaction:
        """Begin a step that happens once: `async with messager.transaction() as tx:` (see docs/transactions.md).

        What is fetched, sent and kept by `tx` is committed together at the end of the block, or not at all. One at a
        time; other sends go on, other fetches raise TransactionError meanwhile.

        Raises: ConfigError without a name or on MQTT, NotListening, TransactionError; at the end of the block also what
        `send_message` raises: then nothing was done, but with OutcomeUnknown, which the next transaction finds out.
        """
        return Transaction(self.engine)

    @property
    def subscription(self) -> Subscription:
        """Return the receiving side, for those who lend messages out (`cluster.actors.group_host`)."""
        return self.engine.receiving

    @property
    def directory(self) -> Directory:
        """Return who listens where, as of the last look."""
        return self.engine.directory

    # -- the local log --------------------------------------------------------------------------------------------

    def get_log_list(self) -> list[dict[str, Any]]:
        """Return the latest sends as dicts, the oldest first."""
        return self.engine.log.rows()

    def clear_log_list(self) -> None:
        """Forget the local log."""
        self.engine.log.clear()

    def stats(self) -> dict[str, Any]:
        """Return counters of this messager."""
        return self.engine.stats()


class GroupMessager(Messager):
    """Be a group in your own process (`Messaging.open_messager`): it sends for its agents, and for no others.

    A from_id of None is the user, and must be written down; `MessagingConfig(strict_senders=False)` lifts both.
    """

    _says_user = True

    async def send_message(
        self,
        channel: str,
        payload: Payload,
        from_id: names.SenderId = names.OMITTED,
        to_id: AgentId | None = None,
    ) -> Receipt:
        """Send one message and return its receipt; raises as `Messager.send_message`."""
        return await self.engine.accept(channel, payload, from_id, to_id)
