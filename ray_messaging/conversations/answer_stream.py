"""The answers to many questions, in the order in which they arrive."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ray_messaging.common.awaitables import finish
from ray_messaging.common.notebook import SHOWN, html_table
from ray_messaging.common.tables import data_frame
from ray_messaging.errors import NoAnswer
from ray_messaging.message import Message
from ray_messaging.model.batch import Batch
from ray_messaging.model.fates import BLOCKED
from ray_messaging.model.typed.typed_values import column_of, part_of
from ray_messaging.receipt import Receipts

Rows = NDArray[np.intp]
# Values in `AnswerTable._part` of questions without an answer. For a question with an answer, the value there is the
# index in `parts` of the item that has the answer.
_WAITS, _UNSENT, _FAILED = -1, -2, -3


class AnswerPart(NamedTuple):
    """Answers that have arrived together. Row i of the batch is the answer to question `places[i]`."""

    places: Rows
    batch: Batch


class AnswerTable:
    """The answers to n questions. Question i is row i of the columns with which the agents were asked.

    A question waits for its answer until the answer has arrived, or the time limit is exceeded. A question that was
    blocked, or that no mailbox got, does not wait.

    Args: `more` waits until another process has answers and adds them, or returns when the time limit is exceeded. If
    `more` is None, the answers come to this process, and whoever receives them calls `take`.
    """

    def __init__(self, exp_id: str, rows: int, timeout: float | None, more: "MoreAnswers | None" = None) -> None:
        self.exp_id = exp_id
        self.parts: list[AnswerPart] = []
        self.late = 0  # how many answers were too late, or were not the first to their question
        self.receipts: Receipts | None = None
        self._due = None if timeout is None else time.monotonic() + timeout
        # For each question: the index of the item of `parts` that has its answer, and the row of the answer in it.
        self._part = np.full(rows, _WAITS, np.int32)
        self._row = np.zeros(rows, np.int32)
        self._left = rows
        self.errors: dict[int, NoAnswer] = {}  # by question: the error that says why the question will have no answer
        self._asked_last = False  # whether `asks_again` has returned True after the time limit
        self._more = more
        self._news = asyncio.Event()

    def __len__(self) -> int:
        return len(self._part)

    # -- adding answers -------------------------------------------------------------------------------------------

    @property
    def done(self) -> bool:
        """Return whether no question waits for an answer any more, or the time limit is exceeded."""
        return self._left == 0 or self.seconds_left == 0

    def asks_again(self) -> bool:
        """Return whether to call `change` again.

        The result is True while a question waits for its answer and time is left. After the time limit the result is
        True once more, because another process may still have answers that arrived in time.
        """
        if self.done and (self._left == 0 or self._asked_last):
            return False
        self._asked_last = self.done
        return True

    @property
    def seconds_left(self) -> float | None:
        """Return for how many more seconds answers count, or None if there is no time limit."""
        return None if self._due is None else max(0.0, self._due - time.monotonic())

    def sent(self, receipts: Receipts) -> None:
        """Set the receipts of the questions. Questions that were not delivered stop waiting for an answer."""
        self.receipts = receipts
        unsent = ~receipts.sent & (self._part == _WAITS)
        self._part[unsent] = _UNSENT
        self._left -= int(np.count_nonzero(unsent))
        self._news.set()

    def end(self) -> None:
        """Stop waiting. Answers that arrive from now on are late."""
        self._due = time.monotonic()
        self._news.set()

    def waits(self, places: Rows) -> NDArray[np.bool_]:
        """Return whether each of the questions with the numbers `places` waits for an answer, bool (n,)."""
        return np.equal(self._part[places], _WAITS)

    def fail(self, place: int, error: NoAnswer) -> None:
        """Record why a question will have no answer."""
        if not self.done and self._part[place] == _WAITS:
            self._part[place], self.errors[place] = _FAILED, error
            self._left -= 1
            self._news.set()

    def take(self, places: Rows, batch: Batch, rows: Rows) -> NDArray[np.bool_]:
        """Accept answers to the questions with the numbers `places`.

        Returns: which of the answers are the first to their questions and have arrived in time, bool (n,).
        """
        first = np.zeros(len(places), np.bool_)
        if not self.done:
            _, once = np.unique(places, return_index=True)
            first[once] = True
            # A question whose fate is unknown is recorded as unsent, too. It may have been delivered, so its answer
            # counts.
            first &= self.waits(places) | (self._part[places] == _UNSENT)
        self.late += len(places) - int(np.count_nonzero(first))
        if first.any():
            whole = len(rows) == batch.rows and first.all()
            self.add(AnswerPart(places[first], batch if whole else batch.take(rows[first])))
        return first

    def take_one(self, place: int, batch: Batch, row: int) -> bool:
        """Accept the answer to one question. Return whether it is the first answer and has arrived in time."""
        return bool(self.take(np.array([place]), batch, np.array([row]))[0])

    def add(self, part: AnswerPart) -> None:
        """Add answers, each of which is the first to its question."""
        self._left -= int(np.count_nonzero(self.waits(part.places)))
        self._part[part.places], self._row[part.places] = len(self.parts), np.arange(part.batch.rows)
        self.parts.append(part)
        self._news.set()

    async def change(self) -> None:
        """Wait until an answer arrives, a question stops waiting, or the time limit is exceeded."""
        if self._more is not None:
            await self._more(self)
            return
        self._news.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(self.seconds_left):
                await self._news.wait()

    # -- reading answers ------------------------------------------------------------------------------------------

    @property
    def answered(self) -> NDArray[np.intp]:
        """Return the numbers of the questions that have an answer, ascending."""
        return np.flatnonzero(self._part >= 0)

    @property
    def pending(self) -> NDArray[np.intp]:
        """Return the numbers of the questions that wait for an answer, or got none in time, ascending."""
        return np.flatnonzero(self._part == _WAITS)

    @property
    def failed(self) -> NDArray[np.intp]:
        """Return the numbers of the questions that were delivered but will get no answer, ascending.

        `errors` says why.
        """
        return np.flatnonzero(self._part == _FAILED)

    @property
    def blocked(self) -> NDArray[np.intp]:
        """Return the numbers of the questions that a rule has blocked, ascending."""
        return np.zeros(0, np.intp) if self.receipts is None else np.flatnonzero(self.receipts.codes == BLOCKED)

    def __getitem__(self, row: int) -> Message | None:
        """Return the answer to one question, or None if there is none."""
        at = int(self._part[row])
        return None if at < 0 else Message(self.exp_id, self.parts[at].batch, int(self._row[row]))

    def column(self, name: str) -> NDArray[Any]:
        """Return the named value of each answer that has arrived, in the order of `answered`.

        Raises: InvalidColumns if an answer has no such value.
        """
        ends = np.cumsum([0, *(part.batch.rows for part in self.parts)])
        answered = self.answered
        found = column_of([part_of(part.batch.lines) for part in self.parts], name)
        return found[ends[self._part[answered]] + self._row[answered]]

    def messages(self, at: int) -> Iterator[Message]:
        """Return the answers in `parts[at]`, which have arrived together, as messages."""
        batch = self.parts[at].batch
        return (Message(self.exp_id, batch, row) for row in range(batch.rows))

    def to_pandas(self) -> Any:  # noqa: ANN401 - pandas.DataFrame, where pandas is installed
        """Return a pandas.DataFrame with one row for each question.

        The columns are from_id, fate ("answered", "failed", "pending", ...) and answer.
        """
        answers = [self[row] for row in range(len(self))]
        fates = np.full(len(self), "pending", object)
        if self.receipts is not None:
            unsent = self._part == _UNSENT
            fates[unsent] = self.receipts.fates[unsent]
        fates[self._part == _FAILED] = "failed"
        fates[self._part >= 0] = "answered"
        return data_frame(
            {
                "from_id": [None if answer is None else answer.from_id for answer in answers],
                "fate": fates,
                "answer": [None if answer is None else answer.payload for answer in answers],
            },
            ids=["from_id"],
        )

    def __repr__(self) -> str:
        answered, pending, blocked = len(self.answered), len(self.pending), len(self.blocked)
        failed = f", {len(self.errors):,} failed" if self.errors else ""
        return f"{type(self).__name__}({answered:,} answered, {pending:,} pending, {blocked:,} blocked{failed})"

    def _repr_html_(self) -> str:
        first = [answer for answer in map(self.__getitem__, self.answered[:SHOWN].tolist()) if answer is not None]
        columns: dict[str, list[Any]] = {
            "question": self.answered[:SHOWN].tolist(),
            "from": [answer.from_id for answer in first],
            "answer": [answer.data for answer in first],
        }
        return html_table(repr(self), columns, len(self.answered))


# A function that waits until another process has answers to the questions of a table, and adds them to the table.
MoreAnswers = Callable[[AnswerTable], Coroutine[Any, Any, None]]


class Answers(AnswerTable):
    """The answers to questions, for async code: `async for answer in answers` yields them as they arrive.

    `answers[i]` is the answer to question i as a Message, or None. `answered` is an array of the indices of the
    questions that have an answer. Three more arrays have the indices of other questions: `pending` of those that still
    wait or got no answer in time, `failed` of those that were delivered but will get no answer, and `blocked` of those
    that a rule blocked. `to_pandas()` has a row for each question.
    """

    async def wait(self) -> "Answers":
        """Wait until each question has its answer or can get none, or the time limit is exceeded; return self."""
        while self.asks_again():
            await self.change()
        return self

    async def __aiter__(self) -> AsyncIterator[Message]:
        at = 0
        while True:
            while at < len(self.parts):
                for answer in self.messages(at):
                    yield answer
                at += 1
            if not self.asks_again():
                return
            await self.change()


class GroupAnswers(AnswerTable):
    """The answers to questions that were asked by a group's handle: `for answer in answers` yields them as they arrive.

    `answers[i]` is the answer to question i as a Message, or None. `answered` is an array of the indices of the
    questions that have an answer. Three more arrays have the indices of other questions: `pending` of those that still
    wait or got no answer in time, `failed` of those that were delivered but will get no answer, and `blocked` of those
    that a rule blocked. `to_pandas()` has a row for each question.
    """

    def wait(self) -> "GroupAnswers":
        """Wait until each question has its answer or can get none, or the time limit is exceeded; return self."""
        while self.asks_again():
            finish(self.change())
        return self

    def __iter__(self) -> Iterator[Message]:
        at = 0
        while True:
            while at < len(self.parts):
                yield from self.messages(at)
                at += 1
            if not self.asks_again():
                return
            finish(self.change())
