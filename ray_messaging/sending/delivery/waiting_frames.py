"""The rules of now on frames that have waited for another server since their transaction was committed."""

from collections.abc import Callable
from copy import copy

import numpy as np

from ray_messaging.interception.client.verdict_client import VerdictClient
from ray_messaging.interception.wire.verdicts import MIXED, BatchVerdict
from ray_messaging.model.batch import Batch
from ray_messaging.sending.accumulation.pending_batch import TransactionBatch
from ray_messaging.sending.delivery import logged_frames
from ray_messaging.sending.delivery.frame_router import UNOWNED, FrameRouter
from ray_messaging.sending.delivery.in_flight_batch import InFlightBatch
from ray_messaging.transports.sharded.transactions.waiting import JudgedFrame, WaitingFrame
from ray_messaging.transports.transport import LoggedFrame
from ray_messaging.wire.frames import decode, encode
from ray_messaging.wire.log_notes import decode_log_note

_QUESTION_BITS = 20  # of the number of a question; the sender's epoch, a time in ms, is before it


class _NoOwner:
    """Owner of a batch that no caller waits for."""

    def rows_done(self, rows: int, nbytes: int) -> None:
        """Do nothing."""

    def batch_done(self, batch: InFlightBatch) -> None:
        """Do nothing."""


class WaitingFrames:
    """The judge of one sender's waiting frames; `client` returns the client that gets the verdicts of now.

    The rules may have changed while a frame waited. So it is a new question, and a rule that counts messages counts
    these once more.
    """

    def __init__(self, router: FrameRouter, client: Callable[[], VerdictClient]) -> None:
        self._router = router
        self._client = client
        self._questions = 0

    async def judge_waiting(self, waiting: WaitingFrame, epoch: int) -> JudgedFrame:
        """Judge a frame once more; `epoch` is the sender's. Raises InterceptorUnavailable, Closed, FrameError."""
        batch = _as_accepted(decode(waiting.batch or waiting.frame), waiting.noted)
        verdict = await self._verdict_on(batch, epoch)
        in_flight = InFlightBatch(TransactionBatch(None), batch, _NoOwner())
        in_flight.apply(verdict)
        passed = np.array([row for row in range(batch.rows) if row not in in_flight.stopped], np.intp)
        logged, blocked = self._router.directory.logged, None
        if logged and in_flight.stopped:
            blocked = logged_frames.blocked(in_flight, np.array(sorted(in_flight.stopped), np.intp))
        count, stopped = len(passed), len(in_flight.stopped)
        if not count:
            return JudgedFrame(b"", 0, (), None, blocked, stopped, verdict.epoch)
        going = in_flight.outgoing.take(passed) if stopped else in_flight.outgoing
        noted: LoggedFrame | None = None
        if waiting.mailbox == UNOWNED:
            publish = self._router.publications(going)
            noted = logged_frames.published(in_flight, going, passed) if logged else None
            return JudgedFrame(b"", count, publish, noted, blocked, stopped, verdict.epoch)
        if logged:
            noted, going = logged_frames.rewritten(in_flight, going, passed, waiting.mailbox)
        return JudgedFrame(encode(going), count, (), noted, blocked, stopped, verdict.epoch)

    async def _verdict_on(self, batch: Batch, epoch: int) -> BatchVerdict:
        """Return the verdict on all rows, also those that slow rules judge.

        The question gets an epoch of its own: an answer that is kept for a batch of this sender may be from before the
        rules changed, or on another frame of the same transaction.
        """
        question, client = copy(batch), self._client()
        question.epoch, question.frame = (epoch << _QUESTION_BITS) + self._questions % 2**_QUESTION_BITS, None
        self._questions += 1
        found = await client.judge(question)
        verdict = BatchVerdict(epoch=found.epoch)
        verdict.add(found)
        while verdict.deferred:
            rows = sorted(verdict.deferred)
            more = await client.wait(question.take(np.array(rows, np.intp)))
            verdict.deferred = set()
            verdict.add(more.moved(rows))
            if more.epoch != verdict.epoch:
                verdict.epoch = MIXED  # the server has it judged once more
        return verdict


def _as_accepted(batch: Batch, noted: LoggedFrame | None) -> Batch:
    """Return a frame's batch as its sender gave it, without the labels and, as far as they are known, the rewrites."""
    originals: dict[int, bytes] = {}
    if noted is not None:
        places = np.arange(batch.rows) if batch.noted is None else batch.noted
        for before in decode_log_note(noted.note, noted.rows).before:
            originals.update((int(places[at]), before.line) for at in np.frombuffer(before.rows, "<u4").tolist())
    made = batch.with_payloads(originals)
    made.labels, made.noted = {}, None
    return made
