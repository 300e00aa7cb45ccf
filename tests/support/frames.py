"""Frames: as a group's handle encodes them, with content that no sender writes, and as a socket brings them."""

from struct import pack
from zlib import crc32

import msgspec

from ray_messaging.addressing.channels import parse_channel
from ray_messaging.sending.bulk_input import batches_of, batches_of_columns, columns_of
from ray_messaging.wire.frames import VERSION, Header, encode


def frames_of_columns(chunks, topic, step):
    return [encode(batch) for batch in batches_of_columns(chunks, topic, step)]


def frames_of_sends(exp_id, sends, step=None):
    """Return the frames in which another process relays some `Outgoing`."""
    return [encode(batch) for batch in batches_of(sends, lambda name: parse_channel(exp_id, name), 2**20, step)]


def relayed(from_ids, to_ids, payloads):
    """Return the frames in which another process relays messages of columns."""
    return frames_of_columns(columns_of(from_ids, to_ids, payloads, 2**20), "agent-chat", None)


def receive(protocol, data):
    """Let bytes come in pieces, as large as the buffer that a protocol gives a socket."""
    while data:
        room = protocol.get_buffer(-1)
        size = min(len(room), len(data))
        room[:size] = data[:size]
        room.release()
        protocol.buffer_updated(size)
        data = data[size:]


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
