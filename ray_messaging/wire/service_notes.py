"""Notes on the services of mailboxes, which the server keeps: that one has ended, or for whose answers it waits."""

import msgspec

from ray_messaging.addressing.channels import AgentId


class Ask(msgspec.Struct, array_like=True, frozen=True):
    """A question of a handler that waits for its answer: its id, who asks, who is asked, and their mailboxes."""

    question: str
    from_id: AgentId | None
    to_id: AgentId | None
    mailboxes: tuple[str, ...]


class Slot(msgspec.Struct, array_like=True, frozen=True):
    """A handler that waits for answers: the message that it has in hand, and its questions."""

    message: str
    asks: tuple[Ask, ...]


class ServiceNote(msgspec.Struct, array_like=True, frozen=True):
    """A note on a service. `ended` is why it has ended ("": it has not).

    `slots` are all its handlers where each one waits for an answer, so that no other message is handled before.
    """

    ended: str = ""
    slots: tuple[Slot, ...] = ()


_decode = msgspec.msgpack.Decoder(ServiceNote).decode


def encode_note(note: ServiceNote) -> bytes:
    """Encode a note; one that says nothing is b""."""
    return msgspec.msgpack.encode(note) if note.ended or note.slots else b""


def decode_note(data: bytes) -> ServiceNote:
    """Decode a note; one of another program says nothing."""
    try:
        return _decode(data) if data else ServiceNote()
    except (msgspec.MsgspecError, RecursionError):
        return ServiceNote()


def ended_of(data: bytes) -> str:
    """Return why a service has ended, by its note; "": it has not."""
    return decode_note(data).ended
