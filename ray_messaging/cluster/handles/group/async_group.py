"""The class `AsyncGroup`, with the calls of a group's handle as coroutines."""

import itertools
import logging
import os
import secrets
import socket
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import nullcontext, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Self, TypeVar

import msgspec
import numpy as np
import ray
from ray.exceptions import ActorUnavailableError, RayError

from ray_messaging.addressing.channels import AGENT_CHAT, AgentId, check_id, check_name, check_subtopic, parse_channel
from ray_messaging.cluster.handles.connection import gone, insist, value_of, wait_restart
from ray_messaging.cluster.handles.group.group_lane import WAIT_S, GroupLane, LaneRoute
from ray_messaging.cluster.handles.group.waiting import InLoop, Waiting
from ray_messaging.cluster.lane_calls import AckCall, Call, FetchCall, RelayCall, committed_of, messages_of, receipts_of
from ray_messaging.cluster.ray_calls import check_ray
from ray_messaging.cluster.ray_internals import known_dead
from ray_messaging.cluster.spec import Experiment
from ray_messaging.common.awaitables import finish
from ray_messaging.compat.msg import Payload
from ray_messaging.conversations.answer_stream import AnswerPart, Answers, AnswerTable, MoreAnswers
from ray_messaging.conversations.handling import HandlerFailure, asker_here
from ray_messaging.conversations.replies import blocked_among, note_replied, replies_to, waits_for_failure
from ray_messaging.conversations.serving import Handler, MessageServer, OnError, Serving
from ray_messaging.default_limits_and_leases import ANSWER_TIMEOUT_S, MOVE_TIMEOUT_S
from ray_messaging.errors import CommitFailed, ConfigError, MessagingError, OutcomeUnknown
from ray_messaging.message import Message, cause_here
from ray_messaging.messages import Messages, Slice, slice_of
from ray_messaging.model.agent_sets import AgentSet, column_of
from ray_messaging.model.batch import Batch
from ray_messaging.model.columns import IdColumn, PayloadColumn, encode_payload
from ray_messaging.observability.tracing.settings import tracer_of
from ray_messaging.outgoing import Outgoing
from ray_messaging.receipt import Receipt, Receipts
from ray_messaging.receiving.ack_ranges import Acked, by_loan, slices_of, spans_of
from ray_messaging.receiving.call_checks import CommitMode, check_fetch, check_timeout
from ray_messaging.receiving.delivery_leases import FetchOptions, Token
from ray_messaging.sending.bulk_input import batches_of, batches_of_columns, columns_of, to_audience, unspread_batches
from ray_messaging.sending.pending_batch import caused_by_one
from ray_messaging.wire.frames import decode, encode

if TYPE_CHECKING:
    from ray_messaging.steps.step import Step

logger = logging.getLogger(__name__)

Table = TypeVar("Table", bound=AnswerTable)


class StepStamp(msgspec.Struct):
    """The simulation step that a handle stamps on its sends."""

    step: int | None = None


class StampedHandle:
    """Base of `Group` and `AsyncGroup`, the handles of a group: its name, its actor, and the step stamped on sends."""

    name: str
    actor: Any
    _experiment: Experiment
    _stamp: StepStamp

    @property
    def step(self) -> int | None:
        """Return the simulation step that is stamped on sent messages, or None if no step was set.

        Setting the step raises ConfigError in an experiment with steps.
        """
        return self._stamp.step

    @step.setter
    def step(self, step: int | None) -> None:
        if self._experiment.steps:
            raise ConfigError(
                f"the step of group {self.name!r} cannot be set: the loop `for step in group.steps(until=...)` "
                "decides which step it is"
            )
        self._stamp.step = step


class AsyncGroup(StampedHandle):
    """Handle of a group, a Ray actor that hosts agents, for async code: `await group.aio.send(...)`.

    `group.aio` has the calls of `group`, a `Group`, as coroutines. The two are separate handles, so a fetch by
    `group.aio` does not commit messages that `group` has fetched. If `step` is set on one of the two handles, it is
    recorded with the sends of both. Several event loops may send at the same time. `fetch_messages`, `give_up` and
    `ack()` raise ConfigError while one of them is running in another event loop.
    """

    def __init__(
        self,
        experiment: Experiment,
        name: str,
        actor: Any,  # noqa: ANN401 - a Ray actor handle
        stamp: StepStamp,
        waiting: Waiting | None = None,
        keep: object = None,
    ) -> None:
        waiting = InLoop() if waiting is None else waiting
        self.name = name
        self.actor = actor
        self.waiting = waiting
        self._experiment = experiment
        # The setting is read once, because pydantic's attributes are slow.
        self._payload_bytes = experiment.settings.payload_bytes
        self._strict = name if experiment.group_settings.strict_senders else None
        self._stamp = stamp
        # The name of this handle in health reports, by which its process can be found.
        self._caller = f"{secrets.token_hex(8)} of process {os.getpid()} on {socket.gethostname()}"
        self._numbers = 0
        self._waiting: OrderedDict[int, None] = OrderedDict()  # the numbers of sends that have no answer yet, ascending
        self._sending = threading.Lock()
        self._fetching = waiting.lock()
        self._token: Token | None = None
        # `_fetches` is the number of the last fetch. `_received` is the number of the last fetch with commit="acked"
        # that returned messages.
        self._fetches = self._received = 0
        self._unacked: dict[tuple[str, int], Token] = {}  # the tokens of fetches with commit="acked"
        self._restarting = False  # whether the group's actor went down during the last send, and may be restarting
        wait_s, self._route = experiment.settings.send_timeout_s, LaneRoute()
        route = self._route
        self._lane = waiting.shared(lambda: GroupLane(actor, self._actor_name, wait_s, waiting, route))
        self._tracer = tracer_of(experiment.tracing, experiment.exp_id, name)
        self._keep = keep  # a reference to the experiment's actors, which end with the last reference

    def __reduce__(self) -> tuple[Any, ...]:
        return AsyncGroup, (self._experiment.without_password(), self.name, self.actor, self._stamp)

    def __repr__(self) -> str:
        return f"AsyncGroup({self.name!r}, exp_id={self._experiment.exp_id!r})"

    @property
    def _actor_name(self) -> str:
        """Return the group's name for error texts, with the last known host of the group's actor."""
        host = f" (at {self._route.host})" if self._route.host else ""
        return f"group {self.name!r} of experiment {self._experiment.exp_id!r}{host}"

    # -- sending --------------------------------------------------------------------------------------------------

    async def send(
        self, from_id: AgentId | None, to_id: AgentId, payload: Payload, *, subtopic: str = AGENT_CHAT
    ) -> Receipt:
        """Send one message to an agent, and return its receipt; from_id None is the user, a person outside.

        The message goes to a channel, an address on the server, whose last part is `subtopic`. If a rule blocks the
        message, no error is raised: `receipt.fate` is "blocked", and `receipt.reason` says why.

        Raises: the same errors as `Messager.send_message`, such as UnknownSender, InvalidPayload, MailboxFull and
        OutcomeUnknown.
        """
        return (await self._relay([self._single(from_id, to_id, payload, subtopic)]))[0]

    def _single(self, from_id: AgentId | None, to_id: AgentId, payload: Payload, subtopic: str) -> Batch:
        """Check one message, and return it as a batch of one row."""
        from_ids = IdColumn.of([None if from_id is None else check_id(from_id)])
        to_ids, topic = IdColumn.of([check_id(to_id)]), check_subtopic(subtopic)
        line = encode_payload(payload, self._payload_bytes)
        return Batch(
            sender="",
            epoch=0,
            first=0,
            from_ids=from_ids,
            to_ids=to_ids,
            topics=(topic,),
            step=self._stamp.step,
            sent_at=time.time(),
            lines=PayloadColumn.of([line]),
            rows=1,
            extension=caused_by_one(cause_here(), 1),
        )

    async def send_messages(self, messages: Sequence[Outgoing]) -> Receipts:
        """Send many messages; return one receipt for each message and recipient, in order.

        All messages are checked before the first one is sent.

        Raises: the same errors as `Messager.send_message`, such as UnknownSender, InvalidPayload, MailboxFull and
        OutcomeUnknown.
        """
        address = partial(parse_channel, self._experiment.exp_id)
        return await self._relay(batches_of(messages, address, self._payload_bytes, self._stamp.step, self._strict))

    async def send_columns(
        self, from_ids: object, to_ids: object, payloads: object, *, subtopic: str = AGENT_CHAT
    ) -> Receipts:
        """Send n messages given as columns; return one receipt for each message.

        Args: from_ids and to_ids are integer arrays (n,) or sequences of n ids; in place of either, a single id stands
        for all messages; payloads is a sequence of n dicts, or one dict for all messages.
        Raises: InvalidColumns if the columns do not fit together; otherwise the same errors as `Messager.send_message`,
        such as UnknownSender, InvalidPayload, MailboxFull and OutcomeUnknown.
        """
        columns = columns_of(from_ids, to_ids, payloads, self._payload_bytes)
        return await self._relay(batches_of_columns(columns, check_subtopic(subtopic), self._stamp.step))

    async def broadcast(
        self, from_id: AgentId | None, audience: object, payload: Payload, *, subtopic: str = AGENT_CHAT
    ) -> Receipts:
        """Send one message from an agent to all its hearers in an audience; return one receipt for each hearer.

        An audience is a named set of pairs of sender and hearer.

        Args: from_id None is the user, a person outside; audience is the audience's handle or name, or "*" for all
        agents.
        Raises: UnknownName if the audience does not exist; otherwise the same errors as `Messager.send_message`, such
        as UnknownSender, InvalidPayload, MailboxFull and OutcomeUnknown.
        """
        batch = self._single(from_id, 0, payload, subtopic)  # the audience replaces the recipient
        return await self._relay([to_audience(batch, audience)])

    async def broadcast_columns(
        self, from_ids: object, audience: object, payloads: object, *, subtopic: str = AGENT_CHAT
    ) -> Receipts:
        """Send n broadcasts given as columns; return one receipt for each pair of sender and hearer, row by row.

        Args: from_ids and payloads are as for `send_columns`, audience is as for `broadcast`.
        Raises: InvalidColumns if the columns do not fit together; otherwise the same errors as `broadcast`, such as
        UnknownName, UnknownSender, InvalidPayload, MailboxFull and OutcomeUnknown.
        """
        columns = columns_of(from_ids, 0, payloads, self._payload_bytes)
        return await self._relay(unspread_batches(columns, audience, check_subtopic(subtopic), self._stamp.step))

    async def _relay(self, batches: list[Batch]) -> Receipts:
        """Let the group's actor send batches, by a call over a socket, or by Ray if the socket gives no answer."""
        if not batches:
            return Receipts([])
        if known_dead(self.actor):
            check_ray(self._experiment.exp_id)
            raise gone(self._actor_name)
        if self._restarting:  # a call during a restart would fail with an unknown outcome
            await wait_restart(self.waiting, self.actor, self._experiment.settings.send_timeout_s)
            self._restarting = False
        lanes, lane, number, begun_in = self._lane(), None, -1, None
        try:
            with self._tracer.sending(batches):
                frames = [encode(batch) for batch in batches]
                lane = await lanes.connection()
                if lane is None and known_dead(self.actor):  # the actor was found dead when the lane was opened
                    raise gone(self._actor_name)
                async with nullcontext() if lane is None else lane.turn:
                    with self._sending:
                        number = self._numbers
                        self._numbers += 1
                        self._waiting[number] = None
                        call = RelayCall(self._caller, number, next(iter(self._waiting)))
                    if lane is not None:
                        reply = await lane.ask(call, frames)
                        if reply.answer is not None:
                            return receipts_of(reply.answer[0], batches)
                        begun_in = lane.process if reply.begun else None
                    ref = self.actor.answer.remote(call, frames, begun_in)
                    receipts: Receipts = await value_of(self.waiting, ref, actor_name=self._actor_name, sends=True)
                    return receipts
        except OutcomeUnknown as error:
            self._restarting = isinstance(error.__cause__, ActorUnavailableError)
            raise
        finally:
            # This send has ended, but its call may not have reached the actor. The actor executes sends in the order of
            # their numbers. So later sends tell the actor not to wait for this number.
            with self._sending:
                self._waiting.pop(number, None)
            if lane is not None:
                lanes.release(lane)

    # -- conversations --------------------------------------------------------------------------------------------

    async def ask(
        self,
        from_id: AgentId | None,
        to_id: AgentId,
        payload: Payload,
        *,
        subtopic: str = AGENT_CHAT,
        timeout: float | None = ANSWER_TIMEOUT_S,
    ) -> Message:
        """Ask an agent, and wait up to `timeout` seconds for its answer. Return the answer as a Message.

        Raises: NoAnswer if there is no answer in time, or at once if no group or messager gets the question;
        AnswerFailed, a subclass of NoAnswer, if the agent's handler fails; QuestionBlocked if a rule blocks the
        question; otherwise the same errors as `Messager.send_message`, such as UnknownSender, InvalidPayload,
        MailboxFull and OutcomeUnknown.
        """
        check_timeout(timeout)
        call, frame = secrets.token_hex(8), encode(self._single(from_id, to_id, payload, subtopic))
        asker = asker_here()
        found: Message = await self._insist(lambda: self.actor.ask.remote(call, frame, timeout, asker))
        return found

    async def ask_columns(
        self,
        from_ids: object,
        to_ids: object,
        payloads: object,
        *,
        subtopic: str = AGENT_CHAT,
        timeout: float | None = ANSWER_TIMEOUT_S,
    ) -> Answers:
        """Ask many agents, with columns as in `send_columns`; return an object that collects their answers.

        `async for answer in answers` yields the answers as they arrive, as Messages, and `await answers.wait()` waits
        for all of them; both end after `timeout` seconds. `answers.to_pandas()` has a row for each question.

        Raises: the same errors as `send_columns`, such as InvalidColumns, UnknownSender, MailboxFull and
        OutcomeUnknown.
        """
        return await self.ask_into(Answers, from_ids, to_ids, payloads, subtopic, timeout)

    async def ask_into(
        self,
        table: Callable[[str, int, float | None, MoreAnswers], Table],
        from_ids: object,
        to_ids: object,
        payloads: object,
        subtopic: str,
        timeout: float | None,
    ) -> Table:
        """Ask many agents, as `ask_columns` does, and return the object that collects their answers.

        Args: `table` is a function or class that makes this object. It is called with the experiment's name, the number
        of questions, the timeout, and the function that gets more answers from the group's actor. The other arguments
        are as for `ask_columns`.
        """
        check_timeout(timeout)
        columns = columns_of(from_ids, to_ids, payloads, self._payload_bytes)
        frames = [encode(batch) for batch in batches_of_columns(columns, check_subtopic(subtopic), self._stamp.step)]
        call, rows = secrets.token_hex(8), sum(len(chunk.from_ids) for chunk in columns)
        answers = table(self._experiment.exp_id, rows, timeout, partial(self._more_answers, call))
        answers.sent(await self._insist(lambda: self.actor.ask_many.remote(call, frames, timeout)))
        return answers

    async def _more_answers(self, call: str, answers: AnswerTable) -> None:
        left = answers.seconds_left
        wait_s = WAIT_S if left is None else min(WAIT_S, left)
        parts, errors = len(answers.parts), len(answers.errors)
        found = await self._insist(lambda: self.actor.more_answers.remote(call, parts, wait_s, errors))
        # Another task may have added some of these parts to `answers` during the call.
        for places, frame in found.parts[len(answers.parts) - parts :]:
            answers.add(AnswerPart(np.frombuffer(places, "<i8").astype(np.intp), decode(frame)))
        for place, error in found.errors:
            answers.fail(place, error)
        answers.late = found.late

    async def reply(self, message: Message, payload: Payload) -> Receipt:
        """Answer a question, a fetched message whose `expects_answer` is True, and return the receipt of the answer.

        Raises: NoQuestion if the message expects no answer, or if this process has answered it already; otherwise the
        same errors as `Messager.send_message`, such as InvalidPayload, MailboxFull and OutcomeUnknown.
        """
        return (await self.reply_columns(message, payload))[0]

    async def reply_columns(self, messages: Acked, payloads: object) -> Receipts:
        """Answer many questions, with one payload for each question or one for all; return a receipt for each answer.

        Raises: InvalidColumns unless there is one payload, or one for each question; otherwise the same errors as
        `reply`, such as NoQuestion, InvalidPayload, MailboxFull and OutcomeUnknown.
        """
        return await self.reply_to(slices_of(messages), payloads)

    async def reply_to(self, questions: Sequence[Slice], payloads: object, *, failed: bool = False) -> Receipts:
        """Answer questions; return a receipt for each answer.

        With `failed`, the payloads say why the handlers of the questions have failed.
        """
        exp_id, payload_bytes = self._experiment.exp_id, self._payload_bytes
        receipts = await self._relay(
            replies_to(questions, payloads, exp_id, payload_bytes, self._stamp.step, failed=failed)
        )
        note_replied(questions, blocked_among(receipts))
        return receipts

    async def serve(
        self,
        handler: Handler,
        *,
        concurrency: int = 1000,
        retries: int = 0,
        timeout: float | None = None,
        on_error: OnError = "dead_letter",
    ) -> None:
        """Await `handler(message)` for each message, as `Messager.serve` does.

        A message is committed as soon as its handler has succeeded. If the message is a question, the value that the
        handler returns is the answer. A handler that fails is called again, up to `retries` times. Then the message
        becomes a dead letter, or with on_error="end" this call ends, and raises the handler's error.

        If a handler takes longer than `MessagingConfig.loan_s`, its message is redelivered to the next fetch of any
        handle. Messages that are not handled when this call ends are redelivered to the next fetch of any handle, too,
        but without a wait for `loan_s`.

        Raises: the same errors as `Messager.serve`, such as ConfigError if the handler is not async; CommitFailed if a
        message was held for longer than `loan_s`, by a handler or since an earlier fetch of this handle.
        """
        serving = Serving.checked(concurrency, retries, timeout, on_error)
        service = GroupService(self, self._caller)
        await MessageServer(
            service, self.fetch_messages, self._commit, self.reply, handler, serving, self._tracer
        ).run()

    # -- receiving ------------------------------------------------------------------------------------------------

    async def fetch_messages(
        self,
        *,
        limit: int | None = None,
        timeout: float | None = 0.0,
        commit: CommitMode = "next",
        complete: bool = False,
    ) -> "Fetched":
        """Return new messages; wait up to `timeout` seconds (None: for ever) for the first.

        Unless this handle's last fetch had commit="acked", this call commits the messages of that fetch, so that they
        are not delivered again. If a handle holds messages for longer than `MessagingConfig.loan_s`, for example
        because a Ray task died or ended without `ack`, they are redelivered to the next fetch of any handle.

        Args:
            limit: How many messages to return at most.
            timeout: Seconds to wait for the first message.
            commit: "next": the next fetch commits these messages. "acked": only `ack`, or a `with` block over the
                result, commits them.
            complete: Return all messages that the server had when this method was called, except those that other
                handles hold.

        Raises: CommitFailed if the messages of the last fetch were redelivered to another handle; FetchTooLarge if a
        fetch with `complete` would return more than `MessagingConfig.complete_messages` messages or `complete_bytes`
        bytes; ConfigError for an invalid argument.
        """
        check_fetch(limit, commit, complete=complete)
        check_timeout(timeout)
        async with self._fetching.held():
            self._tracer.committed()
            number = self._fetches = self._fetches + 1
            limit = None if limit is None else int(limit)  # `limit` may be a numpy integer
            options = FetchOptions(commit, complete, number, self._received)
            try:
                token, messages = await self._fetch(limit, timeout, options)
            except CommitFailed:
                self._token = None  # another handle has the messages
                raise
            except (MessagingError, RayError):
                raise
            except BaseException:  # such as a cancellation or Ctrl-C
                # Otherwise the actor would go on waiting, and would lease the next messages to a handle that is gone.
                if ray.is_initialized():  # without Ray the group has ended, or will end with its driver
                    self.actor.abandon.remote(self._caller, self._received, number)
                raise
            self._token = None
            if commit == "next":
                self._token = token
                self._tracer.hold(messages.slices)
            elif token is not None:
                self._received, self._unacked[token[:2]] = number, token
        return Fetched(messages, self, token)

    async def _fetch(
        self, limit: int | None, timeout: float | None, options: FetchOptions
    ) -> tuple[Token | None, Messages]:
        until = None if timeout is None else time.monotonic() + timeout
        wait_s = WAIT_S if timeout is None else float(min(WAIT_S, max(0.0, timeout)))
        answer = await self._ask(FetchCall(self._caller, self._token, limit, wait_s, options))
        if answer is not None:
            token, messages = messages_of(self._experiment.exp_id, *answer)
            if messages or wait_s == timeout:
                return token, messages
            self._token = None  # this call has committed the messages of the last fetch
        left = None if until is None else max(0.0, until - time.monotonic())
        call = FetchCall(self._caller, self._token, limit, left, options)
        found: tuple[Token | None, Messages] = await self._insist(lambda: self.actor.answer.remote(call))
        return found

    async def _ask(self, call: Call) -> tuple[bytes, list[bytes]] | None:
        """Make an idempotent call to the group's actor over a socket; return the answer's header and frames.

        Return None if a Ray call must be made instead.
        """
        lanes = self._lane()
        lane = await lanes.connection()
        if lane is None:
            return None
        try:
            return (await lane.ask(call)).answer
        finally:
            lanes.release(lane)

    async def ack(self, messages: Acked | None = None) -> None:
        """Commit fetched messages: one message, several, or (None) all that this handle has not committed yet.

        Committed messages are not delivered again. When this call returns, the commit is durable, even if other handles
        have not committed earlier messages yet. Committing a message a second time does nothing.

        Raises: CommitFailed if this handle held a message for longer than `MessagingConfig.loan_s` and another
        handle has it now; ConfigError for messages that no handle of this group has fetched.
        """
        if messages is None:
            async with self._fetching.held():
                self._tracer.committed()
                try:
                    await self._ack(
                        [(held, None) for held in (self._token, *self._unacked.values()) if held is not None]
                    )
                except CommitFailed:
                    self._token = None  # another handle has the messages
                    raise
                # The token is dropped only after the call, because a cancelled call may have committed nothing.
                self._token = None
        else:
            await self._commit(messages)
            self._tracer.committed(lambda: slices_of(messages))

    async def _commit(self, messages: Acked) -> None:
        await self._ack(by_loan(spans_of(messages, self.name)))

    async def _ack(self, loans: list[Any]) -> None:
        call = AckCall(tuple((token, None if some is None else tuple(some)) for token, some in loans))
        answer = await self._ask(call)
        found = committed_of(answer[0]) if answer else await self._insist(lambda: self.actor.answer.remote(call))
        over, late = found
        for token in over:
            self._unacked.pop(token[:2], None)
        if late is not None:
            raise late

    async def _insist(self, call: Callable[[], Any]) -> Any:  # noqa: ANN401 - an ObjectRef, its value
        return await insist(self.waiting, self.actor, call, actor_name=self._actor_name)

    async def give_up(self) -> None:
        """Give back the messages of this handle's last fetch, if that fetch had commit="next".

        The next fetch gets them again.
        """
        async with self._fetching.held():
            await self.give_up_lease(self._token)

    async def give_up_lease(self, token: Token | None) -> None:
        """Give back the messages of one fetch, which `token` names, so that the next fetch gets them."""
        # The handle forgets the lease first, so that a concurrent fetch does not commit the messages.
        self._forget(token)
        await self._insist(lambda: self.actor.give_up.remote(self._caller, token))

    async def give_up_unacked(self) -> None:
        """Give back to the mailbox the messages that this handle fetched with commit="acked" and did not commit yet."""
        for token in [*self._unacked.values()]:
            await self.give_up_lease(token)

    async def commit_lease(self, token: Token) -> None:
        """Commit all messages of one fetch, which `token` names, so that they are not delivered again."""
        self._tracer.committed()
        # The handle forgets the lease only after the commit. Otherwise a concurrent fetch would get the lease's
        # messages again. If the commit is cancelled, the next fetch or `ack` commits the lease.
        try:
            await self._ack([(token, None)])
        except CommitFailed:
            self._forget(token)
            raise
        self._forget(token)

    def _forget(self, token: Token | None) -> None:
        if token is not None:
            self._unacked.pop(token[:2], None)
            self._token = None if self._token == token else self._token

    # -- steps ----------------------------------------------------------------------------------------------------

    def steps(self, *, until: int, leave: bool = False) -> "AsyncGenerator[Step, None]":
        """Iterate over the steps of this group's agents, as `Group.steps` does, with `async for`.

        Raises: the same errors as `Group.steps`, such as ConfigError, AlreadyExists and StepAborted.
        """
        from ray_messaging.cluster.handles.group.group_steps import (  # noqa: PLC0415 - most groups have no steps
            driven_steps,
            driving_task,
        )

        return driven_steps(self._experiment, self.name, driving_task(), until, leave=leave)

    async def state(self) -> bytes | None:
        """Return the group's state, as bytes, after its last committed step; None if the group has set no state.

        Raises: ConfigError if the experiment has no steps.
        """
        found: bytes | None = await self._insist(self.actor.step_state.remote)
        return found

    async def fates(self, step: int) -> "Counter[str]":
        """Return, by fate, how many messages this group has sent in a step, such as {"delivered": 3, "blocked": 1}.

        Raises: UnknownName if some group of the experiment has not committed the step yet, or if the step is more than
        64 steps old; ConfigError if the experiment has no steps.
        """
        found: Counter[str] = await self._insist(partial(self.actor.step_fates.remote, step))
        return found

    # -- agents that come and go ----------------------------------------------------------------------------------

    async def add_agents(self, agents: Iterable[AgentId]) -> None:
        """Host more agents, on the same subtopics as those that are hosted here already.

        Agents that are hosted here already are ignored.

        Raises: AlreadyExists if another group hosts one of the agents (the error's `owner` is that group);
        InvalidAddress for an invalid id.
        """
        await self._insist(partial(self.actor.add_agents.remote, column_of(agents)))

    async def remove_agents(self, agents: Iterable[AgentId], *, timeout: float = MOVE_TIMEOUT_S) -> None:
        """Stop hosting agents; messages that wait for them become dead letters. Either all agents leave, or none.

        Without steps, this call waits up to `timeout` seconds until the messages that were fetched for the agents are
        committed. With steps, this call does not wait, and the agents leave when the next step opens (see
        docs/moving-agents.md).

        Raises: MoveFailed if the fetched messages were not committed in time; UnknownName for an agent that is not
        here.
        """
        await self._let_go(agents, None, timeout)

    async def move_agents(self, agents: Iterable[AgentId], *, to: str, timeout: float = MOVE_TIMEOUT_S) -> None:
        """Move agents to another group, with all messages that wait for them, in order. Either all move, or none.

        Without steps, this call waits up to `timeout` seconds until the messages that were fetched for the agents are
        committed. With steps, the agents move when the next step opens. This call then waits only if the other group
        has just joined the steps, for the group's first step (see docs/moving-agents.md).

        Raises: MoveFailed if the wait is longer than `timeout`; UnknownName for an agent that is not here or a group
        that does not exist; AlreadyExists if the agents are in that group already.
        """
        await self._let_go(agents, check_name("group", to), timeout)

    async def _let_go(self, agents: Iterable[AgentId], target: str | None, timeout: float) -> None:
        check_timeout(timeout, optional=False)
        attempts = itertools.count()
        leaving = AgentSet.of(agents).column
        await self._insist(lambda: self.actor.let_go.remote(leaving, target, timeout, again=next(attempts) > 0))

    # -- facts ----------------------------------------------------------------------------------------------------

    async def agents(self) -> list[AgentId]:
        """Return the agents of this group."""
        agents: IdColumn = await self._insist(self.actor.agents.remote)
        # None stands for the user, a person outside, who is never an agent of a group.
        return [agent_id for agent_id in agents.tolist() if agent_id is not None]

    async def stats(self) -> dict[str, Any]:
        """Return counters of this group, such as `batches` (sent) and `fetched` (messages that were fetched)."""
        found: dict[str, Any] = await self._insist(self.actor.stats.remote)
        return found


class Fetched(Messages):
    """Fetched messages, which a `with` block commits.

    The end of a `with` block over the messages commits all of them. If the block raises an error, the messages go back
    to the mailbox. Messages that `group.aio` fetched need `async with`.

    The end of the block raises CommitFailed if the block took longer than `MessagingConfig.loan_s` and another handle
    has the messages now.
    """

    __slots__ = ("_lender", "_token")

    def __init__(self, messages: Messages, lender: AsyncGroup, token: Token | None) -> None:
        super().__init__(messages.exp_id, messages.slices, messages.more)
        self._lender, self._token = lender, token
        for part in self.slices:
            if part.batch.origin is not None:
                part.batch.origin = part.batch.origin._replace(loan=token)

    def __enter__(self) -> Self:
        if not self._lender.waiting.blocks:
            raise ConfigError(
                "messages that `group.aio` fetched need `async with`, not `with`, because their commit must be awaited"
            )
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        finish(self._end(error))

    async def __aenter__(self) -> Self:
        if self._lender.waiting.blocks:
            raise ConfigError("messages that a Group fetched need `with`; `group.aio.fetch_messages` is for async code")
        return self

    async def __aexit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        await self._end(error)

    async def _end(self, error: BaseException | None) -> None:
        if self._token is None:
            return
        if error is None:
            await self._lender.commit_lease(self._token)
        else:
            with suppress(MessagingError, RayError):  # the error that ended the `with` block is raised instead
                await self._lender.give_up_lease(self._token)


class GroupService:
    """The part of a handle's `serve` call that calls the group's actor.

    It tells the actor when the service begins and why it ends, and makes dead letters of messages whose handlers fail.
    The actor knows the handle by `name`.
    """

    waits = None

    def __init__(self, group: AsyncGroup, name: str) -> None:
        self.name = name
        self._group = group

    async def begin(self) -> Sequence[Message]:
        """Tell the group's actor that this handle now serves the group's messages.

        Returns: an empty sequence, because there is no message to handle before the first fetch.
        """
        await self._group._insist(self._group.actor.begin_service.remote)
        return ()

    async def keep_failed(self, message: Message, failure: HandlerFailure) -> None:
        """Make a dead letter of a message whose handler has failed."""
        batch, row, *_ = slice_of(message)
        if batch.origin is None:
            logger.warning("a message of a plain Redis client is lost: %s", failure.reason)
        else:
            arguments = batch.origin.mailbox, batch.origin.entry, encode(batch.take(np.array([row]))), failure.reason
            await self._group._insist(lambda: self._group.actor.keep_failed.remote(*arguments, row=row))

    async def tell_failed(self, message: Message, failure: HandlerFailure) -> None:
        """Send an AnswerFailed to the asker of a message, unless `waits_for_failure` is False for the message."""
        question = slice_of(message)
        if waits_for_failure(question):
            await self._group.reply_to([question], failure.payload, failed=True)

    async def end(self, left: Sequence[Message], ended: str) -> None:  # noqa: ARG002 - the protocol Service has it
        """End the service. The next fetch gets the messages that were fetched but not handled, without a wait.

        Args: `ended` says why the service has ended. Agents whose questions get no answer are told this reason ("": no
        reason is recorded).
        """
        if ray.is_initialized():  # without Ray the group has ended, or will end with its driver
            await self._group.give_up_unacked()
            if ended:
                await self._group._insist(lambda: self._group.actor.end_service.remote(self.name, ended))
