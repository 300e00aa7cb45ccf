"""The sending side of one attempt at steps: it writes messages to boxes, and closes their step."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

from ray_messaging.addressing.directory import Directory
from ray_messaging.common.backoff import FULL_MAILBOX_RETRY, Backoff
from ray_messaging.default_limits_and_leases import CALL_BYTES
from ray_messaging.engine import Engine
from ray_messaging.errors import (
    Closed,
    ConfigError,
    MailboxFull,
    MessagingError,
    StepAborted,
    StepTooLarge,
    TransitError,
    UndeclaredSend,
)
from ray_messaging.model.fates import DELIVERED
from ray_messaging.model.series import shape_in_words
from ray_messaging.sending.accumulator import Accumulator
from ray_messaging.sending.bulk_sender import BulkSender
from ray_messaging.sending.frame_router import FrameRouter, OutboundFrame
from ray_messaging.sending.frame_sender import FrameSender
from ray_messaging.sending.in_flight_batch import InFlightBatch, tell_fates
from ray_messaging.sending.pending_batch import EncodedBatch
from ray_messaging.steps.sent_messages import no_messages
from ray_messaging.steps.step import Step
from ray_messaging.steps.step_account import StepAccount, StepCounts
from ray_messaging.steps.step_broadcasts import StepBroadcasts
from ray_messaging.steps.step_moves import MovedAudiences
from ray_messaging.steps.step_transport import StepTransport
from ray_messaging.transports.step_values import Closing, Committed, Done, Opened, Refused, StepTag, WaitFor, Waiting
from ray_messaging.transports.transport_values import FrameFate, SendRequest

if TYPE_CHECKING:
    from ray_messaging.transports.steps import RedisSteps

T = TypeVar("T")
_ROW_BYTES = 8  # the least that a message takes in a frame beside its payload: an id and its ordinal


class AttemptSender:
    """The sender of one attempt at steps.

    A small step is sent and closed in one call to the server; a larger one is sent in parts.
    """

    def __init__(self, engine: Engine, store: "RedisSteps", attempt: int, account: StepAccount, step: int) -> None:
        self._engine = engine
        self._store = store
        self._group, self._attempt = engine.name, attempt
        self._account = account
        self._hostings = -1  # the engine's `hostings` when the directory was last loaded
        self._announced = False  # the interceptor knows of this attempt
        self._known = False  # the directory is at least as new as when the step was opened
        self.directory = Directory(engine.exp_id)  # the directory of mailboxes with steps
        router = FrameRouter(self.directory, mirror=engine.settings.mirror)
        self._transport = StepTransport(engine.transport, store, engine.name, attempt, router.shut, step)
        self._shut = router.shut
        self._frames = FrameSender(self._transport, self.directory, router, engine.name, 0, engine.observer)
        self._accumulator: Accumulator | None = None
        self._broadcasts = StepBroadcasts(engine, self.directory)
        account.audiences = self._broadcasts.digests
        self.moved = MovedAudiences(store, engine.audiences)

    async def open(self) -> None:
        """Load the current directory, and start the send loop."""
        await self._frames.begin()
        await self._reload()
        self._accumulator = Accumulator(
            self._frames, self._engine.verdict_client, self._engine.settings, self._engine.checks, self._account
        )

    async def _reload(self) -> None:
        self._hostings = self._engine.hostings
        await self._frames.reload()

    async def begin(self, opened: Opened) -> None:
        """Use this open step for sends from now on."""
        self._shut.clear()
        self._transport.begin(opened.step)
        self._known = opened.directory >= 0
        stale = opened.directory != self.directory.version and (self._known or self.directory.audiences)
        if stale or self._transport.records.due(opened.step + 1):
            await self._reload()  # the step needs its versions of audiences, and its hosts
            self._known = True
        if await self.moved.follow(opened.step, self.directory):
            await self._reload()

    async def commit(
        self, step: Step, *, changed: bool, go_on: bool
    ) -> tuple[Opened | Waiting | Done | None, StepCounts]:
        """Send the messages of a step, and close it; return the answer for the next step, and the counts.

        Args: `changed` says that the step has set the state; with `go_on` the next step is opened too.
        Raises: StepAborted if not everything arrived; StepTooLarge if a receiver's box is full; UndeclaredSend for a
        send to a group that was declared not to hear this one; ConfigError if the series have another shape than
        before; MailboxFull if the server has no memory for series and calls; Fenced if another driver has the group.
        """
        if step.moves:
            await self._write_moves(step)
        await self._announce(step.number)
        sent = step.sends.take()
        # For a group that sends nothing and is hosted by this process, the directory need not be loaded again.
        silent = not sent and self._engine.hostings and self._hostings == self._engine.hostings
        if not silent:
            if not self._known or self._hostings != self._engine.hostings:
                await self._reload()
            batches = await self._broadcasts.prepared(sent, step.sends.agents, step.number)
            found = await self._commit_whole(step, batches, changed=changed, go_on=go_on)
            if found is not None:
                return found
            await self._send(step.number, batches)
        counts = self._account.take()
        closing = self._closing(step, self._transport.rows, counts, changed=changed)
        closed = await self._answer(self._close(step.number, closing, go_on=go_on), step.number)
        self._frames.queues.reset()
        return self._following(closed, closing), counts

    async def _close(self, step: int, closing: Closing, *, go_on: bool) -> Committed | Refused:
        """Close a step. While the server's memory is full, wait for the event log to take series and calls before it.

        Raises: MailboxFull if that takes longer than MessagingConfig.send_timeout_s.
        """
        clock, backoff = asyncio.get_running_loop().time, Backoff(FULL_MAILBOX_RETRY)
        deadline = clock() + self._engine.settings.send_timeout_s
        while True:
            try:
                return await self._store.close(self._group, self._attempt, step, closing, go_on=go_on)
            except MailboxFull as error:
                if clock() > deadline:
                    raise MailboxFull(
                        f"step {step} of group {self._group!r} is not committed, because the server's memory is full. "
                        "Series and remembered calls stay there until an event log has them in a file: start with "
                        "log_dir=, collect less, or raise the server's maxmemory",
                        mailbox=self._group,
                    ) from error
                await backoff.sleep()

    async def _announce(self, step: int) -> None:
        """Ask the interceptor once for a verdict on no messages, so that it knows of this attempt.

        It then takes back the changes of its state by an earlier attempt at this step. The messages of the step may not
        reach the interceptor: there may be none, or delegated rules may pass them.
        """
        if not self._announced:
            try:
                await self._engine.verdict_client.judge(no_messages(self._group, step, self._attempt))
            except MessagingError as error:
                raise self._aborted(step, f"its messages did not arrive: {error}") from error
            self._announced = True

    async def _write_moves(self, step: Step) -> None:
        """Write the new positions of a step, if there are any.

        Raises: UnknownName, InvalidColumns or ConfigError for moves that cannot be made; StepAborted if they could not
        be written.
        """
        if self._engine.steps is not None and self._engine.steps.wait_for != WaitFor.ALL:
            raise ConfigError("step.move needs Steps(wait_for='all'): all groups read the positions in the next step")
        await self.moved.check(step.moves, step.number, self.directory)
        for write in step.moves.writes(step.number):
            request = SendRequest(self._group, self._attempt, self.directory.version, -1, [write])
            reply = await self._transport.send(request)
            if reply.fates[0] not in (FrameFate.WRITTEN, FrameFate.DUPLICATE):
                raise self._aborted(step.number, f"the server did not take its moves ({reply.fates[0].name})")

    async def stop(self) -> None:
        """Stop the send loop."""
        if self._accumulator is not None:
            await self._accumulator.stop(Closed("this group's steps have ended"))

    def _closing(self, step: Step, rows: int, counts: StepCounts, *, changed: bool) -> Closing:
        blocked = self._account.take_blocked()
        return Closing(rows, counts.encode(), step.state, changed, step.series, blocked, step.calls)

    # -- in one call ----------------------------------------------------------------------------------------------

    async def _commit_whole(
        self, step: Step, batches: Sequence[EncodedBatch], *, changed: bool, go_on: bool
    ) -> tuple[Opened | Waiting | Done | None, StepCounts] | None:
        """Send and close a step in one call; return None, and do nothing, if it takes several calls.

        Each row's fate is known before the call, because the call writes everything or nothing.
        """
        assert self._accumulator is not None
        least = sum(batch.nbytes + _ROW_BYTES * len(batch) for batch in batches)
        if not batches or self.directory.schemas.version or least > CALL_BYTES:
            return None
        before, loop = self._account.copy(), self._accumulator.send_loop
        closed, first = None, loop.number
        with suppress(MailboxFull):  # if the server's memory is full, it still accepts the close of a step alone
            frames = await self._frames_of(batches, first)
            if frames:
                await self._answer(self._frames.keep_agents(), step.number)
                self._settle(frames)
                counts = self._account.take()
                rows = sum(frame.rows for frame in frames if "@" in frame.mailbox)
                closing = self._closing(step, rows, counts, changed=changed)
                epoch, version = frames[0].verdict_epoch, self.directory.version
                request = SendRequest(self._group, self._attempt, version, epoch, frames)
                tag = StepTag(self._group, step.number, self._attempt)
                call = self._store.commit(request, tag, closing, go_on=go_on)
                closed = await self._answer(call, step.number)
        self._frames.queues.reset()
        if closed is None:
            self._account.restore(before)
            return None
        loop.number = first + sum(map(len, batches))
        return self._following(closed, closing), counts

    async def _frames_of(self, batches: Sequence[EncodedBatch], number: int) -> list[OutboundFrame]:
        """Get verdicts on batches, numbered from `number` on, and return their frames; [] if they take several calls.

        In several calls they have the same numbers, and so get the same verdicts.
        """
        assert self._accumulator is not None
        judged: list[tuple[InFlightBatch, int]] = []
        for pending in batches:
            in_flight = InFlightBatch(pending, pending.seal(self._group, self._attempt, number), self)
            number += len(pending)
            try:
                verdict = await self._accumulator.send_loop.verdicts_on(in_flight)
            except MessagingError:  # the send loop will retry this
                return []
            in_flight.apply(verdict)
            judged.append((in_flight, verdict.epoch))
        deadline = asyncio.get_running_loop().time() + self._engine.settings.send_timeout_s
        for in_flight, epoch in judged:
            self._frames.load(in_flight, None, epoch, deadline)
        frames = self._frames.next_call()
        return frames if len(frames) == sum(len(queue.frames) for queue in self._frames.queues.values()) else []

    def _settle(self, frames: Sequence[OutboundFrame]) -> None:
        """Set the fates that the rows of frames have when the call has succeeded."""
        boxed: Counter[InFlightBatch] = Counter()
        for frame in frames:
            boxed[frame.in_flight] += frame.rows if "@" in frame.mailbox else 0
        whole = {each for each, rows in boxed.items() if rows == each.batch.rows and each.copies is None}
        for in_flight in whole:  # in most batches each row is written to one box
            in_flight.settle(None, DELIVERED)
        for frame in frames:
            if frame.in_flight not in whole:
                self._frames.written(frame, [0] * len(frame.publish))

    def rows_done(self, rows: int, nbytes: int) -> None:
        """Do nothing for rows that have their fate, because sends in steps take no capacity."""

    def batch_done(self, batch: InFlightBatch) -> None:
        """Add a batch with its fates to the account."""
        self._account.add(batch.outgoing, batch.outcome)
        if self._engine.observer is not None:
            tell_fates(self._engine.observer, batch.outcome)

    # -- in parts -------------------------------------------------------------------------------------------------

    async def _send(self, step: int, batches: Sequence[EncodedBatch]) -> None:
        """Send the messages of a step in several calls.

        Raises: StepAborted if not everything arrived; StepTooLarge if a receiver's box is full.
        """
        assert self._accumulator is not None
        try:
            await BulkSender(self._accumulator, self._frames, self._engine.audiences).send_batches(batches)
        except (TransitError, Closed) as error:
            broken = self._accumulator.broken
            if isinstance(broken, StepAborted | StepTooLarge):
                raise broken.with_traceback(None) from None
            raise self._aborted(step, f"its messages did not arrive: {error}") from error

    # -- answers --------------------------------------------------------------------------------------------------

    def _aborted(self, step: int, why: str) -> StepAborted:
        text = f"step {step} of group {self._group!r} is not committed, because {why}"
        return StepAborted(text, step=step, group=self._group)

    async def _answer(self, call: Awaitable[T], step: int) -> T:
        """Return the answer of a call that commits a step; raise StepAborted if there is none."""
        try:
            return await call
        except MailboxFull:
            raise
        except TransitError as error:
            raise StepAborted(
                f"the commit of step {step} of group {self._group!r} has no answer, so it may or may not be committed: "
                f"{error}. The group's next driver finds out, and runs the step again only if it is not",
                step=step,
                group=self._group,
            ) from error

    def _following(self, closed: Committed | Refused, closing: Closing) -> Opened | Waiting | Done | None:
        if isinstance(closed, Committed):
            return closed.following
        raise _not_closed(closed, self._group, closing)


def _not_closed(refused: Refused, group: str, closing: Closing) -> StepAborted | UndeclaredSend | ConfigError:
    if refused.series:
        now, before = (shape_in_words(shape) for shape in (closing.series, refused.series))
        return ConfigError(
            f"step {refused.step} of group {group!r} is not committed: it collects {now}, and earlier steps or other "
            f"groups {before}. collect= must return the same columns, each of one kind, in all steps of an experiment"
        )
    if refused.deaf:
        hearers = ", ".join(map(repr, refused.deaf))
        return UndeclaredSend(
            f"step {refused.step} of group {group!r} is not committed: it sends to {hearers}, declared not to hear "
            f"{group!r}. Declare before the first step that it does, or in a run with at_step=: "
            f"messaging.steps.declare({{{refused.deaf[0]!r}: [{group!r}, ...]}})",
            step=refused.step,
            group=group,
            hearers=refused.deaf,
        )
    why = f"the server has {refused.rows:,} of its messages, and {closing.rows:,} were acknowledged"
    return StepAborted(
        f"step {refused.step} of group {group!r} is not committed: {why}", step=refused.step, group=group
    )
