"""Where the broker is, as AgentSociety's code says it, or by an MqttConfig."""

from pydantic import ValidationError

from ray_messaging.config import MqttConfig
from ray_messaging.errors import ConfigError

PORT, TIMEOUT_S = 1883, 60


def broker_config(
    hostname: object, port: int, username: str | None, password: str | None, timeout: float
) -> MqttConfig:
    """Make the config of a broker; raise ConfigError, which never shows the password."""
    if isinstance(hostname, MqttConfig) or (isinstance(hostname, str) and "://" in hostname):
        if (port, username, password, timeout) != (PORT, None, None, TIMEOUT_S):
            raise ConfigError(
                f"a{'n MqttConfig' if isinstance(hostname, MqttConfig) else ' URL'} says all there is to say of a "
                "broker: put port, username, password and timeout there"
            )
        return hostname if isinstance(hostname, MqttConfig) else MqttConfig.from_url(hostname)
    try:
        return MqttConfig.model_validate(
            {
                "server": hostname,
                "port": port,
                "username": username,
                # Files of settings have an empty one for none, and paho takes it for none.
                "password": None if username is None and password == "" else password,
                "timeout": timeout,
            }
        )
    except ValidationError as error:
        wrong = "; ".join(
            f"{'.'.join(map(str, each['loc'])).replace('server', 'hostname') or 'the broker'}: {each['msg']}"
            for each in error.errors(include_input=False, include_url=False, include_context=False)
        )
        raise ConfigError(f"these settings of an MQTT broker cannot work: {wrong}") from None
