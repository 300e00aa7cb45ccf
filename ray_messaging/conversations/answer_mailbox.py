"""The mailbox that gets the answers to one messager's questions."""

import asyncio
import logging
from collections.abc import Iterable

import numpy as np

from ray_messaging.common.task_health import end
from ray_messaging.conversations.answer_stream import Rows
from ray_messaging.conversations.open_questions import OpenQuestions
from ray_messaging.errors import ConnectionFailed
from ray_messaging.messager_engine import Engine
from ray_messaging.messages import Slice
from ray_messaging.model.batch import Batch
from ray_messaging.model.message_ids import MessageIdColumn
from ray_messaging.receiving.ack_ranges import runs_of, spans_in
from ray_messaging.receiving.commits import MOST_RANGES
from ray_messaging.receiving.fetcher import Fetcher
from ray_messaging.receiving.inbox import Piece

logger = logging.getLogger(__name__)

# If this many late answers wait for a fetch to commit them, further late answers are committed at once.
_MOST_KEPT = MOST_RANGES // 2


class AnswerMailbox:
    """The mailbox that gets the answers to a messager's questions.

    Answers do not go through the messager's inbox, so that a full inbox delays no answer. An answer is late if nobody
    waits for it any more. A late answer goes to the messager's inbox as an ordinary message. It is committed (the
    server is told that it is handled) with the messages of the fetch that returns it.

    Args: `engine` serves only this mailbox. `fetcher` is the messager's fetcher. Without `keeps_late`, a late answer is
    committed as soon as it is in the messager's inbox.
    """

    def __init__(self, engine: Engine, questions: OpenQuestions, fetcher: Fetcher, *, keeps_late: bool = True) -> None:
        self.engine = engine
        self._questions = questions
        self._fetcher = fetcher
        self._keeps_late = keeps_late
        # How many late answers are not committed. They are in the messager's inbox, or were fetched from it.
        self._uncommitted = 0
        self._handled: list[Slice] = []  # answers that need no more work, but are not acknowledged yet
        self._news = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Begin to listen for answers, and to read them."""
        await self.engine.open()
        self.engine.fetcher.inbox.on_news = self._take
        await self.engine.subscribe([])
        self._task = asyncio.create_task(self._read(), name="ray_messaging answers")

    async def close(self) -> None:
        """Stop reading answers.

        If no name was given to the messager, the mailbox is removed from the list of all mailboxes.
        """
        if self._task is not None:
            await end(self._task)
        await self.engine.close()

    def check(self) -> None:
        """If an error has ended the reading of answers, raise it, because a new question would wait in vain."""
        if self._task is not None and self._task.done():
            self._task.result()

    def _take(self) -> None:
        """Pass answers to their askers in the same turn of the event loop in which they were read."""
        self._answer(self.engine.fetcher.take_at_once())
        self._news.set()

    async def _read(self) -> None:
        """Pass answers from this mailbox to their askers, and commit the handled ones, until the task is cancelled."""
        fetcher = self.engine.fetcher
        while True:
            await self._news.wait()
            self._news.clear()
            if fetcher.inbox.size or fetcher.inbox.error is not None:
                self._answer((await fetcher.fetch(None, 0.0, "acked")).slices)
            await asyncio.sleep(0)  # callers that waited for these answers continue first
            handled, self._handled = self._handled, []
            fetcher.commits.acknowledge_some(spans_in(handled, self.engine.name))
            try:
                # The write is made in the background, so that later answers do not wait for it.
                fetcher.commits.write_soon()
            except ConnectionFailed as error:  # the previous write has failed, and is tried again
                logger.warning("answers of %s are not committed yet: %s", self.engine.name, error)

    def _answer(self, slices: Iterable[Slice]) -> None:
        """Pass answers to their askers, and late answers to the inbox."""
        for found in slices:
            _as_asked(found.batch)
            late = self._questions.answer(found)
            told = found.batch.extension is not None and found.batch.extension.failed
            # A message about the failure of a handler is dropped if it is late, because it is not an ordinary message.
            if told or not len(late):
                self._handled.append(found)
                continue
            keep = self._keeps_late and self._fetcher.listens and self._uncommitted < _MOST_KEPT
            self._handled += _slices(found, np.setdiff1d(np.arange(found.low, found.high), late)) if keep else [found]
            self._uncommitted += len(late) if keep else 0
            # If the messager does not listen, nobody can fetch late answers, so they are only in the event log.
            if self._fetcher.listens:
                for part in _slices(found, late):
                    nbytes = 0 if part.batch.lines is None else part.batch.lines.nbytes
                    self._fetcher.inbox.put(Piece(None, part.batch, part.low, part.high, nbytes))

    def late_among(self, slices: Iterable[Slice]) -> list[Slice]:
        """Return those slices whose messages are late answers: messages that came through this mailbox."""
        if not self._uncommitted:
            return []
        name = self.engine.name
        return [part for part in slices if part.batch.origin is not None and part.batch.origin.mailbox == name]

    async def commit(self, late: Iterable[Slice]) -> None:
        """Commit late answers that were fetched."""
        commits = self.engine.fetcher.commits
        self._uncommitted -= commits.acknowledge_some(spans_in(late, self.engine.name))
        await commits.write()


def _as_asked(batch: Batch) -> None:
    """In answers that were sent in a step, put back the ids that the questions had when they were asked."""
    extension = batch.extension
    if extension is not None and extension.asked_outside:
        asked = extension.asked_outside
        extension.in_reply_to = MessageIdColumn.of([asked[row].question for row in range(batch.rows)])
        extension.asked_outside = {}


def _slices(found: Slice, rows: Rows) -> list[Slice]:
    """Return the given rows of a batch as slices, one for each run of consecutive rows. `rows` are ascending."""
    return [found._replace(low=low, high=high) for low, high in runs_of(rows)]
