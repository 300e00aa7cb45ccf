"""Frames of boxes as batches."""

from collections.abc import Iterable

import numpy as np

from ray_messaging.model.batch import Batch
from ray_messaging.model.extension import AskedOutside, Extension, OutsideQuestion
from ray_messaging.steps.supervision.amendments import amended, is_amendment
from ray_messaging.transports.step_values import OUTSIDE, SUPERVISOR, BoxFrame
from ray_messaging.wire.frames import decode

FIRST_ADDED = 2**30  # ordinals from here on are of messages that a rule added
FIRST_OUTSIDE = 2**31  # ordinals from here on are of messages from outside


def batches_of(frames: Iterable[BoxFrame], step: int) -> list[Batch]:
    """Decode the frames that count of a box for a step, as the supervisor has left them. Raises FrameError."""
    batches: list[Batch] = []
    amendments: list[Batch] = []
    for frame in frames:
        batch = batch_of(frame, step)
        (amendments if amends(frame, batch) else batches).append(batch)
    return amended(batches, amendments) if amendments else batches


def from_outside(frames: Iterable[BoxFrame], step: int) -> list[Batch]:
    """Decode the frames from outside of a box for a step, in the order of their arrival."""
    found = sorted((frame for frame in frames if frame.tag.group == OUTSIDE), key=lambda frame: frame.first)
    return [batch_of(frame, step) for frame in found]


def amends(frame: BoxFrame, batch: Batch) -> bool:
    """Tell whether a frame amends others of its box; else its rows are messages."""
    return frame.tag.group == SUPERVISOR and is_amendment(batch)


def batch_of(frame: BoxFrame, step: int) -> Batch:
    """Decode a frame of a box for a step; that step is also the one of a message from outside.

    Raises: FrameError.
    """
    batch = decode(frame.frame)
    if frame.tag.group == OUTSIDE:
        ordinals = np.arange(batch.rows, dtype=np.uint32) + np.uint32(FIRST_OUTSIDE + frame.first)
        given = batch.extension or Extension()
        asked = _asked_outside(batch, given)  # by the ids that the messages have outside of steps
        batch.step = step
        batch.extension = Extension(
            deliver=step,
            ordinal=ordinals,
            expects_answer=given.expects_answer,
            asked_outside=asked,
            audience=given.audience,
            fold=given.fold,
        )
    return batch


def _asked_outside(batch: Batch, extension: Extension) -> AskedOutside:
    """Return the questions of a batch from outside."""
    if extension.expects_answer is None:
        return {}
    rows = np.flatnonzero(extension.expects_answer).tolist()
    return {row: OutsideQuestion(extension.reply_mailbox, batch.message_id(row)) for row in rows}
