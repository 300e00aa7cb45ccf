"""AgentSociety's Messager on MQTT; needs the extra: pip install 'ray-messaging[mqtt]'."""

import logging

from ray_messaging.config import MqttConfig
from ray_messaging.mqtt.deliveries import Deliveries, Delivery
from ray_messaging.mqtt.messager import Messager

__all__ = ["Deliveries", "Delivery", "Messager", "MqttConfig"]

logger = logging.getLogger(__name__)  # AgentSociety's module has one: its level is that of all that is below
