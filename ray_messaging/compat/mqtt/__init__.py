"""AgentSociety's earlier Messager, which uses an MQTT broker.

Code written for `from agentsociety.message import Messager` runs with `from ray_messaging.compat.mqtt import Messager`.
It needs the extra `ray-messaging[mqtt]`. See docs/mqtt.md.
"""

import logging

from ray_messaging.compat.mqtt.config import MqttConfig

try:
    from ray_messaging.compat.mqtt.messager import Messager
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"MQTT needs the extra: pip install 'ray-messaging[mqtt]' (there is no module {error.name!r})", name=error.name
    ) from error

__all__ = ["Messager", "MqttConfig"]

logger = logging.getLogger(__name__)
