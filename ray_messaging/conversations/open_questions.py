"""The questions of one messager that wait for their answers."""

from asyncio import Future
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ray_messaging.addressing.channels import AgentId
from ray_messaging.addressing.directory import Directory
from ray_messaging.conversations.answer_stream import AnswerTable, Rows
from ray_messaging.errors import AnswerFailed, Closed, NoAnswer
from ray_messaging.message import Message
from ray_messaging.messages import Slice
from ray_messaging.model.batch import Batch
from ray_messaging.model.fates import DELIVERED, FATES
from ray_messaging.model.message_ids import MessageIdColumn

_NO_ROWS: Rows = np.empty(0, np.intp)


class LoneAnswers:
    """The answers to questions that were asked one by one.

    Each question has a future in place of a row of an AnswerTable.
    """

    def __init__(self, exp_id: str, futures: "Sequence[Future[Message]]") -> None:
        self._exp_id = exp_id
        self._waiting = dict(enumerate(futures))

    @property
    def done(self) -> bool:
        """Return whether no question waits: each has an answer or an error, or its caller was cancelled."""
        return all(future.done() for future in self._waiting.values())

    def waits(self, places: Rows) -> NDArray[np.bool_]:
        """Return whether each of the questions with the numbers `places` waits for an answer, bool (n,)."""
        there = [place in self._waiting and not self._waiting[place].done() for place in places.tolist()]
        return np.array(there, np.bool_)

    def take_one(self, place: int, batch: Batch, row: int) -> bool:
        """Accept the answer to one question. Return whether it is the first answer and has arrived in time."""
        future = self._waiting.pop(place, None)
        if future is None or future.done():
            return False
        future.set_result(Message(self._exp_id, batch, row))
        return True

    def take(self, places: Rows, batch: Batch, rows: Rows) -> NDArray[np.bool_]:
        """Accept answers to the questions with the numbers `places`.

        Returns: which of the answers are the first to their questions and have arrived in time, bool (n,).
        """
        pairs = zip(places.tolist(), rows.tolist(), strict=True)
        return np.array([self.take_one(place, batch, row) for place, row in pairs], np.bool_)

    def fail(self, place: int, error: Exception) -> None:
        """Make the caller of a question raise an error, if it still waits for the answer."""
        future = self._waiting.pop(place, None)
        if future is not None and not future.done():
            future.set_exception(error)
            future.exception()  # without this call, asyncio would log the error if the caller is gone

    def end(self) -> None:
        """Make all callers that still wait raise Closed."""
        for place in [*self._waiting]:
            self.fail(place, Closed("this messager was closed before the answer came: keep it open, and ask again"))


class OpenQuestion(NamedTuple):
    """One question that waits for an answer, or several that were asked together.

    `key` identifies the question or questions. For a question that was asked alone, `key` is the question's id.
    `mailboxes` now host the agents that were asked. `fail` ends the wait, for the reason that it is given.
    """

    key: object
    mailboxes: tuple[str, ...]
    fail: Callable[[str], None]


class AskedBatch(NamedTuple):
    """The questions of one batch, without payloads.

    `place` is the index of the first question of the batch among all questions that one call has asked.
    """

    batch: Batch
    asker: AnswerTable | LoneAnswers
    place: int

    def fail(self, rows: Sequence[int], why: str) -> None:
        """End the wait of the questions in these rows with NoAnswer, for the reason `why`."""
        for row in rows:
            error = no_answer(self.batch.to_ids[row], self.batch.message_id(row), why)
            self.asker.fail(self.place + row, error)


class OpenQuestions:
    """The questions of a messager that wait for answers, sorted by the numbers in their ids.

    An answer is accepted only if it comes from the agent that was asked. With `from_any`, it may come from any agent.
    """

    def __init__(self, exp_id: str, *, from_any: bool = False) -> None:
        self._exp_id = exp_id
        self._from_any = from_any
        self._texts: set[str] = set()  # the parts of questions' ids that come before the number
        self._asked: list[AskedBatch] = []  # batches, sorted by the numbers of their questions
        self._firsts: list[int] = []
        self._most = 0  # when `_asked` has more items than this, batches that no longer wait are dropped

    def add_lone(self, batch: Batch, answers: "Sequence[Future[Message]]") -> None:
        """Begin to wait for the answers to questions that were asked one by one. `answers` are their futures."""
        self.add(batch, LoneAnswers(self._exp_id, answers))

    def add(self, batch: Batch, asker: AnswerTable | LoneAnswers, place: int = 0) -> None:
        """Begin to wait for the answers to a batch of questions, right after the questions have got their ids.

        Args: `place` is the number of the first question in the asker's table.
        """
        if len(self._asked) > self._most:
            self._asked = [asked for asked in self._asked if not asked.asker.done]
            self._firsts = [asked.batch.first for asked in self._asked]
            # The limit is twice the number of the batches that still wait. So each batch is looked at only a few times,
            # however many batches there are.
            self._most = 2 * len(self._asked)
        bare = copy(batch)
        bare.lines = bare.extension = None
        self._texts.add(f"{batch.sender}-{batch.epoch}-")
        at = bisect_right(self._firsts, batch.first)
        self._firsts.insert(at, batch.first)
        self._asked.insert(at, AskedBatch(bare, asker, place))

    @property
    def waiting(self) -> bool:
        """Return whether any question waits for its answer."""
        return any(not each.asker.done for each in self._asked)

    def open(self, directory: Directory) -> Iterator[OpenQuestion]:
        """Yield the questions that still wait for an answer. One item may stand for several questions.

        Questions that were asked together share an item if the same mailboxes host the agents that were asked.
        """
        for asked in [*self._asked]:
            batch = asked.batch
            places = np.arange(asked.place, asked.place + batch.rows)
            rows = _NO_ROWS if asked.asker.done else np.flatnonzero(asked.asker.waits(places))
            routes = directory.routing.route(batch.take(rows)) if len(rows) else rows
            if isinstance(asked.asker, LoneAnswers):
                for row, route in zip(rows.tolist(), routes.tolist(), strict=True):
                    fail = partial(asked.fail, [row])
                    yield OpenQuestion(batch.message_id(row), directory.routing.mailboxes(route), fail)
                continue
            for route in np.unique(routes).tolist():
                fail = partial(asked.fail, rows[routes == route].tolist())
                yield OpenQuestion((batch.first, route), directory.routing.mailboxes(route), fail)

    def end(self) -> None:
        """Stop waiting for answers. Callers that still wait raise Closed."""
        for asked in self._asked:
            asked.asker.end()
        self._asked, self._firsts = [], []

    def answer(self, found: Slice) -> Rows:
        """Pass the answers in a slice of a batch to their askers.

        Return the rows that answer no open question, or come too late.
        """
        batch, low, high, _ = found
        replies = None if batch.extension is None else batch.extension.in_reply_to
        if replies is None:
            return np.arange(low, high)
        if high - low == 1:  # for one answer, numpy would take five times as long
            return _NO_ROWS if self._answer_one(replies, batch, low) else np.arange(low, high)
        rows = np.arange(low, high)
        # For each item of `replies.texts`: whether ids of this messager's questions begin with this text.
        ours = np.array([text in self._texts for text in replies.texts], np.bool_)
        known = np.broadcast_to(ours[0], len(rows)) if replies.places is None else ours[replies.places[rows]]
        numbers = replies.numbers[rows]
        taken = np.zeros(len(rows), np.bool_)
        ranges = np.searchsorted(np.array(self._firsts), numbers, side="right") - 1
        for at in np.unique(ranges[known]).tolist():
            if at >= 0:
                mine = np.flatnonzero(known & (ranges == at))
                taken[mine] |= self._answer(self._asked[at], numbers[mine], batch, rows[mine])
        return rows[~taken]

    def _answer_one(self, replies: MessageIdColumn, batch: Batch, row: int) -> bool:
        """Pass one answer to its asker. Return False if the answer is to no open question, or comes too late."""
        number = replies.numbers.item(row)
        if replies.texts[0 if replies.places is None else replies.places[row]] not in self._texts:
            return False
        at = bisect_right(self._firsts, number) - 1
        if at < 0:
            return False
        questions, asker, first = self._asked[at]
        place = number - questions.first
        if place >= questions.rows or not (self._from_any or batch.from_ids[row] == questions.to_ids[place]):
            return False
        if batch.extension is not None and batch.extension.failed:
            asker.fail(first + place, answer_failed(Message(self._exp_id, batch, row)))
            return True
        return asker.take_one(first + place, batch, row)

    def _answer(self, asked: AskedBatch, numbers: NDArray[np.int64], batch: Batch, rows: Rows) -> NDArray[np.bool_]:
        places = (numbers - asked.batch.first).astype(np.intp)
        counts = places < asked.batch.rows
        if not self._from_any:
            asked_ones = asked.batch.to_ids.take(places[counts]).to_numpy()
            counts[counts] = batch.from_ids.take(rows[counts]).to_numpy() == asked_ones
        if batch.extension is not None and batch.extension.failed:
            for place, row in zip(places[counts].tolist(), rows[counts].tolist(), strict=True):
                asked.asker.fail(asked.place + place, answer_failed(Message(self._exp_id, batch, row)))
        else:
            counts[counts] = asked.asker.take(asked.place + places[counts], batch, rows[counts])
        return counts


def no_answer(agent: AgentId | None, question: str, why: str) -> NoAnswer:
    """Build the error for a question that can no longer get an answer."""
    text = f"agent {agent!r} will not answer question {question}, because {why}"
    return NoAnswer(text, agent=agent, question=question, timeout=None, fate=FATES[DELIVERED])


def answer_failed(answer: Message) -> AnswerFailed:
    """Build the error for a question whose handler has failed, from the message that came in place of an answer."""
    told = answer.payload if isinstance(answer.payload, dict) else {}
    error, text = str(told.get("error", "error")), str(told.get("text", ""))
    return AnswerFailed(
        f"the handler of agent {answer.from_id!r} failed on question {answer.in_reply_to} ({error}: {text}): "
        "mend the handler. The question is kept as a dead letter of that agent's group, or waits for the group's next "
        "`serve`",
        agent=answer.from_id,
        question=answer.in_reply_to or "",
        timeout=None,
        fate=FATES[DELIVERED],
        error=error,
        text=text,
    )
