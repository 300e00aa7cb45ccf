"""Gather messages in parcels, in order, as long as there is room."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from itertools import repeat, starmap
from time import time

from ray_messaging.addressing.channels import AgentId, SenderId
from ray_messaging.common.limits import BATCH_ROWS
from ray_messaging.config import MessagingConfig
from ray_messaging.errors import MessagingError
from ray_messaging.model.payload_column import LINE_END, encode_dict
from ray_messaging.receipt import Receipt, Receipts
from ray_messaging.sending.accumulation.capacity import CapacityLimiter
from ray_messaging.sending.accumulation.pending_batch import (
    LARGE_LINE,
    ROW_CELLS,
    BulkWaiter,
    Entry,
    PendingBatch,
    RowBatch,
)

# Checks a message (channel, payload, from_id, to_id) and returns it as it is kept (from_id, to_id, topic, JSON).
Check = Callable[[str, object, SenderId, AgentId | None], tuple[AgentId | None, AgentId | None, str, bytes]]

_TOO_LONG = 64  # bits
_NONE_OPEN = RowBatch(None)  # it takes nothing in


class Gathering:
    """Take messages in; those that come one by one share a draft, which is open until somebody takes it.

    Args: `addresses` are the channels known so far, `check` checks and encodes a message of any kind, `wake` is called
    when there is a parcel.
    """

    def __init__(
        self,
        settings: MessagingConfig,
        addresses: Mapping[str, tuple[AgentId | None, str]],
        check: Check,
        wake: Callable[[], None],
    ) -> None:
        self.room = CapacityLimiter(settings.outbox_messages, settings.outbox_bytes)
        self.broken: MessagingError | None = None  # why nothing is taken in any more
        self.known: set[int] | None = None  # ids of agents for whom we send; None: for anybody
        self._step: int | None = None
        self._addresses = addresses
        self._check = check
        self._wake = wake
        self._small = min(LARGE_LINE, settings.payload_bytes)  # what is shorter is no trouble
        self._parcels: deque[PendingBatch] = deque()
        self._open = _NONE_OPEN
        self._cells = _NONE_OPEN.cells
        # One for each message that the open draft takes in without asking for room.
        self._futures: Iterator[asyncio.Future[Receipt]] = iter(())
        self._loop = asyncio.get_running_loop()
        self._new_future: Callable[[], asyncio.Future[Receipt]] = self._loop.create_future

    @property
    def step(self) -> int | None:
        """Return the simulation step that is stamped on what is accepted."""
        return self._step

    @step.setter
    def step(self, step: int | None) -> None:
        if step != self._step:
            self._step = step
            self._shut()  # a draft has one step

    def take(self) -> PendingBatch | None:
        """Return the next parcel; what comes from now on goes behind it."""
        if not self._parcels:
            return None
        parcel = self._parcels.popleft()
        if parcel is self._open:
            self._shut()
        return parcel

    # -- accepting ------------------------------------------------------------------------------------------------

    def accept(self, channel: str, payload: object, from_id: SenderId, to_id: AgentId | None) -> Awaitable[Receipt]:
        """Check and accept one message, at once if there is room; await what this returns, at once, for its receipt.

        Raises: InvalidAddress, UnknownSender, InvalidPayload, PayloadTooLarge.
        """
        # What most messages are like, written out, as a call of a function takes a twentieth of the time that they do.
        if type(payload) is dict and type(from_id) is int:
            try:
                recipient, topic = self._addresses[channel]
                line = encode_dict(payload)
            except Exception:  # noqa: BLE001 - a new channel, or something is wrong: the careful way finds out
                return self.append(*self._check(channel, payload, from_id, to_id))
            if (
                (to_id is None or (type(to_id) is int and to_id == recipient))
                and (from_id.bit_length() < _TOO_LONG if (known := self.known) is None else from_id in known)
                and len(line) < self._small
                and LINE_END not in line
            ):
                future = next(self._futures, None)
                if future is None:
                    return self._append_asking(from_id, recipient, topic, line)
                cells = self._cells
                cells += (from_id, recipient, topic, line, time(), future)
                return future
        return self.append(*self._check(channel, payload, from_id, to_id))

    def append(self, from_id: AgentId | None, to_id: AgentId | None, topic: str, line: bytes) -> Awaitable[Receipt]:
        """Accept one message, at once if there is room; await what this returns, at once, for its receipt."""
        future = next(self._futures, None) if len(line) < LARGE_LINE else None
        if future is None:
            return self._append_asking(from_id, to_id, topic, line)
        self._cells += (from_id, to_id, topic, line, time(), future)
        return future

    def _append_asking(
        self, from_id: AgentId | None, to_id: AgentId | None, topic: str, line: bytes
    ) -> Awaitable[Receipt]:
        """Accept one message, when there is room."""
        self._count()
        if self.room.crowded:
            return self._append_in_turn(from_id, to_id, topic, line)
        self._raise_if_broken()
        return self._append(from_id, to_id, topic, line)

    async def _append_in_turn(self, from_id: AgentId | None, to_id: AgentId | None, topic: str, line: bytes) -> Receipt:
        await self.enter()
        return await self._append(from_id, to_id, topic, line)

    def _append(
        self, from_id: AgentId | None, to_id: AgentId | None, topic: str, line: bytes
    ) -> "asyncio.Future[Receipt]":
        """Accept one message, and behind the second one as many small ones as there is room for."""
        size, room = len(line) + 1, self.room
        draft = self._draft(size if size > LARGE_LINE else 0)
        future, cells = self._new_future(), draft.cells
        cells += (from_id, to_id, topic, line, time(), future)
        draft.counted = len(cells)
        draft.nbytes += size
        room.nbytes += size
        room.rows += 1
        if draft.counted > ROW_CELLS:  # whoever comes alone is in a hurry
            self._admit()
        self._wake()  # it sleeps only while no draft is open
        return future

    def extend(self, entries: Sequence[Entry]) -> "asyncio.Future[Receipts]":
        """Accept messages to many, as one batch; whoever finds no room waits for it before."""
        now, large = time(), max(len(entry.line) + 1 for entry in entries)
        self._count()
        draft = self._draft(sum(len(entry.line) + 1 for entry in entries) if large > LARGE_LINE else 0)
        low = len(draft)
        for entry in entries:
            draft.extend(entry, now)
        nbytes = sum(len(entry.line) + 1 for entry in entries)
        self.room.nbytes += nbytes
        draft.nbytes += nbytes
        future: asyncio.Future[Receipts] = self._loop.create_future()
        draft.manies.append(BulkWaiter(low, len(draft), future))
        self.room.rows += len(draft) - low
        draft.counted = len(draft.cells)
        self._admit()
        self._wake()
        return future

    def put(self, parcel: PendingBatch, nbytes: int, future: "asyncio.Future[Receipts]") -> "asyncio.Future[Receipts]":
        """Accept a parcel of its own; whoever finds no room waits for it before."""
        self._shut()  # what comes one by one from now on goes behind it
        self._parcels.append(parcel)
        self.room.rows += len(parcel)
        self.room.nbytes += nbytes
        self._wake()
        return future

    # -- room -----------------------------------------------------------------------------------------------------

    @property
    def rows(self) -> int:
        """Return how many messages were accepted and have no receipt yet."""
        self._count()
        return self.room.rows

    async def enter(self) -> None:
        """Wait for one's turn, where there is no room; whoever comes back from here must accept at once."""
        self._count()
        if self.room.crowded:
            self._futures = iter(())  # a newcomer must not overtake us
            await self.room.wait()
        self._raise_if_broken()

    def _count(self) -> None:
        """Bring the room up to date with what the open draft took in without asking."""
        draft = self._open
        if len(draft.cells) > draft.counted:
            lines = draft.lines(draft.counted)
            nbytes = sum(map(len, lines)) + len(lines)
            self.room.rows += len(lines)
            self.room.nbytes += nbytes
            draft.nbytes += nbytes
            draft.counted = len(draft.cells)

    def _admit(self) -> None:
        """Say how many messages of one line each the open draft may take in without asking, whatever their size."""
        draft, room = self._open, self.room
        rows = min(BATCH_ROWS - len(draft), room.max_rows - room.rows, (room.max_bytes - room.nbytes) // LARGE_LINE)
        self._futures = starmap(self._new_future, repeat((), 0 if room.waited_for else max(0, rows)))

    def _shut(self) -> None:
        """Let what comes from now on go into another draft."""
        self._count()
        self._use(_NONE_OPEN)

    def _use(self, draft: RowBatch) -> None:
        self._open, self._cells, self._futures = draft, draft.cells, iter(())

    def _draft(self, large: int) -> RowBatch:
        """Return the parcel that messages are gathered in, which is counted; `large` counts bytes of large payloads."""
        if self._open is _NONE_OPEN or len(self._open) >= BATCH_ROWS or not self._open.holds(large):
            self._use(RowBatch(self._step))
            self._parcels.append(self._open)
        self._open.large += large
        return self._open

    def _raise_if_broken(self) -> None:
        """Raise why nothing can be sent any more, if so."""
        if self.broken is not None:
            raise self.broken.with_traceback(None)
