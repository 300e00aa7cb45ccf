"""Notes on the server: for the event log about a frame, and about the service of a mailbox."""

import msgspec
import numpy as np

from ray_messaging.errors import FrameError


class Why(msgspec.Struct, array_like=True, frozen=True):
    """The rows (uint32, little endian) that one rule blocked or rewrote, and its reason."""

    rule: str
    reason: str
    rows: bytes


class Before(msgspec.Struct, array_like=True, frozen=True):
    """The payload of some rows (uint32, little endian) before a rewrite."""

    rows: bytes
    line: bytes


class LogNote(msgspec.Struct, array_like=True, frozen=True):
    """The fate of a frame's rows.

    `fate` is an index into `receipt.FATES`, for all rows. If it is PUBLISHED, each row's number of subscribers, which
    only the server knows, decides (0: undeliverable). If it is DELIVERED, `mailbox` has the rows.
    `before` has the payloads before a rewrite.
    """

    fate: int
    mailbox: str = ""
    why: tuple[Why, ...] = ()
    before: tuple[Before, ...] = ()


encode_log_note = msgspec.msgpack.Encoder().encode
_decode_log_note = msgspec.msgpack.Decoder(LogNote).decode


def decode_log_note(data: bytes, rows: int) -> LogNote:
    """Decode the note of a frame with this number of rows; raise FrameError if it is invalid."""
    try:
        note = _decode_log_note(data)
        packed = [*(why.rows for why in note.why), *(before.rows for before in note.before)]
        named = [np.frombuffer(part, "<u4") for part in packed]
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise FrameError(f"a note for the event log cannot be read: {error}") from error
    if not 0 <= note.fate <= 3 or any(len(part) and int(part.max()) >= rows for part in named):
        raise FrameError("a note for the event log names rows that are not there")
    return note


def ended_of(data: bytes) -> str:
    """Return why a service has ended, by its note on the server, or "" if it has not."""
    return data.decode(errors="replace")  # another program may have written anything
