"""AgentSociety's earlier Messager, which uses an MQTT broker.

Code written for `from agentsociety.message import Messager` runs with `from ray_messaging.compat.mqtt import Messager`.
It needs the extra `ray-messaging[mqtt]`. See docs/mqtt.md.
"""

import logging

from ray_messaging.compat.mqtt.mqtt_config import MqttConfig
from ray_messaging.compat.versions import needs

with needs("MQTT", "'ray-messaging[mqtt]'"):
    from ray_messaging.compat.mqtt.mqtt_messager import Messager

__all__ = ["Messager", "MqttConfig"]

logger = logging.getLogger(__name__)
