"""paho's MQTT client with the parts that we take over.

We use paho below aiomqtt. aiomqtt 2 acknowledges a message before the caller has handled it, drops or hoards messages
when its queue is full, hides the reason codes of PUBACK and DISCONNECT and the properties of CONNACK, and spends an
event and a timer on each publication. Nothing of aiomqtt is overridden.

paho 2 keeps the following parts private. No other module touches them. Check this table before a new paho is allowed.

- `_create_socket` (overridden): paho's own blocks the event loop and has no deadline.
- `_handle_pubackcomp` (overridden): paho searches all waiting messages for each PUBACK, and disconnects at a reason
  code outside its table, such as Mosquitto's for a payload above its limit.
- `_in_packet`: the PUBACK to parse there.
- `_send_publish`, `_mid_generate`: paho's `publish` takes packet ids for messages that are not sent yet.
- `_sock_close`: close without DISCONNECT, so that the broker publishes the will.
- `_send_pingreq`: probe the broker while we read nothing.
- `_ping_t`, `_last_bytes_received`: else paho disconnects because the unread answer seems to be missing.
"""

import time
from collections.abc import Callable

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode, MQTTProtocolVersion
from paho.mqtt.properties import Properties

from ray_messaging.mqtt.connection.packets import PackedProperties
from ray_messaging.mqtt.connection.reasons import Reason
from ray_messaging.mqtt.connection.sockets import BufferedSocket

_PACKET_ID_BYTES = 2


class PahoClient(paho.Client):
    """paho's client on a socket that is already open, with a callback `on_puback(packet_id, code)`."""

    on_puback: Callable[[int, int], None]

    def __init__(self, client_id: str) -> None:
        super().__init__(
            CallbackAPIVersion.VERSION2,
            client_id,
            protocol=MQTTProtocolVersion.MQTTv5,
            reconnect_on_failure=False,
            manual_ack=True,
        )
        self._open_socket: BufferedSocket | None = None

    def start(
        self, sock: BufferedSocket, host: str, port: int, keepalive_s: int, properties: Properties, *, clean_start: bool
    ) -> None:
        """Send CONNECT over an open socket."""
        self._open_socket = sock
        self.connect(host, port, keepalive_s, clean_start=clean_start, properties=properties)

    def _create_socket(self) -> BufferedSocket:
        assert self._open_socket is not None
        return self._open_socket

    def _handle_pubackcomp(self, cmd: str) -> MQTTErrorCode:  # noqa: ARG002 - paho's signature
        packet = self._in_packet["packet"]
        if len(packet) < _PACKET_ID_BYTES:
            return MQTTErrorCode.MQTT_ERR_PROTOCOL
        code = packet[_PACKET_ID_BYTES] if len(packet) > _PACKET_ID_BYTES else Reason.SUCCESS
        self.on_puback(int.from_bytes(packet[:_PACKET_ID_BYTES], "big"), code)
        return MQTTErrorCode.MQTT_ERR_SUCCESS

    def next_packet_id(self) -> int:
        """Return the next packet id; the ids go round and one may still be in use."""
        return self._mid_generate()

    def write_publication(
        self, packet_id: int, topic: bytes, payload: bytes, *, retain: bool, properties: PackedProperties
    ) -> None:
        """Write a PUBLISH packet of QoS 1."""
        # paho uses only `pack` of the properties, and only checks that `info` is there.
        info = paho.MQTTMessageInfo(packet_id)
        self._send_publish(packet_id, topic, payload, 1, retain, info=info, properties=properties)  # type: ignore[arg-type]

    def close_socket(self) -> None:
        """Close the socket without DISCONNECT."""
        self._sock_close()

    def probe(self) -> None:
        """Send PINGREQ."""
        self._send_pingreq()

    def expect_no_answer(self) -> None:
        """Take the connection for alive although nothing is read from it."""
        self._ping_t = 0.0
        self._last_bytes_received = time.monotonic()
