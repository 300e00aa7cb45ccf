"""The questions of one messager that wait for their answers."""

from asyncio import Future
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from ray_messaging.addressing.channels import AgentId
from ray_messaging.addressing.directory import Directory
from ray_messaging.conversations.answers import AnswerTable, Rows
from ray_messaging.errors import AnswerFailed, Closed, NoAnswer
from ray_messaging.message import Message
from ray_messaging.messages import Slice
from ray_messaging.model.batch import Batch
from ray_messaging.model.columns import IdColumn
from ray_messaging.model.message_ids import MessageIdColumn

_NO_ROWS: Rows = np.empty(0, np.intp)
_LONE = 64  # up to so many lone questions, those that no longer wait are not searched for and dropped


class LoneQuestion(NamedTuple):
    """A question that was asked by itself, not in a batch.

    `text` is its id without the number, `to_id` the agent that was asked, and `answer` the future of its answer.
    """

    text: str
    to_id: AgentId | None
    topic: str
    answer: "Future[Message]"


class OpenQuestion(NamedTuple):
    """A question that waits, or some of those asked together, and the mailboxes that host the asked agents now.

    `key` names it; for a lone question it is the question's id. `fail` ends its wait, with a reason.
    """

    key: object
    mailboxes: tuple[str, ...]
    fail: Callable[[str], None]


class Asked(msgspec.Struct, eq=False):
    """The questions of one batch.

    Their numbers begin with `first`, and the first one is at `place` in the asker's table.
    """

    first: int
    text: str
    to_ids: IdColumn
    topics: tuple[str, ...]
    topic: NDArray[np.uint16] | None
    asker: AnswerTable
    place: int

    def batch_of(self, rows: Rows) -> Batch:
        """Return some of the questions as a batch, to look up the mailboxes of their agents."""
        ids, topic = self.to_ids.take(rows), None if self.topic is None else self.topic[rows]
        return Batch(
            sender="", epoch=0, first=0, from_ids=ids, to_ids=ids, topics=self.topics, topic=topic, rows=len(rows)
        )


class OpenQuestions:
    """The questions of a messager that wait, by the numbers in their ids.

    An answer counts if it comes from the agent that was asked, or with `from_any` from any agent.
    """

    def __init__(self, exp_id: str, *, from_any: bool = False) -> None:
        self._exp_id = exp_id
        self._from_any = from_any
        self._texts: set[str] = set()  # of ids, without the numbers
        self._lone: dict[int, LoneQuestion] = {}
        self._most_lone = _LONE  # above it, those that no longer wait are dropped
        self._asked: list[Asked] = []  # by number
        self._firsts: list[int] = []
        self._most = 0  # the same limit for `_asked`

    def add_lone(self, batch: Batch, answers: "Sequence[Future[Message]]") -> None:
        """Start to wait for the answers to lone questions.

        Args: batch has the questions, whose ids were just assigned; answers has a future for each.
        """
        if len(self._lone) > self._most_lone:  # the callers of some were cancelled, or had no answer in time
            self._lone = {number: lone for number, lone in self._lone.items() if not lone.answer.done()}
            self._most_lone = max(_LONE, 2 * len(self._lone))
        text = _text(batch)
        self._texts.add(text)
        only = batch.topics[0] if batch.topic is None else ""
        for number, answer in enumerate(answers, batch.first):
            row = number - batch.first
            self._lone[number] = LoneQuestion(text, batch.to_ids[row], only or batch.topic_of(row), answer)

    def add(self, batch: Batch, asker: AnswerTable, place: int = 0) -> None:
        """Start to wait for the answers to a batch whose ids were just assigned.

        Args: place is the number that its first question has in the asker's table.
        """
        self._drop_done()
        self._texts.add(_text(batch))
        at = bisect_right(self._firsts, batch.first)
        self._firsts.insert(at, batch.first)
        asked = Asked(batch.first, _text(batch), batch.to_ids, batch.topics, batch.topic, asker, place)
        self._asked.insert(at, asked)

    def _drop_done(self) -> None:
        if len(self._asked) > self._most:
            self._asked = [asked for asked in self._asked if not asked.asker.done]
            self._firsts = [asked.first for asked in self._asked]
            self._most = 2 * len(self._asked)  # so that each is looked at a few times, however many wait

    @property
    def waiting(self) -> bool:
        """Return whether any question waits for its answer."""
        lone = any(not each.answer.done() for each in self._lone.values())
        return lone or any(not each.asker.done for each in self._asked)

    def open(self, directory: Directory) -> Iterator[OpenQuestion]:
        """Yield the questions that wait, grouped by the mailboxes that host their agents in the directory."""
        for number, lone in [*self._lone.items()]:
            if not lone.answer.done():
                mailboxes = directory.mailboxes_of(lone.to_id, lone.topic)
                key = f"{lone.text}{number}"
                yield OpenQuestion(key, mailboxes, partial(self._fail_lone, lone, key))
        for asked in [*self._asked]:
            places = np.arange(asked.place, asked.place + len(asked.to_ids))
            rows = _NO_ROWS if asked.asker.done else np.flatnonzero(asked.asker.waits(places))
            if len(rows):
                routes = directory.route(asked.batch_of(rows))
                for route in np.unique(routes).tolist():
                    some = partial(_fail_some, asked, rows[routes == route])
                    yield OpenQuestion((asked.first, route), directory.mailboxes(route), some)

    def _fail_lone(self, lone: LoneQuestion, question: str, why: str) -> None:
        if not lone.answer.done():
            lone.answer.set_exception(no_answer(lone.to_id, question, why))

    def end(self) -> None:
        """Stop waiting for answers: callers that still wait get a Closed error."""
        for lone in self._lone.values():
            if not lone.answer.done():
                lone.answer.set_exception(Closed("this messager was closed before the answer came"))
                lone.answer.exception()  # retrieved, so that asyncio does not log it if the caller is gone
        for asked in self._asked:
            asked.asker.end()
        self._lone, self._asked, self._firsts = {}, [], []

    def answer(self, found: Slice) -> Rows:
        """Pass answers to their askers; return the rows that are no answers to open questions, or come late."""
        batch, low, high, _ = found
        replies = None if batch.extension is None else batch.extension.in_reply_to
        if replies is None:
            return np.arange(low, high)
        if high - low == 1:  # numpy would take five times as long
            return _NO_ROWS if self._answer_one(replies, batch, low) else np.arange(low, high)
        rows = np.arange(low, high)
        known = self._known(replies, rows)
        numbers = replies.numbers[rows]
        taken = np.zeros(len(rows), np.bool_)
        if self._lone:
            lone = known & np.isin(numbers, np.fromiter(self._lone, np.int64, len(self._lone)))
            for at in np.flatnonzero(lone).tolist():
                taken[at] = self._answer_lone(int(numbers[at]), batch, int(rows[at]))
        ranges = np.searchsorted(np.array(self._firsts), numbers, side="right") - 1
        for at in np.unique(ranges[known]).tolist():
            if at >= 0:
                mine = np.flatnonzero(known & (ranges == at))
                taken[mine] |= self._answer(self._asked[at], numbers[mine], batch, rows[mine])
        return rows[~taken]

    def _answer_one(self, replies: MessageIdColumn, batch: Batch, row: int) -> bool:
        """Pass one answer to its asker; return whether it counts."""
        number = replies.numbers.item(row)
        if replies.texts[0 if replies.places is None else replies.places[row]] not in self._texts:
            return False
        if number in self._lone:
            return self._answer_lone(number, batch, row)
        at = bisect_right(self._firsts, number) - 1
        if at < 0:
            return False
        asked = self._asked[at]
        place = number - asked.first
        if place >= len(asked.to_ids) or not (self._from_any or batch.from_ids[row] == asked.to_ids[place]):
            return False
        if batch.extension is not None and batch.extension.failed:
            asked.asker.fail(asked.place + place, answer_failed(Message(self._exp_id, batch, row)))
            return True
        return bool(asked.asker.take(np.array([asked.place + place]), batch, np.array([row]))[0])

    def _answer_lone(self, number: int, batch: Batch, row: int) -> bool:
        """Pass one answer to the asker of a lone question; return whether it counts, as the first and in time."""
        asked = self._lone.get(number)
        if asked is None or not (self._from_any or batch.from_ids[row] == asked.to_id):
            return False
        del self._lone[number]
        if asked.answer.done():
            return False
        if batch.extension is not None and batch.extension.failed:
            asked.answer.set_exception(answer_failed(Message(self._exp_id, batch, row)))
        else:
            asked.answer.set_result(Message(self._exp_id, batch, row))
        return True

    def _known(self, replies: MessageIdColumn, rows: Rows) -> NDArray[np.bool_]:
        """Return which rows answer questions that this messager has asked."""
        ours = np.array([text in self._texts for text in replies.texts], np.bool_)
        return np.broadcast_to(ours[0], len(rows)) if replies.places is None else ours[replies.places[rows]]

    def _answer(self, asked: Asked, numbers: NDArray[np.int64], batch: Batch, rows: Rows) -> NDArray[np.bool_]:
        places = (numbers - asked.first).astype(np.intp)
        counts = places < len(asked.to_ids)
        if not self._from_any:
            counts[counts] = _equal(batch.from_ids.take(rows[counts]), asked.to_ids.take(places[counts]))
        if batch.extension is not None and batch.extension.failed:
            for place, row in zip(places[counts].tolist(), rows[counts].tolist(), strict=True):
                asked.asker.fail(asked.place + place, answer_failed(Message(self._exp_id, batch, row)))
        else:
            counts[counts] = asked.asker.take(asked.place + places[counts], batch, rows[counts])
        return counts


def no_answer(agent: AgentId | None, question: str, why: str) -> NoAnswer:
    """Build the error for a question that can no longer get an answer."""
    text = f"agent {agent!r} will not answer {question}: {why}"
    return NoAnswer(text, agent=agent, question=question, timeout=None, fate="delivered")


def answer_failed(answer: Message) -> AnswerFailed:
    """Build the error for a question from the message that came instead of an answer, because the handler failed."""
    told = answer.payload if isinstance(answer.payload, dict) else {}
    error, text = str(told.get("error", "error")), str(told.get("text", ""))
    return AnswerFailed(
        f"the handler of agent {answer.from_id!r} failed on question {answer.in_reply_to} ({error}: {text}); the "
        "question is a dead letter there, or waits for the next one that serves",
        agent=answer.from_id,
        question=answer.in_reply_to or "",
        timeout=None,
        fate="delivered",
        error=error,
        text=text,
    )


def _fail_some(asked: Asked, rows: Rows, why: str) -> None:
    for row in rows.tolist():
        error = no_answer(asked.to_ids[row], f"{asked.text}{asked.first + row}", why)
        asked.asker.fail(asked.place + row, error)


def _text(batch: Batch) -> str:
    """Return the beginning that the ids of all messages of a batch share: the ids without their numbers."""
    return f"{batch.sender}-{batch.epoch}-"


def _equal(left: IdColumn, right: IdColumn) -> NDArray[np.bool_]:
    """Compare ids row by row."""
    if left.kinds is None and right.kinds is None:
        return np.equal(left.values, right.values)
    return np.array([one == other for one, other in zip(left.tolist(), right.tolist(), strict=True)], np.bool_)
