"""Handle of a group: picklable and blocking, for drivers and tasks."""

import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import msgspec
import numpy as np
from ray.exceptions import ActorUnavailableError, RayError

from ray_messaging.addressing.channels import AGENT_CHAT, AgentId, check_subtopic, parse_channel
from ray_messaging.cluster.handles.actor_calls import gone, insist, known_dead, result, wait_restart
from ray_messaging.cluster.handles.group_lane import WAIT_S, GroupLane
from ray_messaging.cluster.lane_calls import (
    AckCall,
    Call,
    FetchCall,
    RelayCall,
    messages_of,
    parse_committed,
    parse_lent,
    parse_sent,
    receipts_of,
)
from ray_messaging.cluster.spec import Experiment
from ray_messaging.compat.msg import Payload
from ray_messaging.conversations.answers import AnswerPart, GroupAnswers
from ray_messaging.conversations.replies import note_replied, replies_to
from ray_messaging.errors import CommitFailed, ConfigError, InvalidAddress, MessagingError, OutcomeUnknown
from ray_messaging.message import Message, Messages, Outgoing
from ray_messaging.model.batch import Batch
from ray_messaging.model.columns import IdColumn
from ray_messaging.receipt import Receipt, Receipts
from ray_messaging.receiving.ack_ranges import Acked, by_loan, slices_of, spans_of
from ray_messaging.receiving.delivery_leases import FetchOptions, Token
from ray_messaging.receiving.fetcher import CommitMode, check_commit, check_limit
from ray_messaging.sending.accumulation.bulk_input import batches_of_columns, batches_of_entries, columns_of, entries_of
from ray_messaging.sending.accumulation.pending_batch import Entry
from ray_messaging.wire.frames import decode, encode

if TYPE_CHECKING:
    from ray_messaging.steps.step import Step


class Group:
    """Handle of a group: sends for its agents, and fetches their messages.

    `actor` is the raw Ray handle. Sends of one handle keep their order, and a send that Ray repeats happens once. A
    task gets its own copy of a handle. A task that fetches and then ends should `ack()`, or fetch by `with`:

        with group.fetch(timeout=5) as messages: ...      # committed when the block ends without an error
    """

    def __init__(
        self,
        experiment: Experiment,
        name: str,
        actor: Any,  # noqa: ANN401 - a Ray actor handle
        step: int | None = None,
        keep: object = None,
    ) -> None:
        self.name = name
        self.actor = actor
        self._step = step
        self._experiment = experiment
        self._caller = secrets.token_hex(8)
        self._numbers = 0
        self._waiting: set[int] = set()
        self._sending = threading.Lock()
        self._fetching = threading.Lock()
        self._token: Token | None = None
        self._fetches = self._received = 0  # numbers of fetches with commit="acked": the last begun, the last returned
        self._unacked: dict[tuple[str, int], Token] = {}  # their tokens
        self._restarting = False  # its actor died during a send
        self._lane = GroupLane(actor, self._actor_name, experiment.settings.send_timeout_s)
        self._keep = keep  # the experiment lives as long as a reference to its actors

    def __reduce__(self) -> tuple[Any, ...]:
        return Group, (self._experiment.without_password(), self.name, self.actor, self._step)

    def __repr__(self) -> str:
        return f"Group({self.name!r}, exp_id={self._experiment.exp_id!r})"

    @property
    def step(self) -> int | None:
        """Return the simulation step that is stamped on messages as they are sent; None in a group with steps.

        Setting it raises ConfigError in a group with steps.
        """
        return self._step

    @step.setter
    def step(self, step: int | None) -> None:
        if self._experiment.steps:
            raise ConfigError(
                f"the step of group {self.name!r} is that of its loop: `for step in group.steps(until=...)`"
            )
        self._step = step

    @property
    def _actor_name(self) -> str:
        return f"group {self.name!r} of experiment {self._experiment.exp_id!r}"

    def send(self, from_id: AgentId | None, to_id: AgentId, payload: Payload, subtopic: str = AGENT_CHAT) -> Receipt:
        """Send one message to an agent and return its receipt; raises as `Messager.send_message`."""
        return self.send_many([Outgoing.to_agent(to_id, payload, from_id, subtopic)])[0]

    def send_many(self, messages: Sequence[Outgoing]) -> Receipts:
        """Send many messages; one receipt for each message and recipient, in order."""
        return self._relay(batches_of_entries(self._entries(messages), self._step))

    def _entries(self, messages: Sequence[Outgoing]) -> list[Entry]:
        exp_id = self._experiment.exp_id
        strict = self.name if self._experiment.group_settings.strict_senders else None
        return entries_of(messages, lambda channel: parse_channel(exp_id, channel), self._payload_bytes, strict)

    def send_columns(
        self, from_ids: object, to_ids: object, payloads: object, *, subtopic: str = AGENT_CHAT
    ) -> Receipts:
        """Send n messages given as columns, as `Messager.send_columns` does; they cross as bytes."""
        columns = columns_of(from_ids, to_ids, payloads, self._payload_bytes)
        return self._relay(batches_of_columns(columns, check_subtopic(subtopic), self._step))

    def ask(
        self,
        from_id: AgentId | None,
        to_id: AgentId,
        payload: Payload,
        *,
        subtopic: str = AGENT_CHAT,
        timeout: float | None = 60.0,
    ) -> Message:
        """Ask an agent; return its answer. Raises as `Messager.ask`."""
        entries = self._entries([Outgoing.to_agent(to_id, payload, from_id, subtopic)])
        [batch] = batches_of_entries(entries, self._step)
        call, frame = secrets.token_hex(8), encode(batch)
        answer: Message = self._insist(lambda: self.actor.ask.remote(call, frame, timeout))
        return answer

    def ask_columns(
        self,
        from_ids: object,
        to_ids: object,
        payloads: object,
        *,
        subtopic: str = AGENT_CHAT,
        timeout: float | None = 60.0,
    ) -> GroupAnswers:
        """Ask many agents, with columns as of `send_columns`; return their answers, which fill up as they come.

        `for answer in answers` gives them as they come, `answers.wait()` waits for all; both end after `timeout`
        seconds. Raises as `send_columns`.
        """
        columns = columns_of(from_ids, to_ids, payloads, self._payload_bytes)
        frames = [encode(batch) for batch in batches_of_columns(columns, check_subtopic(subtopic), self._step)]
        call, rows = secrets.token_hex(8), sum(len(chunk.from_ids) for chunk in columns)
        answers = GroupAnswers(self._experiment.exp_id, rows, timeout, partial(self._more_answers, call))
        answers.sent(self._insist(lambda: self.actor.ask_many.remote(call, frames, timeout)))
        return answers

    def _more_answers(self, call: str, answers: GroupAnswers) -> None:
        left = answers.seconds_left
        wait_s = WAIT_S if left is None else min(WAIT_S, left)
        parts = len(answers.parts)
        found = self._insist(lambda: self.actor.more_answers.remote(call, parts, wait_s))
        for places, frame in found.parts:
            answers.add(AnswerPart(np.frombuffer(places, "<i8").astype(np.intp), decode(frame)))
        answers.late = found.late

    def reply(self, message: Message, payload: Payload) -> Receipt:
        """Answer a question that a fetch returned, and return the receipt. Raises as `Messager.reply`."""
        return self.reply_columns(message, payload)[0]

    def reply_columns(self, messages: Acked, payloads: object) -> Receipts:
        """Answer many questions, with a payload each or one for all; one receipt for each. Raises as `reply`."""
        questions = slices_of(messages)
        receipts = self._relay(
            replies_to(questions, payloads, self._experiment.exp_id, self._payload_bytes, self._step)
        )
        note_replied(questions)
        return receipts

    @property
    def _payload_bytes(self) -> int:
        return self._experiment.settings.payload_bytes

    def _relay(self, batches: list[Batch]) -> Receipts:
        if not batches:
            return Receipts([])
        if known_dead(self.actor):
            raise gone(self._actor_name)
        if self._restarting:  # a call during the restart would fail with an unknown outcome
            wait_restart(self.actor, self._experiment.settings.send_timeout_s)
            self._restarting = False
        frames = [encode(batch) for batch in batches]
        lane, number = None, -1
        try:
            lane = self._lane.connection()
            if lane is None and known_dead(self.actor):  # found out just now
                raise gone(self._actor_name)
            with self._sending:
                number = self._numbers
                self._numbers += 1
                self._waiting.add(number)
                call = RelayCall(self._caller, number, min(self._waiting))
            answer = None if lane is None else lane.ask(call, frames)
            if answer is not None:
                return receipts_of(parse_sent(answer[0]), batches)
            return self._relay_by_ray(call, frames, lane.process if lane is not None and lane.begun else None)
        except OutcomeUnknown as error:
            self._restarting = isinstance(error.__cause__, ActorUnavailableError)
            raise
        finally:
            with self._sending:  # later calls must not wait for this number
                self._waiting.discard(number)
            if lane is not None:
                self._lane.release(lane)

    def _relay_by_ray(self, call: RelayCall, frames: list[bytes], begun_in: str | None) -> Receipts:
        """Make a call by Ray; `begun_in` names the process that may have begun it over the lane."""
        receipts: Receipts | None = None
        if begun_in is not None:  # most often that process has the frames
            ref = self.actor.relay_again.remote(*msgspec.structs.astuple(call), begun_in)
            receipts = result(ref, actor_name=self._actor_name, sends=True)
        if receipts is None:
            ref = self.actor.relay.remote(*msgspec.structs.astuple(call), frames)
            receipts = result(ref, actor_name=self._actor_name, sends=True)
        return receipts

    def fetch(
        self,
        *,
        limit: int | None = None,
        timeout: float | None = 0.0,
        commit: CommitMode = "next",
        complete: bool = False,
    ) -> "Fetched":
        """Return the arrived messages; wait up to `timeout` seconds (None: for ever) for the first.

        The messages of this handle's last fetch are committed now. Messages that a handle holds for longer than
        `MessagingConfig.loan_s`, because its task died or ended without `ack`, go to the next fetch of any handle.

        Args:
            limit: The most messages to return.
            timeout: Seconds to wait for the first message.
            commit: "acked": only `ack`, or a `with` block over the result, commits these messages.
            complete: Return all messages that the server had at the call, except those that other handles hold.

        Raises: CommitFailed where another handle has got the messages of the last fetch, FetchTooLarge.
        """
        check_limit(limit, complete=complete)
        check_commit(commit)
        with self._fetching:
            self._fetches += commit == "acked"
            number = self._fetches if commit == "acked" else 0
            limit = None if limit is None else int(limit)  # it may be numpy's
            options = FetchOptions(commit, complete, number, self._received)
            try:
                token, messages = self._fetch(limit, timeout, options)
            except CommitFailed:
                self._token = None  # another handle has the messages
                raise
            self._token = None
            if commit == "next":
                self._token = token
            elif token is not None:
                self._received, self._unacked[token[:2]] = number, token
        return Fetched(messages, self, token)

    def _fetch(self, limit: int | None, timeout: float | None, options: FetchOptions) -> tuple[Token | None, Messages]:
        until = None if timeout is None else time.monotonic() + timeout
        wait_s = WAIT_S if timeout is None else float(min(WAIT_S, max(0.0, timeout)))
        answer = self._ask(FetchCall(self._caller, self._token, limit, wait_s, options))
        if answer is not None:
            lent = parse_lent(answer[0])
            messages = messages_of(self._experiment.exp_id, lent, answer[1])
            if messages or wait_s == timeout:
                return lent.token, messages
            self._token = None  # it is committed
        left = None if until is None else max(0.0, until - time.monotonic())
        arguments = (self._caller, self._token, limit, left, options)
        found: tuple[Token | None, Messages] = self._insist(lambda: self.actor.fetch.remote(*arguments))
        return found

    def _ask(self, call: Call) -> tuple[bytes, list[bytes]] | None:
        """Make a call that may be repeated over the lane; None: it must go by Ray."""
        lane = self._lane.connection()
        if lane is None:
            return None
        try:
            return lane.ask(call)
        finally:
            self._lane.release(lane)

    def ack(self, messages: Acked | None = None) -> None:
        """Commit fetched messages: one, some, or all that this handle holds (None).

        On return the commit is durable, even where other handles hold earlier messages. A second call does nothing.

        Raises: CommitFailed where this handle held a message for longer than `MessagingConfig.loan_s` and another
        handle has it now; ConfigError for messages that no handle of this group has fetched.
        """
        if messages is None:
            with self._fetching:
                token, self._token = self._token, None
                self._ack([(held, None) for held in (token, *self._unacked.values()) if held is not None])
        else:
            self._ack(by_loan(spans_of(messages, self.name)))

    def _ack(self, loans: list[Any]) -> None:
        over: list[Token]
        answer = None
        if all(some is None for _, some in loans):
            answer = self._ask(AckCall(tuple(token for token, _ in loans)))
        if answer is not None:
            over, late = list(parse_committed(answer[0]).over), None
        else:
            over, late = self._insist(lambda: self.actor.ack_some.remote(loans))
        for token in over:
            self._unacked.pop(token[:2], None)
        if late is not None:
            raise late

    def _insist(self, call: Callable[[], Any]) -> Any:  # noqa: ANN401 - an ObjectRef, its value
        return insist(self.actor, call, actor_name=self._actor_name)

    def give_up(self) -> None:
        """Return the messages of this handle's last fetch to the mailbox unhandled; the next fetch gets them."""
        with self._fetching:
            self._give_up(self._token)

    def _give_up(self, token: Token | None) -> None:
        self._insist(lambda: self.actor.give_up.remote(self._caller, token))
        self._forget(token)

    def _forget(self, token: Token | None) -> None:
        if token is not None:
            self._unacked.pop(token[:2], None)
            self._token = None if self._token == token else self._token

    def steps(self, *, until: int, leave: bool = False) -> "Iterator[Step]":
        """Iterate over the steps of this group's agents, from the first one that is not committed to before `until`.

        To ask for the next step commits the one before; `break`, or an exception, leaves it uncommitted, and it runs
        again. All groups must be driven at the same time, so give their tasks num_cpus=0.

        Args: with `leave` the group leaves before step `until`: the others go on without it.
        Raises: ConfigError where the experiment has no steps, AlreadyExists where another task drives the group,
        StepAborted, StepTooLarge.
        """
        from ray_messaging.cluster.handles.group_steps import group_steps  # noqa: PLC0415 - most groups have no steps

        return group_steps(self._experiment, self.name, until, leave=leave)

    @property
    def state(self) -> bytes | None:
        """Return the state that the group's last committed step left; None: there is none.

        Raises: ConfigError where the experiment has no steps.
        """
        state: bytes | None = self._insist(self.actor.step_state.remote)
        return state

    def fates(self, step: int) -> "Counter[str]":
        """Return how many messages that this group sent in a step met each fate, once all groups have committed it.

        Raises: UnknownName for a step that is not committed, or too long ago (the server keeps the last 64);
        ConfigError where the experiment has no steps.
        """
        fates: Counter[str] = self._insist(partial(self.actor.step_fates.remote, step))
        return fates

    @property
    def agents(self) -> list[AgentId]:
        """Return the agents of this group."""
        agents: IdColumn = self._insist(self.actor.agents.remote)
        # The user, None, is never an agent of a group.
        return [agent_id for agent_id in agents.tolist() if agent_id is not None]

    def stats(self) -> dict[str, Any]:
        """Return counters of this group."""
        stats: dict[str, Any] = self._insist(self.actor.stats.remote)
        return stats


class Fetched(Messages):
    """Fetched messages; a `with` block over them commits them at its end, or returns them to the mailbox at an error.

    The block's end raises CommitFailed where it took longer than `MessagingConfig.loan_s` and another handle has the
    messages now.
    """

    __slots__ = ("_group", "_token")

    def __init__(self, messages: Messages, group: Group, token: Token | None) -> None:
        super().__init__(messages.exp_id, messages.slices, messages.more)
        self._group, self._token = group, token
        for part in self.slices:
            if part.batch.origin is not None:
                part.batch.origin = part.batch.origin._replace(loan=token)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._token is None:
            return
        if error is None:
            self._group._forget(self._token)
            self._group._ack([(self._token, None)])
        else:
            with suppress(MessagingError, RayError):  # the block's error is raised
                self._group._give_up(self._token)


def check_agents(agents: object) -> None:
    """Raise InvalidAddress where agents are no collection of ids."""
    if isinstance(agents, str | bytes) or not hasattr(agents, "__iter__"):
        raise InvalidAddress(f"agents must be a list, range or array of ids, not {agents!r}", value=agents)
