"""Requeueing of dead letters: their messages are written into the mailboxes that listen now, once, with the old ids."""

from collections.abc import Sequence
from itertools import pairwise
from math import inf
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from ray_messaging.addressing.directory import MailboxRecord, Routes
from ray_messaging.errors import FrameError
from ray_messaging.model.batch import Batch
from ray_messaging.transports.dead_letter_store import (
    DeadFrame,
    Listeners,
    RedisDeadLetters,
    Requeued,
    Returned,
    unhandled,
)
from ray_messaging.wire.frames import decode, encode

_DIGITS = 20  # an entry's id consists of two numbers of 64 bits, which have at most this many digits
# How often requeueing one letter is tried. If the directory has changed during an attempt, another attempt is made.
_ATTEMPTS = 8

Rows = NDArray[np.intp]


class RequeueOutcome(NamedTuple):
    """The outcome for one dead letter.

    `messages` is how many of the letter's messages are in a mailbox again, and `left` is how many stay dead. `why` is
    the reason if not all messages are in a mailbox again.

    `full` is true if a mailbox was full, or if the event log was behind. Then later letters must wait, too.
    """

    messages: int
    left: int
    why: str
    full: bool = False


def readable(frame: bytes) -> Batch:
    """Decode a frame; raise FrameError if it is invalid or has no payloads."""
    batch = decode(frame)
    if batch.lines is None:
        raise FrameError("a frame (a batch of messages) on the server has no payloads: find the program that wrote it")
    return batch


class Requeueing:
    """Requeueing of one experiment's dead letters into the mailboxes that listen now.

    Rules do not judge the messages again. The event log has the messages from their first mailbox, and does not log
    them again.
    """

    def __init__(self, store: RedisDeadLetters, exp_id: str) -> None:
        self._store = store
        self._exp_id = exp_id
        # The mailboxes that this process has read from the directory; None: they must be read (again).
        self._listeners: Listeners | None = None
        # A key of the last letter, and the result of `_routing_for` for this letter. Letters with equal keys have the
        # same routes.
        self._routing: tuple[tuple[object, ...], Routes, Routes] | None = None

    async def requeue(self, letter: DeadFrame) -> RequeueOutcome:
        """Requeue the messages of a letter in one call. Messages for which no mailbox listens stay dead."""
        try:
            batch = readable(letter.frame)
        except FrameError as error:
            return RequeueOutcome(0, 0, f"it cannot be decoded ({error}): export it, or drop it")
        if batch.fold is not None:
            return RequeueOutcome(0, batch.messages, _FOLDED)
        rows = unhandled(letter.row, letter.acked, len(batch))
        for _ in range(_ATTEMPTS):
            outcome = await self._attempt(letter, batch, rows)
            if outcome is not None:
                return outcome
        return RequeueOutcome(0, len(rows), _UNSTEADY)

    async def _attempt(self, letter: DeadFrame, batch: Batch, rows: Rows) -> RequeueOutcome | None:
        """Requeue a letter by this process's copy of the directory of mailboxes.

        Return None if the copy is outdated. Then the caller must try again.
        """
        if self._listeners is None:
            self._listeners = await self._store.listeners()
        listeners = self._listeners
        found, nobody = self._route(letter, batch, rows, listeners)
        if len(nobody) and not found:
            return RequeueOutcome(0, len(rows), _NOBODY)
        rest = encode(batch.take(nobody)) if len(nobody) else b""
        fate, mailbox = await self._store.requeue(letter.id, listeners.version, found, rest)
        if fate is Requeued.DONE:
            return RequeueOutcome(len(rows) - len(nobody), len(nobody), _OTHERS if len(nobody) else "")
        if fate is Requeued.STALE_DIRECTORY:
            self._listeners = self._routing = None
            return None
        full = fate in {Requeued.FULL, Requeued.LOG_FULL}
        return RequeueOutcome(0, 0 if fate is Requeued.MISSING else len(rows), _WHY[fate].format(mailbox), full)

    # -- routing --------------------------------------------------------------------------------------------------

    def _route(self, letter: DeadFrame, batch: Batch, rows: Rows, listeners: Listeners) -> tuple[list[Returned], Rows]:
        """Return the frames to write into mailboxes, and the rows that no mailbox may get."""
        takers, holders = self._routing_for(letter, listeners)
        routes = takers.route(batch)[rows] * np.int64(2**32) + holders.route(batch)[rows]  # both routes in one number
        of: dict[str, list[Rows]] = {}
        nobody = [rows[:0]]
        for both in np.unique(routes).tolist():
            mine, (route, held) = rows[routes == both], divmod(both, 2**32)
            had = holders.mailboxes(held)
            mailboxes = [mailbox for mailbox in takers.mailboxes(route) if mailbox not in had]
            for mailbox in mailboxes:
                of.setdefault(mailbox, []).append(mine)
            if not mailboxes:
                nobody.append(mine)
        found: list[Returned] = []
        for mailbox, parts in of.items():
            ours = np.sort(np.concatenate(parts))
            found += frames_of(takers.records[mailbox], batch, ours, logged=letter.born is not None)
        return found, np.sort(np.concatenate(nobody))

    def _routing_for(self, letter: DeadFrame, listeners: Listeners) -> tuple[Routes, Routes]:
        """Return routes to the mailboxes that may get a letter's messages, and to those that may already have got them.

        Most letters of one mailbox have the same routes. So the result is kept, and is used again for the next letter.
        """
        counts = tuple(_counts(record, letter, listeners) for record in listeners.records)
        key = (listeners.version, counts)
        if self._routing is None or self._routing[0] != key:
            found = [(record, count) for record, count in zip(listeners.records, counts, strict=True) if count]
            takers = [record if count == _WHOLE else replace(record, channels=[], globs=[]) for record, count in found]
            holders = [
                MailboxRecord(record.mailbox, [], [], record.globs)
                for record, count in found
                if count == _CLAIMS and record.globs
            ]
            self._routing = key, self._routes(takers), self._routes(holders)
        return self._routing[1:]

    def _routes(self, records: list[MailboxRecord]) -> Routes:
        return Routes(self._exp_id, {record.mailbox: record for record in records})


# Which fields of a mailbox's record are used for routing: none, only its agents, or all.
_NONE, _CLAIMS, _WHOLE = range(3)
_FOLDED = "it is a broadcast whose hearers only its mailbox knew: drop it, and let its sender broadcast again"
_NOBODY = "nobody listens for its recipients now (except mailboxes that may have these messages already)"
_UNSTEADY = "the directory of mailboxes changes all the time: try again"
_OTHERS = "nobody listens for its other recipients. Their messages are now a separate dead letter"
_WHY = {
    Requeued.MISSING: "it is not there any more",
    Requeued.FULL: "mailbox {!r} has no room for it: fetch the messages that wait there, then try again",
    Requeued.TOO_LARGE: "mailbox {!r} cannot take a batch of this size: raise its mailbox_bytes",
    Requeued.LOG_FULL: "the event log has not read mailbox {!r} to its end: try again later",
}


def _counts(record: MailboxRecord, letter: DeadFrame, listeners: Listeners) -> int:
    """Return which fields of a mailbox's record are used to route a letter's messages to the mailbox.

    When the messages were sent, the mailbox may have got a copy of them. Fields by which this may have happened are not
    used, so that no message arrives twice. Return `_NONE`, `_CLAIMS` (only the agents that the mailbox hosts, and not
    its channels and patterns) or `_WHOLE` (all fields).
    """
    if record.mailbox == letter.mailbox:
        return _WHOLE
    if letter.born is None:
        return _NONE
    born, since = listeners.born.get(record.mailbox, (0, 0))
    if born > letter.born or since > _number(letter.entry):  # `record`'s mailbox is newer than the letter's frame
        return _WHOLE
    # If both mailboxes host their agents exclusively, only the letter's mailbox hosted the letter's recipients when the
    # frame was sent. So `record`'s mailbox got no copy on account of the agents that it hosts.
    return _CLAIMS if record.exclusive and letter.exclusive else _NONE


def _number(entry: str) -> float:
    """Return the first number of an entry's id, or inf if another client wrote an invalid id."""
    found = entry.partition("-")[0]
    return int(found) if found.isdecimal() and len(found) <= _DIGITS else inf


def frames_of(record: MailboxRecord, batch: Batch, rows: Rows, *, logged: bool) -> list[Returned]:
    """Encode rows of a batch as frames that are not too large for a mailbox. A single row may still be too large.

    With `logged`, the event log has the rows already, and does not take them from these frames.
    """
    if not len(rows):
        return []
    part = batch.take(rows)
    if logged:
        part.noted = np.arange(len(rows), dtype=np.uint32)
    frame = encode(part)
    pieces = max(-(-len(rows) // record.frame_rows), -(-len(frame) // record.frame_bytes))
    if pieces == 1 or len(rows) < 2:
        return [Returned(record.mailbox, len(rows), frame)]
    bounds = np.linspace(0, len(rows), min(pieces, len(rows)) + 1).astype(int).tolist()
    halves: Sequence[Rows] = [rows[low:high] for low, high in pairwise(bounds)]
    return [found for half in halves for found in frames_of(record, batch, half, logged=logged)]
