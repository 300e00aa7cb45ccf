"""What the event log is told of messages beside their frame: who blocked them, what they said before a rewrite.

The sender writes a note for the messages that no mailbox's stream tells of: blocked, published, undeliverable, and
those that were rewritten (their frame in the mailbox marks them, see `Batch.noted`, as the log has them from here).
"""

import msgspec
import numpy as np

from ray_messaging.errors import FrameError


class Why(msgspec.Struct, array_like=True, frozen=True):
    """Say which rows (uint32, little endian) of the frame a rule dealt with, and for what reason."""

    rule: str
    reason: str
    rows: bytes


class Before(msgspec.Struct, array_like=True, frozen=True):
    """Say what the payload of rows (uint32, little endian) of the frame was before a rewrite."""

    rows: bytes
    line: bytes


class LogNote(msgspec.Struct, array_like=True, frozen=True):
    """Say what became of a frame's rows; append-only.

    `fate` is an index into `receipt.FATES`, for all rows; with PUBLISHED the number of takers of each row, which only
    the server knows, says whether it was (0 takers: undeliverable), unless the sender `counted` them. `mailbox` has the
    rows, where it is DELIVERED.
    `before` holds, for some rows, the payload before a rewrite.
    """

    fate: int
    mailbox: str = ""
    why: tuple[Why, ...] = ()
    before: tuple[Before, ...] = ()
    counted: bool = False


encode_log_note = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(LogNote).decode


def decode_log_note(data: bytes, rows: int) -> LogNote:
    """Decode the note of a frame of so many rows; raise FrameError."""
    try:
        note = _decode(data)
        told = [*(why.rows for why in note.why), *(said.rows for said in note.before)]
        named = [np.frombuffer(part, "<u4") for part in told]
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise FrameError(f"a note for the event log cannot be read: {error}") from error
    if not 0 <= note.fate <= 3 or any(len(part) and int(part.max()) >= rows for part in named):
        raise FrameError("a note for the event log speaks of what is not there")
    return note
