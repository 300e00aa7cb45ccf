"""A way to write large frames without the script `send`: the server copies and hashes each argument of a script.

Large frames are written by XADD in a transaction, between two calls of script `large_frames`.
"""

import logging
from collections.abc import Sequence
from typing import Any

from redis.exceptions import NoScriptError

from ray_messaging.addressing.server_keys import Keys
from ray_messaging.transports.connection.link import RedisLink
from ray_messaging.transports.transport_values import LOG, FrameWrite, SendRequest

logger = logging.getLogger(__name__)

# The least size of a large frame. A smaller frame takes less time as an argument of the script.
LEAST_BYTES = 128 * 2**10
_HOW = "open", "close"  # the argument of script large_frames in its first and in its second call
_DONE, _NO_RIGHT = 0, 2


class LargeFrames:
    """A faster way to send large frames, for calls that send nothing else.

    It is used while the server, and the rights of our user, allow it.
    """

    def __init__(self, link: RedisLink, keys: Keys) -> None:
        self._link = link
        self._keys = keys
        # Not on a cluster: the script renames a mailbox's stream for the transaction, but in a slot that is being
        # migrated no key can get a new name.
        self._able = not link.config.cluster

    def takes(self, request: SendRequest) -> bool:
        """Return whether `write` can carry out this send.

        It can if the server allows it, if all frames are large, plain (see `_is_large`) and for different mailboxes,
        and if the send does not also commit what its sender has received.
        """
        writes = request.writes
        if not self._able or not self._link.transacts or request.conclusion is not None:
            return False
        return all(map(_is_large, writes)) and len({write.mailbox for write in writes}) == len(writes)

    async def write(self, writes: Sequence[FrameWrite], keys: Sequence[str], head: Sequence[Any]) -> list[int] | None:
        """Write large frames by XADD in one transaction, all or none of them. A script would copy and hash each frame.

        Return the reply that the script `send` would give. If the server does not accept the frames in this way, write
        nothing and return None. Then the caller must use `send`.

        Args: `keys` are the keys of a call of script `send`, and `head` are its arguments before the frames.
        Raises: the errors of `RedisLink.transaction`.
        """
        asked = [field for write in writes for field in (write.mailbox, write.seq, write.rows, len(write.frame), -1, 0)]
        open_, close = (self._link.script_command("large_frames", keys, [*head[:5], how, *asked]) for how in _HOW)
        adds = [
            ("XADD", self._keys.open_stream(write.mailbox), "NOMKSTREAM", "*", "f", write.frame) for write in writes
        ]
        replies = await self._link.transaction([open_, *adds, close])
        if replies is None:
            return None
        opened, *entries, closed = replies
        if all(isinstance(entry, bytes) for entry in entries):
            if closed != _DONE:  # the frames are written, but their entry ids are not recorded
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
