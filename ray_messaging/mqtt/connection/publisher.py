"""Outgoing publications of one connection."""

import asyncio
from collections import deque
from typing import NamedTuple

from ray_messaging.config import MqttConfig
from ray_messaging.errors import PayloadTooLarge
from ray_messaging.mqtt.connection import reasons
from ray_messaging.mqtt.connection.packets import PackedProperties, packet_size
from ray_messaging.mqtt.connection.paho_client import PahoClient
from ray_messaging.mqtt.wire.properties import UserProperties

_MAX_IN_FLIGHT = 1000  # more gains nothing, and paho reads as many packets in one go
_NO_PROPERTIES = PackedProperties(())


class _Publication(NamedTuple):
    topic: bytes
    payload: bytes
    retain: bool
    properties: PackedProperties
    confirmed: "asyncio.Future[int]"


class Publisher:
    """Ordered publications with a future each; those above the broker's Receive Maximum wait."""

    def __init__(self, client: PahoClient, config: MqttConfig) -> None:
        self._client = client
        self._config = config
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[_Publication] = deque()
        self._in_flight: dict[int, asyncio.Future[int]] = {}
        self._max_in_flight = 0
        self._maximum_packet: int | None = None

    def start(self, receive_maximum: int, maximum_packet: int | None) -> None:
        """Begin to send within the broker's limits: publications in flight, and bytes of a packet."""
        self._max_in_flight = min(receive_maximum, _MAX_IN_FLIGHT)
        self._maximum_packet = maximum_packet
        self._send_waiting()

    def add(
        self, topic: str, payload: bytes, *, retain: bool, properties: UserProperties, expiry_s: int | None
    ) -> "asyncio.Future[int]":
        """Publish as `MqttLink.publish` says; raise PayloadTooLarge."""
        plain = not properties and expiry_s is None
        packed = _NO_PROPERTIES if plain else PackedProperties(properties, expiry_s)
        data = self._checked(topic, payload, packed)
        confirmed: asyncio.Future[int] = self._loop.create_future()
        self._waiting.append(_Publication(data, payload, retain, packed, confirmed))
        self._send_waiting()
        return confirmed

    def confirm(self, packet_id: int, code: int) -> None:
        """Resolve a publication with the broker's code."""
        confirmed = self._in_flight.pop(packet_id, None)
        if confirmed is not None and not confirmed.done():
            confirmed.set_result(code)
        self._send_waiting()

    def fail(self, error: Exception) -> None:
        """Fail all publications, and send nothing from here on."""
        self._max_in_flight = 0
        ended = [*self._in_flight.values(), *(publication.confirmed for publication in self._waiting)]
        self._in_flight.clear()
        self._waiting.clear()
        for confirmed in ended:
            if not confirmed.done():
                confirmed.set_exception(error)
                confirmed.exception()  # an abandoned future needs no line in asyncio's log

    def _checked(self, topic: str, payload: bytes, properties: PackedProperties) -> bytes:
        # Checked now: later there is no caller to raise to, and the broker would answer by disconnecting.
        data = topic.encode()
        size, limit = packet_size(len(data), len(payload), len(properties)), self._maximum_packet
        if limit is not None and size > limit:
            raise PayloadTooLarge(
                f"a publication of {size} bytes is above the limit of the MQTT broker at "
                f"{reasons.where(self._config)}, {limit} bytes: send smaller payloads or raise its limit",
                size=size,
                limit=limit,
            )
        return data

    def _send_waiting(self) -> None:
        while self._waiting and len(self._in_flight) < self._max_in_flight:
            publication = self._waiting.popleft()
            if not publication.confirmed.done():
                self._send(publication)

    def _send(self, publication: _Publication) -> None:
        # Packet ids go round; one that is unanswered since the last round is still in use.
        packet_id = self._client.next_packet_id()
        while packet_id in self._in_flight:
            packet_id = self._client.next_packet_id()
        self._in_flight[packet_id] = publication.confirmed
        topic, payload, retain, properties, _ = publication
        self._client.write_publication(packet_id, topic, payload, retain=retain, properties=properties)
