"""Sending in steps: a group's driver writes the messages of each step to the receivers' boxes, and closes the step."""

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

from ray_messaging.common.backoff import FULL_MAILBOX_RETRY, Backoff
from ray_messaging.default_limits_and_leases import CALL_BYTES
from ray_messaging.errors import (
    Closed,
    ConfigError,
    InterceptorUnavailable,
    MailboxFull,
    MessagingError,
    StepAborted,
    TransitError,
    UndeclaredSend,
)
from ray_messaging.interception.verdicts import FOREIGN, BatchVerdict
from ray_messaging.messager_engine import Engine
from ray_messaging.model.fates import DELIVERED
from ray_messaging.model.series import shape_in_words
from ray_messaging.sending import send_errors
from ray_messaging.sending.destination import VerdictRenewal
from ray_messaging.sending.frame_router import OutboundFrame
from ray_messaging.sending.in_flight_batch import InFlightBatch, tell_fates
from ray_messaging.sending.pending_batch import PendingBatch
from ray_messaging.steps.sent_messages import no_messages
from ray_messaging.steps.step import Step
from ray_messaging.steps.step_account import StepAccount, StepCounts, encode_blocked
from ray_messaging.steps.step_destination import AttemptBoxes, StepDestination, in_box
from ray_messaging.steps.step_moves import MovedAudiences, StepMoves
from ray_messaging.transports.step_values import Closing, Committed, Done, Opened, Refused, WaitFor, Waiting
from ray_messaging.transports.transport_values import WRITTEN

if TYPE_CHECKING:
    from ray_messaging.transports.steps import RedisSteps

T = TypeVar("T")
# The server's answer to the call that closes a step, the facts in this call, and the step's counts.
_Ended = tuple[Committed | Refused, Closing, StepCounts]
_ROW_BYTES = 8  # besides its payload, a message in a frame has at least an id (4 bytes) and an ordinal (4 bytes)


class AttemptSender:
    """The sender of the messages that one group sends in its steps, during one attempt.

    A driver is a task that takes the group through its steps. An attempt is the work of one driver. A small step is
    sent and closed in one call to the server. A larger step is sent in several calls.
    """

    def __init__(self, engine: Engine, store: "RedisSteps", attempt: int, account: StepAccount, step: int) -> None:
        self._engine = engine
        self._store = store
        self._group, self._attempt = engine.name, attempt
        self._account = account
        self._hostings = -1  # the value of `engine.hostings` when the directory was last loaded
        self._announced = False  # whether the interceptor knows of this attempt
        self._known = False  # whether the directory is at least as new as it was when the step was opened
        self._number = 0  # the number of the next message
        self.sealed = -1  # the last step that all groups have closed, according to the answer to the last commit
        self._ended: list[InFlightBatch] = []  # the open step's batches of which all rows have fates
        self.boxes = AttemptBoxes(store, engine.name, attempt, step)
        self._destination = StepDestination(engine, self.boxes)
        account.audiences = self._destination.digests
        self.moved = MovedAudiences(store, engine.audiences)

    async def reload(self) -> None:
        """Load the newest version of the mailboxes' directory from the server."""
        self._hostings = self._engine.hostings
        await self._destination.reload()

    async def begin(self, opened: Opened) -> None:
        """Begin to send in a step that was just opened. The next call of `commit` sends its messages."""
        directory = self._engine.directory
        self._destination.begin(opened.step)
        self._known = opened.directory >= 0
        if opened.directory != directory.version and (self._known or directory.audiences):
            # The directory must have the versions of audiences, and the groups of agents, that are valid in this step.
            await self.reload()
            self._known = True
        if directory.audiences.has_positions() and await self.moved.follow(opened.step, directory):
            await self.reload()

    async def commit(
        self, step: Step, *, changed: bool, go_on: bool
    ) -> tuple[Opened | Waiting | Done | None, StepCounts]:
        """Send the messages of a step, and close it.

        Return the server's answer about the next step (None: the server did not say anything about it), and the step's
        counts.

        Args: `changed` is true if the step has changed the group's state. With `go_on`, the same call asks the server
        to open the next step.
        Raises: StepAborted if not all messages reached the server; StepTooLarge if a receiver's box is full;
        PayloadMismatch if a schema refuses a payload; UndeclaredSend for a send to a group that was declared not to
        hear this group; UnknownName, InvalidColumns or ConfigError for a `step.move` that cannot be made; ConfigError
        if the collected series have another shape than in earlier steps; MailboxFull if the server has no memory for
        series and calls; Fenced if another driver has taken over the group.
        """
        if step.moves:
            await self._write_moves(step.moves, step.number)
        if not self._announced:
            await self._announce(step.number)
        sent = step.sends.take()
        self._ended.clear()
        # If the group sends nothing and this process hosts the group, the directory need not be loaded again.
        silent = not sent and self._engine.hostings and self._hostings == self._engine.hostings
        ended: _Ended | None = None
        if not silent:
            if not self._known or self._hostings != self._engine.hostings:
                await self.reload()
            prepared = self._destination.prepared(sent, step.sends.agents, step.number)
            batches = await self._arrived(prepared, step.number)
            ended = await self._commit_whole(step, batches, changed=changed, go_on=go_on)
            if ended is None:
                await self._arrived(self._send(batches), step.number)
        if ended is None:
            closing, counts = self._closing(step, self.boxes.rows, changed=changed)
            closed = await self._answer(self._close(step.number, closing, go_on=go_on), step.number)
            ended = closed, closing, counts
        self._destination.queues.reset()
        closed, closing, counts = ended
        if isinstance(closed, Refused):
            raise _not_closed(closed, self._group, closing)
        self.sealed = closed.sealed
        return closed.following, counts

    async def _close(self, step: int, closing: Closing, *, go_on: bool) -> Committed | Refused:
        """Close a step, and return the server's answer.

        While the server's memory is full, wait until the event log has fetched earlier series and calls, which frees
        memory.

        Raises: MailboxFull if the memory is still full after MessagingConfig.send_timeout_s seconds.
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
                        "Collected values and remembered calls stay in its memory until an event log has them in a "
                        "file: pass log_dir= to Messaging.start, collect less, or raise the server's maxmemory",
                        mailbox=self._group,
                    ) from error
                await backoff.sleep()

    async def _announce(self, step: int) -> None:
        """Send the interceptor an empty batch, so that it knows of this attempt at the step.

        The interceptor then undoes what an earlier attempt at this step has changed in the rules' state. Without the
        empty batch, the interceptor would not learn of this attempt if the step sends no messages, or if delegated
        rules let all messages pass.
        """
        try:
            await self._engine.verdict_client.judge(no_messages(self._group, step, self._attempt))
        except MessagingError as error:
            raise self._lost(step, error) from error
        self._announced = True

    async def _write_moves(self, moves: StepMoves, step: int) -> None:
        """Write the positions to which a step moves agents in audiences.

        Raises: UnknownName, InvalidColumns or ConfigError for moves that cannot be made; StepAborted if the positions
        could not be written.
        """
        if self._engine.steps is not None and self._engine.steps.wait_for != WaitFor.ALL:
            raise ConfigError(
                "step.move needs Steps(wait_for='all'), because all groups read the new positions in the next step"
            )
        await self.moved.check(moves, step, self._engine.directory)
        for write in moves.writes(step):
            reply = await self.boxes.send([write], FOREIGN)
            if reply.fates[0] not in WRITTEN:
                raise self._aborted(
                    step,
                    f"the server did not accept the new positions of agents ({reply.fates[0].name}). The next "
                    "task that drives the group runs the step again",
                )

    def _closing(self, step: Step, rows: int, *, changed: bool) -> tuple[Closing, StepCounts]:
        """Return the facts with which a step is closed, and the step's counts.

        Args: `rows` is the number of rows that the step has written to boxes. `changed` is true if the group's state
        has changed.
        """
        sent = [(each.outgoing, each.outcome) for each in self._ended]
        counts = self._account.of_step(step.number, sent)
        blocked = encode_blocked((batch, outcome.blocks) for batch, outcome in sent)
        return Closing(rows, counts.encode(), step.state, changed, step.series, blocked, step.calls), counts

    # -- sending a step in one call -------------------------------------------------------------------------------

    async def _commit_whole(
        self, step: Step, batches: Sequence[PendingBatch], *, changed: bool, go_on: bool
    ) -> _Ended | None:
        """Send and close a step in one call; return None, and write nothing, if this is not possible.

        One call is enough if the step sends messages, no schema is declared, all frames fit into the call, and the
        server can write all of them. The fates of all rows are known before the call, because the call writes
        everything or nothing.
        """
        destination = self._destination
        least = sum(batch.nbytes + _ROW_BYTES * len(batch) for batch in batches)
        if not batches or destination.schemas.version or least > CALL_BYTES:
            return None
        first, closed = self._number, None
        with suppress(MailboxFull):  # if the server's memory is full, `commit` tries separate calls
            frames = await self._arrived(self._frames_of(batches), step.number)
            if frames:
                await self._arrived(destination.keep_agents(), step.number)
                self._settle(frames)
                rows = sum(frame.rows for frame in frames if in_box(frame))
                closing, counts = self._closing(step, rows, changed=changed)
                request = self.boxes.request(frames, frames[0].verdict_epoch)
                call = self._store.commit(request, self.boxes.tag, closing, go_on=go_on)
                closed = await self._answer(call, step.number)
        if closed is None:
            destination.queues.reset()
            # Later several calls send the messages with the same numbers, so that the messages get the same verdicts.
            self._number = first
            self._ended.clear()
            return None
        self.boxes.keep_own(frames)
        return closed, closing, counts

    async def _frames_of(self, batches: Sequence[PendingBatch]) -> list[OutboundFrame]:
        """Get verdicts on batches, and return the frames to write.

        Return [] if the frames need several calls.
        """
        destination = self._destination
        judged: list[tuple[InFlightBatch, int]] = []
        for pending in batches:
            in_flight = self._begin(pending)
            verdict = await self._judge(in_flight)
            in_flight.apply(verdict)
            judged.append((in_flight, verdict.epoch))
        for in_flight, epoch in judged:
            destination.load(in_flight, None, epoch, 0.0)
        frames = destination.next_call()
        return frames if len(frames) == sum(len(queue.frames) for queue in destination.queues.values()) else []

    def _settle(self, frames: Sequence[OutboundFrame]) -> None:
        """Set the fates that the rows of frames will have if the call that commits the step succeeds."""
        boxed: Counter[InFlightBatch] = Counter()
        for frame in frames:
            boxed[frame.in_flight] += frame.rows if in_box(frame) else 0
        whole = {each for each, rows in boxed.items() if rows == each.batch.rows and each.copies is None}
        for in_flight in whole:  # in most batches each row is written to exactly one box
            in_flight.settle(None, DELIVERED)
        for frame in frames:
            if frame.in_flight not in whole:
                self._destination.stored(frame)

    def rows_done(self, rows: int, nbytes: int) -> None:
        """Do nothing: sends in steps take no capacity, so there is none to free."""

    def batch_done(self, batch: InFlightBatch) -> None:
        """Keep a batch whose rows all have fates, so that the messages of the step can be counted."""
        self._ended.append(batch)
        if self._engine.observer is not None:
            tell_fates(self._engine.observer, batch.outcome)

    def callers_told(self) -> None:
        """Do nothing: no caller waits for the receipt of a message that was sent in a step."""

    # -- sending a step in several calls --------------------------------------------------------------------------

    async def _send(self, batches: Sequence[PendingBatch]) -> None:
        """Send the messages of a step in several calls.

        Raises: StepTooLarge if a receiver's box is full; PayloadMismatch if a schema refuses a payload.
        """
        parts = [batch for pending in batches for batch in pending.parts]
        checked = await self._engine.frame_sender.check(parts)
        for pending in batches:
            pending.checked = checked  # the schemas may change while an earlier batch is written
            await self._deliver(self._begin(pending))

    async def _deliver(self, in_flight: InFlightBatch) -> None:
        """Get verdicts on a batch, and write it. If the server refuses the verdicts, get new ones."""
        destination, rows = self._destination, None
        renewal = VerdictRenewal(self._engine.settings.interceptor_timeout_s)
        while True:
            verdict = await self._judge(in_flight)
            in_flight.apply(verdict, rows)
            destination.load(in_flight, rows, verdict.epoch, 0.0)
            await destination.write()
            # An error here means that a schema was replaced while the batch was written, and that a payload does not
            # fit the new schema.
            if in_flight.errors:
                raise next(iter(in_flight.errors.values()))
            if not destination.stale_verdicts:
                return
            rows = destination.stale_verdicts.pop(in_flight)
            await renewal.begin(self._engine.verdict_client, destination.stale_by)

    # -- batches --------------------------------------------------------------------------------------------------

    def _begin(self, pending: PendingBatch) -> InFlightBatch:
        """Assign numbers to the messages of a batch, and return the batch in the form in which it is sent."""
        batch = pending.seal(self._group, self._attempt, self._number)
        self._number += batch.rows
        return InFlightBatch(pending, batch, self)

    async def _judge(self, in_flight: InFlightBatch) -> BatchVerdict:
        """Return the verdicts on a batch. A slow rule delays the whole batch, so no message is deferred.

        Raises: InterceptorUnavailable for broadcasts if rules that judge pairs of sender and hearer were inserted after
        the batch was prepared.
        """
        client, observer, asked_at = self._engine.verdict_client, self._engine.observer, time.perf_counter()
        verdict: BatchVerdict | None
        if in_flight.pending.reaches is None:
            verdict = await client.judge(in_flight.batch)
            while verdict.deferred:
                verdict = await client.wait(in_flight.batch)
        elif (verdict := await client.pass_whole(in_flight.batch)) is None:
            raise InterceptorUnavailable(send_errors.RULES_CAME)
        if observer is not None:
            observer.batch_judged(in_flight.batch.rows, time.perf_counter() - asked_at)
        return verdict

    # -- answers of the server ------------------------------------------------------------------------------------

    async def _arrived(self, call: Awaitable[T], step: int) -> T:
        """Return the result of a call that is made before a step's commit.

        Raises: StepAborted if the server or the interceptor cannot be reached.
        """
        try:
            return await call
        except (TransitError, Closed) as error:
            raise self._lost(step, error) from error

    def _lost(self, step: int, error: MessagingError) -> StepAborted:
        return self._aborted(step, f"its messages did not arrive: {error}")

    def _aborted(self, step: int, why: str) -> StepAborted:
        text = f"step {step} of group {self._group!r} is not committed, because {why}"
        return StepAborted(text, step=step, group=self._group)

    async def _answer(self, call: Awaitable[T], step: int) -> T:
        """Return the server's answer to a commit.

        Raises: StepAborted if no answer arrives; MailboxFull if the server's memory is full.
        """
        try:
            return await call
        except MailboxFull:
            raise
        except TransitError as error:
            raise StepAborted(
                f"the commit of step {step} of group {self._group!r} got no answer, so the step may or may not be "
                f"committed: {error}. The next process of the group finds out, and runs the step again only if the "
                "step is not committed",
                step=step,
                group=self._group,
            ) from error


def _not_closed(refused: Refused, group: str, closing: Closing) -> StepAborted | UndeclaredSend | ConfigError:
    if refused.series:
        now, before = (shape_in_words(shape) for shape in (closing.series, refused.series))
        return ConfigError(
            f"step {refused.step} of group {group!r} is not committed, because its collected values are {now}, but "
            f"those of earlier steps or other groups are {before}: let collect= return the same columns, each of one "
            "kind, in all steps"
        )
    if refused.deaf:
        hearers = ", ".join(map(repr, refused.deaf))
        return UndeclaredSend(
            f"step {refused.step} of group {group!r} is not committed, because it has messages for {hearers}, and no "
            f"call has declared that {refused.deaf[0]!r} hears {group!r}. Before the first step, or with at_step= "
            "during "
            "a run, call "
            f"messaging.steps.declare({{{refused.deaf[0]!r}: [{group!r}, ...]}})",
            step=refused.step,
            group=group,
            hearers=refused.deaf,
        )
    why = (
        f"the server had acknowledged {closing.rows:,} messages of the step, but now has only {refused.rows:,}. The "
        "group runs the step again"
    )
    return StepAborted(
        f"step {refused.step} of group {group!r} is not committed: {why}", step=refused.step, group=group
    )
