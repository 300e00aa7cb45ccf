"""The loop over a group's steps: wait until the step may begin, read its messages, run its body, commit it."""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping
from contextlib import aclosing, suppress
from functools import partial
from typing import TYPE_CHECKING

from ray_messaging.addressing.directory import Directory, MailboxRecord
from ray_messaging.common.backoff import STEP_DRIVER_RETRY, Backoff
from ray_messaging.common.task_health import end
from ray_messaging.default_limits_and_leases import STEP_LEASE_S, STEP_NEWS_TIMEOUT_S
from ray_messaging.errors import AlreadyExists, Closed, ConfigError, MessagingError, NotListening
from ray_messaging.messager_engine import Engine
from ray_messaging.model.agent_sets import NO_AGENTS, AgentSet
from ray_messaging.model.whole_numbers import check_until
from ray_messaging.receiving.unfolder import Unfolder
from ray_messaging.steps.agent_places import NO_PLACES, AgentPlaces
from ray_messaging.steps.attempt_sender import AttemptSender
from ray_messaging.steps.box_frames import GroupBoxes
from ray_messaging.steps.call_memory import CallMemory
from ray_messaging.steps.digests import LaterDigests
from ray_messaging.steps.moved_agents import NOBODY_MOVED, Arrival, arrivals_at, moved_agents
from ray_messaging.steps.step import Step
from ray_messaging.steps.step_account import NOTHING_BLOCKED, BlockedSends, StepAccount, StepCounts
from ray_messaging.steps.step_inbox import StepInbox
from ray_messaging.steps.step_sends import StepSends
from ray_messaging.transports.box_reader import Answer, BoxReader
from ray_messaging.transports.step_values import (
    SUPERVISOR,
    Done,
    Driven,
    DrivenGroup,
    Driver,
    News,
    Opened,
    StepSettings,
    WaitFor,
    box_name,
    without_steps,
)

if TYPE_CHECKING:
    from ray_messaging.transports.steps import RedisSteps

logger = logging.getLogger(__name__)

# A driver's start number is an epoch followed by this many bits for the number of the loop. The start number then has
# at most 53 bits. So it is exact in Lua, whose numbers are floats.
_LOOP_BITS = 12


def step_loop(engine: Engine, later: LaterDigests | None = None) -> "StepLoop":
    """Return the loop over the steps of an engine's agents.

    A loop ends when a later loop of the same engine begins, or a loop of a later engine with the same name.

    Args: `later`, if given, keeps the rows of the steps, and computes the digests of the steps only on request.
    Raises: ConfigError if the engine has no name or hosts no agents, or if the experiment has no steps.
    """
    store, settings = engine.transport.steps, engine.steps
    if not engine.named:
        raise ConfigError("a group with steps needs a name, as in Messager(config, exp_id, name='east')")
    if settings is None:
        raise ConfigError(
            f"{engine.name!r} has no steps: start the experiment with steps=Steps(), and call `await "
            "messager.host_agents(ids, subtopics)` first"
        )
    engine.step_loops += 1
    # A later messager with this name has a higher epoch. So its driver has a higher start number, and takes over the
    # steps.
    start = (engine.frame_sender.epoch << _LOOP_BITS) + engine.step_loops
    return StepLoop(engine, store, settings, Driver(f"messager {engine.name}", start), later)


async def driven_loop(engine: Engine, task: str) -> "StepLoop":
    """Return a loop with which a Ray task drives the steps of a group that another process hosts.

    If the task dies and Ray runs it again, the new execution takes over the group at once. It does not wait until the
    lease of the dead execution has ended.

    Raises: ConfigError if the experiment has no steps.
    """
    store = engine.transport.steps
    engine.steps = await store.settings()
    if engine.steps is None:
        raise without_steps(engine.exp_id)
    group = (await store.progress()).groups.get(engine.name)
    before = None if group is None else group.driver
    start = before.start + 1 if before is not None and before.task == task else 0
    return StepLoop(engine, store, engine.steps, Driver(task, start))


class StepLoop:
    """The steps of one group, driven by this process.

    Args: `engine` is the engine of the group's messager. `driver` has the name of the task that drives the group, and a
    start number, which is higher each time that the task begins again. `later`, if given, keeps the rows of the steps,
    and computes the digests of the steps only on request.
    """

    def __init__(
        self,
        engine: Engine,
        store: "RedisSteps",
        settings: StepSettings,
        driver: Driver,
        later: LaterDigests | None = None,
    ) -> None:
        self._engine = engine
        self._store = store
        self._settings = settings
        self._driver = driver
        self._group = engine.name
        self.places = NO_PLACES
        self.before = NO_AGENTS  # the agents of the group in the last committed step
        self._record: MailboxRecord | None = None  # the directory's record of the group, from which `places` was made
        self._unfolder = Unfolder(engine.audiences)
        self._boxes = GroupBoxes(store, self._unfolder)
        self.until = 0  # the first step that does not run; it may change while the loop lasts
        self.committed = -1  # the last step that was committed
        self.sealed = -1  # the last step that all groups have committed, as the answer to this group's last commit said
        self.state: bytes | None = None  # the state after the last committed step
        # Each call of a `Run` takes all groups through several steps. True if the `Run` opens the first of these steps
        # for all groups at once, so that this group need not ask the server to open it.
        self.is_told = False
        self.ahead = 0  # calls through `me.remember` may be made for up to this many steps after the open one
        # A function that takes a step and agents, and reads the results of calls that these agents have made in that
        # step of the run from which this run was forked.
        self.parent_calls: Callable[[int, AgentSet], Mapping[str, bytes]] | None = None
        # The results of calls through `me.remember`, by step: for the open step and for later steps.
        self._memories: dict[int, CallMemory] = {}
        self._taken: DrivenGroup | None = None
        self.account = StepAccount(digest=settings.digest, later=later)

    async def steps(self, until: int, *, leave: bool = False) -> AsyncGenerator[Step, None]:
        """Yield the steps before `until`. A request for the next step commits the current step.

        With `leave` the group takes no part in step `until` and later steps, and other groups do not wait for it.

        Raises: ConfigError for an invalid `until`; AlreadyExists if another task drives the group; StepAborted,
        StepTooLarge, Fenced or Closed, among others, if a step cannot be committed. A new driver runs this step again.
        """
        async with aclosing(self.standing(until, leave=leave)) as steps:
            async for step in steps:
                if step is None:
                    return
                yield step

    async def standing(self, until: int, *, leave: bool = False) -> AsyncGenerator[Step | None, None]:
        """Yield the steps before `until`, as `steps` does, and then None until the caller raises `self.until`.

        Meanwhile this process stays the group's driver. So further steps begin without a question to the server about
        the driver and the group's counts.
        """
        self.until = check_until(until)
        transport = self._engine.transport
        transport.begin_steps(self._engine.settings.cut_timeout_s)
        try:
            taken, sender = await self._begin(leave=leave)
        except BaseException:
            transport.end_steps()
            raise
        step: Step | None = None
        with_news = self._settings.wait_for is WaitFor.ALL
        box = BoxReader(self._store, box_name(self._group, taken.closed + 1), with_news=with_news, filled=True)
        renewing = asyncio.create_task(self._renew(taken.attempt), name="ray_messaging step lease")
        try:
            self.committed, self.state = taken.closed, taken.state
            left = {} if self.committed < 0 else await self._store.closed_step(self.committed)
            mine = left.get(self._group)
            self.account.before = StepCounts({}) if mine is None else StepCounts.decode(mine.counts)
            found: Answer | None = None
            # The latest position that this loop knows in the stream on which the server reports changes of the steps
            # ("": none).
            news = ""
            while True:
                if (number := self.committed + 1) >= self.until:
                    found = None
                    transport.end_steps()
                    self._expect(box, number, news)
                    try:
                        yield None
                    finally:
                        transport.begin_steps(self._engine.settings.cut_timeout_s)
                    continue
                opened = await self._open(taken.attempt, number, found, box)
                if opened is None:
                    return
                await sender.begin(opened)
                self._host(self._engine.directory, number)
                step = await self._step(opened, taken.attempt, box)
                self._taken = taken
                # `parent_calls` has read only the results of the agents that the group had in the previous step. If the
                # group has other agents now, all results are read again.
                lacking = self.parent_calls is not None and self.before != self.places.agents
                self._memories = {
                    each: calls for each, calls in self._memories.items() if each >= number and not lacking
                }
                began = time.perf_counter()
                yield step
                self._check_open()
                changed = step.state != self.state
                await box.end()
                box = box.following(box_name(self._group, number + 1))
                news = opened.news
                go_on = number + 1 < self.until
                self._expect(box, number + 1, news)
                found, self.account.before = await sender.commit(step, changed=changed, go_on=go_on)
                box.hand_over(sender.boxes.own)
                if self._engine.observer is not None:
                    self._engine.observer.step_committed(number, time.perf_counter() - began)
                step.sends.end()
                self.committed, self.state, self.before = number, step.state, step.places.agents
                self.sealed = sender.sealed
        finally:
            transport.end_steps()  # ends the longer repetition of failed calls that applies in steps
            if step is not None:
                step.sends.end()
            try:
                await end(renewing)
            finally:  # `box.end` is awaited even if the driver is cancelled a second time
                await box.end()
            if not self._engine.closed:  # A closed engine would open a new connection for this call.
                with suppress(MessagingError):  # If this call fails, the driver's lease ends after its time.
                    await self._store.let_go(self._group, taken.attempt)

    def calls_of(self, step: int) -> CallMemory:
        """Return the results of calls through `me.remember` for a step, which is the open step or a later one."""
        assert self._taken is not None
        if step not in self._memories:
            # There can be results of an earlier attempt for the first step that is not committed, and for later steps.
            # These steps are later by at most `ahead`.
            again = step <= self._taken.closed + 1 + self.ahead
            limit = self._engine.settings.payload_bytes
            made = CallMemory(self._store, self._group, self._taken.attempt, step, limit=limit, again=again)
            if self.parent_calls is not None:
                made.parent = partial(self.parent_calls, step, self.places.agents)
            self._memories[step] = made
        return self._memories[step]

    async def _begin(self, *, leave: bool) -> tuple[DrivenGroup, AttemptSender]:
        """Become the group's driver, and make the sender of its steps.

        Raises: the same errors as `_take`.
        """
        taken = await self._take(self.until, leave=leave)
        sender = AttemptSender(self._engine, self._store, taken.attempt, self.account, taken.closed + 1)
        await sender.reload()
        directory = self._engine.directory
        self._host(directory, taken.closed + 1)
        self.before = self._record_of(directory).at(taken.closed, directory.dates).agents()
        return taken, sender

    # -- the driver -----------------------------------------------------------------------------------------------

    async def _take(self, until: int, *, leave: bool) -> DrivenGroup:
        """Become the group's driver. If the group has left before step `until`, make it take part in the steps again.

        Raises: AlreadyExists if another task drives the group; Fenced if a later start of this driver has taken over.
        """
        ends = until if leave else None
        taken = await self._wait_to_take(ends)
        if taken.until is None or taken.closed + 1 < taken.until or until <= taken.until:
            return taken
        await self._engine.frame_sender.reload()
        self._record_of(self._engine.directory)
        # In the meantime, other groups may have committed all steps before `until`. Then no step is left for this
        # group.
        if await self._store.join(self._group, again=True) >= until:
            await self._store.leave(self._group, at_once=True)
        return await self._wait_to_take(ends)

    async def _wait_to_take(self, ends: int | None) -> DrivenGroup:
        """Become the group's driver. If the group has another driver, wait until that driver's lease has ended.

        Raises: the same errors as `_take`.
        """
        backoff, clock = Backoff(STEP_DRIVER_RETRY), asyncio.get_running_loop().time
        found = await self._store.take(self._group, self._driver, STEP_LEASE_S, until=ends)
        seen_at = clock()
        while isinstance(found, Driven):
            await backoff.sleep()
            over = found.lease if clock() - seen_at > found.lease_s else ""
            again = await self._store.take(self._group, self._driver, STEP_LEASE_S, over, ends)
            if isinstance(again, Driven) and again.lease != found.lease:
                raise AlreadyExists(
                    f"group {self._group!r} already has a driver, {again.driver.task!r}, and only one task at a time "
                    "can drive a group: end that task, or this one",
                    kind="driver",
                    value=self._group,
                    owner=again.driver.task,
                )
            found = again
        return found

    async def _renew(self, attempt: int) -> None:
        while True:
            await asyncio.sleep(STEP_LEASE_S / 3)
            with suppress(MessagingError):  # the step loop's next call to the server raises the error
                await self._store.renew(self._group, attempt)

    # -- one step -------------------------------------------------------------------------------------------------

    async def _open(self, attempt: int, number: int, found: Answer | None, box: BoxReader) -> Opened | None:
        """Wait until the step is open. Return None if the group no longer takes part, or if the step is not to run.

        Args: `found` is the server's last answer about the step, if there is one.
        """
        ask = partial(self._store.open, self._group, attempt, number)
        while not isinstance(found, Opened):
            if isinstance(found, Done) or number >= self.until:
                return None
            self._check_open()
            news = await (box.ask(ask) if found is None else box.wait(found.news, STEP_NEWS_TIMEOUT_S))
            if not isinstance(news, News):
                found = news
                continue
            self._check_open()
            if news.opened < number:
                found = await ask()
                continue
            covers = tuple(await box.covers(news)) if news.boxes else ()
            return Opened(number, covers, news.directory, news.blocked, news.place)
        return found

    def _expect(self, box: BoxReader, step: int, news: str) -> None:
        """Begin to wait for the server's report that `step` is open, if such a report is expected.

        The server writes its reports to a stream. From step `self.until` on, there is a report only if a `Run` opens
        the step for all groups.

        Args: `box` reads the messages of `step`. `news` is the position in the stream after which the report is
        expected. If `news` is "", an earlier driver of the group may have got the report already. Then this does not
        wait, and the loop asks the server later.
        """
        if step < self.until:
            box.expect(news, STEP_NEWS_TIMEOUT_S)
        elif self.is_told and news:
            box.expect_opening(news, step, STEP_NEWS_TIMEOUT_S)

    def _check_open(self) -> None:
        """Raise Closed if the messager was closed. Then the loop must neither commit nor wait for other groups."""
        if self._engine.closed:
            raise self._engine.not_open(Closed)

    def _record_of(self, directory: Directory) -> MailboxRecord:
        """Return the record of the group's mailbox; raise NotListening if the group was removed."""
        record = directory.records.get(self._group)
        if record is None:
            raise NotListening(f"group {self._group!r} was removed, so it has no steps: create it again")
        return record

    def _host(self, directory: Directory, step: int) -> None:
        """Set `places` to the agents that the group has in a step, which may have changed since the step before."""
        record = self._record_of(directory).at(step, directory.dates)
        if record is not self._record:
            self._record, self.places = record, AgentPlaces(record.agents())
            for claim in record.claims:
                self._unfolder.add(record.agents(claim.subtopics[0]))

    async def _step(self, opened: Opened, attempt: int, box: BoxReader) -> Step:
        record, directory = self._record, self._engine.directory
        assert record is not None
        moved, arrivals, self.before = NOBODY_MOVED, tuple[Arrival, ...](), self.places.agents
        if directory.dates.text:
            moved = moved_agents(record, opened.step, directory.dates, self._settings.horizon)
            self._unfolder.former = partial(_former, [record, *map(directory.records.get, moved.origins)])
            arrivals = await self._arrivals(opened.step, record, directory)
            self.before = record.at(opened.step - 1, directory.dates).agents()
        found = await self._boxes.read(opened, box, record, moved)
        self.account.hear(found.outside)
        settings, blocked = self._engine.settings, NOTHING_BLOCKED
        if opened.blocked:
            groups = [self._group, SUPERVISOR, *(arrival.group for arrival in arrivals)]
            parts = await self._store.blocked(opened.step - 1, groups)
            blocked = BlockedSends(opened.step - 1, parts, self.places)
        return Step(
            opened.step,
            seed=self._settings.seed,
            agents=self.places,
            inbox=StepInbox(self._engine.exp_id, self.places, found.batches, found.folded),
            sends=StepSends(
                self.places,
                opened.step,
                attempt,
                self._settings.horizon,
                settings.payload_bytes,
                directory.audiences,
                self._group,
            ),
            state=self.state,
            state_bytes=settings.state_bytes,
            arrivals=arrivals,
            before=self.before,
            blocked=blocked,
        )

    async def _arrivals(self, step: int, record: MailboxRecord, directory: Directory) -> tuple[Arrival, ...]:
        """Return the agents that come to the group at a step, and the states of their former groups."""
        found = []
        for group, agents in sorted(arrivals_at(step, record, directory.records, directory.dates).items()):
            left = directory.records.get(group)
            if left is None:
                logger.warning(
                    "%d agents come to group %r in step %d without their state, because group %r was removed before "
                    "that step: remove a group one step after its agents have moved",
                    len(agents), self._group, step, group,
                )  # fmt: skip
                found.append(Arrival(agents, group, None, agents))
                continue
            before = left.at(step - 1, directory.dates).agents()
            found.append(Arrival(agents, group, await self._store.state_before(group, step), before))
        return tuple(found)


def _former(records: Iterable[MailboxRecord | None]) -> Iterator[AgentSet]:
    """Yield all sets of agents that the mailboxes of these records host now or have hosted before."""
    for record in records:
        if record is not None:
            yield from record.by_subtopic().values()
            yield from record.former()
