"""What a client says of itself when it comes and when it goes."""

from dataclasses import dataclass

import aiomqtt
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from ray_messaging.mqtt.connection.packets import Will


@dataclass(frozen=True)
class Session:
    """Say what a client wants of the broker; `expiry_s` 0: the session ends with its connection."""

    client_id: str
    expiry_s: int
    receive_maximum: int
    will: Will | None
    will_delay_s: int

    def wishes(self) -> Properties:
        """Return the properties of CONNECT."""
        properties = Properties(PacketTypes.CONNECT)
        properties.SessionExpiryInterval = self.expiry_s
        properties.ReceiveMaximum = self.receive_maximum
        return properties

    def last_will(self) -> aiomqtt.Will | None:
        """Return the will as aiomqtt wants it."""
        if self.will is None:
            return None
        properties = Properties(PacketTypes.WILLMESSAGE)
        properties.WillDelayInterval = self.will_delay_s
        if self.will.properties:
            properties.UserProperty = list(self.will.properties)
        return aiomqtt.Will(self.will.topic, self.will.payload, self.will.qos, self.will.retain, properties)

    def farewell(self, *, end_session: bool) -> Properties:
        """Return the properties of DISCONNECT."""
        properties = Properties(PacketTypes.DISCONNECT)
        if end_session and self.expiry_s:  # who had none may not name one now
            properties.SessionExpiryInterval = 0
        return properties
