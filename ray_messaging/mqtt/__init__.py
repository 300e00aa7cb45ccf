"""AgentSociety's Messager on MQTT; needs the extra: pip install 'ray-messaging[mqtt]'."""

import logging

from ray_messaging.config import MqttConfig
from ray_messaging.mqtt.messager.deliveries import Deliveries, Delivery
from ray_messaging.mqtt.messager.messager import Messager

__all__ = ["Deliveries", "Delivery", "Messager", "MqttConfig"]

# AgentSociety's module has one, by which its messager logs. All that works for ours logs below this one.
logger = logging.getLogger("ray_messaging")
