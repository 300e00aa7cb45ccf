"""The messager, which sends and receives for the agents of one process."""

from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from ray_messaging.addressing import channels as names
from ray_messaging.addressing.channels import AgentId
from ray_messaging.addressing.directory import Directory
from ray_messaging.audiences.source import AudienceSource
from ray_messaging.compat.msg import Payload
from ray_messaging.config import MessagingConfig
from ray_messaging.conversations.answer_stream import Answers
from ray_messaging.conversations.conversation import Conversation
from ray_messaging.conversations.inboxes import Inboxes, InboxMessages
from ray_messaging.conversations.serving import Handler, MessageServer, OnError, Serving
from ray_messaging.default_limits_and_leases import ANSWER_TIMEOUT_S, MOVE_TIMEOUT_S
from ray_messaging.errors import Closed, ConfigError
from ray_messaging.message import Message
from ray_messaging.messager_engine import Engine
from ray_messaging.messages import Messages
from ray_messaging.model.agent_sets import AgentSet, column_of
from ray_messaging.observability.observer import Observer
from ray_messaging.observability.tracing.settings import Tracing
from ray_messaging.outgoing import Outgoing
from ray_messaging.receipt import Receipt, Receipts
from ray_messaging.receiving.ack_ranges import slices_of
from ray_messaging.receiving.call_checks import CommitMode
from ray_messaging.receiving.mailbox_lease import IsDead
from ray_messaging.receiving.subscription import Subscription
from ray_messaging.sending.bulk_input import batches_of_columns, unspread_batches
from ray_messaging.transaction import Transaction
from ray_messaging.transports.backend import open_transport
from ray_messaging.wire.frames import decode

if TYPE_CHECKING:
    from ray_messaging.steps.step import Step


class Messager(names.ChannelNames):
    """A sender and receiver of messages, with the methods of the Messager of the package AgentSociety, and more.

    Args: `config` is a RedisConfig, its URL or a LocalServer. `exp_id` is the experiment's name, and `settings` has the
    limits and timeouts. `message_interceptor` is the interceptor, the actor that applies the rules to messages. It is
    `messaging.interceptor`, or any Ray actor that answers `forward(from_id, to_id, msg) -> bool`. With a `name` the
    mailbox, where messages wait on the server, outlives this process, and the next messager of that name goes on where
    this one stopped. Without a name the mailbox is removed when this messager closes. An `observer` is an `Observer`,
    whose methods are called for each batch that is sent, each fetch, each retry and each new connection. With
    `tracing`, OpenTelemetry spans are recorded for a sample of the batches (see docs/operations.md). For broadcasts,
    `audiences` is an object whose coroutine `load(name, version)` returns the pairs of sender and hearer of an
    audience. Use the messager as an async context manager, or call `init` and `close`.
    """

    # Whether from_id=None always means the user. False: it may also mean that the caller left from_id out, as code for
    # AgentSociety does.
    _user_is_explicit = False

    def __init__(
        self,
        config: object,
        exp_id: str,
        message_interceptor: object = None,
        *,
        name: str | None = None,
        settings: MessagingConfig | None = None,
        observer: Observer | None = None,
        tracing: Tracing | None = None,
        audiences: AudienceSource | None = None,
    ) -> None:
        super().__init__(exp_id)
        self.settings = settings or MessagingConfig()
        make_transport = partial(open_transport, config, exp_id, self.settings)
        self.engine = Engine(
            make_transport(),
            message_interceptor,
            name=name,
            settings=self.settings,
            user_is_explicit=self._user_is_explicit,
            observer=observer,
            audiences=audiences,
            tracing=tracing,
        )
        self.name = self.engine.name
        self.conversation = Conversation(self.engine, make_transport)
        self._inboxes = Inboxes(self.fetch_messages, self.ack, self.engine.fetcher.is_committed)
        self.engine.agents_changed = self._agents_changed

    def __repr__(self) -> str:
        return f"Messager(exp_id={self.exp_id!r}, name={self.name!r})"

    # -- life -----------------------------------------------------------------------------------------------------

    async def init(self) -> None:
        """Connect, unless this messager is connected already.

        Raises: ConnectionFailed if the server does not answer within `connect_timeout`; ServerRefused if it refuses the
        password, user or db; Closed after `close`.
        """
        await self.engine.open()

    async def close(self) -> None:
        """Send accepted messages, commit fetched ones, and disconnect, unless this messager is closed already."""
        await self._close(commit=True)

    async def __aenter__(self) -> Self:
        await self.init()
        return self

    async def __aexit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        # After an exception the fetched messages are not committed, because they may not have been handled.
        await self._close(commit=error is None)

    async def _close(self, *, commit: bool) -> None:
        self.engine.closing = True
        commit = commit and not self.engine.closed
        try:
            await self._inboxes.close(commit=commit)
            await self.conversation.close(commit=commit)
        finally:
            await self.engine.close(commit=commit)

    @property
    def message_interceptor(self) -> object:
        """Return the handle of the interceptor, the actor whose rules judge the messages that this messager sends.

        None: the experiment has no interceptor, and messages are sent without being judged by rules.
        """
        return self.engine.interceptor

    def set_message_interceptor(self, message_interceptor: object) -> None:
        """Replace the interceptor, the actor whose rules judge the messages that this messager sends.

        The new interceptor judges from the next batch of sends on. If it is None, no rules judge the messages.
        """
        self.engine.interceptor = message_interceptor

    @property
    def step(self) -> int | None:
        """Return the simulation step that is stamped on messages as they are sent; None: they get no step."""
        return self.engine.step

    @step.setter
    def step(self, step: int | None) -> None:
        self.engine.step = step

    # -- sending --------------------------------------------------------------------------------------------------

    async def send_message(
        self, channel: str, payload: Payload, from_id: AgentId | None = None, to_id: AgentId | None = None
    ) -> Receipt:
        """Send one message, and return its receipt; from_id None is the user.

        The channel of an agent names the recipient, so `to_id` may be left out. If a rule blocks the message, no error
        is raised: `receipt.fate` is "blocked", and `receipt.reason` says why.

        Raises: InvalidAddress for an invalid channel or id; UnknownSender if this messager may not send for from_id
        (see MessagingConfig.strict_senders); InvalidPayload or PayloadTooLarge for an invalid payload; MailboxFull or
        InterceptorUnavailable if the message could not be sent in time; OutcomeUnknown if the server did not say
        whether the message was stored; Closed if this messager is not open.
        """
        accumulator = self.engine.accepting
        if accumulator is None:
            raise self.engine.not_open(Closed)
        return await accumulator.accept(channel, payload, from_id, to_id)

    async def send(
        self, from_id: AgentId | None, to_id: AgentId, payload: Payload, *, subtopic: str = names.AGENT_CHAT
    ) -> Receipt:
        """Send one message to an agent, and return its receipt; from_id None is the user, a person outside.

        `subtopic` is the last part of the channel, the address on the server to which the message goes.

        Raises: the same errors as `send_message`, such as UnknownSender, InvalidPayload, MailboxFull and
        OutcomeUnknown.
        """
        accumulator = self.engine.accepting
        if accumulator is None:
            raise self.engine.not_open(Closed)
        return await accumulator.accept(names.agent_channel(self.exp_id, to_id, subtopic), payload, from_id, to_id)

    async def send_messages(self, messages: Sequence[Outgoing]) -> Receipts:
        """Send many messages; return one receipt for each message and recipient, in order.

        All messages are checked before the first one is sent.

        Raises: the same errors as `send_message`, such as UnknownSender, InvalidPayload, MailboxFull and
        OutcomeUnknown.
        """
        bulk_sender = self.engine.bulk_sender
        return await bulk_sender.send_together(self.engine.checks.batches(messages, self.engine.step))

    async def send_columns(
        self, from_ids: object, to_ids: object, payloads: object, *, subtopic: str = names.AGENT_CHAT
    ) -> Receipts:
        """Send n messages given as columns; return one receipt for each message.

        Args: from_ids and to_ids are integer arrays (n,) or sequences of n ids; in place of either, a single id stands
        for all messages; payloads is a sequence of n dicts, or one dict for all messages.
        Raises: InvalidColumns if the columns do not fit together; also the errors of `send_message`, such as
        UnknownSender, InvalidPayload, MailboxFull and OutcomeUnknown.
        """
        bulk_sender = self.engine.bulk_sender
        columns = self.engine.checks.columns(from_ids, to_ids, payloads)
        return await bulk_sender.send(batches_of_columns(columns, names.check_subtopic(subtopic), self.engine.step))

    async def broadcast(
        self, from_id: AgentId | None, audience: object, payload: Payload, *, subtopic: str = names.AGENT_CHAT
    ) -> Receipts:
        """Send one message from an agent to all its hearers in an audience; return one receipt for each hearer.

        An audience is a named set of pairs of sender and hearer.

        Args: from_id None is the user, a person outside; audience is the audience's handle or name, or "*" for all
        agents.
        Raises: UnknownName if the audience does not exist; also the errors of `send_message`, such as UnknownSender,
        InvalidPayload, MailboxFull and OutcomeUnknown.
        """
        return await self.broadcast_columns(from_id, audience, payload, subtopic=subtopic)

    async def broadcast_columns(
        self, from_ids: object, audience: object, payloads: object, *, subtopic: str = names.AGENT_CHAT
    ) -> Receipts:
        """Send n broadcasts given as columns; return one receipt for each pair of sender and hearer, row by row.

        Args: from_ids and payloads are as for `send_columns`, audience is as for `broadcast`.
        Raises: InvalidColumns if the columns do not fit together; also the errors of `broadcast`, such as
        UnknownName, UnknownSender, InvalidPayload, MailboxFull and OutcomeUnknown.
        """
        sender, engine = self.engine.bulk_sender, self.engine
        chunks = engine.checks.columns(from_ids, 0, payloads)
        return await sender.broadcast(unspread_batches(chunks, audience, names.check_subtopic(subtopic), engine.step))

    async def relay(self, frames: Sequence[bytes]) -> Receipts:
        """Send messages that another process, such as one with a handle of a group, has already checked and encoded.

        Return one receipt for each recipient of each message.

        Args: `frames` are batches of messages, each of them encoded as bytes.
        """
        batches = [decode(frame) for frame in frames]
        self.engine.checks.check_senders(batch.from_ids for batch in batches)
        return await self.engine.bulk_sender.relay(batches)

    async def ask(
        self,
        from_id: AgentId | None,
        to_id: AgentId,
        payload: Payload,
        *,
        subtopic: str = names.AGENT_CHAT,
        timeout: float | None = ANSWER_TIMEOUT_S,
    ) -> Message:
        """Ask an agent, and wait up to `timeout` seconds for its answer. Return the answer as a Message.

        An answer that arrives later is an ordinary message of the next fetch.

        Raises: NoAnswer if there is no answer in time, or at once if no group or messager gets the question;
        AnswerFailed, a subclass of NoAnswer, if the agent's handler fails; QuestionBlocked if a rule blocks the
        question; also the errors of `send_message`, such as UnknownSender, InvalidPayload, MailboxFull and
        OutcomeUnknown.
        """
        return await self.conversation.ask(from_id, to_id, payload, subtopic, timeout)

    async def ask_columns(
        self,
        from_ids: object,
        to_ids: object,
        payloads: object,
        *,
        subtopic: str = names.AGENT_CHAT,
        timeout: float | None = ANSWER_TIMEOUT_S,
    ) -> Answers:
        """Ask many agents, with columns as in `send_columns`; return an object that collects their answers.

        `async for answer in answers` yields the answers as they arrive, as Messages, and `await answers.wait()` waits
        for all of them; both end after `timeout` seconds. `answers.to_pandas()` has a row for each question.

        Raises: the same errors as `send_columns`, such as InvalidColumns, UnknownSender, MailboxFull and
        OutcomeUnknown.
        """
        return await self.conversation.ask_columns(from_ids, to_ids, payloads, subtopic, timeout)

    async def reply(self, message: Message, payload: Payload) -> Receipt:
        """Answer a question, a message whose `expects_answer` is True, and return the receipt of the answer.

        Raises: NoQuestion if the message expects no answer, or if this process has answered it already; also the
        errors of `send_message`, such as InvalidPayload, MailboxFull and OutcomeUnknown.
        """
        return await self.conversation.reply(message, payload)

    async def reply_columns(self, messages: Message | Iterable[Message], payloads: object) -> Receipts:
        """Answer many questions, with a payload for each or one payload for all; return a receipt for each answer.

        Raises: InvalidColumns unless there is one payload, or one for each question; also the errors of `reply`,
        such as NoQuestion, InvalidPayload, MailboxFull and OutcomeUnknown.
        """
        return await self.conversation.reply_columns(messages, payloads)

    async def serve(
        self,
        handler: Handler,
        *,
        concurrency: int = 1000,
        retries: int = 0,
        timeout: float | None = None,
        on_error: OnError = "dead_letter",
    ) -> None:
        """Await `handler(message)` for each message, at most `concurrency` at once, until this messager closes.

        A message is committed as soon as its handler has succeeded, whatever the order. If this process dies before
        that, the message is delivered again. If the message is a question, the value that the handler returns is the
        answer. Nothing else may fetch from this messager meanwhile.

        A handler that fails is called again, up to `retries` times. Then the asker gets AnswerFailed, and the message
        becomes a dead letter, which has the reason. With on_error="end" this call ends instead. It waits for the
        handlers that are running, and then raises the error. The message stays in this messager's mailbox, its queue on
        the server, and the next call of `serve` gets the message. Until this messager serves or fetches again, whoever
        asks its agents a question gets NoAnswer.

        Args: `timeout` is the number of seconds after which a handler is cancelled and counts as failed (None: no
        limit).
        Raises: with on_error="end" the error of a handler; SystemExit and KeyboardInterrupt of a handler; ConfigError
        if the handler is not async; the error of a reply that cannot be sent; Closed if this messager is not open;
        Fenced if a newer process has taken over the mailbox.
        """
        serving = Serving.checked(concurrency, retries, timeout, on_error)
        server = MessageServer(
            self.conversation, self.fetch_messages, self._commit, self.reply, handler, serving, self.engine.tracer
        )
        await server.run()

    async def flush(self) -> None:
        """Wait until every accepted message has its receipt."""
        await self.engine.sending.flush()

    # -- receiving ------------------------------------------------------------------------------------------------

    async def subscribe_and_start_listening(self, channels: list[str]) -> None:
        """Listen on channels, and on patterns (Redis's * ? [ ]), in addition to those of earlier calls."""
        await self.engine.subscribe(channels)
        await self.conversation.resume()

    async def host_agents(
        self, agents: Iterable[AgentId], subtopics: Sequence[str], *, owner: str = "", gone: IsDead | None = None
    ) -> None:
        """Claim agents for this messager, and listen on their channels of the given `subtopics`.

        The messager's mailbox is the queue where its messages wait on the server. A mailbox has an owner, such as an
        actor. While an owner lives, no other owner can take its mailbox over. A dead owner still counts as alive for
        `MessagingConfig.lease_s` seconds, unless `gone` says that it is dead.

        Args: `owner` is the name of the new owner of this messager's mailbox. `gone` is a function that gets the name
        of the mailbox's present owner, and returns whether that owner is known to be dead. If `gone` returns True, this
        call takes the mailbox over at once.
        Raises: AlreadyExists if another messager hosts one of the agents, or another living owner has the mailbox.
        """
        await self.engine.host(AgentSet.of(column_of(agents, once=True)), subtopics, owner=owner, gone=gone)
        self._agents_changed()
        await self.conversation.resume()

    async def add_agents(self, agents: Iterable[AgentId]) -> None:
        """Host more agents, on the subtopics of the agents that this messager hosts already.

        Agents that this messager hosts already are ignored.

        Raises: AlreadyExists if another group or messager hosts one of the agents (the error's `owner` names it);
        ConfigError if this messager hosts no agents yet or has no name.
        """
        await self.engine.add(agents)
        self._agents_changed()

    async def remove_agents(self, agents: Iterable[AgentId], *, timeout: float = MOVE_TIMEOUT_S) -> None:
        """Stop hosting agents; messages that wait for them become dead letters. Either all agents leave, or none.

        This call waits up to `timeout` seconds until the messages that were fetched for the agents are committed.

        In an experiment with steps this call does not wait. The agents leave when the next step opens (see
        docs/moving-agents.md).

        Raises: MoveFailed if the fetched messages were not committed in time; UnknownName for an agent that this
        messager does not host.
        """
        await self.engine.release(agents, None, timeout)

    async def move_agents(self, agents: Iterable[AgentId], *, to: str, timeout: float = MOVE_TIMEOUT_S) -> None:
        """Move agents to another group, with all messages that wait for them, in order. Either all move, or none.

        This call waits up to `timeout` seconds until the messages that were fetched for the agents are committed.
        Until then, fetches hold back the first message that waits for one of these agents, and all later messages. In
        an experiment with steps this call does not wait. The agents move when the next step opens.

        Raises: MoveFailed if the fetched messages were not committed in time; UnknownName for an agent that this
        messager does not host, or a group that does not exist; AlreadyExists if the agents are in that group already.
        """
        await self.engine.release(agents, names.check_name("group", to), timeout)

    async def fetch_messages(
        self,
        *,
        limit: int | None = None,
        timeout: float | None = 0.0,
        commit: CommitMode = "next",
        complete: bool = False,
    ) -> Messages:
        """Return new messages, at most `limit`; wait up to `timeout` seconds (None: for ever) for the first.

        This call commits the messages of the previous fetch, so they are not delivered again. Messages that are not
        committed are delivered again after a crash.

        Args: with commit="acked" the next fetch does not commit the messages of this fetch. Only `ack` commits them, in
        any order. Use this if several coroutines handle messages at the same time. With complete=True the call returns
        all messages that the server had when the call began, in as many reads as needed (see docs/receiving.md).
        Raises: NotListening if this messager does not listen; Fenced if a newer process has taken over the mailbox;
        FetchTooLarge if a fetch with `complete` would return more than `MessagingConfig.complete_messages` messages or
        `complete_bytes` bytes; ConfigError for an invalid argument.
        """
        if self.conversation.handed_out:
            await self.conversation.commit()
        if self.conversation.waits.ended:
            await self.conversation.serve_by_hand()
        messages = await self.engine.fetcher.fetch(limit, timeout, commit, complete=complete)
        if self.conversation.opened and commit == "next":
            self.conversation.hand_out(messages)
        return messages

    async def ack(self, messages: Message | Iterable[Message] | None = None) -> None:
        """Commit fetched messages now: one message, several, or (None) all that are not committed yet.

        Committed messages are not delivered again. When this call returns, the commit is durable, even if earlier
        messages are not committed yet. Committing a message a second time does nothing.

        Raises: ConfigError for messages that were not fetched here; CommitFailed if messages are committed
        out of order with too many gaps of uncommitted messages between them; Fenced if a newer process has taken over
        the mailbox, the queue where this messager's messages wait on the server.
        """
        await self._commit(messages)
        if messages is not None:
            self.engine.tracer.committed(lambda: slices_of(messages))

    async def _commit(self, messages: Message | Iterable[Message] | None = None) -> None:
        await self.engine.fetcher.ack(messages)
        if self.conversation.opened:
            await self.conversation.commit(messages)

    def __aiter__(self) -> AsyncIterator[Message]:
        """Iterate over messages as they arrive; requesting the next message commits the previous one."""
        return self.engine.fetcher.iterate()

    def inbox(self, agent_id: AgentId | None) -> InboxMessages:
        """Iterate over one agent's messages as they arrive (None: messages on channels that are not an agent's).

        Many inboxes can be open at once. Requesting the next message commits the previous one, even if other agents
        have not handled earlier messages. If `break` or an exception ends the handling of a message, the message is not
        committed, so the agent's next inbox gets it, or the next messager of this name. After the first call of `inbox`
        nothing else may fetch from this messager. Read the inbox of every agent, because messages in an inbox that
        nobody reads stay uncommitted. Once 5,000 fetched messages are uncommitted, this messager fetches no more
        messages, so all its agents wait.

        Raises: ConfigError for an agent for which this messager does not listen; NotListening once the
        agent has left; Closed after `close`; Fenced if a newer process has taken over the mailbox.
        """
        agent_id = None if agent_id is None else names.check_id(agent_id)
        if agent_id is not None and not self.engine.receiving.listens_for(agent_id):
            raise ConfigError(
                f"{self.name!r} does not listen for agent {agent_id!r}, so its inbox would stay empty: call "
                "host_agents with this agent, or open the inbox at the messager that hosts the agent"
            )
        return self._inboxes.messages_of(agent_id)

    def _agents_changed(self) -> None:
        self._inboxes.agents_changed(self.name, self.engine.receiving.listens_for)

    def steps(self, *, until: int, leave: bool = False) -> "AsyncGenerator[Step, None]":
        """Iterate over the steps of this messager's agents, from the first uncommitted step to the one before `until`.

        Requesting the next step commits the current one. After a `break` or an exception the current step is not
        committed, and the next call of `steps` runs it again. A messager that hosts agents is a group of the
        experiment. All groups must iterate at the same time, because each group waits until the other groups have ended
        the previous step.

        Args: with `leave` this group leaves before step `until`, and the other groups go on without it.
        Raises: ConfigError if the experiment has no steps, or this messager has no name or hosts no agents;
        StepAborted, StepTooLarge or Fenced if a step could not be committed.
        """
        from ray_messaging.steps.step_loop import step_loop  # noqa: PLC0415 - most messagers have no steps

        return step_loop(self.engine).steps(until, leave=leave)

    def transaction(self) -> Transaction:
        """Return a transaction, for `async with messager.transaction() as tx:` (see docs/receiving.md).

        The messages that `tx` fetches and sends, and the state that is set by `tx.state`, are committed together at the
        end of the block, or not at all. A messager can have only one open transaction. While it is open, other sends go
        on, and other fetches raise TransactionError.

        Raises: ConfigError if this messager has no name; NotListening if it does not listen; TransactionError if
        another transaction is open. The end of the block may also raise the errors of `send_message`, such as
        InvalidPayload and MailboxFull. After such an error nothing was committed. Only OutcomeUnknown leaves this open:
        the next transaction finds out whether this one was committed.
        """
        return Transaction(self.engine)

    @property
    def subscription(self) -> Subscription:
        """Return the object by which this messager receives messages. It is for the use of the package itself."""
        return self.engine.receiving

    @property
    def directory(self) -> Directory:
        """Return the list of all mailboxes and their channels, as this messager last loaded it from the server."""
        return self.engine.directory

    # -- the local log --------------------------------------------------------------------------------------------

    def get_log_list(self) -> list[dict[str, Any]]:
        """Return the latest sends as dicts with the keys of AgentSociety's `get_log_list`, the oldest first.

        The keys are channel, payload, from_id, to_id, start_time (unix seconds), consumption (how many seconds the send
        took), sent (whether the message was delivered or published), fate, rule, reason and message_id.
        """
        return self.engine.log.rows()

    def clear_log_list(self) -> None:
        """Empty the local log list, which `get_log_list` returns."""
        self.engine.log.clear()

    def stats(self) -> dict[str, Any]:
        """Return counters of this messager, such as `batches` (sent) and `fetched` (messages that were fetched)."""
        return self.engine.stats()


class GroupMessager(Messager):
    """A group in your own process (`Messaging.open_messager`), which sends only for its own agents.

    Each message needs a from_id; None is the user. With `MessagingConfig(strict_senders=False)` the messager sends for
    all agents, and from_id may be left out.
    """

    _user_is_explicit = True

    async def send_message(
        self,
        channel: str,
        payload: Payload,
        from_id: names.SenderId = names.OMITTED,
        to_id: AgentId | None = None,
    ) -> Receipt:
        """Send one message, and return its receipt; from_id None is the user.

        Raises: the same errors as `Messager.send_message`, such as UnknownSender, InvalidPayload, MailboxFull and
        OutcomeUnknown.
        """
        accumulator = self.engine.accepting
        if accumulator is None:
            raise self.engine.not_open(Closed)
        return await accumulator.accept(channel, payload, from_id, to_id)
