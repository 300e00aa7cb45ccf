"""What goes over an MQTT connection: the arrivals, the will, the user properties."""

from collections.abc import Callable, Iterable
from typing import NamedTuple

UserProperties = tuple[tuple[str, str], ...]

_EXPIRY, _USER_PROPERTY = b"\x02", b"\x26"
_MORE = 0x80
_LONGEST_TEXT = 65535
_REASON_LENGTH = 500


class Will(NamedTuple):
    """Say what the broker publishes for us when the connection ends without a farewell."""

    topic: str
    payload: bytes
    qos: int = 1
    retain: bool = False
    properties: UserProperties = ()


class Arrival:
    """Be a publication that came to us.

    Until `acknowledge` is called the broker keeps it (QoS 1), and sends it again over the session's next connection.
    """

    __slots__ = ("_acknowledge", "_over", "duplicate", "payload", "properties", "qos", "retain", "topic")

    def __init__(
        self,
        topic: str,
        payload: bytes,
        properties: UserProperties,
        *,
        qos: int,
        retain: bool,
        duplicate: bool,
        acknowledge: Callable[[], object],
        over: Callable[[], bool],
    ) -> None:
        self.topic = topic
        self.payload = payload
        self.properties = properties
        self.qos = qos
        self.retain = retain  # kept by the broker from before we subscribed
        self.duplicate = duplicate  # sent before, over an earlier connection
        self._acknowledge: Callable[[], object] | None = acknowledge
        self._over = over

    @property
    def over(self) -> bool:
        """Tell whether its connection has ended; if it is not acknowledged, it comes again over the next one."""
        return self._over()

    def acknowledge(self) -> None:
        """Let the broker forget it; does nothing the second time, at QoS 0, or when its connection has ended.

        MQTT wants acknowledgements in the order of arrival; Mosquitto also takes them in any other.
        """
        acknowledge, self._acknowledge = self._acknowledge, None
        if acknowledge is not None and self.qos and not self._over():
            acknowledge()


class PackedProperties:
    """Hold the properties of a publication as bytes, in the shape that paho asks of its Properties, which are slow."""

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
    """Return the bytes of a PUBLISH packet of QoS 1, of the bytes of its parts."""
    rest = 2 + topic + 2 + properties + payload
    return 1 + len(_length(rest)) + rest


def as_reason(error: object) -> str:
    """Return an error's text as logs and user properties take it, whatever of a stranger's bytes it quotes."""
    text = str(error)
    cut = text if len(text) <= _REASON_LENGTH else text[:_REASON_LENGTH] + "..."
    return "".join(sign if sign.isprintable() else "?" for sign in cut)


def _text(text: str) -> bytes:
    data = text.encode()
    if len(data) > _LONGEST_TEXT:
        raise ValueError(f"a user property of {len(data)} bytes: MQTT takes {_LONGEST_TEXT} for a key or a value")
    return len(data).to_bytes(2, "big") + data


def _length(number: int) -> bytes:
    out = bytearray()
    while number >= _MORE:
        out.append(number % _MORE | _MORE)
        number //= _MORE
    out.append(number)
    return bytes(out)
