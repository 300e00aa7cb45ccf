"""Wire format of the messages between messagers on a broker.

Each message is: b"RM", a letter for its kind, version u8, then a msgpack array that only ever grows at its end. A data
message is: b"RM", b"D", version u8, header length u16 (little endian), the header as such an array, the frame. Each
`decode_...` raises FrameError for invalid bytes.
"""

from collections.abc import Mapping
from enum import IntEnum
from struct import Struct as Packer
from typing import NamedTuple, TypeVar

import msgspec
from msgspec.structs import replace

from ray_messaging.addressing.channels import check_name
from ray_messaging.common.limits import FRAME_LIMIT
from ray_messaging.errors import FrameError, InvalidAddress

VERSION = 1
_ENVELOPE = Packer("<4sH")
_DATA, _SIGNAL, _ENTRY, _POSITIONS = (b"RM" + kind + bytes([VERSION]) for kind in (b"D", b"S", b"C", b"P"))
_HIGHEST = 2**63 - 1

T = TypeVar("T")


class Data(NamedTuple):
    """Frame for a mailbox, numbered by its sender's window.

    `base` is the lowest seq that the sender still keeps; all below is settled. `after` is the seq of the frame before
    this one: nothing between them will ever come. Without a frame it is a probe: nothing was sent from `seq` on, and
    the receiver answers which frames it lacks or has.
    """

    sender: str
    epoch: int
    seq: int
    base: int
    after: int
    frame: bytes


class SignalKind(IntEnum):
    """Meaning of a receiver's signal."""

    CONFIRM = 0  # all frames up to seq are handled
    RESEND = 1  # send again from seq on
    HELD = 2  # all frames up to seq have come, handled or not


class Signal(msgspec.Struct, array_like=True, frozen=True):
    """Message of a mailbox's receiver to a sender, under that sender's epoch."""

    kind: int  # a SignalKind
    mailbox: str
    epoch: int
    seq: int


class DirectoryEntry(msgspec.Struct, array_like=True, frozen=True):
    """A mailbox's entry in the directory, which the broker retains.

    `record` is the directory's (see `directory.encode_record`), `epoch` the reader's; `messages` and `nbytes` are the
    mailbox's limits. A `pending` entry is a claim that is not settled. A new `stamp` asks senders for all frames that
    they keep. `reader` is random, one per process.
    """

    record: bytes
    epoch: int
    owner: str
    pending: bool
    messages: int
    nbytes: int
    stamp: str
    reader: str
    number: int = 0  # counts this reader's entries: a restarted broker may come back with an old one
    leased: bool = True  # ends with its reader's lease; else it stays until it is removed


class Position(msgspec.Struct, array_like=True, frozen=True):
    """How far a sender's frames were handled: `row` rows of a frame, or all of it if row is 0."""

    epoch: int
    seq: int
    row: int

    @property
    def rank(self) -> tuple[int, int, float]:
        """Return a key that orders the positions of one sender."""
        return self.epoch, self.seq, self.row or float("inf")

    @property
    def whole(self) -> int:
        """Return the seq of the last frame that was handled whole."""
        return self.seq - (self.row > 0)


class _Header(msgspec.Struct, array_like=True, frozen=True):
    sender: str
    epoch: int
    seq: int
    base: int
    after: int


_encode = msgspec.msgpack.Encoder().encode
_header_of = msgspec.msgpack.Decoder(_Header)
_signal_of = msgspec.msgpack.Decoder(Signal)
_entry_of = msgspec.msgpack.Decoder(DirectoryEntry)
_positions_of = msgspec.msgpack.Decoder(dict[str, Position])


def _check(ok: object, problem: str) -> None:
    if not ok:
        raise FrameError(
            f"this was not published by this library: {problem}; drop it, and find out which client publishes below "
            "ray_messaging/"
        )


def _check_names(*names: str) -> None:
    """Raise FrameError if a name cannot be one level of a topic."""
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
    """Encode a data message."""
    header = _encode(data[:-1])
    return b"".join((_ENVELOPE.pack(_DATA, len(header)), header, data.frame))


def decode_data(data: bytes) -> Data:
    """Decode a data message; the frame in it is not checked."""
    _body(_DATA, data)
    _check(_ENVELOPE.size <= len(data) <= _ENVELOPE.size + 0xFFFF + FRAME_LIMIT, f"its size is {len(data)} bytes")
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
    """Decode a signal."""
    signal = _read(_signal_of, _body(_SIGNAL, data))
    _check_names(signal.mailbox)
    _check_numbers(signal.epoch, signal.seq)
    _check(signal.kind in SignalKind._value2member_map_, f"it is of an unknown kind, {signal.kind}")
    return replace(signal, kind=SignalKind(signal.kind))


def encode_entry(entry: DirectoryEntry) -> bytes:
    """Encode a directory entry."""
    return _ENTRY + _encode(entry)


def decode_entry(data: bytes) -> DirectoryEntry:
    """Decode a directory entry; its record is not checked."""
    entry = _read(_entry_of, _body(_ENTRY, data))
    _check_numbers(entry.epoch, entry.messages, entry.nbytes, entry.number)
    return entry


def encode_positions(positions: Mapping[str, Position]) -> bytes:
    """Encode a mailbox's position for each sender."""
    return _POSITIONS + _encode(positions)


def decode_positions(data: bytes) -> dict[str, Position]:
    """Decode a mailbox's position for each sender."""
    positions = _read(_positions_of, _body(_POSITIONS, data))
    _check_names(*positions)
    for position in positions.values():
        _check_numbers(position.epoch, position.seq, position.row)
    return positions
