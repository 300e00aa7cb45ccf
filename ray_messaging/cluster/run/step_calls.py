"""The calls of a model's function in one step, each with a time limit, and the calls through `me.remember`."""

import asyncio
import contextvars
import inspect
from collections import Counter
from collections.abc import Awaitable, Callable, Container, Iterable, Iterator, Mapping
from concurrent.futures import Executor, Future
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2b
from itertools import chain
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

from ray_messaging.addressing.channels import AgentId
from ray_messaging.cluster.run.model_thread import Holder, ModelThread, Turns
from ray_messaging.common.awaitables import RAISED, is_async, raising
from ray_messaging.common.backoff import CALL_RETRY, Backoff
from ray_messaging.config import Calls, Price
from ray_messaging.errors import BudgetSpent, ConfigError, MessagingError, PayloadTooLarge, StepAborted
from ray_messaging.model.call_content import content_digest_of, told_by
from ray_messaging.model.call_usage import CallMeter, CallUsage, added, metering, read_usage
from ray_messaging.model.calls import (
    FAILED,
    MODEL,
    NO_RESULT,
    STORE,
    UNUSED,
    AskedCall,
    CallRecord,
    KeptCall,
    arguments_text,
    asked,
    encloses_anew,
    unbound,
)
from ray_messaging.model.exact import decode_exactly, encode_exactly
from ray_messaging.observability.tracing.untraced import UNTRACED, AnyTracer
from ray_messaging.steps.call_limits import CallGate
from ray_messaging.steps.call_memory import CallMemory

if TYPE_CHECKING:
    from ray_messaging.cluster.run.agent import Agent, Model
    from ray_messaging.messages import Messages
    from ray_messaging.steps.call_store import CallStore

# If a step fails, calls through `me.remember` have this many seconds to end, because they cost money.
CALLS_END_S: Final = 30.0
_END_S: Final = 1.0  # a cancelled model has this many seconds to end; a thread that is blocked does not notice it

_Call = tuple["Agent", Awaitable[object]]
# Keys of `RememberedCalls.counts`: retries, numbers of tokens, and the cost of the tokens in 10^-12 of the currency.
RETRIES, INPUT, CACHED, OUTPUT, COST = "retries", "input_tokens", "cached_tokens", "output_tokens", "cost_parts"
# Keys of `RememberedCalls.counts` for answers from the store: the tokens that were used when these answers were made,
# and the cost of these tokens by the prices of this run.
SAVED, SAVED_COST = "saved_tokens", "saved_parts"
NO_LIMITS = Calls.model_construct()  # for Calls(), pydantic would build a validator, which takes 10 ms
_TOO_MANY, _SERVER_ERRORS = 429, 5  # HTTP: the status "too many requests", and the first digit of server errors
RESULT = "the result of me.remember"  # the name, in errors, of a result that cannot be stored


@dataclass(eq=False)
class StepCalls:
    """The calls of a model's function for the agents of a group in one step. They run in the model's thread.

    Args: `is_async` says whether the model's function is async. `timeout` is the number of seconds for one agent (None:
    no limit), except for the agents in `untimed`. `failed` builds the error for an agent's failure. `begin` and `stop`
    are for agents that run later steps ahead of time (None: no agent does so). `begin` lets these agents begin. It is
    called in the model's event loop before the first call is awaited. `stop` is called if the step fails. It stops
    these agents, and returns the tasks of their calls through `me.remember` that are under way.
    """

    model: "Model"
    is_async: bool
    thread: ModelThread
    holder: Holder
    remembered: "RememberedCalls | None"
    failed: "Callable[[Agent, BaseException], MessagingError]"
    concurrency: int
    timeout: float | None
    untimed: Container[AgentId] = ()
    begin: Callable[[], None] | None = None
    stop: "Callable[[], set[asyncio.Task[Any]]] | None" = None

    def __post_init__(self) -> None:
        self._running: dict[Agent, float] = {}  # by agent, the time at which its call began
        self._workers: list[asyncio.Task[None]] = []
        # A worker holds this lock while it takes its next agent, so that only one agent begins in each round of the
        # event loop. So even if many agents run without a pause, because their calls through `me.remember` are answered
        # already, agents that run later steps ahead of time get their turns. None: no agents run ahead of time.
        self._taking: asyncio.Lock | None = None
        self._over = asyncio.Event()
        self._error: BaseException | None = None  # the error that ends the step
        self._end_by: float | None = None  # the time at which the calls must have ended (None: `end` was not called)

    async def run(self, agents: "Iterable[tuple[Agent, Messages]]") -> None:
        """Call the model for each agent, with its inbox, in the order of `agents`; raise the first error."""
        watched = self.timeout is not None or self.is_async
        try:
            await self.thread.call(self._call_all, agents, look=self._look if watched else None)
        finally:
            self._over.set()

    async def end_and_wait(self, error: BaseException) -> None:
        """Make all calls end with an error.

        Return when they have ended, or when calls through `me.remember` have exceeded their time limit.
        """
        self.end(error)
        assert self._end_by is not None
        with suppress(TimeoutError):
            async with asyncio.timeout(self._end_by - perf_counter()):  # not wait_for, which could lose a cancellation
                await self._over.wait()

    def end(self, error: BaseException) -> None:
        """Make all calls end with an error. Calls through `me.remember` get some time to end.

        Any thread may call this method.
        """
        under_way = self.stop is not None or (self.remembered is not None and self.remembered.under_way)
        if self._end_by is None and self.thread.tell(self._cancel, error):
            self._end_by = perf_counter() + _END_S + (CALLS_END_S if under_way else 0.0)
        else:
            self._end_by = self._end_by or 0.0
        self._error = self._error or error

    def _look(self) -> float | None:
        """End the step if a call has exceeded its time limit; return the seconds until the limits are checked again.

        Return None if there are no limits.

        Raises: the error that ends the step, if calls still run after the time that they had to end.
        """
        now = perf_counter()
        if self._end_by is None and (late := self._late(now)) is not None:
            self.end(late)
        if self._end_by is not None:
            if now >= self._end_by:
                assert self._error is not None
                raise self._error
            return self._end_by - now
        if self.timeout is None:
            return None
        return min([*self._running.values()], default=now) + self.timeout - now

    def _late(self, now: float) -> MessagingError | None:
        """Return the error for an agent whose call has exceeded its time limit, or None if there is no such agent.

        If another agent has blocked the event loop meanwhile, the error may name that agent instead.
        """
        began = dict(self._running)
        if self.timeout is None or not began or now - min(began.values()) < self.timeout:
            return None
        return self._too_late(min(began, key=began.__getitem__), now)

    def _too_late(self, agent: "Agent", now: float) -> MessagingError:
        assert self.timeout is not None
        text = f"the model had not ended after timeout={self.timeout} s"
        held, seconds = self.holder.longest(now)
        # If an agent blocked the event loop for at least half of the timeout, the error names this agent. The call that
        # is late may have begun long before, and only waited for the loop.
        if held is not None and (held is agent or 2 * seconds >= self.timeout):
            agent = held
            text += f", and blocked the event loop for {seconds:.1f} s: call functions that block by asyncio.to_thread"
        elif held is not None:
            text += f"; meanwhile the model of agent {held.id!r} blocked the event loop for {seconds:.1f} s"
        return self.failed(agent, TimeoutError(text))

    # -- in the model's thread ------------------------------------------------------------------------------------

    def _call_all(self, agents: "Iterable[tuple[Agent, Messages]]") -> None:
        calls = self._calls(agents)
        if not self.is_async:  # a plain function may return awaitables, too, for example if it is decorated
            calls = iter([*calls])
        if (first := next(calls, None)) is not None:
            self.thread.wait_for(self._await_all(chain([first], calls)))

    def _calls(self, agents: "Iterable[tuple[Agent, Messages]]") -> Iterator[_Call]:
        """Call the model for agents, and yield the calls that must be awaited; raise the error of the first failure."""
        model, timed = self.model, self.timeout is not None
        for agent, inbox in agents:
            if timed:
                self._running[agent] = perf_counter()
            try:
                answer = model(agent, inbox)
            except RAISED as error:
                raise self.failed(agent, error) from error
            if answer is None and not timed:
                continue
            if answer is not None and inspect.isawaitable(answer):
                self._running.pop(agent, None)  # the time limit counts from the moment at which the call is awaited
                yield agent, answer
            else:
                self._check_done(agent, answer)

    def _check_done(self, agent: "Agent", answer: object) -> None:
        """Raise an error if a call of the model's function did not return None, or if it took too long.

        `answer` is what the function returned.
        """
        began = self._running.pop(agent, None)
        now = perf_counter()
        if began is not None and self.timeout is not None and now - began > self.timeout:
            raise self._too_late(agent, now)
        if answer is not None:
            raise self.failed(agent, unfit_answer(answer))

    async def _await_all(self, calls: Iterator[_Call]) -> None:
        """Await calls, at most `concurrency` at once.

        Raises: the first error of a call, once the calls through `me.remember` that are under way have ended, or have
        exceeded their time limit.
        """
        if self.begin is not None:
            self.begin()
            self._taking = asyncio.Lock()
        self._workers = [asyncio.create_task(self._await(calls)) for _ in range(self.concurrency)]
        try:
            await asyncio.gather(*self._workers)
        except (MessagingError, asyncio.CancelledError) as error:
            self._cancel(error)
        else:
            return
        left: set[asyncio.Task[Any]] = {*self._workers}
        if self.remembered is not None:
            left |= self.remembered.under_way
        if self.stop is not None:
            left |= self.stop()
        for seconds in (CALLS_END_S, _END_S):
            left = (await asyncio.wait(left, timeout=seconds))[1] if left else left
            for task in left:
                task.cancel()
        assert self._error is not None
        raise self._error

    def _cancel(self, error: BaseException) -> None:
        self._error = self._error or error
        if self.remembered is not None:
            self.remembered.ending = True
        for worker in self._workers:
            worker.cancel()

    async def _next(self, calls: Iterator[_Call]) -> _Call | None:
        if self._taking is None:
            return next(calls, None)
        async with self._taking:
            await asyncio.sleep(0)
            return next(calls, None)

    async def _await(self, calls: Iterator[_Call]) -> None:
        while (taken := await self._next(calls)) is not None:
            agent, call = taken
            if self.timeout is not None and agent.id not in self.untimed:
                self._running[agent] = perf_counter()
            try:
                answer = await Turns(call, self.holder, agent, "the model")
            except RAISED as error:
                task = asyncio.current_task()
                if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
                    raise  # another agent has failed, or this one has exceeded its time
                raise self.failed(agent, error) from error
            self._check_done(agent, answer)
            if self.remembered is not None and self.remembered.forgotten(agent.id):
                raise self.failed(
                    agent,
                    RuntimeError(
                        "the model ended before its call of me.remember had a result: write `await me.remember(...)`"
                    ),
                )


def unfit_answer(answer: object, which: str = "me") -> TypeError:
    """Return the error for a model that did not return None. `which` is the name of the model's first parameter."""
    found = type(answer).__name__
    return TypeError(
        f"the model returned an object of type {found}, but must return None: keep results in {which}.state, or send "
        "them in messages"
    )


class _Remembered(msgspec.Struct):
    """A call that an agent makes through `me.remember`.

    `n` is the call's number, from 1, among the agent's equal calls in the step. `key` identifies the call among all
    calls of the step. If the step runs again, the same call has the same key.
    """

    agent: "Agent"
    asked: AskedCall
    n: int
    key: str
    arguments: str | None
    place: int  # the number of the call among all calls of the step, in the order in which they began
    content: str | None = None  # the call's key in the store of `Calls(store=)`; None: the store is not asked
    by_person: bool = False  # whether a person answers; limits are only for calls of models
    text: str = ""  # the arguments as a text; the calls that wait at the gate are sorted by such texts
    meter: CallMeter | None = None  # counts the tokens that the call uses
    began: float = 0.0  # the value of `perf_counter` when the call began
    answered: bool = False  # whether the call itself, or the store, has given a result
    thread: Future[Any] | None = None  # the last run of a plain function in a thread, which cannot be cancelled


class _Flight:
    """A call through `me.remember` that a step shares with agents that run in the step ahead of time.

    The call is under way or answered. `answer` gets a tuple of where the result came from and the result, or the error
    with which the call ended. `used` is False as long as only agents that run ahead of time have asked for the call,
    and not the step itself. `maker` makes the call.
    """

    __slots__ = ("answer", "call", "maker", "used")

    def __init__(self, call: _Remembered, maker: "RememberedCalls") -> None:
        self.call = call
        self.maker = maker
        self.answer: asyncio.Future[tuple[str, KeptCall] | BaseException] = asyncio.get_running_loop().create_future()
        self.used = False

    @property
    def known(self) -> tuple[str, KeptCall] | None:
        """Return where the result came from and the result itself, or None if there is no result yet."""
        outcome = self.answer.result() if self.answer.done() else None
        return outcome if isinstance(outcome, tuple) else None


class Flights:
    """The calls through `me.remember` in one step.

    The step shares them with agents that have run in this step ahead of time, so that each call is made once.
    """

    def __init__(self) -> None:
        self.by_key: dict[str, _Flight] = {}
        self.failed: dict[str, CallRecord] = {}  # calls made ahead of time that have failed after they had used tokens
        self.late: list[CallRecord] = []  # calls made ahead of time that were answered only when the step had ended
        self._told: dict[int, object] = {}  # the calls and records that `in_vain` has seen, each by its `id`

    def early(self) -> list[_Remembered]:
        """Return the calls that agents have made ahead of time for this step, and that are under way.

        Other threads may call this method.
        """
        flights = self.by_key.copy().values()
        return [flight.call for flight in flights if flight.maker.early and not flight.answer.done()]

    def in_vain(self) -> tuple[list[CallRecord], list[CallRecord]]:
        """Return records of the calls through `me.remember` that were made ahead of time for this step, but in vain.

        Call this method when the step has ended. The first list has the calls that were answered, but that the step
        itself did not ask for. The second list has the calls that failed after they had used tokens.
        """
        ended = [flight for flight in self.by_key.values() if flight.answer.done()]
        made = [(flight.call, *flight.known) for flight in ended if not flight.used and flight.known is not None]
        unused = [_record_of(call, UNUSED, answer) for call, source, answer in made if source == MODEL]
        failed = [*self.failed.values()]
        self._told = {id(each): each for each in (*ended, *failed, *self.late)}
        return [*unused, *self.late], failed

    def forget_told(self) -> bool:
        """Forget the calls through `me.remember` that had ended when `in_vain` was called; return whether any remain.

        Call this method when the step is committed. The records that are committed with the step contain the forgotten
        calls.
        """
        told = self._told
        self.by_key = {key: flight for key, flight in self.by_key.items() if id(flight) not in told}
        self.failed = {key: record for key, record in self.failed.items() if id(record) not in told}
        self.late = [record for record in self.late if id(record) not in told]
        self._told = {}
        return bool(self.by_key or self.failed or self.late)


@dataclass(eq=False)
class RememberedCalls:
    """The calls through `me.remember` in a step. If the step runs again, equal calls of an agent get the same results.

    The calls are made in the model's event loop. Each call is a task of its own, which goes on if the step fails.
    `under_way` has the calls that have not ended.

    Args: `memory` stores results for the case that the step runs again. Plain functions run in `threads`. With
    `recorded`, the calls are recorded for the event log. Calls wait at `gate` until the limits allow them (None: they
    do not wait). A call is not made if `store` has its answer. `counts` gets the numbers of retries and of tokens, and,
    for each source of results, the number of calls. `flights` has the calls that the step shares with agents that run
    in the step ahead of time (None: no agents run ahead of time). With `early`, this object makes the calls of agents
    that run ahead of time, and a call is counted only when the step itself asks for it.
    """

    memory: CallMemory
    threads: Executor
    holder: Holder
    counts: Counter[str] = field(default_factory=Counter)
    recorded: bool = False
    settings: Calls = NO_LIMITS
    gate: CallGate | None = None
    store: "CallStore | None" = None
    tracer: AnyTracer = UNTRACED
    flights: Flights | None = None
    early: bool = False

    def __post_init__(self) -> None:
        self._price = None if self.settings.cost is None else self.settings.price
        self.spent: BudgetSpent | None = None  # set if the budget is spent, so that the step cannot be committed
        self.under_way: set[asyncio.Task[Any]] = set()
        self.open: dict[int, _Remembered] = {}  # the calls that are under way, by `place`
        # Whether no more calls may begin: the step has failed, or agents no longer run it ahead of time.
        self.ending = False
        # The records of the calls, by `place`. None: the call has neither succeeded nor used tokens.
        self._records: list[CallRecord | None] = []
        self._failed: dict[str, int] = {}  # for the key of each call that used tokens and failed: its `place`
        self._asked: dict[str, int] = {}  # for each digest, how many calls with this digest were made
        self._unended: dict[AgentId, int] = {}

    def call(
        self,
        agent: "Agent",
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        *,
        by_person: bool = False,
    ) -> Awaitable[Any]:
        """Return an awaitable that makes an agent's call through `me.remember`, or takes a stored result for it.

        Args: With `by_person`, a person answers the call. Such a call has no limits, and is not counted.

        Raises: ConfigError outside of an event loop.
        """
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            raise ConfigError(
                "me.remember needs an async model: write async def person(me, inbox), and in it await me.remember(...)"
            ) from None
        sample, uses = told_by(function)
        function, args, kwargs = unbound(function, args, kwargs)
        what = asked(agent.id, function, args, kwargs)
        if self.early and (not what.by_content or encloses_anew(function)):
            # The key of this call does not depend on all that the call uses. In the step itself, the agent may make
            # another call with the same key, so the call is not made ahead of time.
            return self._not_ahead()
        shared = self.store is not None and sample is not None and not by_person
        content = content_digest_of(function, args, kwargs, uses) if shared else None
        self._asked[what.digest] = n = self._asked.get(what.digest, 0) + 1
        self._unended[agent.id] = self._unended.get(agent.id, 0) + 1
        kept = self.settings.keep_arguments and (self.recorded or shared)
        text = arguments_text(args, kwargs) if kept or self.gate is not None else None
        if content is not None and sample is not None:
            content = f"{content}-{_sample(agent, n, sample)}"
        call = _Remembered(
            agent, what, n, f"{what.digest}-{n}", text if kept else None, len(self._records), content, by_person,
            text or "",
        )  # fmt: skip
        self._records.append(None)
        known = self.memory.known(call.key)
        flight = None if self.flights is None else self.flights.by_key.get(call.key)
        if flight is not None:
            flight.used |= not self.early
            known = known or flight.known
        # The store is not asked for a call that is already shared with an agent that runs ahead of time. The shared
        # call puts its answer into the store before it ends. If the answer were taken from there, the call would be
        # recorded as answered by the store, although it was made in this step.
        elif known is None and call.content is not None and not self.memory.may_know:
            known = self._in_store(call.content)
        return self._result(call, partial(function, *args, **kwargs)) if known is None else self._known(call, *known)

    async def _not_ahead(self) -> None:
        raise asyncio.CancelledError  # this ends the agent's run ahead of time

    def _in_store(self, content: str) -> tuple[str, KeptCall] | None:
        assert self.store is not None
        if (made := self.store.known(content)) is None:
            return None
        self.memory.check(made)
        return STORE, made

    def forgotten(self, agent: AgentId) -> bool:
        """Return whether an agent, which has ended its step, has a call through `me.remember` that it did not await."""
        return self._unended.get(agent, 0) > 0

    def records(self) -> list[CallRecord]:
        """Return records of the calls through `me.remember` that have succeeded, or have failed after using tokens.

        The records are sorted by agent. The records of one agent are in the order in which the calls began.
        """
        ended = [record for record in self._records if record is not None]
        return sorted(ended, key=lambda record: (isinstance(record.agent, str), record.agent))

    async def _known(self, call: _Remembered, source: str, made: KeptCall) -> Any:  # noqa: ANN401 - of a function of the user's
        """Return the known result of a call through `me.remember`, for which the function is not called.

        Args: `made` has the result, and `source` says where the result comes from, such as "store".
        """
        if self.ending:
            raise asyncio.CancelledError
        self._unended[call.agent.id] -= 1
        return self._end(call, source, made)

    def _end(self, call: _Remembered, source: str, made: KeptCall) -> Any:  # noqa: ANN401 - of a function of the user's
        if self.early:
            return decode_exactly(made.result)
        if not call.by_person:
            self.counts[source] += 1
        if source == STORE:
            made = self._saving(call, made)
        self._record(call, source, made)
        return decode_exactly(made.result)

    def _saving(self, call: _Remembered, made: KeptCall) -> KeptCall:
        """Count the tokens and the money that an answer from the store has saved; return the answer as it is recorded.

        The returned answer has the saved cost by the prices of this run, and the usage of this call's failed tries.
        """
        if (saved := made.saved) is not None:
            saved = msgspec.structs.replace(saved, cost=self._price_now(saved))
            for name, more in ((SAVED, saved.tokens), (SAVED_COST, saved.cost)):
                if more:
                    self.counts[name] += more
        # The answer from the store was free. But if the agent's own call had failed before, the failed call was paid.
        failed = self.memory.failed(call.key)
        return KeptCall(made.seconds, made.tries, made.result, None if failed is None else failed.usage, saved=saved)

    def _price_now(self, used: CallUsage) -> int | None:
        """Return what the tokens in `used` would cost by the prices of this run, or None if this is not known."""
        # If several models have answered a call, `used.model` has their names with " + " between them. How many tokens
        # each of these models has used is not known.
        if self._price is None or (" + " in (used.model or "") and not isinstance(self.settings.cost, Price)):
            return None
        with suppress(ConfigError):
            return self._price(used.model, used.input, used.cached, used.output)
        return None

    def _record(self, call: _Remembered, source: str, made: KeptCall) -> None:
        if self.recorded:
            if (failed := self._failed.pop(call.key, None)) is not None:
                self._records[failed] = None  # the usage in `made` includes the usage of the failed call
            if source == FAILED:
                self._failed[call.key] = call.place
            self._records[call.place] = _record_of(call, source, made)

    async def _result(self, made: _Remembered, function: Callable[[], Any]) -> Any:  # noqa: ANN401 - of a function of the user's
        if self.ending:
            raise asyncio.CancelledError
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        call = asyncio.create_task(self._settle(answer, made, function), name="ray_messaging remembered call")
        self.under_way.add(call)
        try:
            return await answer
        except asyncio.CancelledError:
            # If the model itself has cancelled the call, the call is given up. If `ending` is set, a call that a person
            # answers is given up, and all other calls go on, because they have cost money.
            if not self.ending or made.by_person:
                call.cancel()
                await asyncio.wait({call})  # so that the call has left the gate before the model goes on
            raise

    async def _settle(self, answer: asyncio.Future[Any], made: _Remembered, function: Callable[[], Any]) -> None:
        """Make the call `made`, which calls `function`, and set its result or error in `answer`.

        This runs as a task of its own, which goes on even if the step fails and nobody waits for `answer`.
        """
        try:
            result = await self._made(made, function)
            if not answer.done():
                answer.set_result(result)
        except BaseException as error:
            if not answer.done():
                answer.set_exception(error)
            if not isinstance(error, Exception):
                raise
        finally:
            self.under_way.discard(cast("asyncio.Task[Any]", asyncio.current_task()))

    async def _made(self, call: _Remembered, function: Callable[[], Any]) -> Any:  # noqa: ANN401 - of a function of the user's
        digest = call.asked.digest
        call.meter, call.began = CallMeter(self._price, self.memory.step), perf_counter()
        self.open[call.place] = call
        metering.set(call.meter)  # a context variable: other tasks keep their own values
        try:
            try:
                recalled = await self.memory.recall(call.key) if self.memory.may_know else None
                if recalled is not None:
                    source, made = recalled
                elif self.flights is None:
                    source, made = await self._kept(call, function)
                else:
                    source, made = await self._shared(call, function, self.flights.by_key)
            except BaseException:
                # Free the call's number for the next equal call, unless a later equal call was made already. A call
                # that was answered keeps its number: even if the call was cancelled, its answer may have been stored.
                if self._asked[digest] == call.n and not call.answered:
                    self._asked[digest] -= 1
                raise
            if source == STORE:
                self.memory.check(made)
        finally:
            self._unended[call.agent.id] -= 1
            del self.open[call.place]
        return self._end(call, source, made)

    def calls_now(self) -> list[_Remembered]:
        """Return the calls that are under way here, without those that people answer.

        A call that only waits for an equal call that an agent makes ahead of time is also left out. Other threads may
        call this method.
        """
        flights = {} if self.flights is None else self.flights.by_key
        here = self.open.copy().values()
        return [
            call
            for call in here
            if not call.by_person and ((flight := flights.get(call.key)) is None or flight.call is call)
        ]

    async def _shared(
        self, call: _Remembered, function: Callable[[], Any], flights: dict[str, _Flight]
    ) -> tuple[str, KeptCall]:
        """Return where the answer of a call through `me.remember` came from, such as "model", and the answer.

        Some agents run early, before their step opens. All agents of a step share their calls: if a call with the same
        key is under way already, wait for the answer of that call. If there is no such call, make the call here.

        Args: `flights` has the calls of the step that are under way or answered, by key.
        """
        while (flight := flights.get(call.key)) is not None:
            flight.used |= not self.early
            await asyncio.wait({flight.answer})
            outcome = flight.answer.result()
            if isinstance(outcome, tuple):
                return outcome
            # If the `RememberedCalls` that made the shared call is ending, it did not retry the call. This one may.
            gone = flight.maker.ending and self.settings.retries > 0
            if isinstance(outcome, BudgetSpent | StepAborted) or (gone and may_pass(outcome)):
                continue
            if isinstance(outcome, Exception):
                raise outcome
        # The call is made here if no equal call is shared, or if the shared call has given no answer: it was cancelled,
        # no budget was left, its answer could not be stored because the step had begun again, or it failed with an
        # error that may pass.
        flight = flights[call.key] = _Flight(call, self)
        flight.used = not self.early
        try:
            answer = await self._kept(call, function)
        except BaseException as error:
            if flights.get(call.key) is flight:
                del flights[call.key]
            flight.answer.set_result(error)
            raise
        flight.answer.set_result(answer)
        return answer

    async def _kept(self, call: _Remembered, function: Callable[[], Any]) -> tuple[str, KeptCall]:
        """Return where the answer of a call through `me.remember` came from, "model" or "store", and the answer.

        If it came from "model", the call was made now, and the answer is kept for the case that this step runs again.
        """
        assert call.meter is not None
        before = self.memory.failed(call.key)
        call.meter.used = None if before is None else before.usage
        if self.flights is not None and before is not None:
            self.flights.failed.pop(call.key, None)  # the usage of this call includes the usage of the failed call
        try:
            if call.content is None:
                source, made = MODEL, await self._answer(call, function)
            else:
                source, made = await self._once(call, call.content, function)
        except (Exception, asyncio.CancelledError):
            await self._keep_failed(call)
            raise
        call.answered = True
        if source == MODEL:
            try:
                await self._keep(call, made)
            except PayloadTooLarge:
                await self._keep_failed(call)
                raise
        return source, made

    async def _keep(self, call: _Remembered, made: KeptCall) -> None:
        try:
            await self.memory.keep(call.key, made)
        except StepAborted:
            if self.early and self.flights is not None:  # the call was paid, but the step has ended without its answer
                self.flights.late.append(_record_of(call, UNUSED, made))
            raise

    async def _keep_failed(self, call: _Remembered) -> None:
        """Record the tokens that a failed call through `me.remember` has used, because they were paid."""
        assert call.meter is not None
        if call.meter.used is None:
            return
        made = KeptCall(0.0, 0, NO_RESULT, call.meter.used, failed=True)
        if self.early and self.flights is not None:
            self.flights.failed[call.key] = _record_of(call, FAILED, made)  # also if the step has ended already
            self.counts[FAILED] += 1
        if self.memory.broken is None:
            await self.memory.keep_failed(call.key, made)
            if not self.early:
                self.counts[FAILED] += 1
                self._record(call, FAILED, made)

    async def _once(self, call: _Remembered, content: str, function: Callable[[], Any]) -> tuple[str, KeptCall]:
        """Return where the answer of a call through `me.remember` came from, "model" or "store", and the answer.

        The call is made ("model") unless the store has its answer, or an equal call is under way, whose answer is then
        used ("store"). `content` is the key of the answer in the store.
        """
        from ray_messaging.steps.call_store import StoredCall  # noqa: PLC0415 - brings sqlite3

        assert self.store is not None
        stored = StoredCall(content, call.asked.function, call.arguments)
        answer, made = await self.store.answer(stored, lambda: self._fit_answer(call, function))
        return (MODEL if made else STORE), answer

    async def _fit_answer(self, call: _Remembered, function: Callable[[], Any]) -> KeptCall:
        """Make a call through `me.remember`; return its answer, which the caller puts into the store.

        Before that, keep the answer for the case that this step runs again. So the answer is not lost if the store's
        disk is full.
        """
        made = await self._answer(call, function)
        await self._keep(call, made)
        return made

    async def _answer(self, call: _Remembered, function: Callable[[], Any]) -> KeptCall:
        tries, meter = 0, call.meter
        backoff: Backoff | None = None
        assert call.meter is not None
        assert meter is not None
        gate = None if call.by_person else self.gate
        while True:
            if gate is not None:
                meter.waiting = True
                try:
                    await gate.enter(self.memory.step, f"{call.asked.function} {call.text}")
                except BudgetSpent as error:
                    self.spent = error
                    raise
                finally:
                    meter.waiting = False
            began, tries, before, meter.used = perf_counter(), tries + 1, meter.used, None
            try:
                with self.tracer.calling(call.asked.function, call.agent.id, meter):
                    answer = await self._try(call, function)
                    needed = self.settings.needs_usage
                    if not call.by_person and (needed or type(answer) is dict):
                        read_usage(meter, answer, call.asked.function if needed else None)
                result = msgspec.Raw(encode_exactly(answer, RESULT))
                return KeptCall(perf_counter() - began, tries, result, added(before, meter.used))
            except Exception as error:
                if tries > self.settings.retries or self.ending or not may_pass(error):
                    raise
            finally:
                if meter.used is not None:
                    self._count(meter.used)
                if gate is not None:
                    self._leave(gate, call, meter)
                call.meter.used = added(before, meter.used)
            self.counts[RETRIES] += 1
            backoff = backoff or Backoff(CALL_RETRY)
            await backoff.sleep()

    def _leave(self, gate: CallGate, call: _Remembered, meter: CallMeter) -> None:
        """Leave the gate after a try. If the call was cancelled, but its thread goes on, leave when the thread ends.

        Until the thread ends, it may still use tokens. These tokens are counted only in `meter`, and not in the meter
        of the call, because the call gets a new meter.
        """
        if call.thread is None or call.thread.done():
            gate.leave(meter.used)
        else:
            call.meter = CallMeter(self._price, self.memory.step)
            call.thread.add_done_callback(partial(_leave_late, gate, meter))

    def _count(self, used: CallUsage) -> None:
        for name, more in ((INPUT, used.input), (CACHED, used.cached), (OUTPUT, used.output), (COST, used.cost)):
            if more:
                self.counts[name] += more

    async def _try(self, call: _Remembered, function: Callable[[], Any]) -> Any:  # noqa: ANN401 - of a function of the user's
        what = "an async function that is remembered"
        if is_async(function):
            return await Turns(function(), self.holder, call.agent, what)
        call.thread = self.threads.submit(contextvars.copy_context().run, raising, function)
        answer = await asyncio.wrap_future(call.thread)
        return await Turns(answer, self.holder, call.agent, what) if inspect.isawaitable(answer) else answer


def _leave_late(gate: CallGate, meter: CallMeter, _: object) -> None:
    with suppress(RuntimeError):  # the run has ended, and so has the event loop of the gate
        gate.leave(meter.used)


def _record_of(call: _Remembered, source: str, made: KeptCall) -> CallRecord:
    return CallRecord(
        call.key,
        call.agent.id,
        call.asked.function,
        call.asked.by_content,
        call.arguments,
        made.seconds,
        made.tries,
        source,
        made.result,
        made.usage,
        made.saved,
    )


def _sample(agent: "Agent", n: int, samples: int) -> int:
    """Return the number of the stored answer that the `n`-th equal call of an agent in a step gets.

    The store has several answers of equal calls, with numbers from 0. The agent's first `samples` calls in a step get
    the answers 0 to `samples` - 1, each answer once. The next `samples` calls get the next `samples` answers, and so
    on. Which answer the first call gets depends on agent, step and seed, so that agents get different answers.
    """
    whole, place = divmod(n - 1, samples)
    chance = blake2b(repr((agent._society.seed, agent.step, agent.id)).encode(), digest_size=8).digest()
    return whole * samples + (int.from_bytes(chance, "little") + place) % samples


def may_pass(error: BaseException) -> bool:
    """Return whether a failed call may succeed if it is made again: it had a timeout, or HTTP status 429 or 5xx."""
    if any("Timeout" in kind.__name__ for kind in type(error).__mro__):
        return True
    for place in (error, getattr(error, "response", None)):
        for name in ("status_code", "status"):
            status = getattr(place, name, None)
            if isinstance(status, int) and (status == _TOO_MANY or status // 100 == _SERVER_ERRORS):
                return True
    return False
