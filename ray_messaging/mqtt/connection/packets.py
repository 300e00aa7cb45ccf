"""Parts of MQTT packets: arrivals, properties, the will, session options."""

from collections.abc import Callable, Iterable
from dataclasses import KW_ONLY, dataclass

from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from ray_messaging.mqtt.wire.properties import UserProperties

UNLIMITED = 65535  # the highest Receive Maximum
ENVELOPE_BYTES = 1024  # at most, of a packet beside a frame or a page: topic, head, data header
_EXPIRY, _USER_PROPERTY = b"\x02", b"\x26"
_CONTINUE = 0x80
_MAX_TEXT = 65535
_MAX_REASON = 500


@dataclass(frozen=True)
class SessionOptions:
    """Session that a client asks the broker for; `expiry_s` 0 ends the session with its connection.

    `will` is a topic whose retained message the broker removes when the connection ends without DISCONNECT.
    """

    client_id: str
    expiry_s: int = 0
    receive_maximum: int = UNLIMITED
    will: str | None = None
    will_delay_s: int = 0

    def connect_properties(self) -> Properties:
        """Return the properties of CONNECT."""
        properties = Properties(PacketTypes.CONNECT)
        properties.SessionExpiryInterval = self.expiry_s
        properties.ReceiveMaximum = self.receive_maximum
        return properties

    def will_properties(self) -> Properties:
        """Return the properties of the will."""
        properties = Properties(PacketTypes.WILLMESSAGE)
        properties.WillDelayInterval = self.will_delay_s
        return properties

    def disconnect_properties(self, *, end_session: bool) -> Properties:
        """Return the properties of DISCONNECT."""
        properties = Properties(PacketTypes.DISCONNECT)
        if end_session and self.expiry_s:  # without an expiry at CONNECT, MQTT allows none here
            properties.SessionExpiryInterval = 0
        return properties


@dataclass(slots=True, eq=False)
class Arrival:
    """Publication that the broker sent us.

    The broker keeps it (QoS 1) until `acknowledge`, and sends it again over the session's next connection.
    """

    topic: str
    payload: bytes
    properties: UserProperties
    _: KW_ONLY
    qos: int
    retain: bool  # the broker had it before we subscribed
    duplicate: bool  # sent before, over an earlier connection
    over: Callable[[], bool]  # whether its connection has ended; if unacknowledged, it comes again over the next one
    puback: Callable[[], object] | None

    def acknowledge(self) -> None:
        """Let the broker drop it; no effect the second time, at QoS 0, or after its connection has ended.

        MQTT wants acknowledgements in the order of arrival; Mosquitto takes them in any order.
        """
        puback, self.puback = self.puback, None
        if puback is not None and self.qos and not self.over():
            puback()


class PackedProperties:
    """Encoded properties of a publication, with the interface that paho uses; paho's own class is slow."""

    __slots__ = ("_packed",)

    def __init__(self, pairs: Iterable[tuple[str, str]], expiry_s: int | None = None) -> None:
        expiry = b"" if expiry_s is None else _EXPIRY + expiry_s.to_bytes(4, "big")
        body = expiry + b"".join(_USER_PROPERTY + _text(key) + _text(value) for key, value in pairs)
        self._packed = _length(len(body)) + body

    def pack(self) -> bytes:
        """Return the properties of a PUBLISH packet."""
        return self._packed

    def __len__(self) -> int:
        return len(self._packed)


def packet_size(topic: int, payload: int, properties: int) -> int:
    """Return the size of a PUBLISH packet of QoS 1 from the sizes of its parts."""
    rest = 2 + topic + 2 + properties + payload
    return 1 + len(_length(rest)) + rest


def printable(error: object) -> str:
    """Return an error's text for logs and user properties: cut, and without unprintable characters."""
    text = str(error)
    cut = text if len(text) <= _MAX_REASON else text[:_MAX_REASON] + "..."
    return "".join(sign if sign.isprintable() else "?" for sign in cut)


def _text(text: str) -> bytes:
    data = text.encode()
    if len(data) > _MAX_TEXT:
        raise ValueError(f"a user property of {len(data)} bytes: MQTT takes {_MAX_TEXT} for a key or a value")
    return len(data).to_bytes(2, "big") + data


def _length(number: int) -> bytes:
    out = bytearray()
    while number >= _CONTINUE:
        out.append(number % _CONTINUE | _CONTINUE)
        number //= _CONTINUE
    out.append(number)
    return bytes(out)
