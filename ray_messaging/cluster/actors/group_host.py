"""The host of a group's agents, without Ray.

It has a messager. Handles are the objects by which other processes call the group. The host executes the sends of each
handle in order, and gives received messages to handles for a limited time.
"""

import asyncio
import logging
import time
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from ray_messaging.cluster.handles.messagers import gone_for, named_messager
from ray_messaging.cluster.lane_calls import AckCall, Answer, Call, FetchCall, RelayCall, answer_of, parse_call
from ray_messaging.cluster.spec import Experiment
from ray_messaging.common.once_by_call import OnceByCall
from ray_messaging.conversations.handling import Asker
from ray_messaging.errors import MessagingError, NoAnswer, NotListening, OutcomeUnknown, UnknownName
from ray_messaging.interception.interceptor.lane_server import LaneServer
from ray_messaging.message import Message
from ray_messaging.messager import Messager
from ray_messaging.model.agent_sets import AgentSet
from ray_messaging.model.columns import IdColumn
from ray_messaging.observability.health.findings import Report
from ray_messaging.observability.metrics.families import Family
from ray_messaging.observability.metrics.messager_metrics import MessagerMetrics
from ray_messaging.observability.tracing.settings import flush_spans
from ray_messaging.receipt import Receipts
from ray_messaging.receiving.delivery_leases import DeliveryLeases, HeldByHandle
from ray_messaging.steps.step_account import sealed_counts
from ray_messaging.transports.step_values import without_steps
from ray_messaging.wire.frames import decode, encode

if TYPE_CHECKING:
    from ray_messaging.transports.steps import RedisSteps

logger = logging.getLogger(__name__)

_MOST_KEPT = 16  # how many finished calls are remembered at most, although their answers were read
_MOST_UNREAD = 1024  # how many finished calls are remembered at most whose answers were not read

# The answer to a send is remembered for this many seconds, because the send may be repeated within this time.
_REPEATED_S = 60.0
CALLERS = 10_000  # how many callers are remembered at most; the caller that was idle for longest is forgotten first


class MoreAnswers(NamedTuple):
    """Answers that a handle has not received yet.

    `parts` has a pair for each batch of answers: the positions of the answered questions, and the encoded answers.
    `late` counts all answers so far that came too late, or were not the first to their question. `errors` has the
    position of each question that gets no answer, with the reason.
    """

    parts: list[tuple[bytes, bytes]]
    late: int
    errors: list[tuple[int, NoAnswer]]


class GroupQuestions:
    """Executor of calls in which handles of a group ask questions.

    Each call has an id. A repeated call gets the result of the first call with this id, while that is remembered.
    """

    def __init__(self, messager: Messager) -> None:
        self._messager = messager
        # The results of calls, by the calls' ids: a Message for `ask`, an Answers for `ask_many`. `_unread` has the
        # calls of `ask_many` whose answers the handle has not read completely. `_read` has all other calls.
        self._read = OnceByCall[str, Any](most=_MOST_KEPT)
        self._unread = OnceByCall[str, Any](most=_MOST_UNREAD, held=lambda _, answers, __: not answers.done)

    async def ask(self, call: str, frame: bytes, timeout: float | None, asker: Asker | None = None) -> Message:
        """Ask one question, encoded as a frame; return its answer.

        Args: `call` is the id of the call. `asker` is the handler of `serve` that asks (None: no handler asks).
        """
        conversation = self._messager.conversation
        found: Message = await self._read.run(call, lambda: conversation.ask_batch(decode(frame), timeout, asker))
        return found

    async def ask_many(self, call: str, frames: Sequence[bytes], timeout: float | None) -> Receipts:
        """Ask many questions, encoded as frames; return their receipts."""
        conversation = self._messager.conversation
        answers = await self._calls(call).run(
            call, lambda: conversation.ask_batches([decode(frame) for frame in frames], timeout)
        )
        receipts: Receipts | None = answers.receipts
        assert receipts is not None
        return receipts

    def _calls(self, call: str) -> OnceByCall[str, Any]:
        return self._read if call in self._read else self._unread

    async def more(self, call: str, parts: int, wait_s: float, errors: int = 0) -> MoreAnswers:
        """Return those answers to the questions of an `ask_many` that the handle does not have yet.

        If there are none yet, wait for them up to `wait_s` seconds.

        Args: `call` is the id of that `ask_many`. The handle already has the first `parts` batches of answers, and the
        first `errors` errors.
        Raises: UnknownName if the group's actor no longer knows these questions.
        """
        if call not in self._calls(call):
            raise UnknownName(
                "the group's actor no longer knows these questions. Either the actor was restarted: fetch the answers, "
                f"which arrive as ordinary messages. Or {_MOST_UNREAD:,} later calls of ask_columns finished before "
                "anybody read these answers: ask again",
                kind="questions",
                value=call,
            )
        answers = await self._calls(call).outcome(call)
        if (len(answers.parts), len(answers.errors)) == (parts, errors) and not answers.done:
            try:
                async with asyncio.timeout(wait_s):
                    await answers.change()
            except TimeoutError:
                pass
        found = [(part.places.astype("<i8").tobytes(), encode(part.batch)) for part in answers.parts[parts:]]
        if answers.done:
            self._unread.pop(call)
            self._read.put(call, answers)
        return MoreAnswers(found, answers.late, [*answers.errors.items()][errors:])


@dataclass
class _Caller:
    next: int  # the number of the call that may begin next
    turn: asyncio.Condition = field(default_factory=asyncio.Condition)
    # The calls that Ray may still repeat, by their numbers, in ascending order.
    calls: OrderedDict[int, asyncio.Task[Receipts]] = field(default_factory=OrderedDict)


Sending = Coroutine[Any, Any, Receipts]


class CallerAdmission:
    """Executor of the calls of each caller (a handle of the group), in the order of the calls' numbers 0, 1, 2...

    A call with a repeated number gets the answer of the first call with this number.
    """

    def __init__(self) -> None:
        # A caller is not forgotten while one of its calls is remembered.
        self._callers = OnceByCall[str, _Caller](most=CALLERS, held=lambda _, caller, __: bool(caller.calls))

    async def admit(self, caller_id: str, number: int, oldest: int, run: Callable[[], Sending]) -> Receipts:
        """Run a call once the caller's earlier calls have begun, and return its receipts.

        The caller has given up its calls with numbers below `oldest`, so this call does not wait for them.

        Raises: OutcomeUnknown if this is a repeated call, and the answer to the first one is forgotten.
        """
        caller = self._callers.get(caller_id) or _Caller(oldest)
        self._callers.put(caller_id, caller)
        # Only the first calls are looked at: the numbers are ascending, and a caller may have many calls.
        while caller.calls and next(iter(caller.calls)) < oldest:
            caller.calls.popitem(last=False)
        if number not in caller.calls:
            async with caller.turn:
                if caller.next < oldest:  # calls that their caller has given up must not block newer ones
                    caller.next = oldest
                    caller.turn.notify_all()
                while caller.next < number:
                    await caller.turn.wait()
                if caller.next == number:
                    call = caller.calls[number] = asyncio.create_task(run(), name="ray_messaging call")
                    call.add_done_callback(partial(self._ended, caller, number))
                    caller.next = number + 1
                    caller.turn.notify_all()
        if number not in caller.calls:
            raise OutcomeUnknown(
                "this send was repeated, and whether its first try succeeded is no longer known: check whether the "
                "messages arrived before you send again"
            )
        # The work goes on if this coroutine is cancelled, because a repeated call may wait for the same outcome.
        return await asyncio.shield(caller.calls[number])

    def _ended(self, caller: _Caller, number: int, call: asyncio.Task[Receipts]) -> None:
        """Forget a call that has ended, after the time in which Ray may repeat it."""
        if not call.cancelled():
            call.exception()  # reads the error, of which asyncio would warn if nobody waits for the call any more
        asyncio.get_running_loop().call_later(_REPEATED_S, caller.calls.pop, number, None)


def _late_commits(held: Sequence[HeldByHandle], loan_s: float) -> Iterator[tuple[str, str]]:
    """Yield a finding and a remedy for each handle that commits its fetched messages late.

    Such a handle has held messages for over half of `loan_s`. If it has held them for over `loan_s`, they were
    delivered again.

    The handles with the most messages that were delivered again come first.
    """
    remedy = (
        "commit messages once they are handled, by the handle's next fetch, by ack(), or at the end of a `with` "
        "block. If handling takes longer, fetch fewer messages at a time, or raise MessagingConfig.loan_s "
        f"({loan_s:g} s)"
    )
    for one in sorted(held, key=lambda one: (-one.came_again, -one.messages)):
        again = f"{one.came_again:,} messages were delivered again, after they were held for over loan_s"
        now = f"{one.messages:,} for {one.seconds:,.0f} s"
        if one.came_again:
            yield f"handle {one.holder}: {again}{f'; it holds {now}' if one.messages else ''}", remedy
        elif one.messages and one.seconds > loan_s / 2:
            after = "which the next fetch gets" if one.seconds > loan_s else f"which come again after {loan_s:g} s"
            yield f"handle {one.holder} holds messages, {now}, {after}", remedy


def answer_request(
    group: "GroupHost",
    request: memoryview,
    *,
    patient: bool,  # noqa: ARG001 - a lane passes it
) -> Awaitable[bytes | tuple[bytes, ...]]:
    """Answer a call over the group's lane, the socket for the calls of its handles.

    The lane returns no errors. A call that fails gets an empty answer, and the handle repeats the call as a Ray call,
    which raises the error.

    Args: `patient` is not used. Each function that answers calls of a lane gets it.
    """
    return _answered(group, *parse_call(request))


async def _answered(group: "GroupHost", call: Call, frames: list[bytes]) -> bytes | tuple[bytes, ...]:
    try:
        return answer_of(await group.answer(call, frames))
    except MessagingError as error:
        logger.debug("a call over the group's socket failed, and is repeated as a Ray call: %r", error)
        return b""


class GroupHost:
    """The plain object that does the work of a group's actor: it hosts the group's agents.

    The group's actor owns the mailbox under the name `owner`, which stays the same if the actor restarts.
    """

    def __init__(self, experiment: Experiment, interceptor: object, name: str, owner: str) -> None:
        self._metrics = MessagerMetrics() if experiment.metrics else None
        # This messager keeps no log list, because nobody could read the list in the actor's process.
        settings = experiment.settings.model_copy(update={"log_list_messages": 0})
        here = replace(experiment, settings=settings)
        self.messager = named_messager(Messager, here, interceptor, name, self._metrics)
        self._given = IdColumn.of([])
        self._name = name
        self._owner = owner
        self._run = experiment.run
        self._tracing = experiment.tracing
        self._admission = CallerAdmission()
        self._loan_s = experiment.settings.loan_s
        self.leases = DeliveryLeases(self.messager.engine.fetcher, self._loan_s)
        # The lane's token is unique to this process of the group.
        self.lane = LaneServer(partial(answer_request, self))
        self.questions = GroupQuestions(self.messager)
        self.messager.conversation.waits.others_handle = self._others_handle
        # Late answers are committed at once. A handle cannot commit them, because they are not in the group's mailbox,
        # and so have no leases.
        self.messager.conversation.keeps_late = False

    async def agents(self) -> IdColumn:
        """Return the agents hosted now: in the order given to `start`, or sorted if agents have come or left."""
        subscription = self.messager.engine.subscription
        if subscription is None:
            return self._given
        await subscription.adopt()  # other groups may have moved agents here
        return self._given if subscription.hosted == AgentSet.of(self._given) else subscription.hosted.column

    async def start(self, agents: IdColumn, subtopics: Sequence[str]) -> None:
        """Make this group the host of the agents, and listen for their messages.

        Raises the same errors as `Messager.host_agents`.
        """
        await self.messager.init()
        await self.messager.host_agents(AgentSet.of(agents), subtopics, owner=self._owner, gone=gone_for(self._run))
        self._given = agents

    async def resume(self) -> None:
        """Host the agents of the group's earlier process, which died.

        Raises: NotListening if the group has no mailbox.
        """
        await self.messager.init()
        record = self.messager.directory.records.get(self._name)
        if record is None:
            raise NotListening(
                f"group {self._name!r} was removed, or its process died before it listened: create it again"
            )
        subtopics = [subtopic for claim in record.claims for subtopic in claim.subtopics]
        await self.start(record.agents().column, subtopics)

    async def let_go(self, leaving: IdColumn, target: str | None, timeout: float, *, again: bool) -> None:
        """Move agents to the group `target` (None: remove them).

        Args: `again` says that this is a repeated call. Then agents that have already left are ignored.
        """
        agents = AgentSet.of(leaving)
        if again:  # agents that are no longer here have left in an earlier try
            await self.messager.subscription.adopt()
            agents &= self.messager.subscription.hosted
        await self.messager.engine.release(agents, target, timeout)

    async def answer(self, call: Call, frames: Sequence[bytes] = (), begun_in: str | None = None) -> Answer:
        """Execute a call of a handle and return its answer. The call came over a socket or as a Ray call.

        A send that is repeated is executed only once.

        Args: `begun_in` is None for a new call. If the handle has made the same call before over a socket, `begun_in`
        is that socket's token, which identifies the process of the group that may have begun the call.
        Raises: OutcomeUnknown if a send may have begun in a process that is gone.
        """
        if isinstance(call, RelayCall):
            if begun_in not in {None, self.lane.token}:
                raise OutcomeUnknown(
                    f"group {self._name!r} of experiment {self.messager.exp_id!r} went down before or during this "
                    "send, so the messages may or may not have been sent. The group starts again: check whether the "
                    "messages arrived before you send again"
                )
            run = partial(self.messager.relay, frames)
            return await self._admission.admit(call.caller, call.number, call.oldest, run)
        if isinstance(call, FetchCall):
            if self.messager.conversation.waits.ended:
                await self.messager.conversation.serve_by_hand()
            return await self.leases.fetch(call.caller, call.token, call.limit, call.timeout, call.options)
        if isinstance(call, AckCall):
            return await self.leases.give_back(call.loans)
        return None  # the answer to an AliveCall

    async def begin_service(self) -> None:
        """Record that a handle runs `serve` on this mailbox from now on."""
        await self.messager.conversation.begin()

    async def end_service(self, caller: str, ended: str) -> None:
        """Record that the handle `caller` no longer serves this mailbox, for the reason `ended`.

        Do nothing if another handle holds messages or is fetching.
        """
        if not self._others_handle({caller}):
            await self.messager.conversation.end((), ended)

    async def state(self) -> bytes | None:
        """Return the group's encoded state after its last committed step, or None if there is none.

        Raises: ConfigError if the experiment has no steps.
        """
        return await self._steps.state(self._name)

    async def fates(self, step: int) -> "Counter[str]":
        """Return, for each fate such as "delivered", how many messages that the group sent in a step had this fate.

        Raises the same errors as `sealed_counts`.
        """
        counts = (await sealed_counts(self._steps, step)).get(self._name)
        return Counter() if counts is None else Counter(counts.fates)

    @property
    def _steps(self) -> "RedisSteps":
        engine = self.messager.engine
        if engine.steps is None:
            raise without_steps(engine.exp_id)
        return engine.transport.steps

    def _others_handle(self, callers: Collection[str]) -> bool:
        return bool(self.leases.holders.difference(callers))

    def stats(self) -> dict[str, Any]:
        """Return counters of this group, such as the numbers of batches sent and of messages fetched."""
        return self.messager.stats() | {"lent": self.leases.lent}

    def metrics(self) -> list[Family]:
        """Return the metrics of this group; [] without `Messaging.start(..., metrics=True)`."""
        return [] if self._metrics is None else self._metrics.families(self.stats())

    def health(self) -> Report:
        """Return a health report of this group."""
        engine = self.messager.engine
        loops = [*engine.loops(), *engine.transport.loops()]
        late = list(_late_commits(self.leases.held(), self._loan_s))
        return Report(time.time(), loops=loops, stats=self.stats(), held=late, metrics=self.metrics())

    async def close(self) -> None:
        """Send accepted messages, commit handled ones, and leave the mailbox."""
        await self.lane.close()
        await self.messager.close()
        await flush_spans(self._tracing)
