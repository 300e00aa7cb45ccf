"""Frames with a right checksum whose content no sender writes."""

from struct import pack
from zlib import crc32

import msgspec

from ray_messaging.wire.frames import VERSION, Header


def sealed(body, header_length, version=VERSION):
    """Build a frame with a right checksum from any content."""
    return pack("<2sBxII", b"RM", version, crc32(body), header_length) + body


def rewritten(frame, change):
    """Return a frame with some fields of its header changed, by name; typed columns stay at multiples of 8 bytes."""
    length = int.from_bytes(frame[8:12], "little")
    fields = msgspec.msgpack.decode(frame[12 : 12 + length])
    for name, value in change.items():
        fields[Header.__struct_fields__.index(name)] = value
    header = msgspec.msgpack.encode(fields)
    header = msgspec.msgpack.encode([*fields, "x" * ((length - len(header) - 1) % 8)])
    return sealed(header + frame[12 + length :], len(header))
