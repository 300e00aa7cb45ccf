"""Frames as arguments of the scripts that write them."""

from collections.abc import Sequence
from typing import Any

from ray_messaging.transports.redis.connection.protocol import LARGE
from ray_messaging.transports.transport import FrameWrite


def add_writes(args: list[Any], writes: Sequence[FrameWrite]) -> list[int]:
    """Add writes to a script's arguments, as send.lua describes them; return the places of large frames."""
    large: list[int] = []
    for write in writes:
        noted = write.noted
        if len(write.frame) >= LARGE:
            large.append(len(args) + 3)
        args += [write.mailbox, write.seq, write.rows, write.frame, -1 if noted is None else noted.rows]
        args.append(len(write.publish))
        for channel, data in write.publish:
            args += [channel, data]
        if noted is not None:
            args += [noted.frame, noted.note]
    return large
