"""One reply of the replies of several shards to one call of `send`.

The sender learns of a refused call (a directory that is old, a successor) by one status for all frames. So where some
frames are written, or could be, and a shard refuses the others, these are HELD_BACK: the sender repeats them at once,
in a call of their own, and learns the reason.
"""

from collections.abc import Sequence
from typing import NamedTuple

from ray_messaging.errors import Closed, ConnectionFailed, MailboxFull, MessagingError
from ray_messaging.transports.transport import FrameFate, SendReply, SendStatus

SETTLED = (FrameFate.WRITTEN, FrameFate.DUPLICATE)
# The status that counts where no shard has taken a frame.
_WORST = (
    SendStatus.FENCED,
    SendStatus.LOST,
    SendStatus.RESTORED,
    SendStatus.STALE_DIRECTORY,
    SendStatus.STALE_VERDICTS,
    SendStatus.UNJUDGED,
)


class ShardOutcome(NamedTuple):
    """Outcome of a call at one shard; `places` are those of its frames in the whole call."""

    places: Sequence[int]
    outcome: SendReply | MessagingError


def worst_status(replies: Sequence[SendReply]) -> SendStatus:
    """Return the status that counts where no shard has taken a frame; OK where each would."""
    return min(
        (reply.status for reply in replies if reply.status is not SendStatus.OK),
        key=_WORST.index,
        default=SendStatus.OK,
    )


def merged(parts: Sequence[ShardOutcome], frames: int) -> tuple[SendReply, MessagingError | None]:
    """Return the reply to a whole call, and the error by which the frames that it holds back have failed.

    Raises: that error where no shard has taken a frame.
    """
    replies = [(places, found) for places, found in parts if isinstance(found, SendReply)]
    errors = [found for _, found in parts if isinstance(found, MessagingError)]
    fates = [FrameFate.HELD_BACK] * frames
    takers: list[int] = []
    settled = repeated = False
    for places, reply in replies:
        takers = takers or reply.takers
        for place, fate in zip(places, reply.fates, strict=False):  # a fenced call has no fates
            if fate in SETTLED or reply.status is SendStatus.OK:
                fates[place] = fate
                settled |= fate in SETTLED
        repeated |= reply.repeated and any(fates[place] not in SETTLED for place in places)
    if errors:
        error = _worst_of(errors, repeated=repeated)
        if not settled:
            raise error
        return SendReply(SendStatus.OK, fates, takers, repeated=True), error
    status = SendStatus.OK
    if not settled and all(reply.status is not SendStatus.OK for _, reply in replies):
        status = worst_status([reply for _, reply in replies])
    return SendReply(status, fates, takers, repeated), None


def _worst_of(errors: Sequence[MessagingError], *, repeated: bool) -> MessagingError:
    """Return the error that promises least about the frames: one after which they may be written, if there is one."""
    for error in errors:
        if not _is_definite(error):
            return error
    error = errors[0]
    if not repeated:
        return error
    unknown = ConnectionFailed(str(error), host=getattr(error, "host", ""), port=getattr(error, "port", 0))
    unknown.__cause__ = error
    return unknown


def _is_definite(error: MessagingError) -> bool:
    """Return whether nothing of a call was written, nor can be."""
    return error.unsent if isinstance(error, ConnectionFailed | Closed) else isinstance(error, MailboxFull)
