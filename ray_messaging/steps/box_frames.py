"""Frames of boxes as batches."""

import numpy as np

from ray_messaging.model.batch import Batch
from ray_messaging.model.extension import Extension
from ray_messaging.transports.steps.values import OUTSIDE, BoxFrame
from ray_messaging.wire.frames import decode

FIRST_OUTSIDE = 2**31  # ordinals from here on are of messages from outside


def batch_of(frame: BoxFrame, step: int) -> Batch:
    """Decode a frame of a box for a step; a message from outside counts as one that was sent in the step before.

    Raises: FrameError.
    """
    batch = decode(frame.frame)
    if frame.tag.group == OUTSIDE:
        batch.step = step - 1
        ordinals = np.arange(batch.rows, dtype=np.uint32) + np.uint32(FIRST_OUTSIDE + frame.first)
        batch.extension = Extension(deliver=step, ordinal=ordinals)
    return batch
