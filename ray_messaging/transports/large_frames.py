"""Frames as arguments of the scripts that write them; large frames go around these: see large_frames."""

import logging
from collections.abc import Sequence
from typing import Any

from redis.exceptions import NoScriptError

from ray_messaging.addressing.channels import Keys
from ray_messaging.transports.connection.link import RedisLink
from ray_messaging.transports.connection.protocol import LARGE, LargeCommand
from ray_messaging.transports.values import LOG, FrameWrite, SendRequest


def add_writes(args: list[Any], writes: Sequence[FrameWrite]) -> list[int]:
    """Add writes to a script's arguments, as send describes them; return the places of large frames."""
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


logger = logging.getLogger(__name__)

LEAST_BYTES = 128 * 2**10  # of a frame; for smaller ones the script alone takes less time
_HOW = "open", "close"  # of large_frames, and two of its replies
_DONE, _NO_RIGHT = 0, 2


class LargeFrames:
    """Calls of one transport with large frames only, as long as its server and user can do all that they take."""

    def __init__(self, link: RedisLink, keys: Keys) -> None:
        self._link = link
        self._keys = keys
        # On a cluster, a slot that is being moved has no place for a key that does not exist.
        self._able = not link.config.cluster

    def takes(self, request: SendRequest) -> bool:
        """Return whether a call has large frames, each for another mailbox, and nothing else."""
        writes = request.writes
        if not self._able or not self._link.transacts or request.conclusion is not None:
            return False
        return all(map(_is_large, writes)) and len({write.mailbox for write in writes}) == len(writes)

    async def write(self, writes: Sequence[FrameWrite], keys: Sequence[str], head: Sequence[Any]) -> list[int] | None:
        """Write frames, all or none; return what send would reply, or None where it must be asked.

        Args: keys and head are those of send, up to the first write. Raises: as `RedisLink.transaction`.
        """
        asked = [field for write in writes for field in (write.mailbox, write.seq, write.rows, len(write.frame), -1, 0)]
        open_, close = (self._link.script_command("large_frames", keys, [*head[:5], how, *asked]) for how in _HOW)
        adds = [
            LargeCommand(("XADD", self._keys.open_stream(write.mailbox), "NOMKSTREAM", "*", "f", write.frame), [5])
            for write in writes
        ]
        replies = await self._link.transaction([open_, *adds, close])
        if replies is None:
            return None
        opened, *entries, closed = replies
        if all(isinstance(entry, bytes) for entry in entries):
            if closed != _DONE:  # their messages are there all the same
                logger.warning(
                    "the server cannot tell the id of a mailbox's last entry, please report this: %s", closed
                )
                self._able = False
            return [0, *[0] * len(writes), -1]
        failed = isinstance(opened, Exception) and not isinstance(opened, NoScriptError)
        self._able = opened != _NO_RIGHT and not failed
        return None


def _is_large(write: FrameWrite) -> bool:
    return (
        len(write.frame) >= LEAST_BYTES and write.noted is None and not write.publish and write.mailbox not in {"", LOG}
    )
