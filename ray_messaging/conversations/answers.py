"""The answers to many questions, as they come."""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ray_messaging.common.tables import data_frame
from ray_messaging.conversations.open_questions import Rows
from ray_messaging.message import Message, Messages, Slice
from ray_messaging.model.batch import Batch
from ray_messaging.receipt import BLOCKED, PUBLISHED, Receipts

_NONE = -1


class Answers:
    """The answers to n questions: `async for answer in answers` gives them as they come, until all are there.

    A question waits for its answer until it has one, or the time is up. A question that was blocked, or that no mailbox
    takes, does not wait. Rows are those of the columns that were asked.
    """

    def __init__(self, exp_id: str, rows: int, timeout: float | None) -> None:
        self._exp_id = exp_id
        self._due = None if timeout is None else time.monotonic() + timeout
        self._batches: list[Batch] = []
        self._batch = np.full(rows, _NONE, np.int32)  # by question: which batch has its answer, and in which row
        self._row = np.zeros(rows, np.int32)
        self._fates: NDArray[np.uint8] | None = None  # of the questions, once they have their receipts
        self._fresh: deque[Slice] = deque()  # that no iteration has given yet
        self._news = asyncio.Event()
        self._left = rows
        self.receipts: Receipts | None = None
        self.closed = False
        self.late = 0

    def __len__(self) -> int:
        return len(self._batch)

    # -- filling --------------------------------------------------------------------------------------------------

    @property
    def done(self) -> bool:
        """Tell whether no more answers count: all are there, or the time is up."""
        return self._left == 0 or self.closed or (self._due is not None and time.monotonic() >= self._due)

    def sent(self, receipts: Receipts) -> None:
        """Take the receipts of the questions: those that did not arrive wait for nothing."""
        self.receipts, self._fates = receipts, receipts.codes
        self._left -= int(np.count_nonzero(self._unsent() & (self._batch == _NONE)))
        self._news.set()

    def _unsent(self) -> NDArray[np.bool_]:
        return np.zeros(len(self), np.bool_) if self._fates is None else self._fates > PUBLISHED

    def take(self, places: Rows, batch: Batch, rows: Rows) -> NDArray[np.bool_]:
        """Take answers (see `Asker`)."""
        first = np.zeros(len(places), np.bool_)
        if not self.done:
            _, once = np.unique(places, return_index=True)
            first[once] = True
            first &= self._batch[places] == _NONE
        self.late += len(places) - int(np.count_nonzero(first))
        if first.any():
            self._batch[places[first]], self._row[places[first]] = len(self._batches), rows[first]
            self._batches.append(batch)
            self._left -= int(np.count_nonzero(first))
            self._fresh.append(Slice(batch.take(rows[first]) if len(rows) < batch.rows else batch, 0, len(rows[first])))
            self._news.set()
        return first

    # -- reading --------------------------------------------------------------------------------------------------

    @property
    def answered(self) -> NDArray[np.intp]:
        """Return the questions that have an answer, ascending."""
        return np.flatnonzero(self._batch != _NONE)

    @property
    def pending(self) -> NDArray[np.intp]:
        """Return the questions without an answer, ascending, but for those that did not arrive."""
        return np.flatnonzero((self._batch == _NONE) & ~self._unsent())

    @property
    def blocked(self) -> NDArray[np.intp]:
        """Return the questions that a rule blocked, ascending."""
        return np.flatnonzero(self._fates == BLOCKED) if self._fates is not None else np.zeros(0, np.intp)

    def __getitem__(self, row: int) -> Message | None:
        """Return the answer to one question; None: there is none."""
        at = int(self._batch[row])
        return None if at == _NONE else Message(self._exp_id, self._batches[at], int(self._row[row]))

    async def wait(self) -> "Answers":
        """Wait until all answers are there, or the time is up; return self."""
        while not self.done:
            await self._change()
        return self

    async def __aiter__(self) -> AsyncIterator[Message]:
        while True:
            while self._fresh:
                for answer in Messages(self._exp_id, [self._fresh.popleft()]):
                    yield answer
            if self.done:
                return
            await self._change()

    async def _change(self) -> None:
        """Wait for an answer, or the end."""
        self._news.clear()
        left = None if self._due is None else max(0.0, self._due - time.monotonic())
        try:
            async with asyncio.timeout(left):
                await self._news.wait()
        except TimeoutError:
            pass

    def to_pandas(self) -> Any:  # noqa: ANN401 - pandas.DataFrame, where pandas is installed
        """Return a pandas.DataFrame by question: agent, fate ("answered", "pending", "blocked", ...), answer."""
        answers = [self[row] for row in range(len(self))]
        fates = np.full(len(self), "pending", object)
        if self.receipts is not None:
            unsent = self._unsent()
            fates[unsent] = self.receipts.fates[unsent]
        fates[self._batch != _NONE] = "answered"
        return data_frame(
            {
                "from_id": [None if answer is None else answer.from_id for answer in answers],
                "fate": fates,
                "answer": [None if answer is None else answer.payload for answer in answers],
            }
        )

    def __repr__(self) -> str:
        answered, pending, blocked = len(self.answered), len(self.pending), len(self.blocked)
        return f"Answers({answered:,} answered, {pending:,} pending, {blocked:,} blocked)"
