"""Notes that senders write to the event log beside frames: verdicts, and payloads before a rewrite.

A sender writes a note for messages that are in no mailbox's stream: blocked, published, undeliverable. It writes one
for rewritten messages too. Their frame in the mailbox marks them (see `Batch.noted`), and the log takes them from the
note.
"""

import msgspec
import numpy as np

from ray_messaging.errors import FrameError


class Why(msgspec.Struct, array_like=True, frozen=True):
    """The rows (uint32, little endian) that one rule judged, and its reason."""

    rule: str
    reason: str
    rows: bytes


class Before(msgspec.Struct, array_like=True, frozen=True):
    """The payload of some rows (uint32, little endian) before a rewrite."""

    rows: bytes
    line: bytes


class LogNote(msgspec.Struct, array_like=True, frozen=True):
    """The fate of a frame's rows.

    `fate` is an index into `receipt.FATES`, for all rows. With PUBLISHED each row's subscriber count, known only to the
    server, decides (0: undeliverable). `mailbox` has the rows where the fate is DELIVERED.
    `before` holds payloads before a rewrite.
    """

    fate: int
    mailbox: str = ""
    why: tuple[Why, ...] = ()
    before: tuple[Before, ...] = ()


encode_log_note = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(LogNote).decode


def decode_log_note(data: bytes, rows: int) -> LogNote:
    """Decode the note of a frame with this number of rows; raise FrameError."""
    try:
        note = _decode(data)
        packed = [*(why.rows for why in note.why), *(before.rows for before in note.before)]
        named = [np.frombuffer(part, "<u4") for part in packed]
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise FrameError(f"a note for the event log cannot be read: {error}") from error
    if not 0 <= note.fate <= 3 or any(len(part) and int(part.max()) >= rows for part in named):
        raise FrameError("a note for the event log names rows that are not there")
    return note
