"""Topic filters, checked and cut into packets."""

from collections.abc import Iterator, Sequence

import paho.mqtt.client as paho

from ray_messaging.errors import InvalidAddress

_FILTERS_PER_PACKET = 200
_BYTES_PER_PACKET = 64 * 1024
_FILTER_BYTES, _HEAD_BYTES = 3, 8  # MQTT's own, of each filter and of the packet


def chunks(filters: Sequence[str], maximum_packet: int | None) -> Iterator[list[str]]:
    """Cut filters into packets that a broker takes; raise InvalidAddress for one that is none."""
    limit = min(_BYTES_PER_PACKET, maximum_packet or _BYTES_PER_PACKET) - _HEAD_BYTES
    chunk: list[str] = []
    size = 0
    for filter_ in filters:
        cost = _FILTER_BYTES + len(_checked(filter_))
        if chunk and (len(chunk) == _FILTERS_PER_PACKET or size + cost > limit):
            yield chunk
            chunk, size = [], 0
        chunk.append(filter_)
        size += cost
    if chunk:
        yield chunk


def _checked(filter_: str) -> bytes:
    try:
        data = filter_.encode()
    except UnicodeEncodeError:
        data = b""
    if b"\0" in data or paho.Client._filter_wildcard_len_check(data):
        raise InvalidAddress(
            f"cannot subscribe to {filter_!r}: + stands alone between slashes, # alone at the end; 1 to 65535 bytes of "
            "UTF-8 without NUL",
            value=filter_,
        )
    return data
