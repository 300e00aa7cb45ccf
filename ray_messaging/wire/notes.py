"""Notes that the server stores: notes about frames, for the event log, and notes about the service of a mailbox."""

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
    """The payload (`line`) that some rows (uint32, little endian) had before a rule rewrote them."""

    rows: bytes
    line: bytes


def why_of(reasons: Iterable[tuple[str, str] | None]) -> tuple[RuleNote, ...]:
    """Group rows by rule and reason.

    Args: `reasons` has, for each row, the rule that blocked or rewrote it and the reason, or None if no rule did so.
    """
    found: defaultdict[tuple[str, str], list[int]] = defaultdict(list)
    for row, why in enumerate(reasons):
        if why is not None:
            found[why].append(row)
    return tuple(RuleNote(rule, reason, np.array(rows, "<u4").tobytes()) for (rule, reason), rows in found.items())


def before_of(lines: Mapping[int, bytes]) -> tuple[Before, ...]:
    """Group rows by the payloads that they had before a rule rewrote them.

    Args: `lines` has the former payload of each of these rows.
    """
    found: defaultdict[bytes, list[int]] = defaultdict(list)
    for row, line in lines.items():
        found[line].append(row)
    return tuple(Before(np.array(rows, "<u4").tobytes(), line) for line, rows in found.items())


class LogNote(msgspec.Struct, array_like=True, frozen=True):
    """A note for the event log about the fate of a frame's rows.

    `fate` is an index into `fates.FATES`, for all rows. If it is PUBLISHED, a row with subscribers is published, and a
    row without subscribers is undeliverable; only the server knows which rows have any. If it is DELIVERED, `mailbox`
    is the mailbox that has the rows. `why` has the rows that rules blocked or rewrote, and `before` the payloads of
    rows before a rewrite. If the note has only some rows of a mailbox's frame, `places` has each row's place in that
    frame (uint32, little endian).
    """

    fate: int
    mailbox: str = ""
    why: tuple[RuleNote, ...] = ()
    before: tuple[Before, ...] = ()
    places: bytes = b""


encode_log_note = msgspec.msgpack.Encoder().encode
_decode_log_note = msgspec.msgpack.Decoder(LogNote).decode


def decode_log_note(data: bytes, rows: int) -> LogNote:
    """Decode the note about a frame that has `rows` rows; raise FrameError if the note is invalid."""
    try:
        note = _decode_log_note(data)
        packed = [*(why.rows for why in note.why), *(before.rows for before in note.before)]
        named = [np.frombuffer(part, "<u4") for part in packed]
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise FrameError(
            f"the server's note for the event log cannot be read ({error}): use one version of ray_messaging in all "
            "processes"
        ) from error
    if len(note.places) not in {0, 4 * rows}:
        raise FrameError(
            "the server's note for the event log is damaged, because it does not have one place for each row of its "
            "frame: please report this"
        )
    if not 0 <= note.fate < len(FATES) or any(len(part) and int(part.max()) >= rows for part in named):
        raise FrameError(
            "the server's note for the event log is damaged, because it has an unknown fate, or names rows that its "
            "frame does not have: please report this"
        )
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
    """A note about the handlers of a mailbox. `ended` says why they have stopped ("": they have not stopped).

    If all handlers wait for answers to questions of their own, so that none can begin another message, `slots` has all
    handlers. Otherwise `slots` is empty.
    """

    ended: str = ""
    slots: tuple[Slot, ...] = ()


_decode_service_note = msgspec.msgpack.Decoder(ServiceNote).decode


def encode_service_note(note: ServiceNote) -> bytes:
    """Encode a note. A note without any content becomes b""."""
    return msgspec.msgpack.encode(note) if note.ended or note.slots else b""


def decode_service_note(data: bytes) -> ServiceNote:
    """Decode a note. Return an empty note for bytes that another program has written and that cannot be decoded."""
    try:
        return _decode_service_note(data) if data else ServiceNote()
    except (msgspec.MsgspecError, RecursionError):
        return ServiceNote()
