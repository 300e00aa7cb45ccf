"""The publications of one connection: at most so many under way as the broker takes, the rest in order behind them."""

import asyncio
from collections import deque
from typing import NamedTuple

import paho.mqtt.client as paho

from ray_messaging.config import MqttConfig
from ray_messaging.errors import InvalidAddress, PayloadTooLarge
from ray_messaging.mqtt.connection import reasons
from ray_messaging.mqtt.connection.packets import PackedProperties, UserProperties, packet_size

_LARGEST_WINDOW = 1000  # more under way gains nothing, and paho reads as many packets in one go
_LARGEST_MID = 65535
_LONGEST_TOPIC = 65535
_NO_PROPERTIES = PackedProperties(())


class _Turn(NamedTuple):
    topic: bytes
    payload: bytes
    qos: int
    retain: bool
    properties: PackedProperties
    confirmed: "asyncio.Future[int]"


class Publishing:
    """Write publications by paho, and keep a future for each.

    paho's own account of them searches all that wait whenever one is answered, uses packet ids up for what waits, and
    cuts the connection at a PUBACK whose code is not in its table, such as Mosquitto's for a payload above its limit.
    """

    def __init__(self, client: paho.Client, config: MqttConfig) -> None:
        self._client = client
        self._config = config
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[_Turn] = deque()
        self._under_way: dict[int, asyncio.Future[int]] = {}
        self._window = 0
        self._maximum_packet: int | None = None

    def start(self, receive_maximum: int, maximum_packet: int | None) -> None:
        """Begin, with what the broker takes: publications at a time, and bytes of a packet."""
        self._window = min(receive_maximum, _LARGEST_WINDOW)
        self._maximum_packet = maximum_packet
        self._move()

    def add(
        self, topic: str, payload: bytes, *, qos: int, retain: bool, properties: UserProperties, expiry_s: int | None
    ) -> "asyncio.Future[int]":
        """Publish in the order of the calls; the future gives the code of PUBACK (QoS 0: 0 when written).

        What waits is not bounded here. A future that is cancelled while it waits is not sent.
        Raises: InvalidAddress, PayloadTooLarge.
        """
        plain = not properties and expiry_s is None
        packed = _NO_PROPERTIES if plain else PackedProperties(properties, expiry_s)
        data = self._checked(topic, payload, packed)
        confirmed: asyncio.Future[int] = self._loop.create_future()
        self._waiting.append(_Turn(data, payload, qos, retain, packed, confirmed))
        self._move()
        return confirmed

    def confirm(self, mid: int, code: int) -> None:
        """Take an answer of the broker."""
        confirmed = self._under_way.pop(mid, None)
        if confirmed is not None and not confirmed.done():
            confirmed.set_result(code)
        self._move()

    def fail(self, error: Exception) -> None:
        """End all of them, and send nothing any more."""
        self._window = 0
        ended = [*self._under_way.values(), *(turn.confirmed for turn in self._waiting)]
        self._under_way.clear()
        self._waiting.clear()
        for confirmed in ended:
            if not confirmed.done():
                confirmed.set_exception(error)
                confirmed.exception()  # who has let go of it needs no line in asyncio's log

    def _checked(self, topic: str, payload: bytes, properties: PackedProperties) -> bytes:
        # When its turn has come there is nobody left to tell, and a broker answers by cutting the connection.
        try:
            data = topic.encode()
        except UnicodeEncodeError:
            data = b""
        if not 0 < len(data) <= _LONGEST_TOPIC or any(sign in topic for sign in "+#\0"):
            raise InvalidAddress(
                f"cannot publish to {topic!r}: a topic is UTF-8 of 1 to {_LONGEST_TOPIC} bytes, without + # and NUL",
                value=topic,
            )
        size, limit = packet_size(len(data), len(payload), len(properties)), self._maximum_packet
        if limit is not None and size > limit:
            raise PayloadTooLarge(
                f"a publication of {size} bytes is above the limit of the MQTT broker at "
                f"{reasons.where(self._config)}, {limit} bytes: send smaller payloads or raise its limit",
                size=size,
                limit=limit,
            )
        return data

    def _move(self) -> None:
        while self._waiting and len(self._under_way) < self._window:
            turn = self._waiting.popleft()
            if not turn.confirmed.done():
                self._put(turn)

    def _put(self, turn: _Turn) -> None:
        # Packet ids go round; one that has not been answered since the last round is taken.
        mid = self._client._mid_generate()
        while mid in self._under_way:
            mid = self._client._mid_generate()
        self._under_way[mid] = turn.confirmed
        # paho wants nothing of properties but `pack`, and of `info` that it is there.
        self._client._send_publish(
            mid,
            turn.topic,
            turn.payload,
            turn.qos,
            turn.retain,
            info=paho.MQTTMessageInfo(mid),
            properties=turn.properties,  # type: ignore[arg-type]
        )
