"""MQTT: the transport, and AgentSociety's Messager; needs the extra: pip install 'ray-messaging[mqtt]'.

The names load on first use, so that a program with the transport alone does not load the Messager.
"""

import logging
from typing import TYPE_CHECKING, Any

from ray_messaging.common.lazy_names import resolve
from ray_messaging.config import MqttConfig

if TYPE_CHECKING:
    from ray_messaging.mqtt.messager.deliveries import Deliveries, Delivery
    from ray_messaging.mqtt.messager.mqtt_messager import Messager

__all__ = ["Deliveries", "Delivery", "Messager", "MqttConfig"]

# AgentSociety's module offers the logger of its messager under this name. It is the parent of all our loggers.
logger = logging.getLogger("ray_messaging")

_ON_FIRST_USE = {
    "Deliveries": "ray_messaging.mqtt.messager.deliveries",
    "Delivery": "ray_messaging.mqtt.messager.deliveries",
    "Messager": "ray_messaging.mqtt.messager.mqtt_messager",
}


def __getattr__(name: str) -> Any:  # noqa: ANN401 - a module's
    return resolve(__name__, _ON_FIRST_USE, name)
