"""The accumulator, which collects accepted messages in batches, and the limiter of accepted messages."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from itertools import repeat, starmap
from threading import get_ident
from time import monotonic, time

import numpy as np
from orjson import dumps

from ray_messaging.addressing.channels import AgentId, SenderId
from ray_messaging.common.task_health import TaskHealth
from ray_messaging.config import MessagingConfig
from ray_messaging.default_limits_and_leases import BATCH_ROWS
from ray_messaging.errors import Closed, ConfigError, MessagingError
from ray_messaging.interception.verdict_client import VerdictClient
from ray_messaging.message import HANDLED, cause_here
from ray_messaging.model.batch import Batch
from ray_messaging.model.finite import MAYBE_NULL, NULL
from ray_messaging.model.json_form import LARGE, LINE_END, MAYBE_LARGE, PLAIN
from ray_messaging.observability.tracing.untraced import UNTRACED, AnyTracer
from ray_messaging.receipt import Receipt
from ray_messaging.sending import send_errors
from ray_messaging.sending.frame_sender import FrameSender
from ray_messaging.sending.in_flight_batch import InFlightBatch, tell_fates
from ray_messaging.sending.local_log import LocalLog
from ray_messaging.sending.message_checks import CheckedMessage, MessageChecks
from ray_messaging.sending.pending_batch import (
    LARGE_LINE,
    ROW_CELLS,
    BulkWaiter,
    ConversationRows,
    PendingBatch,
    Questions,
    Replies,
    TransactionBatch,
)
from ray_messaging.sending.send_loop import SendLoop

_NONE_OPEN = PendingBatch()  # stands for "no batch is open"; no message is ever appended to it


class CapacityLimiter:
    """Limiter of the number and the payload bytes of messages that were accepted and have no receipt yet.

    When a limit is reached, `send` waits.
    """

    __slots__ = ("_admitted", "_turns", "max_bytes", "max_rows", "nbytes", "rows", "waited_for")

    def __init__(self, max_rows: int, max_bytes: int) -> None:
        self.rows = 0
        self.nbytes = 0
        self.max_rows = max_rows
        self.max_bytes = max_bytes
        self.waited_for = False  # whether callers wait; they get their turn before new callers
        self._turns: deque[asyncio.Future[None]] = deque()
        self._admitted: asyncio.Future[None] | None = None

    @property
    def full(self) -> bool:
        """Return whether the limit of rows or the limit of bytes is reached."""
        return self.rows >= self.max_rows or self.nbytes >= self.max_bytes

    @property
    def crowded(self) -> bool:
        """Return whether a new caller must wait, because a limit is reached or other callers wait already."""
        return self.waited_for or self.rows >= self.max_rows or self.nbytes >= self.max_bytes

    async def wait(self) -> None:
        """Wait until there is capacity and it is the caller's turn.

        The caller must accept its message before it awaits anything else, or another caller may take the capacity.
        """
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._turns.append(turn)
        self._admit()
        try:
            await turn
        finally:
            if self._admitted is turn:
                self._admitted = None
                self.waited_for = bool(self._turns)
                asyncio.get_running_loop().call_soon(self._admit)

    def give_back(self, rows: int, nbytes: int) -> None:
        """Free the capacity that `rows` messages, with `nbytes` bytes of payload, used until their sends ended."""
        self.rows -= rows
        self.nbytes -= nbytes
        if self.waited_for:
            self._admit()

    def fail(self, error: MessagingError) -> None:
        """Make all waiting callers raise the error."""
        while self._turns:
            turn = self._turns.popleft()
            if not turn.done():
                turn.set_exception(error.with_traceback(None))
        self.waited_for = self._admitted is not None

    def _admit(self) -> None:
        while self._turns and self._admitted is None and not self.full:
            turn = self._turns.popleft()
            if not turn.done():  # a turn that is done belongs to a caller that was cancelled
                self._admitted = turn
                turn.set_result(None)
        self.waited_for = self._admitted is not None or bool(self._turns)


class Accumulator:
    """Collector of accepted messages. It puts them into batches, which wait for the send loop.

    New messages go into the open batch, until the send loop takes it.
    """

    def __init__(
        self,
        frames: FrameSender,
        verdict_client: VerdictClient,
        settings: MessagingConfig,
        checks: MessageChecks,
        log: LocalLog | None,
        tracer: AnyTracer = UNTRACED,
    ) -> None:
        self.tracer = tracer
        self.capacity = CapacityLimiter(settings.outbox_messages, settings.outbox_bytes)
        # To be called when messages get their fate or error, with the number of these messages and their payload bytes.
        self.rows_done = self.capacity.give_back
        self.broken: MessagingError | None = None  # the error because of which no message is accepted any more
        self._checks = checks
        self._addresses = checks.addresses
        self._log = log
        self._observer = frames.observer
        # A payload that is shorter than this needs no further check of its size.
        self._small = min(LARGE_LINE, settings.payload_bytes)
        self._close_within_s = settings.send_timeout_s + settings.interceptor_timeout_s
        self._step: int | None = None
        self._pending: deque[PendingBatch] = deque()
        self._open = _NONE_OPEN
        self._cells = _NONE_OPEN.cells
        # A future for each message that the open batch may accept without a further check of the capacity.
        self._futures: Iterator[asyncio.Future[Receipt]] = iter(())
        self._loop = asyncio.get_running_loop()
        # The thread of the event loop. Comparing threads is quick; asking for the running loop takes a tenth of a
        # send's time.
        self._thread = get_ident()
        self._new_future: Callable[[], asyncio.Future[Receipt]] = self._loop.create_future
        # How many bulk sends and transactions have not ended. Whoever begins one calls `bulk_done` at its end.
        self.bulks = 0
        self._telling = 0  # how many batches are done while some of their callers still wait for receipts
        self._flushes: list[asyncio.Future[None]] = []
        self.send_loop = SendLoop(frames, verdict_client, settings, self)

    @property
    def step(self) -> int | None:
        """Return the simulation step that messages get when they are accepted, or None if they get no step."""
        return self._step

    @step.setter
    def step(self, step: int | None) -> None:
        if step != self._step:
            self._step = step
            self._close_batch()  # all messages of a batch have the same step

    @property
    def rows(self) -> int:
        """Return how many messages were accepted and have no receipt yet."""
        self._count()
        return self.capacity.rows

    @property
    def crowded(self) -> bool:
        """Return whether a caller of `enter` must wait until earlier messages are sent."""
        self._count()
        return self.capacity.crowded

    def health(self) -> TaskHealth:
        """Return the health of the send loop. The loop is not busy if all accepted messages wait for a slow rule."""
        error = "" if self.broken is None else str(self.broken)
        busy = self.rows > len(self.send_loop.deferred)
        return TaskHealth("outbox", self.send_loop.alive, busy, monotonic() - self.send_loop.turned_at, error)

    # -- accepting messages ---------------------------------------------------------------------------------------

    def accept(self, channel: str, payload: object, from_id: SenderId, to_id: AgentId | None) -> Awaitable[Receipt]:
        """Check one message, and accept it: at once if there is capacity, otherwise later.

        Returns: an awaitable for the receipt, which the caller must await before anything else.
        Raises: InvalidAddress for an invalid channel or id; UnknownSender if this messager may not send for from_id
        (see MessagingConfig.strict_senders); InvalidPayload or PayloadTooLarge for an invalid payload.
        """
        # Most messages are accepted in this branch. It calls no function, because one call takes a twentieth of a
        # send's time.
        if type(payload) is dict and type(from_id) is int:
            try:
                recipient, topic = self._addresses[channel]
                line = dumps(payload, None, PLAIN)
            except Exception:  # noqa: BLE001 - a new channel or invalid input: the full checks decide
                return self.append(*self._checks.checked(channel, payload, from_id, to_id))
            if (
                (to_id is None or (type(to_id) is int and to_id == recipient))
                and (from_id.bit_length() < 64 if (known := self._checks.known) is None else from_id in known)
                and len(line) < self._small
                and (MAYBE_NULL not in line or line.find(NULL) < 0)
                and (MAYBE_LARGE not in line or line.find(LARGE) < 0)
                and LINE_END not in line
            ):
                if get_ident() != self._thread:
                    self.check_loop()
                cause = None if HANDLED.get() is None else cause_here()
                future = next(self._futures, None) if cause is None else None
                if future is None:
                    return self._append(from_id, recipient, topic, line, cause)
                cells = self._cells
                cells += (from_id, recipient, topic, line, time(), future)
                return future
        return self.append(*self._checks.checked(channel, payload, from_id, to_id))

    def append(self, from_id: AgentId | None, to_id: AgentId | None, topic: str, line: bytes) -> Awaitable[Receipt]:
        """Accept one checked message: at once if there is capacity, otherwise later.

        The caller must await the result before anything else.
        """
        if get_ident() != self._thread:
            self.check_loop()
        cause = cause_here()
        future = next(self._futures, None) if len(line) < LARGE_LINE and cause is None else None
        if future is None:
            return self._append(from_id, to_id, topic, line, cause)
        self._cells += (from_id, to_id, topic, line, time(), future)
        return future

    def _append(
        self,
        from_id: AgentId | None,
        to_id: AgentId | None,
        topic: str,
        line: bytes,
        cause: str | None = None,
        *,
        in_turn: bool = False,
        kind: Questions | Replies | None = None,
    ) -> Awaitable[Receipt]:
        """Accept one message when there is capacity.

        Args: `cause` is the id of the message that the sender is handling. `in_turn` says that the caller has already
        waited for its turn. `kind` is given for a question or an answer.
        """
        size, capacity = len(line) + 1, self.capacity
        if not in_turn:
            self.check_loop()
            if self._open is not _NONE_OPEN:
                self._count()
            if capacity.crowded:
                return self._append_in_turn(from_id, to_id, topic, line, cause)
            if self.broken is not None:
                raise self.broken.with_traceback(None)
        batch = self._batch_for(size if size > LARGE_LINE else 0, self._step, kind)
        if cause is not None:
            batch.causes[len(batch.cells) // ROW_CELLS] = cause
        future, cells = self._new_future(), batch.cells
        cells += (from_id, to_id, topic, line, time(), future)
        batch.counted = len(cells)
        batch.nbytes += size
        capacity.nbytes += size
        capacity.rows += 1
        # A batch with a single message needs no prepared futures. They are prepared from the second message on.
        if batch.counted > ROW_CELLS and kind is None:
            self._prepare_futures()
        self.send_loop.wake()  # this message may have opened the batch for which the send loop waits
        return future

    async def _append_in_turn(
        self, from_id: AgentId | None, to_id: AgentId | None, topic: str, line: bytes, cause: str | None
    ) -> Receipt:
        await self.enter()
        return await self._append(from_id, to_id, topic, line, cause, in_turn=True)

    def append_to(
        self, kind: Questions | Replies, checked: CheckedMessage, cause: str | None = None
    ) -> tuple[ConversationRows, Awaitable[Receipt]]:
        """Accept one checked question or answer. The caller must have awaited `enter`.

        Return the questions or answers of the batch that has the message now, and an awaitable for the receipt.
        """
        receipt = self._append(*checked, cause, in_turn=True, kind=kind)
        assert self._open.conversation is not None
        return self._open.conversation, receipt

    def join(self, batch: Batch, call_row: int) -> BulkWaiter:
        """Accept the messages of a small batch, by joining them to the open batch.

        The caller must have awaited `enter`. Return the object whose future gets the receipts of these messages.

        Args: `call_row` is the index of the batch's first message in the bulk send.
        """
        assert batch.lines is not None
        assert not isinstance(batch.step, np.ndarray)
        self._count()
        nbytes = batch.lines.nbytes
        pending = self._batch_for(nbytes if nbytes > LARGE_LINE * batch.rows else 0, batch.step)
        low, future = len(pending), self._loop.create_future()
        pending.join(batch)
        waiter = BulkWaiter(low, low + batch.rows, future, call_row)
        pending.bulks.append(waiter)
        self.capacity.rows += batch.rows
        self.capacity.nbytes += nbytes
        self._futures = iter(())  # The capacity for the prepared futures is now partly taken.
        self.send_loop.wake()
        return waiter

    def put(self, pending: PendingBatch) -> None:
        """Accept a whole batch. The caller must have awaited `enter`."""
        self._close_batch()  # Later messages must come after this batch.
        self._pending.append(pending)
        self.capacity.rows += len(pending)
        self.capacity.nbytes += pending.nbytes
        self.send_loop.wake()

    async def enter(self) -> None:
        """Wait until there is capacity and it is the caller's turn.

        The caller must accept a message before it awaits anything else.
        """
        self.check_loop()
        self._count()
        if self.capacity.crowded:
            self._futures = iter(())  # without prepared futures, no new message overtakes the message of this caller
            await self.capacity.wait()
        if self.broken is not None:
            raise self.broken.with_traceback(None)

    def check_loop(self) -> None:
        """Raise ConfigError if the running event loop is not the messager's, because the send would never return."""
        if asyncio.get_running_loop() is not self._loop:
            raise ConfigError(
                "this messager belongs to the event loop in which it was opened, and this call comes from another "
                "event loop, so nothing was sent. Call the messager in its own loop, by "
                "asyncio.run_coroutine_threadsafe(messager.send(...), loop), or open another messager here"
            )

    async def transact(self, transaction: TransactionBatch) -> None:
        """Accept a transaction when there is capacity. The transaction's future will get the receipts."""
        self.check_loop()
        if self.broken is not None:
            raise self.broken.with_traceback(None)
        if len(transaction):
            await self.enter()
            transaction.trace = self.tracer.open()
        self.bulks += 1
        transaction.future.add_done_callback(self.bulk_done)
        self.put(transaction)

    # -- the open batch -------------------------------------------------------------------------------------------

    def _count(self) -> None:
        """Charge the capacity for the messages that the open batch has accepted since this was last called."""
        batch = self._open
        if len(batch.cells) > batch.counted:
            lines = batch.lines(batch.counted)
            nbytes = sum(map(len, lines)) + len(lines)
            self.capacity.rows += len(lines)
            self.capacity.nbytes += nbytes
            batch.nbytes += nbytes
            batch.counted = len(batch.cells)

    def _prepare_futures(self) -> None:
        """Prepare futures for as many small messages as certainly fit into the open batch and the capacity."""
        batch, capacity = self._open, self.capacity
        free = (capacity.max_bytes - capacity.nbytes) // LARGE_LINE
        rows = min(BATCH_ROWS - len(batch), capacity.max_rows - capacity.rows, free)
        if capacity.waited_for or batch.step != self._step:
            rows = 0
        self._futures = starmap(self._new_future, repeat((), max(0, rows)))

    def _close_batch(self) -> None:
        """Close the open batch, so that later messages go into another batch."""
        if len(self._cells) > self._open.counted:
            self._count()
        self._open, self._cells, self._futures = _NONE_OPEN, _NONE_OPEN.cells, iter(())

    def _batch_for(self, large: int, step: int | None, kind: Questions | Replies | None = None) -> PendingBatch:
        """Return the open batch if it takes messages of this kind, otherwise a new one.

        Args: `large` is the total size of those payloads that are large. `kind` is given for questions and answers.
        """
        opened = self._open
        if opened is _NONE_OPEN or len(opened) >= BATCH_ROWS or not opened.takes(large, step, kind):
            batch = PendingBatch(step, conversation=None if kind is None else ConversationRows(kind))
            self._open, self._cells, self._futures = batch, batch.cells, iter(())
            batch.trace = self.tracer.open()
            self._pending.append(batch)
        self._open.large += large
        return self._open

    # -- for the send loop ----------------------------------------------------------------------------------------

    @property
    def has_closed(self) -> bool:
        """Return whether the next batch is closed, so that no messages can join it. False for a transaction."""
        pending = self._pending
        return bool(pending) and pending[0] is not self._open and not isinstance(pending[0], TransactionBatch)

    @property
    def open_rows(self) -> int:
        """Return how many messages the open batch has if it is the next batch, otherwise 0."""
        return len(self._open) if self._pending and self._pending[0] is self._open else 0

    def take(self) -> PendingBatch | None:
        """Remove and return the next batch, or None if no batch waits. Later messages go into another batch."""
        if not self._pending:
            return None
        pending = self._pending.popleft()
        if pending is self._open:
            self._close_batch()
        return pending

    def batch_done(self, batch: InFlightBatch) -> None:
        """Record that all rows of a batch have their fate or error."""
        self._telling += batch.telling
        if self._log is not None:
            self._log.add(batch.outgoing, batch.outcome)
        batch.pending.trace.done(batch.outcome, batch.errors)
        if self._observer is not None:
            tell_fates(self._observer, batch.outcome)
        if self._flushes:
            self._end_flushes()

    def callers_told(self) -> None:
        """Record that the last callers of a batch have their receipts."""
        self._telling -= 1
        if self._flushes:
            self._end_flushes()

    def fail(self, error: MessagingError) -> None:
        """Fail all waiting messages with the error, and accept no more messages."""
        if self.broken is None:
            self.broken = error
        self.capacity.fail(error)
        while (pending := self.take()) is not None:
            if isinstance(pending, TransactionBatch):
                pending.fail(error)
            if len(pending):
                self.send_loop.begin(pending).fail(None, error)

    # -- flushing and closing -------------------------------------------------------------------------------------

    def bulk_done(self, _future: object = None) -> None:
        """Record that a bulk send or a transaction has ended, for calls of `flush` that wait for this."""
        self.bulks -= 1
        if self._flushes:
            self._end_flushes()

    def _end_flushes(self) -> None:
        if not (self.rows or self.bulks or self._telling):
            for done in self._flushes:
                if not done.done():
                    done.set_result(None)
            self._flushes.clear()

    async def flush(self) -> None:
        """Wait until every accepted message has its receipt or error, and every bulk send and transaction has ended."""
        if self.rows or self.bulks or self._telling:
            done = self._loop.create_future()
            self._flushes.append(done)
            await done

    async def close(self) -> None:
        """Send all accepted messages, then stop. Messages that wait too long for a slow rule fail."""
        try:
            async with asyncio.timeout(self._close_within_s):
                if self.broken is None:
                    await self.flush()
        except TimeoutError:
            self.send_loop.deferred.give_up(send_errors.undecided(self._close_within_s))
            self.send_loop.wake()  # a transaction may have waited for the messages that now failed
            await self.flush()
        finally:
            await self.stop(Closed("this messager is closed: open another one"))

    async def stop(self, error: MessagingError) -> None:
        """Stop at once; messages without a receipt fail with the error."""
        await self.send_loop.stop(error)
        self.fail(error)
