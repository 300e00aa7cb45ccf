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
_LONE = 64  # lone questions among which none is looked for that waits no more


class LoneQuestion(NamedTuple):
    """A question that was asked by itself: its id without the number, whom, on which topic, its answer's future."""

    text: str
    to_id: AgentId | None
    topic: str
    answer: "Future[Message]"


class OpenQuestion(NamedTuple):
    """A question that waits, or some of those that were asked together: the mailboxes that have the agents now.

    `key` names it: the id of a lone one. `fail` ends its wait, for a reason.
    """

    key: object
    mailboxes: tuple[str, ...]
    fail: Callable[[str], None]


class Asked(msgspec.Struct, eq=False):
    """The questions of one batch: their numbers begin with `first`; the first one is at `place` of its asker."""

    first: int
    text: str
    to_ids: IdColumn
    topics: tuple[str, ...]
    topic: NDArray[np.uint16] | None
    asker: AnswerTable
    place: int

    def batch_of(self, rows: Rows) -> Batch:
        """Return some of the questions as a batch that can be routed."""
        ids, topic = self.to_ids.take(rows), None if self.topic is None else self.topic[rows]
        return Batch(
            sender="", epoch=0, first=0, from_ids=ids, to_ids=ids, topics=self.topics, topic=topic, rows=len(rows)
        )


class OpenQuestions:
    """The questions that wait, by the numbers in their ids.

    An answer counts if it comes from the agent that was asked, unless `from_any`.
    """

    def __init__(self, exp_id: str, *, from_any: bool = False) -> None:
        self._exp_id = exp_id
        self._from_any = from_any
        self._texts: set[str] = set()  # of ids, without the numbers
        self._lone: dict[int, LoneQuestion] = {}
        self._most_lone = _LONE  # above it, those that wait no more are dropped
        self._asked: list[Asked] = []  # by number
        self._firsts: list[int] = []
        self._most = 0  # as `_most_lone`

    def add_lone(self, batch: Batch, answers: "Sequence[Future[Message]]") -> None:
        """Wait for the answers to lone questions, a batch which was just numbered; each one has a future."""
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
        """Wait for the answers to a batch, which was just numbered; its first question has a place at its asker."""
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
        """Tell whether a question waits for its answer."""
        lone = any(not each.answer.done() for each in self._lone.values())
        return lone or any(not each.asker.done for each in self._asked)

    def open(self, directory: Directory) -> Iterator[OpenQuestion]:
        """Yield the questions that wait, by the mailboxes that a directory names for their agents."""
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
        """Wait for no more answers: the callers get Closed."""
        for lone in self._lone.values():
            if not lone.answer.done():
                lone.answer.set_exception(Closed("this messager was closed before the answer came"))
                lone.answer.exception()  # the caller may be gone: then nobody is to hear of it
        for asked in self._asked:
            asked.asker.end()
        self._lone, self._asked, self._firsts = {}, [], []

    def answer(self, found: Slice) -> Rows:
        """Give askers their answers; return the rows of the batch that are none, or come late."""
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
        """Give the asker of one question its answer; return whether it counts."""
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
        """Give the asker of one question its answer; return whether it counts: the first, and in time."""
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
        """Tell which rows answer questions with our name."""
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
    """Build the error for a question that can have no answer any more."""
    text = f"agent {agent!r} will not answer {question}: {why}"
    return NoAnswer(text, agent=agent, question=question, timeout=None, fate="delivered")


def answer_failed(answer: Message) -> AnswerFailed:
    """Build the error for a question from what its handler's messager has sent in place of an answer."""
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
    """Return the ids of a batch's messages without their numbers."""
    return f"{batch.sender}-{batch.epoch}-"


def _equal(left: IdColumn, right: IdColumn) -> NDArray[np.bool_]:
    """Compare ids row by row."""
    if left.kinds is None and right.kinds is None:
        return np.equal(left.values, right.values)
    return np.array([one == other for one, other in zip(left.tolist(), right.tolist(), strict=True)], np.bool_)
