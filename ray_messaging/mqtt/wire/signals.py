"""Turn what two messagers tell each other through a broker into bytes and back.

Each is: b"RM", a letter for its kind, version u8, then a msgpack array that only ever grows at its end; a frame's
envelope is: b"RM", b"D", version u8, header length u16 (little endian), the header as such an array, the frame.
Whatever is wrong with the bytes, each `decode_...` raises FrameError.
"""

from collections.abc import Mapping
from enum import IntEnum
from struct import Struct as Packer
from typing import NamedTuple, TypeVar

import msgspec

from ray_messaging.addressing.channels import check_name
from ray_messaging.common.limits import FRAME_LIMIT
from ray_messaging.errors import FrameError, InvalidAddress

VERSION = 1
_ENVELOPE = Packer("<4sH")
_DATA, _SIGNAL, _CARD, _PLACES = (b"RM" + kind + bytes([VERSION]) for kind in (b"D", b"S", b"C", b"P"))
_HIGHEST = 2**63 - 1

T = TypeVar("T")


class Data(NamedTuple):
    """A frame for a mailbox, numbered by its sender's window.

    `base` is the lowest seq that the sender still keeps: what lies below is over. `after` is the seq of the frame that
    goes before this one: none in between will ever come. Without a frame it is a probe: nothing was sent from `seq` on,
    and the receiver says what it lacks or has.
    """

    sender: str
    epoch: int
    seq: int
    base: int
    after: int
    frame: bytes


class SignalKind(IntEnum):
    """Say what a receiver tells a sender."""

    CONFIRM = 0  # all frames up to seq are handled
    RESEND = 1  # send again from seq on
    HELD = 2  # all frames up to seq have come, handled or not


class Signal(NamedTuple):
    """What the receiver behind a mailbox tells a sender, under that sender's epoch."""

    kind: SignalKind
    mailbox: str
    epoch: int
    seq: int


class Card(msgspec.Struct, array_like=True, frozen=True):
    """Who listens where; append-only, as the broker retains it.

    `record` is the directory's (see `directory.encode_record`), `epoch` the reader's, `pending` a claim that is not
    settled, `messages` and `nbytes` the mailbox's limits. A new `stamp` asks senders for all that they keep; `reader`
    is random, one per process.
    """

    record: bytes
    epoch: int
    owner: str
    pending: bool
    messages: int
    nbytes: int
    stamp: str
    reader: str
    number: int = 0  # of the cards that this reader published: a broker may come back with an old one
    leased: bool = True  # it goes when its reader does; else it stays until it is removed


class Place(NamedTuple):
    """Up to where a sender's frames were handled: `row` rows of a frame, or with row 0 all of it."""

    epoch: int
    seq: int
    row: int

    @property
    def rank(self) -> tuple[int, int, float]:
        """Order the places of one sender."""
        return self.epoch, self.seq, self.row or float("inf")


class _Header(msgspec.Struct, array_like=True, frozen=True):
    sender: str
    epoch: int
    seq: int
    base: int
    after: int


class _Signal(msgspec.Struct, array_like=True, frozen=True):
    kind: int
    mailbox: str
    epoch: int
    seq: int


class _Place(msgspec.Struct, array_like=True, frozen=True):
    epoch: int
    seq: int
    row: int


_encode = msgspec.msgpack.Encoder().encode
_header_of = msgspec.msgpack.Decoder(_Header)
_signal_of = msgspec.msgpack.Decoder(_Signal)
_card_of = msgspec.msgpack.Decoder(Card)
_places_of = msgspec.msgpack.Decoder(dict[str, _Place])


def _check(ok: object, what: str) -> None:
    if not ok:
        raise FrameError(
            f"this was not published by this library: {what}; drop it, and look at who publishes below ray_messaging/"
        )


def _check_names(*names: str) -> None:
    """Raise FrameError where a name cannot be one level of a topic."""
    try:
        for name in names:
            check_name("name", name)
    except InvalidAddress as error:
        raise FrameError(f"this was not published by this library: {error}") from error


def _check_numbers(*numbers: int) -> None:
    _check(min(numbers) >= 0 and max(numbers) <= _HIGHEST, "its numbers are impossible")


def _read(decoder: msgspec.msgpack.Decoder[T], data: bytes | memoryview) -> T:
    try:
        return decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise FrameError(f"this was not published by this library: it cannot be read ({error})") from error


def _body(prefix: bytes, data: bytes) -> memoryview:
    _check(data[: len(prefix)] == prefix, f"it begins with {data[: len(prefix)]!r} and not with {prefix!r}")
    return memoryview(data)[len(prefix) :]


def encode_data(data: Data) -> bytes:
    """Encode a frame's envelope with the frame in it."""
    header = _encode(data[:-1])
    return b"".join((_ENVELOPE.pack(_DATA, len(header)), header, data.frame))


def decode_data(data: bytes) -> Data:
    """Decode an envelope; the frame in it is not looked at. Raises FrameError."""
    _body(_DATA, data)
    _check(_ENVELOPE.size <= len(data) <= _ENVELOPE.size + 0xFFFF + FRAME_LIMIT, f"{len(data)} bytes is no size of one")
    start = _ENVELOPE.size + _ENVELOPE.unpack_from(data)[1]
    _check(start <= len(data), "its header is longer than itself")
    header = _read(_header_of, memoryview(data)[_ENVELOPE.size : start])
    _check_names(header.sender)
    _check_numbers(header.epoch, header.seq)
    _check(0 < header.base <= header.after + 1 <= header.seq, "its numbers contradict each other")
    return Data(header.sender, header.epoch, header.seq, header.base, header.after, data[start:])


def encode_signal(signal: Signal) -> bytes:
    """Encode a signal."""
    return _SIGNAL + _encode(signal)


def decode_signal(data: bytes) -> Signal:
    """Decode a signal; raises FrameError."""
    found = _read(_signal_of, _body(_SIGNAL, data))
    _check_names(found.mailbox)
    _check_numbers(found.epoch, found.seq)
    _check(found.kind in SignalKind._value2member_map_, f"it is of an unknown kind, {found.kind}")
    return Signal(SignalKind(found.kind), found.mailbox, found.epoch, found.seq)


def encode_card(card: Card) -> bytes:
    """Encode a card."""
    return _CARD + _encode(card)


def decode_card(data: bytes) -> Card:
    """Decode a card; its record is not looked at. Raises FrameError."""
    card = _read(_card_of, _body(_CARD, data))
    _check_numbers(card.epoch, card.messages, card.nbytes, card.number)
    return card


def encode_places(places: Mapping[str, Place]) -> bytes:
    """Encode where a mailbox stands with each sender."""
    return _PLACES + _encode(places)


def decode_places(data: bytes) -> dict[str, Place]:
    """Decode where a mailbox stands with each sender; raises FrameError."""
    found = _read(_places_of, _body(_PLACES, data))
    _check_names(*found)
    places: dict[str, Place] = {}
    for sender, place in found.items():
        _check_numbers(place.epoch, place.seq, place.row)
        places[sender] = Place(place.epoch, place.seq, place.row)
    return places
