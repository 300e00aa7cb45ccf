"""Notes that the server stores: about a frame, for the event log, and about the service of a mailbox."""

from collections import defaultdict
from collections.abc import Iterable, Mapping

import msgspec
import numpy as np

from ray_messaging.addressing.channels import AgentId
from ray_messaging.errors import FrameError
from ray_messaging.model.fates import FATES


class RuleNote(msgspec.Struct, array_like=True, frozen=True):
    """The rows (uint32, little endian) that one rule blocked or rewrote, and the rule's reason."""

    rule: str
    reason: str
    rows: bytes


class Before(msgspec.Struct, array_like=True, frozen=True):
    """The payload (`line`) that some rows (uint32, little endian) had before a rule rewrote it."""

    rows: bytes
    line: bytes


def why_of(reasons: Iterable[tuple[str, str] | None]) -> tuple[RuleNote, ...]:
    """Group rows by rule and reason; `reasons` has both for each row (None: no rule blocked or rewrote the row)."""
    found: defaultdict[tuple[str, str], list[int]] = defaultdict(list)
    for row, why in enumerate(reasons):
        if why is not None:
            found[why].append(row)
    return tuple(RuleNote(rule, reason, np.array(rows, "<u4").tobytes()) for (rule, reason), rows in found.items())


def before_of(lines: Mapping[int, bytes]) -> tuple[Before, ...]:
    """Group rows by their payload before a rewrite."""
    found: defaultdict[bytes, list[int]] = defaultdict(list)
    for row, line in lines.items():
        found[line].append(row)
    return tuple(Before(np.array(rows, "<u4").tobytes(), line) for line, rows in found.items())


class LogNote(msgspec.Struct, array_like=True, frozen=True):
    """A note for the event log: the fate of a frame's rows.

    `fate` is an index into `fates.FATES`, for all rows. If it is PUBLISHED, a row with subscribers is published, and a
    row without is undeliverable; only the server knows their number. If it is DELIVERED, `mailbox` is the mailbox that
    has the rows. `why` has the rows that rules blocked or rewrote, `before` the payloads of rows before a rewrite. If
    the rows are a part of a mailbox's frame, `places` has each row's place in that frame (uint32, little endian).
    """

    fate: int
    mailbox: str = ""
    why: tuple[RuleNote, ...] = ()
    before: tuple[Before, ...] = ()
    places: bytes = b""


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
    if len(note.places) not in {0, 4 * rows}:
        raise FrameError("a note for the event log has not one place for each row")
    if not 0 <= note.fate < len(FATES) or any(len(part) and int(part.max()) >= rows for part in named):
        raise FrameError("a note for the event log names rows that are not there")
    return note


class Ask(msgspec.Struct, array_like=True, frozen=True):
    """A question for whose answer a handler waits: its id, who asks, who is asked, and the asked agent's mailboxes."""

    question: str
    from_id: AgentId | None
    to_id: AgentId | None
    mailboxes: tuple[str, ...]


class Slot(msgspec.Struct, array_like=True, frozen=True):
    """A handler that waits for answers: the message that it handles, and its questions."""

    message: str
    asks: tuple[Ask, ...]


class ServiceNote(msgspec.Struct, array_like=True, frozen=True):
    """A note about the service of a mailbox. `ended` says why the service has ended ("": it has not ended).

    If all handlers of the service wait for answers, so that it cannot begin another message, `slots` has all handlers;
    otherwise `slots` is empty.
    """

    ended: str = ""
    slots: tuple[Slot, ...] = ()


_decode_service_note = msgspec.msgpack.Decoder(ServiceNote).decode


def encode_service_note(note: ServiceNote) -> bytes:
    """Encode a note; a note without any content is b""."""
    return msgspec.msgpack.encode(note) if note.ended or note.slots else b""


def decode_service_note(data: bytes) -> ServiceNote:
    """Decode a note. Bytes that cannot be decoded come from another program; return an empty note for them."""
    try:
        return _decode_service_note(data) if data else ServiceNote()
    except (msgspec.MsgspecError, RecursionError):
        return ServiceNote()
